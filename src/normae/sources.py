"""The events of a run: training, validation and test sample, from a toy density, a table, or files of jets.

A sample is drawn or read when it is first asked for, so that whoever needs test events alone does not pay, and does not
have to have, the training events.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normae.data import DENSITIES, Density, Rows, SparseEvents, read_rows, split
from normae.data.frames import Categories, Missing
from normae.errors import DataChanged, InputError, decided, refuse, require_that
from normae.files import check_unchanged, digest, states
from normae.jets import PUBLIC, read, read_images, sparse_images
from normae.jets.container import UNLABELLED
from normae.jets.imaging import SIGMA, SparseImages, filter_matrix
from normae.jets.reader import is_images
from normae.tensors import stream

LARGEST = 1e18  # number that can be trained on
OUTSIDE = 1e-3  # share of the rows that may lie outside the bounds of the chain: the tails of a toy density do
PUBLIC_JETS = "jets are the 2,000 public ones of the package (zenodo.org/records/2603256, CC BY 4.0)"
Bounds = tuple[float, float]
Kind = Literal["qcd", "top"]
SUFFIXES = (".npz", ".h5", ".hdf5")
KINDS: tuple[Kind, Kind] = ("qcd", "top")  # by label: 0 for QCD, 1 for top
Known = Mapping[str, Any]  # what provenance.json says
NOTHING: Known = {}
MOST_EVENTS = 1_000_000_000  # a larger number is a slip of the hand


@dataclass(frozen=True)
class DataConfig:
    """Where the training events come from: a toy density, a file, or jets; one of the three.

    Args:
        density: a key of `normae.data.DENSITIES`.
        file: a table: .npy, .npz, .csv, .parquet, .h5, .hdf5 or .root.
        columns: of the file, in this order; all of them where it is None.
        dataset: the array of an .npz file, the group or dataset of an HDF5 file, the tree of a ROOT file; not needed
            where there is no choice.
        weights: the column with the weights of the rows, which is no feature; negative ones count as such. Of an .npz
            or HDF5 file whose table is an array, another array.
        categories: of each column of text its categories, in the order of their codes; found by a training on a file.
        missing: of the file, whether rows with missing values, NaN, are refused, or dropped.
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
    weights: str | None = None
    categories: Categories = ()
    missing: Missing = "refuse"
    jets: Literal["qcd", "top", "both"] | None = None
    path: str | None = None
    train: int = 500_000
    test: int = 250_000
    validation: int = 0

    def __post_init__(self) -> None:
        if sum(source is not None for source in (self.density, self.file, self.jets)) != 1:
            raise InputError("data: expected one of density, file and jets, and only one")
        refuse(self.path and not self.jets, "data.path: expected data.jets with it, which says what to take from there")
        for name in ("columns", "dataset", "weights"):
            if getattr(self, name) is not None and self.file is None:
                raise InputError(f"data.{name}: expected data.file with it, which says where to take them from")
        if self.columns is not None and not 0 < len(set(self.columns)) == len(self.columns):
            raise InputError(f"data.columns: expected different names, at least one, got {list(self.columns)}")
        if self.categories and self.columns is not None and len(self.categories) != len(self.columns):
            raise InputError(f"data.categories: expected a list for each of {len(self.columns)} columns")
        if self.density is not None and self.density not in DENSITIES:
            raise InputError(f"data.density: expected one of {sorted(DENSITIES)}, got {self.density!r}")
        for name in ("train", "test", "validation"):
            value, least = getattr(self, name), 1 if self.density and name != "validation" else 0
            require_that(least <= value <= MOST_EVENTS, f"data.{name}", f"{least} to {MOST_EVENTS} events", value)


class Weights(NamedTuple):
    """Of training, validation and test rows, with shape (N,) each and mean 1."""

    train: Tensor
    validation: Tensor
    test: Tensor


