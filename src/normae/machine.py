"""What the machine and its environment decide: how many processes train together, how much memory there is."""

import logging
import os
from functools import cache
from pathlib import Path

from normae.errors import InputError

LIMIT = Path("/sys/fs/cgroup/memory.max")  # what a container or a batch job may take, on Linux


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
    """Say once what the environment, and not the user's words, decided."""
    logging.getLogger(__name__).warning(sentence)


def memory() -> int:
    """Bytes of memory that this process may take at most."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = LIMIT.read_text().strip() if LIMIT.is_file() else ""
    return min(whole, int(text)) if text.isdecimal() else whole


def check_memory(size: int, what: str) -> None:
    """Refuse `what`, which takes `size` bytes, before they are taken, where the machine does not have them."""
    if size > memory():
        raise InputError(f"{what} takes {size / 1e9:,.1f} GB of memory, this machine has {memory() / 1e9:,.1f}")
