"""The events of a run: training and test sample, from a toy density or a file."""

import hashlib
import re
from typing import NamedTuple

import torch
from torch import Tensor

from normae.config import DataConfig
from normae.data import DENSITIES, Density, read_events, split
from normae.errors import InputError
from normae.random import stream


class Events(NamedTuple):
    """Training and test events with shape (N, *event), and the true density where it is known."""

    train: Tensor
    test: Tensor
    density: Density | None


def load_events(config: DataConfig, seed: int) -> Events:
    """The events of a run with this seed. Training and test never share one."""
    if config.density is not None:
        density = DENSITIES[config.density]()
        train = density.sample(config.train, stream(seed, "data/train"))
        return Events(train, density.sample(max(config.test, 1), stream(seed, "data/test")), density)
    assert config.file is not None
    events = read_events(config.file)
    train_size = config.train or len(events) - config.test
    if train_size < 1 or train_size + config.test > len(events):
        raise InputError(
            f"{config.file}: expected at least {max(train_size, 1) + config.test} events for train = {config.train} "
            f"and test = {config.test}, got {len(events)}"
        )
    first, second = split(len(events), [train_size, config.test], stream(seed, "data/split"))
    return Events(events[first], events[second], None)


def tensor_hash(x: Tensor) -> str:
    """SHA-256 of a tensor's bytes."""
    return hashlib.sha256(x.contiguous().numpy().tobytes()).hexdigest()


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