class Events:
    """Training, validation and test events of a run with shape (N, *event), each made when it is first asked for.

    Training and test never share an event, nor do validation events belong to either. Jets for training stay sparse; a
    batch of them is made dense on the device. Rows of a table are in float64.

    Args:
        train, validation, test: make the samples; `validation` gives None where a run asks for none.
        density: the true density, where it is known.
        columns, weights: give names of the features and weights of the rows of a table that has some.
        digest: gives a hash of all rows of a table, and of how they were cut.
    """

    def __init__(
        self, train: Callable[[], Tensor | SparseEvents], validation: Callable[[], Tensor | SparseEvents | None],
        test: Callable[[], Tensor], density: Density | None = None,
        columns: Callable[[], tuple[str, ...] | None] = lambda: None,
        weights: Callable[[], Weights | None] = lambda: None, digest: Callable[[], str] | None = None,
    ) -> None:  # fmt: skip
        self._train, self._validation, self._test, self._columns = train, validation, test, columns
        self._weights, self.digest, self.density = weights, digest, density

    train: cached_property[Tensor | SparseEvents] = cached_property(lambda self: self._train())
    validation: cached_property[Tensor | SparseEvents | None] = cached_property(lambda self: self._validation())
    test: cached_property[Tensor] = cached_property(lambda self: self._test())
    columns: cached_property[tuple[str, ...] | None] = cached_property(lambda self: self._columns())
    weights: cached_property[Weights | None] = cached_property(lambda self: self._weights())

    def with_rows(self, index: Tensor, held: Tensor | None = None) -> "Events":
        """The same with other training events, those of `index` in its order, and validation events of `held`."""

        def some(sample: Any, rows: Tensor | None) -> Any:
            if rows is None or sample is None:
                return sample
            return sample.rows(rows) if isinstance(sample, SparseEvents) else sample[rows]

        train, validation, given = some(self.train, index), some(self.validation, held), self.weights
        if given is not None:
            given = Weights(some(given.train, index), some(given.validation, held), given.test)
        made = (lambda: train, lambda: validation, lambda: self.test)
        return Events(*made, self.density, lambda: self.columns, lambda: given)


def load_events(config: DataConfig, seed: int, table: Rows | None = None, known: Known = NOTHING) -> Events:
    """The events of a run with this seed; a `table` in memory is in place of `config.file`.

    Other rows, or files of jets, than those in the provenance of a run (`known`) are refused, as by `check_jets`.
    """
    if config.jets is not None:
        return load_jets(config, seed, known)
    if config.density is None:
        return _rows(config, seed, table, known.get("data_sha256"))
    density = DENSITIES[config.density]()

    def sample(name: str) -> Tensor:
        """Each from its own random stream."""
        return density.sample(getattr(config, name), stream(seed, f"data/{name}"))

    held = (lambda: sample("validation")) if config.validation else lambda: None
    return Events(lambda: sample("train"), held, lambda: sample("test"), density)


def _rows(config: DataConfig, seed: int, given: Rows | None, expected: str | None) -> Events:
    """Rows of a table, read once and split by the seed.

    Where no test rows are asked for, validation rows stand for them: they decided on when the start ended, and on
    nothing else.
    """
    test = 1 if config.test else 2

    @cache
    def table() -> tuple[Rows, list[Tensor]]:
        """All rows, and which of them train, test and validate."""
        rows, file = given, str(config.file)
        if rows is None:
            rows = read_rows(file, config.columns, config.dataset, config.weights, config.missing, config.categories)
            _check_sizes(torch.from_numpy(rows.values), rows.columns, file)
        rows = rows._replace(columns=rows.columns or config.columns)  # names that the configuration gives to an array
        if expected is not None and hashed(rows) != expected:
            raise DataChanged(f"{file}: not the rows that the run was trained on; put them back, or train again")
        return rows, _parts(len(rows.values), config, seed, file)

    def hashed(rows: Rows) -> str:
        """Of values, names and weights, in the order of the file, and of what is cut out of them."""
        facts = [rows.columns, rows.values.shape, config.train, config.test, config.validation, seed]
        found = hashlib.sha256(json.dumps(facts).encode())
        for array in (rows.values, rows.weights):
            found.update(b"" if array is None else np.ascontiguousarray(array).data)
        return found.hexdigest()

    def part(k: int) -> Tensor:
        rows, parts = table()
        return torch.from_numpy(rows.values[parts[k]])

    def weights() -> Weights | None:
        given, parts = table()[0].weights, table()[1]
        return None if given is None else Weights(*(_mean_one(given[parts[k]], config) for k in (0, 2, test)))

    parts = (lambda: part(0), lambda: part(2) if config.validation else None, lambda: part(test))
    return Events(*parts, None, lambda: table()[0].columns, weights, lambda: hashed(table()[0]))


def _mean_one(given: NDArray[np.float64], config: DataConfig) -> Tensor:
    weights = torch.from_numpy(given)
    expected = "weights with a positive sum, in training, validation and test rows each"
    got = f"{weights.sum():.4g} for {len(weights)} of them; give more rows"
    require_that(not len(weights) or bool(weights.sum() > 0), str(config.file), expected, got)
    return weights.double() / weights.mean()


def _parts(n: int, config: DataConfig, seed: int, source: str = "", things: str = "events") -> list[Tensor]:
    """Which of `n` events train, test and validate; `source` and `things` are named where they are too few."""
    size = config.train or n - config.test - config.validation
    needed = max(size, 1) + config.test + config.validation
    if size < 1 or needed > n:
        held = f", test = {config.test} and validation = {config.validation}" if config.validation else ""
        asked = f"train = {config.train}{held or f' and test = {config.test}'}"
        raise InputError(f"{source}: expected at least {needed} {things} for {asked}, got {n}; lower these")
    return split(n, [size, config.test, config.validation], stream(seed, "data/split"))


