"""Files that appear whole or not at all, each with one writer.

Every file is written under a temporary name beside its own (`atomic_path`), flushed to the disk, and then renamed. A
name that a user chose (`output`, `new_folder`) is locked while the work on it lasts, and what has it already stays,
unless `force` says otherwise. Nothing is ever removed but what these functions made.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from normae.errors import InputError, refuse

Place = str | Path  # of a file or a folder
PART, OLD = "normae-part", "normae-old"  # marks in the names of what is not finished, and of what was moved aside
_BEGUN = re.compile(rf"\..*\.[0-9a-f]{{8}}\.{PART}(\..*)?")
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
FULL = (errno.ENOSPC, errno.EDQUOT)


def check_file(path: str | Path, hint: str = "") -> None:
    """Refuse what is not a file; `hint` says what would be."""
    if not Path(path).is_file():
        problem = "a folder; expected a file" if Path(path).is_dir() else "no such file"
        raise InputError(f"{path}: {problem}{hint}")


def states(paths: Iterable[Path]) -> list[list[int]]:
    """What tells files from earlier states of themselves; the time of the last change cannot be set back."""
    return [[s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for s in (p.stat() for p in paths if p.exists())]


def check_unchanged(path: Path, sources: Iterable[Path], before: list[list[int]]) -> None:
    """Refuse a file some of whose `sources` are not in the states in which they were `before`."""
    refuse(states(sources) != before, f"{path}: changed while it was read; call again when it is complete")


def check_new(path: str | Path, force: bool | None = False, folder: bool = False) -> None:
    """Refuse a name that is taken; `force`, None where nobody has it, takes the same kind, a `folder` an empty one."""
    path, there, kinds = Path(path), os.path.lexists(path), ("a file", "a folder")
    if there and not force and not (folder and path.is_dir() and not any(path.iterdir())):
        how = "" if force is None else ", or replace it with --force (force=True)"
        raise InputError(f"{path}: exists already; choose another name{how}")
    refuse(there and path.is_dir() != folder, f"{path}: {kinds[not folder]}, not {kinds[folder]}; choose another name")


def digest(path: Path) -> str | None:
    """SHA-256 of a file; None where there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot
            raise
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, where they are not there."""
    if not path.is_dir():
        make_folder(path.parent)
        refuse(path.exists() and not path.is_dir(), f"{path}: a file, not a folder; choose another name")
        path.mkdir(exist_ok=True)
        sync(path.parent)


# --- one writer


@contextmanager
def held(place: Path, what: Path, shared: bool = False) -> Iterator[None]:
    """Hold the lock `place` for the work on `what`; the kernel frees it when the process ends, however it ends.

    Args:
        shared: hold it together with others who share it.
    """
    make_folder(place.parent)
    file = place.open("a")
    while True:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise InputError(f"{what}: in use by a running job; wait for it or choose another name") from None
        except OSError:
            break  # a file system without locks: publishing by link still replaces nothing
        if place.exists() and os.path.samestat(place.stat(), os.fstat(file.fileno())):
            break
        file.close()  # who held it has removed it: take the new one
        file = place.open("a")
    with file:
        try:
            yield
        finally:
            with suppress(OSError):  # those who share it still need it
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file.fileno()).st_size == 0:  # what holds something is a file of somebody else
                    place.unlink(missing_ok=True)


@contextmanager
def lock(path: Path, shared: bool = False) -> Iterator[None]:
    """Hold the name `path`; alone, without what killed jobs had begun under it."""
    with held(path.with_name(f".{path.name}.lock"), path, shared):
        if not shared:
            stem, suffix = re.escape(path.stem), re.escape(path.suffix)  # what is within one begun was begun too
            clear(path.parent, pattern=rf"\.+{stem}(\.[0-9a-f]{{8}}\.{PART})+{suffix}(\.lock)?")
        yield


def clear(*folders: Path, pattern: str = _BEGUN.pattern) -> None:
    """Remove from folders that are locked what killed jobs had begun, or what else has a name of ours, by `pattern`."""
    for path in [path for folder in folders if folder.is_dir() for path in folder.iterdir()]:
        if re.fullmatch(pattern, path.name) and (PART in path.name or path.is_file()):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def untouched(folder: Path) -> bool:
    """Whether a folder holds nothing but what killed jobs had begun: locks, files, and folders for them."""
    return all(untouched(p) if p.is_dir() else p.name == ".lock" or _BEGUN.fullmatch(p.name) for p in folder.iterdir())


# --- whole or not at all


def _temporary(path: Path, mark: str = PART) -> Path:
    """The suffix stays, since many writers choose the format by it."""
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}.{mark}{path.suffix}")


def _link(temporary: Path, path: Path) -> None:
    """Give a file its name, where that is free."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, *NO_LINKS):
            raise
        check_new(path)
        os.rename(temporary, path)


