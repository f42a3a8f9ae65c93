"""The events of a run: training and test sample, from a toy density, a file, or files of jets."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normae.data import DENSITIES, Density, SparseEvents, read_table, split
from normae.errors import InputError
from normae.jets import read, read_images, sparse_images
from normae.jets.imaging import SIGMA, filter_matrix
from normae.jets.sparse import SparseImages, is_images
from normae.random import stream

LARGEST = 1e18
"""Number that can be trained on."""


MOST_EVENTS = 1_000_000_000
"""A larger number is a slip of the hand."""


@dataclass(frozen=True)
class DataConfig:
    """Where the training events come from: a toy density, a file, or jets; one of the three.

    Args:
        density: a key of `normae.data.DENSITIES`.
        file: a table: .npy, .npz, .csv, .parquet, .h5, .hdf5 or .root.
        columns: of the file, in this order; all of them where it is None.
        dataset: the array of an .npz file, the group or dataset of an HDF5 file, the tree of a ROOT file; not needed
            where there is no choice.
        jets: the class of jets to train on; images of them are the events. "both" for a classifier, where the numbers
            below are of each class.
        path: of the jets, a folder with the files train, test and, for validation, val (.npz or .h5, jets or images),
            or one file that is split; the environment variable NORMAE_JETS where it is None.
        train: number of training events; 0 takes all of a file that are not held out for test and validation.
        test: number of test events, drawn apart from the training events.
        validation: number of events, apart from both, at which the energy is watched during the training; 0 for none.
    """

    density: str | None = None
    file: str | None = None
    columns: tuple[str, ...] | None = None
    dataset: str | None = None
    jets: Literal["qcd", "top", "both"] | None = None
    path: str | None = None
    train: int = 500_000
    test: int = 250_000
    validation: int = 0

    def __post_init__(self) -> None:
        if sum(source is not None for source in (self.density, self.file, self.jets)) != 1:
            raise InputError("data: expected one of density, file and jets, and only one")
        if self.path is not None and self.jets is None:
            raise InputError("data.path: expected data.jets with it, which says what to take from there")
        for name in ("columns", "dataset"):
            if getattr(self, name) is not None and self.file is None:
                raise InputError(f"data.{name}: expected data.file with it, which says where to take them from")
        if self.columns is not None and not 0 < len(set(self.columns)) == len(self.columns):
            raise InputError(f"data.columns: expected different names, at least one, got {list(self.columns)}")
        if self.density is not None and self.density not in DENSITIES:
            raise InputError(f"data.density: expected one of {sorted(DENSITIES)}, got {self.density!r}")
        lowest = 1 if self.density else 0
        for name, value in (("train", self.train), ("test", self.test)):
            if not lowest <= value <= MOST_EVENTS:
                raise InputError(f"data.{name}: expected {lowest} to {MOST_EVENTS} events, got {value}")
        if not 0 <= self.validation <= MOST_EVENTS:
            raise InputError(f"data.validation: expected 0 to {MOST_EVENTS} events, got {self.validation}")


class Events(NamedTuple):
    """Training and test events with shape (N, *event), and the true density where it is known.

    Jets for training stay sparse; a batch of them is made dense on the device. `columns` are the names of the features
    of a table that has names. `validation` events are apart from both, where a run asks for them.
    """

    train: Tensor | SparseEvents
    test: Tensor
    density: Density | None
    columns: tuple[str, ...] | None = None
    validation: Tensor | SparseEvents | None = None


def load_events(config: DataConfig, seed: int, test: bool = True) -> Events:
    """The events of a run with this seed. Training and test never share one.

    Args:
        test: of jets, whether to read the test sample too; a training does not need it.
    """
    if config.density is not None:
        density = DENSITIES[config.density]()
        train = density.sample(config.train, stream(seed, "data/train"))
        tested = density.sample(max(config.test, 1), stream(seed, "data/test"))
        held = density.sample(config.validation, stream(seed, "data/validation")) if config.validation else None
        return Events(train, tested, density, None, held)
    if config.jets is not None:
        return load_jets(config, seed, test)
    assert config.file is not None
    values, columns = read_table(config.file, config.columns, config.dataset)
    columns = columns or config.columns  # names that the configuration gives to an array without any
    _check_squares(config.file, values, columns)
    events = torch.from_numpy(values)
    parts = _parts(len(events), config, seed, f"{config.file}: expected at least {{}} events")
    held = events[parts[2]] if config.validation else None
    return Events(events[parts[0]], events[parts[1]], None, columns, held)


def _parts(n: int, config: DataConfig, seed: int, expected: str) -> list[Tensor]:
    """Which of `n` events train, test and validate; `expected` begins the sentence for too few."""
    size = config.train or n - config.test - config.validation
    needed = max(size, 1) + config.test + config.validation
    if size < 1 or needed > n:
        held = f", test = {config.test} and validation = {config.validation}" if config.validation else ""
        raise InputError(
            f"{expected.format(needed)} for train = {config.train}{held or f' and test = {config.test}'}, got {n}"
        )
    return split(n, [size, config.test, config.validation], stream(seed, "data/split"))


def _check_squares(path: str, values: NDArray[np.float32], columns: tuple[str, ...] | None) -> None:
    """An energy is a mean of squares: refuse numbers whose squares float32 cannot hold."""
    flat = values.reshape(len(values), -1)
    largest = np.maximum(flat.max(axis=0), -flat.min(axis=0))
    place = int(np.argmax(largest))
    if largest[place] > LARGEST:
        name = f"column {columns[place]!r}" if columns is not None else f"feature {place}"
        raise InputError(
            f"{path}: expected numbers up to {LARGEST:g}, whose squares float32 holds, got {largest[place]:.3g} in "
            f"{name}; rescale it, or remove such rows"
        )


def load_jets(config: DataConfig, seed: int, test: bool = True) -> Events:
    """Images of the jets of one class, in the order of the files; one file is split by the seed."""
    assert config.jets is not None
    if config.jets == "both":
        raise InputError('data.jets: expected "qcd" or "top", got "both", which only a classifier is trained on')
    path = jets_path(config)
    if path.is_dir():
        train = _jets_in(path, "train", config.jets, config.train)
        tested = _jets_in(path, "test", config.jets, config.test) if test else train.first(0)
        held = _jets_in(path, "val", config.jets, config.validation) if config.validation else None
        return Events(train, tested.dense(), None, None, held)
    everything = read_sparse(path, config.jets)
    parts = _parts(len(everything), config, seed, f"{path}: expected at least {{}} {config.jets} jets")
    held = everything.rows(parts[2]) if config.validation else None
    return Events(everything.rows(parts[0]), everything[parts[1][: None if test else 0]], None, None, held)


def load_both(config: DataConfig, seed: int) -> tuple[dict[str, SparseEvents], dict[str, SparseEvents]]:
    """Training and validation jets of each class, "qcd" and "top": what a classifier is made from."""
    train: dict[str, SparseEvents] = {}
    held: dict[str, SparseEvents] = {}
    for kind in ("qcd", "top"):
        events = load_jets(replace(config, jets=kind), seed, test=False)
        assert isinstance(events.train, SparseEvents)
        assert isinstance(events.validation, SparseEvents)
        train[kind], held[kind] = events.train, events.validation
    return train, held


def _jets_in(folder: Path, name: str, kind: Literal["qcd", "top"], size: int) -> SparseEvents:
    """The first `size` jets of a class, or all of them for 0, in the file `name` of a folder."""
    sample = read_sparse(file_in(folder, name), kind)
    if size > len(sample):
        raise InputError(f"{folder}: expected {size} {kind} jets in {name}, got {len(sample)}")
    return sample.first(size or len(sample))


def jets_path(config: DataConfig) -> Path:
    """Where the jets of a run are: `data.path`, or the environment variable NORMAE_JETS."""
    given = config.path or os.environ.get("NORMAE_JETS")
    if not given:
        raise InputError("data.path: expected a file or folder of jets there, or in the variable NORMAE_JETS")
    if not Path(given).exists():
        raise InputError(f"{given}: no such file or folder of jets")
    return Path(given)


def file_in(folder: Path, name: str) -> Path:
    """The file called `name` in a folder of jets."""
    for suffix in (".npz", ".h5", ".hdf5"):
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    raise InputError(f"{folder}: expected a file {name}.npz or {name}.h5 in it")


def read_sparse(path: Path, kind: Literal["qcd", "top"]) -> SparseEvents:
    """Images of all jets of one class in a file of jets or of images."""
    return events_of_class(read_jet_images(path), kind)


def read_jet_images(path: Path) -> SparseImages:
    """The images of all jets of a file of jets or of images."""
    return read_images(path) if is_images(path) else sparse_images(read(path))


def events_of_class(images: SparseImages, kind: Literal["qcd", "top"]) -> SparseEvents:
    """The images of one class."""
    return sparse_events(images, images.labels == ("qcd", "top").index(kind))


def sparse_events(images: SparseImages, chosen: NDArray[np.bool_]) -> SparseEvents:
    """Events of the chosen ones of N images; `chosen` has shape (N,)."""
    counts = np.diff(images.offsets)
    pixel = np.zeros((int(chosen.sum()), int(counts[chosen].max(initial=1))), dtype=np.int16)
    value = np.zeros(pixel.shape, dtype=np.float32)
    filled = np.arange(pixel.shape[1]) < counts[chosen][:, None]
    kept = np.repeat(chosen, counts)
    pixel[filled], value[filled] = images.pixel[kept].astype(np.int16), images.value[kept]
    return SparseEvents(torch.from_numpy(pixel), torch.from_numpy(value), torch.from_numpy(filter_matrix(SIGMA)))


def bootstrapped(events: Events, seed: int) -> Events:
    """The same with as many training events, drawn from them with replacement."""
    n = len(events.train)
    return _with_rows(events, torch.randint(n, (n,), generator=stream(seed, "data/bootstrap")))


def in_parts(events: Events, parts: int, seed: int) -> list[Events]:
    """The same with disjoint parts of the training events, in random order; up to `parts` - 1 events are in none."""
    size = len(events.train) // parts
    if not size:
        raise InputError(f"ensemble: expected at least an event for each of {parts} members, got {len(events.train)}")
    order = torch.randperm(len(events.train), generator=stream(seed, "data/members"))
    return [_with_rows(events, order[k * size : (k + 1) * size]) for k in range(parts)]


def _with_rows(events: Events, index: Tensor) -> Events:
    train = events.train.rows(index) if isinstance(events.train, SparseEvents) else events.train[index]
    return events._replace(train=train)


def training_samples(events: Sequence[Events]) -> Sequence[Tensor] | Sequence[SparseEvents]:
    """The training samples of several runs, all dense or all sparse."""
    return _alike([e.train for e in events])


def validation_samples(events: Sequence[Events]) -> Sequence[Tensor] | Sequence[SparseEvents] | None:
    """The validation samples of several runs, or None where they have none."""
    held = [e.validation for e in events if e.validation is not None]
    return _alike(held) if held else None


def _alike(samples: Sequence[Tensor | SparseEvents]) -> Sequence[Tensor] | Sequence[SparseEvents]:
    sparse = [sample for sample in samples if isinstance(sample, SparseEvents)]
    return sparse or [sample for sample in samples if isinstance(sample, Tensor)]


def events_hash(events: Tensor | SparseEvents) -> str:
    """SHA-256 of the bytes of events."""
    if isinstance(events, SparseEvents):
        return events.sha256()
    return hashlib.sha256(events.contiguous().numpy().tobytes()).hexdigest()
