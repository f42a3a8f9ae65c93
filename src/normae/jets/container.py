"""Jets as ragged arrays: the one form in which jets travel between reader, images and observables.

Jet i owns the constituents offsets[i] to offsets[i + 1] of the flat arrays pt, eta, phi. Constituents are massless,
so these three numbers are all of their four-momentum: E = pt cosh(eta), pz = pt sinh(eta).

Work on jets goes block by block over the machine's cores: numpy code, and kernels that numba compiles, release the
interpreter's lock.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from normae.errors import InputError, require

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
UNLABELLED = -1  # the label of jets from a file without labels
LABELS = (UNLABELLED, 0, 1)
T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., object])


class BadJet(InputError):
    """A jet that cannot be used, with its place among those that were given."""

    def __init__(self, jet: int, problem: str, what: str = "jet") -> None:
        super().__init__(f"{what} {jet} {problem}")
        self.jet, self.problem = jet, problem


def wrap(phi: NDArray[Any]) -> NDArray[Any]:
    """phi brought into [-pi, pi]."""
    return np.asarray((phi + np.pi) % (2 * np.pi) - np.pi)


def offsets_of(counts: NDArray[Any]) -> Int64:
    """Offsets with shape (N + 1,) of N rows with `counts` entries each."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


@dataclass(frozen=True, eq=False)
class Jets:
    """N jets with C constituents in all, ordered by falling pT within a jet when they come from a file.

    Attributes:
        labels: 0 QCD, 1 top, -1 not known, int8 with shape (N,).
        offsets: int64 with shape (N + 1,), from 0 to C.
        pt, eta, phi: float32 with shape (C,); pt in GeV, phi in [-pi, pi].
        skipped: the number of bad jets that a reader dropped on the way.

    >>> from normae.jets import from_lists
    >>> jets = from_lists([[[30.0, 0.0, 0.0]], [[20.0, 0.1, 0.0], [10.0, 0.0, 0.2]]], labels=[0, 1])
    >>> jets.counts, jets[jets.labels == 1].pt
    (array([1, 2]), array([20., 10.], dtype=float32))
    """

    labels: NDArray[np.int8]
    offsets: Int64
    pt: Float32
    eta: Float32
    phi: Float32
    skipped: int = 0

    def __post_init__(self) -> None:
        if self.offsets.shape != (len(self.labels) + 1,):
            raise InputError(f"expected {len(self.labels) + 1} offsets, got {self.offsets.shape}")
        sizes = {len(self.pt), len(self.eta), len(self.phi), int(self.offsets[-1])}
        if len(sizes) != 1 or self.offsets[0] != 0 or (np.diff(self.offsets) < 0).any():
            raise InputError("offsets must rise from 0 to the number of constituents, equal for pt, eta and phi")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def counts(self) -> Int64:
        """Constituents per jet, with shape (N,)."""
        return np.diff(self.offsets)

    def __getitem__(self, rows: slice | NDArray[Any] | Sequence[int]) -> "Jets":
        """The jets of a slice, of a boolean mask with shape (N,), or of integer indices, in that order."""
        index = np.arange(len(self), dtype=np.int64)[rows]
        counts = self.counts[index]
        offsets = offsets_of(counts)
        flat = np.arange(offsets[-1]) + np.repeat(self.offsets[index] - offsets[:-1], counts)
        return Jets(self.labels[index], offsets, self.pt[flat], self.eta[flat], self.phi[flat])

    def blocks(self, size: int) -> Iterator["Jets"]:
        """Successive runs of at most `size` jets; the constituents are views, not copies."""
        for start in range(0, len(self), size):
            stop = min(start + size, len(self))
            first, last = self.offsets[start], self.offsets[stop]
            pt, eta, phi = (values[first:last] for values in (self.pt, self.eta, self.phi))
            yield Jets(self.labels[start:stop], self.offsets[start : stop + 1] - first, pt, eta, phi)


def from_counts(labels: NDArray[Any], counts: NDArray[Any], pt: Any, eta: Any, phi: Any) -> Jets:
    """Jets of `labels` and `counts` (N,), with pt, eta and phi of all constituents (C,), cast to the stored types."""
    pt, eta, phi = (np.ascontiguousarray(a, dtype=np.float32) for a in (pt, eta, phi))
    return Jets(np.asarray(labels).astype(np.int8), offsets_of(counts), pt, eta, phi)


def from_lists(constituents: Sequence[Any], labels: Sequence[int] | None = None) -> Jets:
    """Jets of a list of arrays with shape (n_i, 3), columns pt, eta, phi; all QCD where no labels are given."""
    tables = [np.asarray(c, dtype=np.float64).reshape(-1, 3) for c in constituents]
    flat = np.concatenate(tables) if tables else np.zeros((0, 3))
    counts = np.array([len(t) for t in tables], dtype=np.int64)
    return from_counts(np.zeros(len(tables)) if labels is None else np.asarray(labels), counts, *flat.T)


def concatenate(parts: Iterable[Jets]) -> Jets:
    """All jets of `parts`, in order; of parts that nobody else keeps, one column at a time is in memory twice."""
    columns: dict[str, list[Any]] = {name: [] for name in ("labels", "counts", "pt", "eta", "phi")}
    skipped = 0
    for part in parts:
        skipped += part.skipped
        for name, pieces in columns.items():
            pieces.append(getattr(part, name))
    if not columns["labels"]:
        return from_lists([])
    return replace(from_counts(*(np.concatenate(columns.pop(name)) for name in [*columns])), skipped=skipped)


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


def map_blocks(work: Callable[[int, Jets], R], jets: Jets, size: int) -> list[R]:
    """What work(start, block) gives for successive blocks of `size` jets, in threads.

    An error that names a jet of the block names it by its place in the whole.
    """

    def numbered(task: tuple[int, Jets]) -> R:
        try:
            return work(*task)
        except BadJet as error:
            raise BadJet(task[0] + error.jet, error.problem) from error

    tasks = list(zip(range(0, len(jets), size), jets.blocks(size), strict=True))
    return list(map(numbered, tasks) if len(tasks) <= 1 or cores() == 1 else in_order(numbered, tasks))


def compiled(function: F) -> F:
    """`function` compiled by numba: cached on disk, without the interpreter's lock, 1 / 0 = inf."""
    require("jets", "numba")
    import numba

    kernel: F = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return kernel
