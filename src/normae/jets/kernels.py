"""Kernels that numba compiles, asked for only where one is needed, and blocks of jets over the machine's cores.

The work of a block is numpy and numba code that releases the interpreter's lock.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from normae.errors import InputError
from normae.jets.container import BadJet, Jets

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
    """work(task) for each task, a few of them at once in threads; the results come in the order of the tasks."""
    with ThreadPoolExecutor(cores()) as pool:
        waiting: deque[Future[R]] = deque()
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) > cores():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def map_blocks(work: Callable[[int, Jets], None], jets: Jets, size: int) -> None:
    """Call work(start, block) for successive blocks of `size` jets, in threads; the work writes its own result.

    An error that names a jet of the block names it by its place in the whole.
    """

    def numbered(task: tuple[int, Jets]) -> None:
        try:
            work(*task)
        except BadJet as error:
            raise BadJet(task[0] + error.jet, error.problem) from error

    tasks = list(zip(range(0, len(jets), size), jets.blocks(size), strict=True))
    for _ in map(numbered, tasks) if len(tasks) <= 1 or cores() == 1 else in_order(numbered, tasks):
        pass


F = TypeVar("F", bound=Callable[..., object])


def missing(package: str) -> InputError:
    """What to say where an optional package is not installed."""
    return InputError(f"this needs {package}, which is not installed: pip install 'normae[jets]'")


def compiled(function: F) -> F:
    """`function` compiled by numba: cached on disk, without the interpreter's lock, 1 / 0 = inf."""
    try:
        import numba
    except ImportError:
        raise missing("numba") from None
    kernel: F = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return kernel