def check_rows(rows: Tensor, bounds: Bounds | None, columns: Sequence[str] | None, source: str, allowed: float) -> None:
    """Refuse rows (N, d) that are not finite or too large, or a share above `allowed` outside the chain's bounds."""
    _check_sizes(rows, columns, source)
    if bounds is None:
        return
    outside = ((rows < bounds[0]) | (rows > bounds[1])).flatten(1)
    count = int(outside.any(1).sum())
    if count > allowed * len(rows):
        place = int(outside.sum(0).argmax())
        column = rows.flatten(1)[:, place]
        many = f"{count} of {len(rows)} rows lie outside the bounds of the chain, {bounds[0]:g} to {bounds[1]:g}"
        most = f"most in {named(columns, place)}, which goes from {column.min():g} to {column.max():g}"
        how = 'set coordinates.kind = "table", or widen sampling.feature.bounds'
        raise InputError(f"{source}: {many}, {most}; {how}")


def _check_sizes(rows: Tensor, columns: Sequence[str] | None, source: str) -> None:
    """An energy is a mean of squares: refuse numbers whose squares float32 cannot hold, infinity, and NaN."""
    largest = rows.abs().flatten(1).amax(0)
    place = int(largest.argmax())
    expected = f"numbers up to {LARGEST:g}, whose squares float32 holds"
    got = f"{largest[place]:.3g} in {named(columns, place)}; rescale it, or remove such rows"
    require_that(bool(largest[place] <= LARGEST), source, expected, got)


def named(columns: Sequence[str] | None, place: int) -> str:
    """A column in words: by its name, where it has one."""
    return f"column {columns[place]!r}" if columns is not None else f"feature {place}"


def load_jets(config: DataConfig, seed: int, known: Known = NOTHING) -> Events:
    """Images of the jets of one class, in the order of the files; one file is split by the seed."""
    kind = config.jets
    if kind is None or kind == "both":
        raise InputError(f'data.jets: expected "qcd" or "top", got {kind!r}; only a classifier is trained on both')
    path = jets_path(config)

    @cache
    def everything() -> tuple[SparseEvents, list[Tensor]]:
        """All jets of the one file, and which of them train, test and validate."""
        events = read_sparse(check_jets(path, known), kind)
        return events, _parts(len(events), config, seed, str(path), f"{kind} jets")

    def part(k: int, name: str, size: int) -> SparseEvents:
        """Part k of one file; the first `size` jets, or all of them for 0, of the file `name` in a folder."""
        if not path.is_dir():
            events, parts = everything()
            return events.rows(parts[k])
        sample = read_sparse(check_jets(file_in(path, name), known), kind)
        refuse(size > len(sample), f"{path}: expected {size} {kind} jets in {name}, got {len(sample)}")
        return sample.first(size or len(sample))

    held = (lambda: part(2, "val", config.validation)) if config.validation else lambda: None
    return Events(lambda: part(0, "train", config.train), held, lambda: part(1, "test", config.test).dense())


def load_both(config: DataConfig, seed: int, known: Known = NOTHING) -> tuple[list[SparseEvents], list[SparseEvents]]:
    """Training and validation jets of QCD and of top: what a classifier is made from."""
    both = [load_jets(replace(config, jets=kind), seed, known) for kind in KINDS]
    return [events.train for events in both], [events.validation for events in both]  # type: ignore[misc] # stay sparse


def _jet_files(path: Path) -> list[Path]:
    """A file of jets, or those of a folder that are there."""
    names = [path / f"{name}{suffix}" for name in ("train", "val", "test") for suffix in SUFFIXES]
    return [file.resolve() for file in names if file.is_file()] if path.is_dir() else [path.resolve()]


def jets_hashes(config: DataConfig) -> dict[str, str]:
    """SHA-256 of all files of jets that a run may read, by their paths; nothing of other runs."""
    return {} if config.jets is None else {str(file): str(digest(file)) for file in _jet_files(jets_path(config))}


def check_jets(path: Path, known: Known) -> Path:
    """A file or folder of jets; refused where a file is not as the run knows it, or, of its own, none that it knows."""
    hashes = known.get("jets_sha256", {})
    for file in _jet_files(path) if hashes else ():
        before, found = hashes.get(str(file)), digest(file)
        if found != before and (before is not None or (known.get("own") and found not in hashes.values())):
            raise DataChanged(f"{file}: not the jets that the run was made with; put them back, or train again")
    return path


