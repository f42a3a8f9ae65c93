"""The presets: the settings of complete trainings as TOML files, found by name from anywhere."""

import difflib
from collections.abc import Iterable
from pathlib import Path

from normae.errors import InputError

_PACKAGE = Path(__file__).parent
_PLACES = (_PACKAGE / "configs", _PACKAGE.parents[1] / "configs")  # in the installed package, and in a clone of it


def presets(folder: Path | None = None) -> dict[str, Path]:
    """All presets by name, those of `folder` or the package's own.

    >>> from normae.presets import describe, presets
    >>> describe(presets()["toy-quick"])
    'The demo: a small toy in one or two minutes on a CPU.'
    """
    places = _PLACES if folder is None else (folder,)
    return {path.stem: path for place in reversed(places) for path in sorted(place.glob("*.toml"))}


def describe(path: Path) -> str:
    """What a preset is: its first comment line."""
    with path.open(encoding="utf-8") as file:
        return file.readline().lstrip("# ").rstrip()


def preset_path(name: str, folder: Path | None = None) -> Path:
    """Where the preset `name` is, in `folder` or in the package; an unknown one is named with its nearest."""
    known = presets(folder)
    if name not in known:
        raise InputError(f"{name}: no such preset{'' if folder is None else f' in {folder}'}{nearest(name, known)}")
    return known[name]


def nearest(
    name: str, known: Iterable[str], what: str = "presets", others: str = "`normae presets` lists their names"
) -> str:
    """What to say of a name that is not known: those like it."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.3)
    return f"; {what} with names like it: {', '.join(near)}" if near else f"; {others}"
