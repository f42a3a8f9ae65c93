"""Columns whose values lie on a lattice: whole numbers, rounded numbers, two values, the codes of categories.

    x = origin + step k,    k a whole number, low <= k <= high.

What such a column has is a probability of every k, and none in between. A column is one where values repeat and all of
them lie on a lattice. It ends where rows heap up at its last value, and goes on where they do not.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

DISTINCT = 0.5  # largest share of different values in a column whose values repeat; whole numbers need not
FULL = 0.05  # least share of the places between the first and the last that have a value; of whole numbers any
HEAP, SHARE = 5, 0.1
"""Rows at the last value of a column that is the end of its lattice, and their share of those at the commonest."""
HEAPED, MORE = 0.05, 10  # least share of rows with one value that is a heap, and how many times the mean of all values
CODES = 100  # most values of a column that may be names of something
PARTS = 10  # into as many the smallest distance of two values may be cut to find the step
CLOSE, FLOAT32 = 1e-3, 2e-7
"""How far a value may lie from its place, in steps, and in units of itself: files round, also to float32."""
MOST, EXACT = 0.25, 2.0**53  # of a step, that rounding may be; the largest whole number of which the next one differs
IMPOSSIBLE = 10_000.0
"""Of -log p, for each value that cannot occur: exp(-10,000) is 0 in all floating point, and rows can still be ordered,
and averaged."""


def find_lattice(table: NDArray[Any], categories: Sequence[int] = ()) -> Tensor:
    """Origin, step, low and high of each column of rows with shape (N, d), with shape (4, d); step 0 where it has none.

    Args:
        categories: how many each column has, whose values are their codes from 0 on; 0 of a column of numbers.

    >>> import numpy as np, normae.lattice
    >>> rows = np.array([[0, 0.5], [1, 0.7], [1, 0.1]] * 10)
    >>> rows[:, 1] += np.linspace(0, 0.01, 30)
    >>> normae.lattice.find_lattice(rows)[:, 0]
    tensor([0., 1., 0., 1.], dtype=torch.float64)
    >>> normae.lattice.find_lattice(rows)[1, 1]
    tensor(0., dtype=torch.float64)
    """
    columns = [
        np.array([0.0, 1.0, 0.0, number - 1.0]) if number else _of_column(column)
        for column, number in zip(table.T, categories or [0] * table.shape[1], strict=True)
    ]
    return torch.from_numpy(np.stack(columns, axis=1))


def _of_column(column: NDArray[Any]) -> NDArray[np.float64]:
    values, counts = np.unique(column, return_counts=True)
    gaps, largest = np.diff(values), np.abs(values).max()
    repeat = len(values) <= DISTINCT * len(column)
    whole = bool((values == np.rint(values)).all()) and largest <= EXACT
    if whole:  # as they are, without rounding
        steps = [float(np.gcd.reduce(gaps.astype(np.int64))) if repeat else 1.0] * bool(len(gaps))
    else:
        gaps = gaps[gaps > 2 * FLOAT32 * largest]
        parts = range(1, PARTS + 1) if repeat and len(gaps) else ()
        steps = [gaps.sum() / np.rint(gaps * (part / gaps.min())).sum() for part in parts]
    for step in steps:
        places = (values - values[0]) / step
        slack = CLOSE + (0 if whole else FLOAT32) * np.abs(values) / step
        fits = (np.abs(places - np.rint(places)) <= slack).all() and slack.max() < 0.1
        if fits and len(gaps) and (whole or len(values) >= FULL * places[-1]):
            ends = (counts[[0, -1]] >= max(HEAP, SHARE * counts.max())) | (len(values) == 2)
            return np.array([values[0], step, *np.where(ends, np.rint(places[[0, -1]]), [-np.inf, np.inf])])
    return no_lattice(1).numpy()[:, 0]


def doubtful(table: NDArray[Any], lattice: Tensor) -> tuple[list[int], list[int]]:
    """Columns of rows with shape (N, d) that may be codes, and those off a lattice with many equal values."""
    few, heaped = [], []
    for j, (column, step) in enumerate(zip(table.T, lattice[1].tolist(), strict=True)):
        values, counts = np.unique(column, return_counts=True)
        places = (values[-1] - values[0]) / step if step else math.inf
        if 2 < len(values) <= min(CODES, DISTINCT * len(column)) and len(values) < FULL * places:
            few.append(j)
        elif not step and counts.max() >= len(column) * max(HEAPED, MORE / len(values)):
            heaped.append(j)
    return few, heaped


def no_lattice(d: int) -> Tensor:
    """Of d columns without any, with shape (4, d)."""
    return torch.tensor([0.0, 0.0, -torch.inf, torch.inf], dtype=torch.float64)[:, None].repeat(1, d)


def nearest(x: Tensor, lattice: Tensor) -> Tensor:
    """The values that can occur next to rows x, with shape (N, d), in float64; any within low and high at step 0."""
    origin, step, low, high = lattice
    k = ((x - origin) / step.where(step > 0, 1)).round().maximum(low).minimum(high)
    found: Tensor = (origin + step * k).where(step > 0, x.maximum(low).minimum(high))
    return found


def cannot_occur(x: Tensor, lattice: Tensor) -> Tensor:
    """Which values of rows x cannot occur, with shape (N, d)."""
    return (x - nearest(x, lattice)).abs() > CLOSE * lattice[1] + (FLOAT32 * x.abs()).minimum(MOST * lattice[1])


def within_cells(x: Tensor, lattice: Tensor, generator: torch.Generator) -> Tensor:
    """Rows x with shape (N, d), each value anywhere between the middles to its two neighbours."""
    where = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=generator.device).to(x.device)
    return x + lattice[1] * (where - 0.5)
