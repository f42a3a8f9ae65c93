"""Files that appear whole or not at all."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from normae.errors import InputError


def check_file(path: str | Path, hint: str = "") -> None:
    """Refuse what is not a file; `hint` says what would be."""
    if not Path(path).is_file():
        problem = "a folder; expected a file" if Path(path).is_dir() else "no such file"
        raise InputError(f"{path}: {problem}{hint}")


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success it becomes `path`, on failure it is removed.

    The temporary keeps the suffix of `path`, since many writers choose the format by it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.part{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path`, which becomes `path` on success and is removed on failure."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, content: Any) -> None:
    """Write `content` as indented JSON to `path` atomically; NaN is refused."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
