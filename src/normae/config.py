"""The configuration of a run: frozen dataclasses composed into one `Run`, read from TOML.

An unknown key is an error that names the key and the nearest right one; so is a value of the wrong type. Nothing is
converted silently.
"""

import difflib
import json
import math
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import torch

from normae.coordinates import CoordinatesConfig
from normae.errors import InputError, refuse, require_that
from normae.inference.ais import AISConfig
from normae.networks.autoencoder import NetworkConfig
from normae.networks.base import BaseConfig
from normae.networks.bayesian import BayesianConfig
from normae.presets import nearest, preset_path, presets
from normae.sampling.config import SamplingConfig
from normae.sources import MOST_EVENTS, DataConfig
from normae.training.config import (
    ClassifierConfig,
    ClassifierSettings,
    ContrastConfig,
    EnsembleConfig,
    GuardConfig,
    PhaseConfig,
    TemperatureConfig,
    TrainingConfig,
)

T = TypeVar("T")
CLASSIFIER_UNUSED = (
    "coordinates", "base", "start", "temperature", "pretraining", "contrast", "training", "guard", "bayesian",
    "ensemble", "sampling", "log_z",
)  # fmt: skip
"""What only autoencoders have."""


@dataclass(frozen=True)
class EvaluationConfig:
    """How a run is judged.

    Args:
        grid: points along each axis of the paper's test grid.
        grid_limit: the test grid covers [-limit, limit] in each feature.
        log_z_cells: cells along each axis for log Z, over the bounds of the feature chain.
        long_factor: how much longer than the paper's recipe the feature chains of the second kind of samples are.
        classifier: the classifier test.
        draws: weight draws of a Bayesian run on jets.
        generated: jets to generate from a run on jets, on a CUDA device; on a CPU only with `--generated`.
    """

    grid: int = 500
    grid_limit: float = 4.0
    log_z_cells: int = 1000
    long_factor: int = 10
    classifier: ClassifierSettings = field(default_factory=ClassifierSettings)
    draws: int = 50
    generated: int = 10_000

    def __post_init__(self) -> None:
        if not 2 <= self.draws <= 1000 or not 0 <= self.generated <= MOST_EVENTS:
            raise InputError("evaluation: expected 2 to 1000 draws and a number of generated jets of at least 0")
        if self.grid < 2 or not 0 < self.grid_limit < math.inf or self.long_factor < 1:
            raise InputError("evaluation: expected grid >= 2, a positive grid_limit and long_factor >= 1")
        even = self.log_z_cells >= 4 and self.log_z_cells % 2 == 0
        require_that(even, "evaluation.log_z_cells", "an even number of at least 4", self.log_z_cells)


