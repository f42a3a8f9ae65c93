"""What a user is told: exceptions that say what to do next, and what the machine and its environment decide."""

import importlib
import logging
import os
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

LIMIT = Path("/sys/fs/cgroup/memory.max")  # what a container or a batch job may take, on Linux


class InputError(ValueError):
    """What the user gave cannot be used. One sentence; the command line shows it and exits with code 2."""


class DataChanged(InputError):
    """A finished run finds other data than it was trained on."""


class LogZUnknown(InputError):
    """log p was asked of a model whose partition function is not known."""


class Interrupted(RuntimeError):
    """The user stopped the work; what was done is safe."""


class TrainingDiverged(RuntimeError):
    """A training ran away and the allowed number of rollbacks is used up."""


class ClusterFailed(RuntimeError):
    """The workers of a cluster, or its scheduler, failed for a reason that is not the input's; what is done is kept."""


class LogZDisagreement(RuntimeError):
    """The bounds on log Z disagree, or too few chains carry them: log Z is not known. `result` holds the numbers."""

    def __init__(self, message: str, result: object = None) -> None:
        super().__init__(message)
        self.result = result


def refuse(wrong: object, sentence: str) -> None:
    """Say what cannot be used, where something is wrong with it.

    >>> from normae.errors import refuse
    >>> refuse(2 < 1, "expected at least one")
    """
    if wrong:
        raise InputError(sentence)


def require_that(holds: bool, name: str, expected: str, got: object) -> None:
    """One sentence where a setting does not hold what it should."""
    refuse(not holds, f"{name}: expected {expected}, got {got}")


def check_once(names: Sequence[str], source: str) -> None:
    """Refuse columns with one name, of which nobody could tell which is meant."""
    if twice := [column for column, count in Counter(names).items() if count > 1]:
        raise InputError(f"{source}: the column {twice[0]!r} is there more than once")


def require(extra: str, *packages: str) -> None:
    """One sentence where a package of an extra is not installed."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            missing = error.name or package
            raise InputError(f"{missing} is not installed; `pip install 'normae[{extra}]'` brings it") from None


def team() -> tuple[int, int]:
    """The number of this process and of all, where torchrun started them; 0 of 1 elsewhere.

    RANK and WORLD_SIZE alone count for nothing, since other programs set them too.
    """
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if "TORCHELASTIC_RUN_ID" in os.environ and rank.isdecimal() and size.isdecimal():
        return int(rank), int(size)
    return 0, 1


@cache
def decided(sentence: str) -> None:
    """Say once, however often it comes up, what the environment or the data, and not the user's words, decided."""
    logging.getLogger(__name__).warning(sentence)


def memory() -> int:
    """Bytes of memory that this process may take at most."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = LIMIT.read_text().strip() if LIMIT.is_file() else ""
    return min(whole, int(text)) if text.isdecimal() else whole


def check_memory(size: int, what: str) -> None:
    """Refuse `what`, which takes `size` bytes, before they are taken, where the machine does not have them."""
    refuse(size > memory(), f"{what} takes {size / 1e9:,.1f} GB of memory, this machine has {memory() / 1e9:,.1f}")
