"""Settings of jet trainings against what they should reach.

    python bench/jet_sweep.py OUT NAME=PRESET[,section.key=value...] ... --minutes 9 [--dual CLASSIFIER]

Trains each NAME into OUT/NAME, one after the other in equal shares of the time, and goes on where it stopped when it is
called again. Every 500 iterations of the NAE phase OUT/NAME.jsonl gets a line: AUC and mean energies of validation jets
of both classes, with the weights of now and averaged; OUT/NAME.npz keeps the last energies. With --dual: Pearson and
slope m against the classifier, on the same jets, of each network in OUT trained on QCD with each trained on tops; with
--manifold each energy is divided by the temperature of its own background on the decoder's manifold, as `normae
temperature RUN` gives it, and not by the T of its training. The test sample stays unseen.

With --table [FILE] the trainings in OUT are named WORDS-SEED, and a table has a line for each WORDS, with the scatter
over seeds: E-/E+ over the second half of the looks, latent acceptance, and the AUC of the last look. FILE is one of
docs/numbers, whose table is replaced.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from jet_components import between_commas
from normae import load, load_classifier
from normae.config import Run, read
from normae.errors import InputError
from normae.networks.scoring_energy import ScoringEnergy
from normae.runs.session import train
from normae.sources import load_events
from normae.statistics import Estimate, auc, fit_line, manifold_temperature, pearson
from normae.temperature.estimates import EVEN_POINTS, even_energies, latent_energies
from normae.tensors import stream
from normae.training import Checkpoint, Happening, Record, Rollback, Trainer

KINDS = ("qcd", "top")
Energies = dict[str, np.ndarray]
LOGGED = ("negative_energy", "positive_energy", "latent_acceptance")
MANIFOLD = 2000
"""Jets behind a temperature on the manifold."""


def validation_jets(config: Run, count: int) -> dict[str, torch.Tensor]:
    """Images of both classes, with shapes (n, 1, 40, 40)."""
    found = {}
    for kind in KINDS:
        held = load_events(replace(config.data, jets=kind), config.seed).validation
        found[kind] = held.first(count).dense()
    return found


@torch.no_grad()
def energies(trainer: Trainer, jets: dict[str, torch.Tensor], last: bool) -> Energies:
    """E of jets at the weights of now, or at the averaged ones."""
    energy = trainer.models.energy(trainer.setup.noise.mean(trainer.models.result(last)[0]))
    parts = {kind: [energy(x.to(trainer.setup.device)) for x in images.split(1000)] for kind, images in jets.items()}
    return {kind: torch.cat(pieces).double().cpu().numpy() for kind, pieces in parts.items()}


def tagging(found: Energies, trained_on: str) -> Estimate:
    """AUC of the other class over the one trained on."""
    return auc(found[KINDS[1 - KINDS.index(trained_on)]], found[trained_on])


class Watch:
    """Writes a line every so many iterations."""

    def __init__(self, config: Run, out: Path, name: str, every: int, count: int) -> None:
        self.config, self.out, self.name, self.every = config, out, name, every
        self.jets = validation_jets(config, count)

    def __call__(self, trainer: Trainer, happening: Happening) -> None:
        if isinstance(happening, Rollback):
            self._write({"rollback": happening.reason})
            return
        begins = isinstance(happening, Checkpoint) and happening.iteration == 0
        due = isinstance(happening, Record) and happening.iteration % self.every == 0
        if happening.phase == "training" and (begins or due):
            self._look(trainer, happening)

    def _look(self, trainer: Trainer, happening: Record | Checkpoint) -> None:
        trained_on = str(self.config.data.jets)
        found = energies(trainer, self.jets, last=True)
        line: dict[str, float] = {"iteration": happening.iteration, "auc": tagging(found, trained_on).value}
        if self.config.training.average > 0:
            found = energies(trainer, self.jets, last=False)
            line["auc_averaged"] = tagging(found, trained_on).value
        line |= {f"energy_{kind}": float(values.mean()) for kind, values in found.items()}
        if isinstance(happening, Record):
            line |= {key: happening.values[key][0] for key in LOGGED}
        np.savez(self.out / f"{self.name}.npz", **found)
        self._write(line)

    def _write(self, line: dict[str, float] | dict[str, str]) -> None:
        with (self.out / f"{self.name}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(self.name, {k: v if isinstance(v, str) else float(f"{v:.4g}") for k, v in line.items()}, flush=True)


@torch.no_grad()
def manifold(run: Path, jets: torch.Tensor) -> float:
    """T at which exp(-E/T) over the latent sphere has the mean energy of decoded jets."""
    model = load(run, "auto")
    energy = ScoringEnergy(model.autoencoder)
    z = torch.cat([energy.encode(x.to(model.device)) for x in jets.split(500)])
    found = manifold_temperature(even_energies(energy, z, 0, EVEN_POINTS), latent_energies(energy, z)).temperature
    print(f"{run.name}: manifold {found}", flush=True)
    return found.value


def dual(out: Path, classifier: str, count: int, on_manifold: bool) -> None:
    """Print the dual test of every pair, the averaged weights where there are some."""
    configs = {path.stem: read(out / path.stem / "config.toml") for path in sorted(out.glob("*.npz"))}
    if not configs:
        raise InputError(f"{out}: no energies to compare; train something first")
    jets = validation_jets(next(iter(configs.values())), count)
    model = load_classifier(classifier)
    reference = np.concatenate([model.log_ratio(jets[kind].numpy()) for kind in KINDS])
    labels = np.repeat([0, 1], [len(jets[kind]) for kind in KINDS])
    scores = {}
    for name, config in configs.items():
        with np.load(out / f"{name}.npz") as content:
            scores[name] = np.concatenate([content[kind] for kind in KINDS])
        if scores[name].size != reference.size:
            raise InputError(f"{name}: energies of {scores[name].size} jets, expected {reference.size}; use its --jets")
        own = jets[str(config.data.jets)][:MANIFOLD]
        scores[name] /= manifold(out / name, own) if on_manifold else config.temperature.initial
    by_kind = [[name for name, config in configs.items() if config.data.jets == kind] for kind in KINDS]
    for a in by_kind[0]:
        for b in by_kind[1]:
            ratio = scores[a] - scores[b]
            line = fit_line(reference, ratio, labels, generator=stream(0, "sweep"))
            print(f"{a} {b}: Pearson {pearson(ratio, reference)}, m {line.slope}, C {line.constant}", flush=True)


def table(out: Path, numbers: Path | None) -> None:
    """Print, and write, what the trainings of each kind have in common."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for path in sorted(out.glob("*.jsonl")):
        looks = [line for line in map(json.loads, path.read_text().splitlines()) if "negative_energy" in line]
        if not looks:  # stopped before the first
            continue
        late = looks[len(looks) // 2 :]
        negative, positive, accepted = (np.mean([line[key] for line in late]) for key in LOGGED)
        last = looks[-1]
        values = (negative / positive, accepted, last.get("auc_averaged", last["auc"]))
        found.setdefault(path.stem.rpartition("-")[0], []).append(values)
    rows: list[list[object]] = []
    for words, trainings in sorted(found.items()):
        cells = [
            {"value": round(float(np.mean(column)), 4), "error": round(float(np.std(column, ddof=1)), 4)}
            if len(column) > 1
            else f"{column[0]:.3f}"
            for column in zip(*trainings, strict=True)
        ]
        rows.append([words, str(len(trainings)), *cells])
    header = ["chains", "seeds", "E-/E+", "latent acceptance", "AUC"]
    for row in (header, *rows):
        print(*row, sep=" | ")
    if numbers is not None:
        content = json.loads(numbers.read_text()) | {"header": header, "rows": rows}
        numbers.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("trainings", nargs="*", help="NAME=PRESET[,section.key=value...]; a preset or a TOML file")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=int, default=500)
    parser.add_argument("--jets", type=int, default=5000, help="validation jets of each class")
    parser.add_argument("--dual", help="a trained classifier")
    parser.add_argument("--manifold", action="store_true", help="the dual test at temperatures of the background alone")
    parser.add_argument("--table", nargs="?", const="", help="the table of all trainings, into a file of docs/numbers")
    given = parser.parse_intermixed_args()
    given.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    for k, item in enumerate(given.trainings):
        name, _, spec = item.partition("=")
        preset, *changes = between_commas(spec)
        config = read(preset, changes)
        left = max(given.minutes - (time.monotonic() - begun) / 60, 0.1)
        folder = given.out / name
        watch = Watch(config, given.out, name, given.every, given.jets)
        done = train(config, folder, resume=folder.exists(), watch=watch, minutes=left / (len(given.trainings) - k))
        print(name, "finished" if done else "stopped", flush=True)
    if given.table is not None:
        table(given.out, Path(given.table) if given.table else None)
    if given.dual:
        dual(given.out, given.dual, given.jets, given.manifold)


if __name__ == "__main__":
    main()
