"""The events of a run: training and test sample, from a toy density, a file, or files of jets."""

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from normae.config import DataConfig
from normae.data import DENSITIES, Density, SparseEvents, read_table, split
from normae.errors import InputError
from normae.jets import SparseImages, read, read_images, sparse_images
from normae.jets.imaging import SIGMA, filter_matrix
from normae.jets.sparse import is_images
from normae.random import stream


class Events(NamedTuple):
    """Training and test events with shape (N, *event), and the true density where it is known.

    Jets for training stay sparse; a batch of them is made dense on the device. `columns` are the names of the features
    of a table that has names.
    """

    train: Tensor | SparseEvents
    test: Tensor
    density: Density | None
    columns: tuple[str, ...] | None = None


def load_events(config: DataConfig, seed: int) -> Events:
    """The events of a run with this seed. Training and test never share one."""
    if config.density is not None:
        density = DENSITIES[config.density]()
        train = density.sample(config.train, stream(seed, "data/train"))
        return Events(train, density.sample(max(config.test, 1), stream(seed, "data/test")), density)
    if config.jets is not None:
        return load_jets(config, seed)
    assert config.file is not None
    values, columns = read_table(config.file, config.columns, config.dataset)
    events = torch.from_numpy(values)
    train_size = config.train or len(events) - config.test
    if train_size < 1 or train_size + config.test > len(events):
        raise InputError(
            f"{config.file}: expected at least {max(train_size, 1) + config.test} events for train = {config.train} "
            f"and test = {config.test}, got {len(events)}"
        )
    first, second = split(len(events), [train_size, config.test], stream(seed, "data/split"))
    return Events(events[first], events[second], None, columns)


def load_jets(config: DataConfig, seed: int) -> Events:
    """Images of the jets of one class, in the order of the files; one file is split by the seed."""
    assert config.jets is not None
    path = jets_path(config)
    if path.is_dir():
        train = read_sparse(file_in(path, "train"), config.jets)
        test = read_sparse(file_in(path, "test"), config.jets)
        sizes = (config.train or len(train), config.test or len(test))
        for sample, size, name in zip((train, test), sizes, ("train", "test"), strict=True):
            if size > len(sample):
                raise InputError(f"{path}: expected {size} {config.jets} jets in {name}, got {len(sample)}")
        return Events(train.first(sizes[0]), test.first(sizes[1]).dense(), None)
    everything = read_sparse(path, config.jets)
    size = config.train or len(everything) - config.test
    if size < 1 or size + config.test > len(everything):
        raise InputError(
            f"{path}: expected at least {max(size, 1) + config.test} {config.jets} jets for train = {config.train} and "
            f"test = {config.test}, got {len(everything)}"
        )
    first, second = split(len(everything), [size, config.test], stream(seed, "data/split"))
    return Events(everything.rows(first), everything[second], None)


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
    """The images of one class, filled pixels side by side."""
    counts = np.diff(images.offsets)
    chosen = images.labels == ("qcd", "top").index(kind)
    pixel = np.zeros((int(chosen.sum()), int(counts[chosen].max(initial=1))), dtype=np.int16)
    value = np.zeros(pixel.shape, dtype=np.float32)
    filled = np.arange(pixel.shape[1]) < counts[chosen][:, None]
    kept = np.repeat(chosen, counts)
    pixel[filled], value[filled] = images.pixel[kept].astype(np.int16), images.value[kept]
    return SparseEvents(torch.from_numpy(pixel), torch.from_numpy(value), torch.from_numpy(filter_matrix(SIGMA)))


def training_samples(events: Sequence[Events]) -> Sequence[Tensor] | Sequence[SparseEvents]:
    """The training samples of several runs, all dense or all sparse."""
    sparse = [e.train for e in events if isinstance(e.train, SparseEvents)]
    return sparse or [e.train for e in events if isinstance(e.train, Tensor)]


def events_hash(events: Tensor | SparseEvents) -> str:
    """SHA-256 of the bytes of events."""
    if isinstance(events, SparseEvents):
        return events.sha256()
    return hashlib.sha256(events.contiguous().numpy().tobytes()).hexdigest()


def choose_device(name: str) -> torch.device:
    """The device called `name`; "auto" is CUDA where there is one, otherwise the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise InputError(f"device: expected auto, cpu or cuda, got {name!r}")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device: cuda was asked for, but there is no CUDA device; use auto or cpu")
    return device