@contextmanager
def atomic_path(path: str | Path, force: bool = True) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success it becomes `path`, on failure it is removed.

    It takes the place of what has that name, without `force` only a name that is free.
    """
    path = Path(path)
    make_folder(path.parent)
    temporary = _temporary(path)
    temporary.touch(exist_ok=False)
    mode = temporary.stat().st_mode  # what the umask leaves
    try:
        yield temporary
        temporary.chmod(mode)
        sync(temporary)
        (os.replace if force else _link)(temporary, path)
        sync(path.parent)
    except OSError as error:
        if error.errno in FULL:
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def output(path: str | Path, force: bool = False) -> Iterator[Path]:
    """As `atomic_path`, for a name that a user chose: nobody else writes it, and what is there stays unless `force`."""
    path = Path(path)
    with lock(path):
        check_new(path, force)
        with atomic_path(path, force) as temporary:
            yield temporary


@contextmanager
def new_folder(path: str | Path, force: bool | None = False) -> Iterator[Path]:
    """A temporary folder beside `path`, which becomes `path` on success and is removed on failure.

    With `force` it takes the place of an earlier one, all of whose files it must have too.
    """
    path = Path(path)
    with lock(path):
        _put_back(path)
        check_new(path, force, folder=True)
        temporary = _temporary(path)
        temporary.mkdir()
        try:
            yield temporary
            for inside in [*temporary.rglob("*"), temporary]:
                sync(inside)
            _publish_folder(temporary, path, force)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            _put_back(path)


def _publish_folder(temporary: Path, path: Path, force: bool | None) -> None:
    check_new(path, force, folder=True)
    old = {p.relative_to(path) for p in path.rglob("*") if not p.is_dir()} if path.is_dir() else set()
    if foreign := sorted(old - {p.relative_to(temporary) for p in temporary.rglob("*")}):
        raise InputError(f"{path}: holds {foreign[0]}, which is not replaced; move it away, or choose another name")
    if old:
        os.rename(path, _temporary(path, OLD))
    try:
        os.rename(temporary, path)
    except OSError:
        check_new(path, folder=True)
        raise
    sync(path.parent)


def _put_back(path: Path) -> None:
    """What was moved aside for a new folder: its name again where that did not come, or away with it."""
    pattern = rf"\.{re.escape(path.stem)}\.[0-9a-f]{{8}}\.{OLD}{re.escape(path.suffix)}"
    for old in [p for p in path.parent.iterdir() if re.fullmatch(pattern, p.name)]:
        shutil.rmtree(old) if path.exists() else os.rename(old, path)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, content: Any) -> None:
    """Write `content`, which may hold numbers of NumPy, as indented JSON to `path` atomically; NaN is refused."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False, default=lambda numbers: numbers.tolist()) + "\n")


def as_cell(text: str) -> str:
    """Text for a cell of a CSV file: what a spreadsheet would run as a formula begins with an apostrophe."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
