"""Jet presets at sizes that train in a second, on the sample that the tests carry."""

from pathlib import Path

import torch

from normae.config import Run, read
from normae.runs.folder import RunFolder, read_tensors

CONFIGS = Path(__file__).parents[1] / "configs"
SAMPLE = Path(__file__).parent / "jets" / "data" / "sample.npz"
TINY = [
    "device=cpu", "data.train=60", "data.test=20", "data.validation=10", "network.channels=2", "network.hidden=[8]",
    "pretraining.epochs=2", "pretraining.batch=20", "training.epochs=1", "training.batch=10", "sampling.buffer=20",
    "sampling.latent.steps=2", "sampling.feature.steps=2", "guard.log_every=2", "guard.checkpoint_every=2",
    "guard.largest_gap=1e9",
]  # fmt: skip


def tiny_jets(preset: str, *changes: str) -> Run:
    return read(CONFIGS / f"{preset}.toml", [*TINY, f"data.path={SAMPLE}", *changes])


def same(a: Path, b: Path) -> bool:
    first, second = (read_tensors(RunFolder(path).model) for path in (a, b))
    assert first[1] == second[1]
    return all(torch.equal(first[0][name], second[0][name]) for name in first[0] | second[0])
