"""What a reproduction is made with and what it leaves: settings, models from the zoo or from scratch, tables."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from normae import zoo
from normae.config import read
from normae.errors import InputError, Interrupted
from normae.files import atomic_path, write_json, write_text
from normae.presets import preset_path
from normae.report.paper import markdown_table
from normae.runs.folder import RunFolder, locked
from normae.runs.session import train
from normae.runs.writing import Watch
from normae.sources import KINDS, Kind
from normae.statistics import Estimate

Metrics = dict[str, Estimate]
Rows = list[list[str]]


@dataclass(frozen=True)
class Settings:
    """How a reproduction is made.

    Args:
        scratch: train all models from nothing, instead of taking the zoo's weights; hours on a CPU.
        configs: folder of the presets for that; by default those of the package or of the clone.
        seed: of the new trainings.
        device: where to compute.
        data: a folder of jets with train, val and test; NORMAE_JETS where it is None.
        generated: jets to generate with each model, as in `evaluate`.
        overrides: of the new trainings on jets, "section.key=value".
    """

    scratch: bool = False
    configs: Path | None = None
    seed: int = 0
    device: str = "auto"
    data: Path | None = None
    generated: int | None = None
    overrides: tuple[str, ...] = ()


@dataclass
class Reproduction:
    """What was made.

    Args:
        metrics: of every run and dual test, by its name.
        tables: rows of cells by title, the first row a header.
        left_out: models that are neither in the zoo nor trained.
        notes: what could not be made of what was there, and why.
    """

    metrics: dict[str, Metrics] = field(default_factory=dict)
    tables: dict[str, Rows] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def write(self, out: Path) -> None:
        """table.md with all tables and what is not in them, and table.json with all numbers."""
        pieces = [f"## {title}\n\n{markdown_table(rows)}\n" for title, rows in self.tables.items()]
        if self.left_out:
            pieces.append(f"Not in the zoo, so left out: {', '.join(self.left_out)}.\n")
        pieces += [f"{note}\n" for note in self.notes]
        write_text(out / "table.md", "\n".join(pieces))
        numbers = {
            name: {metric: {"value": m.value, "error": m.error} for metric, m in found.items()}
            for name, found in self.metrics.items()
        }
        write_json(out / "table.json", numbers)


def train_preset(
    folder: RunFolder, preset: str, overrides: Sequence[str], seed: int, settings: Settings, watch: Watch | None
) -> None:
    """Train a preset into a folder, or go on with what is there."""
    config = replace(read(preset_path(preset, settings.configs), overrides), seed=seed)
    if not train(config, folder.path, resume=folder.config.exists(), watch=watch):
        raise Interrupted("stopped; the same command goes on where it was")


def copy_model(name: str, folder: RunFolder) -> None:
    """Copy a model of the zoo into a run folder; one that holds another run is refused."""
    files = [source for source in zoo.path(name).iterdir() if source.is_file()]
    for source in files:
        target = folder.path / source.name
        decisive = source.name in ("config.toml", "model.safetensors")
        if decisive and target.exists() and target.read_bytes() != source.read_bytes():
            raise InputError(f"{folder.path}: holds another run; choose another --out")
    with locked(folder.path):
        for source in files:
            with atomic_path(folder.path / source.name) as temporary:
                shutil.copyfile(source, temporary)


# --- the models of jets

SEEDS = 3
"""Trainings of the BNAE that make one model with several modes."""
BEGINS = {"AE": "NAE", "BAE": "BNAE"}
"""Autoencoders are what the trainings of these begin with."""


class Variant(NamedTuple):
    """A way to train: the end of its models' names, its words in a table, presets, and what is set besides."""

    end: str = ""
    words: str = ""
    preset: str = "best"
    overrides: tuple[str, ...] = ()
    seed: int = 0


BEST = Variant()
PAPER = Variant("-paper", ", paper's settings", "paper")
"""All settings of the paper; its BAE is ours too."""
SMALL = Variant("-3d", ", d_z = 3")
MIXING = Variant("-mixing", ", larger latent steps", "best",
                 ("sampling.latent.step_size=4.5e-4", "sampling.latent.noise=0.03"))  # fmt: skip
"""Steps with which the latent chain forgets where it began, so that the manifold's temperature means something."""
SEEDED = tuple(
    Variant(f"-seed{k}", f", seed {k}", "best", ("training.epochs=25", "training.learning_rate=2.5e-5"), k)
    for k in range(SEEDS)
)
MODES = Variant("-modes", f", mixture of {SEEDS} trainings")


class JetModel(NamedTuple):
    """A model of the section: what it was trained on, the network as the paper's table calls it, and how."""

    kind: Kind | None
    network: str
    variant: Variant = BEST

    @property
    def name(self) -> str:
        """In the zoo."""
        return "-".join(["jets", *([self.kind] if self.kind else []), self.network.lower()]) + self.variant.end

    @property
    def title(self) -> str:
        """In a table."""
        return f"{self.network}{self.variant.words}"

    @property
    def begun(self) -> "JetModel | None":
        """The NAE or BNAE whose training begins with this autoencoder; None for other models."""
        return self._replace(network=BEGINS[self.network]) if self.network in BEGINS else None

    @property
    def preset(self) -> str:
        """Trains it."""
        if self.kind is None:
            return "jets-paper-classifier"
        network = BEGINS.get(self.network, self.network).lower()
        return f"jets-{self.variant.preset}-{self.kind}-{network}{SMALL.end if self.variant == SMALL else ''}"


CLASSIFIER = JetModel(None, "classifier")


def models() -> dict[str, JetModel]:
    """Every model that is trained, by its name in the zoo."""
    found = [CLASSIFIER]
    for kind in KINDS:
        found += [JetModel(kind, network) for network in ("AE", "NAE", "BAE", "BNAE")]
        found += [JetModel(kind, "NAE", SMALL)]
        found += [JetModel(kind, network, PAPER) for network in ("AE", "NAE", "BNAE")]
        found += [JetModel(kind, "NAE", MIXING), *(JetModel(kind, "BNAE", seed) for seed in SEEDED)]
    return {model.name: model for model in found}