def jets_path(config: DataConfig, judged: bool = False) -> Path:
    """Where the jets of a run are: `data.path`, or the environment variable NORMAE_JETS.

    Where neither says it, a run is `judged` on the public jets of the package; nothing is trained on these.
    """
    given = config.path or os.environ.get("NORMAE_JETS") or (str(PUBLIC) if judged else "")
    refuse(not given, "data.path: expected a file or folder of jets there, or in the variable NORMAE_JETS")
    refuse(not Path(given).exists(), f"{given}: no such file or folder of jets")
    if not config.path:
        decided(PUBLIC_JETS if given == str(PUBLIC) else f"jets are taken from {given}, as NORMAE_JETS says")
    return Path(given)


def file_in(folder: Path, name: str) -> Path:
    """The file called `name` in a folder of jets."""
    for suffix in SUFFIXES:
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    raise InputError(f"{folder}: expected a file {name}.npz or {name}.h5 in it")


def held_out(events: SparseEvents, config: DataConfig, seed: int, part: int = 1) -> SparseEvents:
    """What the split of one file kept for the test, or for validation (`part` 2); all of one too small to train on."""
    if max(config.train, 1) + config.test + config.validation > len(events):
        return events
    return events.rows(_parts(len(events), config, seed)[part])


def read_sparse(path: Path, kind: Kind) -> SparseEvents:
    """Images of all jets of one class in a file of jets or of images."""
    return events_of_class(read_jet_images(path), kind)


def read_jet_images(path: Path) -> SparseImages:
    """The images of all jets of a file of jets or of images."""
    before = states([path])
    images = read_images(path) if is_images(path) else sparse_images(read(path))
    check_unchanged(path, [path], before)
    return images


def events_of_class(images: SparseImages, kind: Kind) -> SparseEvents:
    """The images of one class."""
    if (images.labels == UNLABELLED).any():
        raise InputError(f"expected labels (0 for QCD, 1 for top) to choose {kind} jets by, got jets without labels")
    return sparse_events(images, images.labels == KINDS.index(kind))


def sparse_events(images: SparseImages, chosen: NDArray[np.bool_]) -> SparseEvents:
    """Events of the chosen ones of N images; `chosen` has shape (N,)."""
    counts = np.diff(images.offsets)
    pixel = np.zeros((int(chosen.sum()), int(counts[chosen].max(initial=1))), dtype=np.int16)
    value = np.zeros(pixel.shape, dtype=np.float32)
    filled = np.arange(pixel.shape[1]) < counts[chosen][:, None]
    kept = np.repeat(chosen, counts)
    pixel[filled], value[filled] = images.pixel[kept].astype(np.int16), images.value[kept]
    return SparseEvents(torch.from_numpy(pixel), torch.from_numpy(value), torch.from_numpy(filter_matrix(SIGMA)))


def pieces(events: SparseEvents) -> Iterator[NDArray[np.float32]]:
    """Dense images with shape (n, 1, 40, 40), some of them at a time."""
    for rows in torch.split(torch.arange(len(events)), 2048):
        yield events[rows].numpy()


def bootstrapped(events: Events, seed: int) -> Events:
    """The same with as many training events, drawn from them with replacement."""
    n = len(events.train)
    return events.with_rows(torch.randint(n, (n,), generator=stream(seed, "data/bootstrap")))


def halved(events: Events, seed: int) -> list[Events]:
    """The two halves of the training events, and of the validation events, in random order; odd ones share an event."""
    sizes = {"train": len(events.train), "validation": 0 if events.validation is None else len(events.validation)}
    orders = [torch.randperm(n, generator=stream(seed, f"data/half/{name}")) for name, n in sizes.items()]
    first = events.with_rows(*(order[: (len(order) + 1) // 2] for order in orders))
    return [first, events.with_rows(*(order[len(order) // 2 :] for order in orders))]


def in_parts(events: Events, parts: int, seed: int) -> list[Events]:
    """The same with disjoint parts of the training events, in random order; up to `parts` - 1 events are in none."""
    size = len(events.train) // parts
    refuse(not size, f"ensemble: expected at least an event for each of {parts} members, got {len(events.train)}")
    order = torch.randperm(len(events.train), generator=stream(seed, "data/members"))
    return [events.with_rows(order[k * size : (k + 1) * size]) for k in range(parts)]


def events_hash(events: Events) -> str:
    """SHA-256 of the training events; of a table, of all rows with their names and weights."""
    if events.digest is not None:
        return events.digest()
    if isinstance(events.train, SparseEvents):
        return events.train.sha256()
    return hashlib.sha256(events.train.contiguous().numpy().tobytes()).hexdigest()