@dataclass(frozen=True)
class Run:
    """Everything that decides the result of a run.

    Args:
        bayesian, ensemble: the posterior over weights: mean-field, trained with the network, or an ensemble.
            `normae ensemble` makes runs with both, mean fields of several trainings.
        coordinates: the map from events to what the network sees; kind = "table" for columns in any units.
        base: a density of the rows that the reconstruction error is added to; for a table in coordinates of its own.
        start: a run folder or a name of the zoo whose autoencoder the NAE phase begins with, in place of a pretraining.
        contrast: a start by classification against a known density, in place of [pretraining]; for a whitened table.
        log_z: log Z by annealed importance sampling after the training, for vectors that are too long for a grid.
        classifier: train a supervised classifier of data.jets = "both", the encoder of `network` with one output, and
            no autoencoder; of the other tables only [data], [network] and [evaluation] belong to it.
        threads: CPU threads of the commands on this run; 0 leaves it to torch. Small networks are about as fast with
            one thread, and much faster where the cores are shared.
    """

    data: DataConfig
    name: str = "run"
    seed: int = 0
    device: str = "auto"
    threads: int = 0
    start: str | None = None
    coordinates: CoordinatesConfig = field(default_factory=CoordinatesConfig)
    base: BaseConfig | None = None
    network: NetworkConfig = field(default_factory=NetworkConfig)
    temperature: TemperatureConfig = field(default_factory=TemperatureConfig)
    pretraining: PhaseConfig = field(default_factory=PhaseConfig)
    contrast: ContrastConfig | None = None
    training: TrainingConfig = field(default_factory=TrainingConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    bayesian: BayesianConfig | None = None
    ensemble: EnsembleConfig | None = None
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    log_z: AISConfig | None = None
    classifier: ClassifierConfig | None = None
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        for name in ("seed", "threads"):
            require_that(getattr(self, name) >= 0, name, "a whole number of at least 0", getattr(self, name))
        self._check_classifier()
        if self.coordinates.kind == "table" and self.data.file is None:
            raise InputError('coordinates.kind: expected data.file, a table, with "table"')
        if self.coordinates.kind == "components" and (self.data.jets is None or self.network.kind != "mlp"):
            raise InputError('coordinates.kind: expected data.jets and network.kind = "mlp" with "components"')
        if self.base is not None and (self.coordinates.kind == "identity" or self.contrast is None):
            raise InputError('base: expected coordinates.kind = "table" or "components", and a [contrast] table')
        text = self.data.categories and not self.on_lattice
        needs = "needs the package's own network, coordinates.lattice and no likelihood training (iterations 0)"
        refuse(text, f"data.categories: a column of text {needs}; leave such columns out with --columns")
        self._check_condition()
        self._check_network()
        least = 4 if self.bayesian is None else 2  # without a width of their own their spread is all that is known
        least -= self.coordinates.kind == "components"  # as many as seeds that are looked at
        if self.ensemble is not None:
            require_that(self.ensemble.members >= least, "ensemble.members", f"at least {least}", self.ensemble.members)
        if self.network.spectral_norm and self.bayesian is not None:
            raise InputError("network.spectral_norm: expected no [bayesian] table with it, draws would be rescaled")
        apart = self.base is not None and self.ensemble is not None and not self.halves
        how = "train with --set ensemble.members=8 --set ensemble.events=half"
        refuse(apart, f"the error bars of a table come from trainings on halves of its rows; {how}")
        if self.log_z is not None and self.base is None and self.posteriors:
            raise InputError(f"log_z: expected no [{self.posteriors[0]}] table with it; each draw has its own log Z")
        batch, kept = min(self.training.batch, self.data.train or self.training.batch), self.sampling.buffer
        holds = self.sampling.buffer_space != "feature" or kept >= batch
        require_that(holds, "sampling.buffer", f"at least the batch of {batch} persistent chains", kept)

    @property
    def on_lattice(self) -> bool:
        """Whether columns on a lattice have probabilities: chains of a likelihood training do not walk on one."""
        return self.coordinates.lattice and self.base is not None and self.training.iterations == 0

    def _check_condition(self) -> None:
        """p(x | m) is learned by classification, without a chain, and has no error bars."""
        if not self.coordinates.condition:
            return
        if self.base is None or self.training.iterations != 0:
            raise InputError("condition: expected the package's own network and no likelihood training (iterations 0)")
        refuse(self.posteriors, f"condition: expected no error bars with it, got [{', '.join(self.posteriors)}]")
        text = self.data.categories and any(self.data.categories[place] for place in self.coordinates.condition)
        refuse(text, "condition: expected columns of numbers, got one of text; train on each category by itself")
        refuse(self.data.weights is not None, "condition: expected rows without weights; leave one of both out")
        refuse(self.coordinates.curves != "none", 'condition: expected coordinates.curves = "none" with it')

    def _check_network(self) -> None:
        """A spherical latent space has its chain. Own networks have no error bars, an energy alone no latent space."""
        sphere, chain = self.network.latent_space == "sphere", self.sampling.latent.sphere
        if sphere and chain is None:
            raise InputError('sampling.latent.sphere: expected "geodesic" or "project" for a spherical latent space')
        refuse(chain and not sphere, 'sampling.latent.sphere: expected network.latent_space = "sphere" with it')
        if self.sampling.feature.sphere is not None:
            raise InputError("sampling.feature.sphere: events do not live on a sphere; only the latent chain may")
        if self.network.kind != "own":
            return
        without = [*self.posteriors, *(["start"] if self.start else []), *(["classifier"] if self.classifier else [])]
        if without or self.network.spectral_norm:
            raise InputError(f"network.kind: networks of your own have no {(without or ['spectral_norm'])[0]}")
        sampling = self.sampling
        if self.network.latent == 0 and (sampling.chains_from != "data" or sampling.replay < 1):
            raise InputError('sampling: an energy of one\'s own has chains_from = "data" and replay = 1 only')
        if self.network.latent == 0 and self.contrast is None and self.pretraining.epochs:
            raise InputError("pretraining.epochs: expected 0, since an energy of your own reconstructs nothing")

    def _check_classifier(self) -> None:
        """A classifier needs both classes and an image network, and nothing of an autoencoder's training."""
        if (self.data.jets == "both") != (self.classifier is not None):
            raise InputError('classifier: expected data.jets = "both" with a [classifier] table, and only with it')
        if self.classifier is None:
            return
        suits = self.network.kind == "conv" and not self.network.spectral_norm and self.data.validation
        wanted = 'network.kind = "conv" without spectral_norm, and data.validation of at least 1'
        refuse(not suits, f"classifier: expected {wanted}")
        for name in self.unused:
            value = getattr(self, name)
            if value is not None and (isinstance(value, str) or value != type(value)()):
                raise InputError(f"{name}: a classifier has no such settings; leave them out")

    @property
    def unused(self) -> tuple[str, ...]:
        """The keys that a run of this kind does not read."""
        return () if self.classifier is None else CLASSIFIER_UNUSED

    @property
    def latent_dimensions(self) -> int:
        """Of the latent space: a sphere in d_z dimensions has one less."""
        return self.network.latent - (self.network.latent_space == "sphere")

    @property
    def halves(self) -> int:
        """Members that have a base of their own each; 0 where there is one base, or none."""
        if self.base is None or self.ensemble is None or self.posteriors != ["ensemble"]:
            return 0
        shared = self.coordinates.kind == "components" and self.ensemble.events == "all"
        return self.ensemble.members if shared or self.ensemble.events == "half" else 0

    def alone(self, seed: int) -> "Run":
        """That of one member."""
        return replace(self, ensemble=None, seed=seed)

    @property
    def posteriors(self) -> list[str]:
        """The tables that say how the weights are uncertain; none for a deterministic run, two for several modes."""
        return [name for name in ("bayesian", "ensemble") if getattr(self, name) is not None]

    @property
    def modes(self) -> bool:
        """Whether the posterior has several modes: the mean fields of several trainings."""
        return self.bayesian is not None and self.ensemble is not None


def choose_device(name: str) -> torch.device:
    """The device called `name`; "auto" is CUDA where there is one, otherwise the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    refuse(not re.fullmatch(r"cpu|cuda(:\d+)?", name), f"device: expected auto, cpu or cuda, got {name!r}")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device: cuda was asked for, but there is no CUDA device; use auto or cpu")
    return device


# --- reading

NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def structure(content: Mapping[str, Any], source: str = "configuration") -> Run:
    """The run that nested dictionaries describe."""
    return structure_as(Run, content, source)


def structure_as(cls: type[T], content: Mapping[str, Any], source: str, where: str = "") -> T:
    """The dataclass that nested dictionaries describe; an unknown key or a wrong type is one sentence."""
    entries = fields(cls)  # type: ignore[arg-type]
    hints, known = get_type_hints(cls), [f.name for f in entries]
    for key in content:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(known)}"
            raise InputError(f"{source}: unknown key {where + key!r}; {hint}")
    for f in entries:
        if f.name not in content and f.default is f.default_factory is MISSING:
            raise InputError(f"{source}: the key {where + f.name!r} is missing")
    values = {key: _typed(hints[key], value, where + key, source) for key, value in content.items()}
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _typed(hint: Any, value: Any, place: str, source: str) -> Any:
    """`value` if it is what a type hint asks for, with lists as tuples and tables as dataclasses."""
    kinds = get_args(hint) if NoneType in get_args(hint) else (hint,)
    if value is None and NoneType in kinds:
        return None
    kind, parts = kinds[0], get_args(kinds[0])
    if is_dataclass(kind) or get_origin(kind) is dict:
        if isinstance(value, Mapping) and parts:
            return {key: _typed(parts[1], item, f"{place}.{key}", source) for key, item in value.items()}
        if isinstance(value, Mapping):
            return structure_as(kind, value, source, f"{place}.")
        expected = "a table"
    elif get_origin(kind) is tuple:
        if isinstance(value, list | tuple) and len(value) == (len(value) if ... in parts else len(parts)):
            return tuple(_typed(parts[0], item, place, source) for item in value)
        expected = "a list" if ... in parts else f"a list of {len(parts)}"
    elif get_origin(kind) is Literal:
        if value in parts:
            return value
        expected = " or ".join(map(repr, parts))
    else:
        if type(value) is kind:
            return value
        if kind is float and type(value) is int and abs(value) < sys.float_info.max:
            return float(value)
        expected = NAMES[kind]
    raise InputError(f"{source}: {place}: expected {expected}, got {value!r}")


def read(source: str | Path, overrides: Sequence[str] = ()) -> Run:
    """The run of a preset, by its name, or of a TOML file, with overrides such as "training.epochs=5".

    >>> from normae.config import read
    >>> read("toy-quick", ["training.iterations=5"]).training.iterations
    5
    """
    path = find(source)
    return beside(structure(_changed(read_toml(path), overrides), str(source)), path.parent)


def find(source: str | Path) -> Path:
    """The TOML file that `source` is, or that it names: a path, or a preset with or without .toml."""
    path = Path(source)
    if path.is_file():
        return path
    name, bare = path.name.removesuffix(".toml"), path.name == str(source)
    if bare and name in presets():
        return presets()[name]
    refuse(path.is_dir(), f"{path}: a folder; expected a TOML file or the name of a preset, or jets there in train.h5")
    if bare and not path.suffix:
        return preset_path(name)
    hint = nearest(name, presets()) if bare and path.suffix == ".toml" else ""
    raise InputError(f"{path}: no such configuration file{hint}")


def override(run: Run, changes: Sequence[str]) -> Run:
    """The run with changes such as "training.epochs=5"."""
    return structure(_changed(tomllib.loads(to_toml(run)), changes))


def beside(run: Run, folder: Path) -> Run:
    """The run with its table in `folder`, where a relative name is that of a file there."""
    name = run.data.file
    if name is None or Path(name).is_absolute() or not (folder / name).is_file():
        return run
    return replace(run, data=replace(run.data, file=str((folder / name).resolve())))


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    path = Path(path)
    refuse(not path.is_file(), f"{path}: no such configuration file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not a TOML file ({error})") from None


def _changed(content: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    for change in changes:
        key, equals, text = change.partition("=")
        refuse(not equals or not key.strip(), f"--set: expected section.key=value, got {change!r}")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError):
            value = text
        table, (*sections, last) = content, key.strip().split(".")
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise InputError(f"--set: {key.strip()!r} goes through {section!r}, which is a value and not a table")
        table[last] = value
    return content


# --- writing


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise InputError(f"{value!r}: expected text that UTF-8 can hold; rename it")
        # Characters as they are: JSON's escapes of those beyond U+FFFF are pairs, which TOML refuses.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return str(value)  # numbers of NumPy too, whose repr is no TOML


def _lines(config: Any, where: str) -> list[str]:
    plain, tables = [], []
    for f in fields(config):
        value = None if f.name in getattr(config, "unused", ()) else getattr(config, f.name)
        if is_dataclass(value):
            tables += ["", f"[{where}{f.name}]", *_lines(value, f"{where}{f.name}.")]
        elif value is not None:
            plain.append(f"{f.name} = {_toml_value(value)}")
    return plain + tables


def to_toml(run: Run) -> str:
    """The complete configuration as TOML; reading it gives the same run."""
    return "\n".join(_lines(run, "")) + "\n"
