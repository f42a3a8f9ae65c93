"""The lattice of a table's columns, as a base and its draws see it (`normae.lattice`).

The energy is asked for at values that can occur, and nowhere else: with V the cell around the row x,

    p(x) = exp(-E(y(x))/T) |dy/dx| / Z,    Z = sum over the lattice = int exp(-E(y(nearest(x')))/T) |dy/dx| / V dx'.

So there is a density of x' as well, which is the same everywhere in a cell, and a row that is anywhere in its cell with
equal probability has this density. A training tells such rows from draws x' of a proposal; log Z is the mean weight of
these draws, and those that are kept are samples, all of them rounded. The proposal is fitted to rows that are somewhere
in their cells. The base itself is fitted to rows that are moved no further than the width of their column: noise that
is wider than a column would hide what the others tell. Kernels of both stay at the rows, so that a row is judged
without its own, wherever it is in its cell.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from normae.conditional import ConditionalCoordinates
from normae.coordinates import Coordinates, TableCoordinates
from normae.lattice import nearest, within_cells
from normae.networks.base import SCALE, Base
from normae.networks.conditional import read_any_base

OnLattice = TableCoordinates | ConditionalCoordinates
MOST_NOISE = 1.0
"""Of the rows that a base is fitted to, in widths of a column."""
EDGE = 1e-6
"""How far beyond its cell a row may lie by rounding, in steps."""
PIECE = 1 << 14
"""Draws that are rounded at a time."""
PREFIX = "cells.proposal."
"""Of the tensors of a proposal among those of its base."""
TRIED, COUNTED, MOST_WIDE = 4096, 0.01, 16
"""Draws that tell whether the cells can be drawn from, and the share that must count; columns whose steps are wider
than they are, each of which takes a quarter of what counts."""


class Cells(nn.Module):
    """The cells of a base's lattice.

    Args:
        proposal: a base of rows that are anywhere in their cells.
        coordinates: with a lattice.
    """

    def __init__(self, proposal: Base, coordinates: OnLattice) -> None:
        super().__init__()
        self.proposal, self.coordinates = proposal, coordinates

    def nearest(self, y: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """y of what can occur next to y with shape (N, d), and log q at y with shape (N,), for the measure of the rows.

        Infinite where nothing can occur: beyond the ends. `rows` as of `Base.both`.
        """
        to = self.coordinates.to(y.device)
        x = to.unrounded(y)
        found = nearest(x, to.lattice)
        beyond = ((x - found).abs() > (0.5 + EDGE) * to.lattice[1]) & (to.lattice[1] > 0)
        log_q = self.proposal.both(y, rows)[1] + to.smooth_slope(x) - to.smooth_slope(found)
        return to.forward(found).to(y), log_q.masked_fill(beyond.any(1), math.inf).to(y)

    def spread(self, y: Tensor, generator: torch.Generator) -> Tensor:
        """Rows y with shape (N, d), each anywhere in its cell."""
        to = self.coordinates.to(y.device)
        return to.forward(within_cells(to.inverse(y), to.lattice, generator)).to(y)


def known(base: Base, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """-s log b and log q at rows y with shape (N, d); on a lattice q is that of a row anywhere in its cell."""
    if base.cells is None:
        return base.both(y)
    return base.both(y)[0], base.cells.nearest(base.cells.spread(y, generator), y)[1]


def draws(
    base: Base, n: int, generator: torch.Generator, t: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """`n` draws with shape (n, d), and -s log b and log q there, with shape (n,); on a lattice, of what can occur.

    Args:
        t: conditions with shape (n, k), of a base with conditions.
    """
    y = (base if base.cells is None else base.cells.proposal).propose(n, generator)
    if t is not None:
        y[:, base.dimension :] = t
    if base.cells is None:
        return y, base.both(y)
    pieces = [base.cells.nearest(piece) for piece in y.split(PIECE)]
    y, log_q = (torch.cat(part) for part in zip(*pieces, strict=True))
    return y, (base.both(y)[0], log_q)


def on_lattice(
    coordinates: OnLattice, rows: Tensor, fit: Callable[[Tensor, Tensor | None], Base], generator: torch.Generator
) -> Base:
    """The base of rows x with shape (N, d), and its cells; without these where hardly any draw would count.

    It is then the base of the rows as they are.

    Args:
        fit: a base, of rows y with shape (N, d) and with kernels at places y, or at the rows.
    """
    share = (MOST_NOISE * coordinates.width / coordinates.lattice[1].clamp_min(1e-300)).clamp_max(1.0)
    y = coordinates.forward(rows).float()
    if int((share < 1).sum()) > MOST_WIDE:
        return fit(y, None)
    anywhere = within_cells(rows, coordinates.lattice, generator)
    base = fit(coordinates.forward(rows + share * (anywhere - rows)).float(), y)
    base.cells = Cells(fit(coordinates.forward(anywhere).float(), y), coordinates)
    value, log_q = draws(base, TRIED, generator)[1]
    weight = torch.softmax(-value.double() / SCALE - log_q.double(), 0)
    return base if bool(weight.square().sum() < 1 / (COUNTED * TRIED)) else fit(y, None)


def read_with_cells(tensors: Mapping[str, Tensor], coordinates: Coordinates, d: int, source: str) -> Base:
    """The base of the tensors in a model's file, with its cells; `source` names the file in messages."""
    apart = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
    base = read_any_base({name: t for name, t in tensors.items() if not name.startswith(PREFIX)}, d, source)
    if apart and isinstance(coordinates, OnLattice):
        base.cells = Cells(read_any_base(apart, d, source), coordinates)
    return base
