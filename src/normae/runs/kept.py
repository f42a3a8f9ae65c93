"""A finished run in memory: its files as bytes, which a pickle can hold and a folder can be made of."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from normae.config import Run
from normae.errors import InputError
from normae.files import new_folder
from normae.runs.folder import RunFolder
from normae.runs.load import Loaded, load_run
from normae.runs.session import train
from normae.runs.writing import Watch
from normae.sources import Events

FILES = ("config.toml", "model.safetensors", "provenance.json", "metrics.jsonl")
Kept = Mapping[str, bytes]
"""The files of a run by name."""


def train_in_memory(run: Run, events: Events, watch: Watch | None = None) -> dict[str, bytes]:
    """Train, and give the files of the run folder."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        if not train(run, folder, watch=watch, events=events):
            raise KeyboardInterrupt
        return keep(folder)


def keep(folder: str | Path) -> dict[str, bytes]:
    """The files of a run folder."""
    run = RunFolder.existing(folder)
    return {name: (run.path / name).read_bytes() for name in FILES if (run.path / name).is_file()}


def open_kept(kept: Kept) -> Loaded:
    """The model of a run in memory, with its configuration."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        write_kept(kept, folder)
        return load_run(folder)


def write_kept(kept: Kept, folder: str | Path) -> None:
    """Make a run folder, which must not be there."""
    path = Path(folder)
    if path.exists():
        raise InputError(f"{folder}: exists; choose a new folder")
    with new_folder(path) as temporary:
        for name, content in kept.items():
            (temporary / name).write_bytes(content)
