"""Runs that differ in their seeds: which they are, and that they do not differ in more."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from normae.config import Run, read
from normae.errors import InputError
from normae.runs.folder import RunFolder
from normae.runs.load import run_of

FREE = ("name", "seed", "start", "device", "threads")
"""Settings in which seeds of one training may differ."""


def seed_folders(runs: Sequence[str | Path]) -> list[RunFolder]:
    """Run folders, or else models of the zoo, or the runs in one folder of seeds."""
    if len(runs) == 1 and (members := RunFolder(runs[0]).members()):
        return members
    return [run_of(run) for run in runs]


def shared_settings(folders: Sequence[RunFolder]) -> Run:
    """Those of the first run, which all others must have; runs that began with an autoencoder have no pretraining."""
    first = read(folders[0].config)
    for folder in folders[1:]:
        config = read(folder.config)
        free = (*FREE, "pretraining") if first.start and config.start else FREE
        same = replace(config, **{name: getattr(first, name) for name in free})
        others = [name for name in vars(first) if getattr(same, name) != getattr(first, name)]
        if others:
            raise InputError(
                f"{folder.path}: expected the settings of {folders[0].path} with another seed, got another {others[0]}"
            )
    return first
