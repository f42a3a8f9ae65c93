"""The partition function Z = int exp(-E(x)/T) dx over a box, and exact draws from the density, on a grid.

log Z is chosen here: a grid over the bounds of the feature chain in one or two dimensions; where that is asked for and
no grid serves, draws of the energy's base, or annealed importance sampling (`ais`); and no number otherwise. A grid is
the midpoint rule in float64. Its error is the difference to the grid with half as many cells along each axis, which
for the midpoint rule on a smooth density overestimates the error of the finer one.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normae.energy import Energy
from normae.errors import refuse, require_that
from normae.networks.base import Base
from normae.networks.conditional import ConditionalBase
from normae.networks.lattice import draws
from normae.networks.reconstruction import ReconstructionEnergy
from normae.posterior.draw import Draws
from normae.progress import counted
from normae.tensors import Device, uniform

Bounds = tuple[float, float]
CHUNK = 1 << 16  # points of a grid at a time
CHUNK_OF_DRAWS = 1 << 13
PROPOSED, ROUNDS, LEAST_EFFECTIVE = 20_000, 5, 200
"""Draws of a base for log Z at a time, how often, and how many must count; its error is then below 0.07."""
NODES, AT_NODES = 64, 1 << 18
"""Conditions at which log Z is taken, or four for each term of its polynomial, and draws of a base at all of them."""


class LogZ(NamedTuple):
    """log Z and the error of its quadrature, over the box `bounds` for every feature."""

    value: float
    error: float
    bounds: Bounds


# --- the choice


def grid_serves(event: tuple[int, ...], bounds: Bounds | None) -> bool:
    """Whether log Z is taken on a grid."""
    return bounds is not None and len(event) == 1 and event[0] <= 2


def choose_log_z(
    energy: Energy, temperature: float, event: tuple[int, ...], bounds: Bounds | None, cells: int,
    device: Device = "cpu", annealed: Callable[[], LogZ | None] | None = None,
) -> LogZ | None:  # fmt: skip
    """log Z of one energy: on a grid where one serves, else what `annealed` finds; None where neither is to be had.

    Args:
        energy, temperature, bounds, cells: as in `grid_log_z`.
        event: shape of an event; a grid serves vectors of one or two components.

    >>> from normae.inference import choose_log_z
    >>> choose_log_z(lambda x: x.square().sum(1), 1.0, (3,), (-8.0, 8.0), 100) is None  # no grid in three dimensions
    True
    """
    if bounds is not None and grid_serves(event, bounds):
        return grid_log_z(energy, temperature, bounds, event[0], cells, device)
    return None if annealed is None else annealed()


def trained_log_z(
    of: "Based", event: tuple[int, ...], cells: int, generator: torch.Generator, lattice: bool,
    annealed: Callable[[], LogZ | None] | None,
) -> tuple[LogZ | None, str]:  # fmt: skip
    """log Z of a trained model: from draws of its base, else as `choose_log_z`; and why there is none.

    With conditions it is put into the base.

    Args:
        event, cells, annealed: as in `choose_log_z`; without a grid, and with `annealed` None, log Z is not asked for.
        lattice: whether some columns are on one.
    """
    base = of.energy.autoencoder.base
    if isinstance(base, ConditionalBase):
        return conditional_log_z(of, generator), "at some condition hardly any draw of the base counts"
    asked = annealed is not None or grid_serves(event, of.bounds)
    sums = base is not None and asked and (base.cells is not None or not lattice)
    if sums and (found := proposed_log_z(of, generator)) is not None:
        return found, ""
    if lattice:
        return None, "hardly any draw of the base counts; coordinates.lattice = false in a run makes columns continuous"
    return choose_log_z(of.energy, of.temperature, event, of.bounds, cells, generator.device, annealed), ""


def draws_log_z(
    draws: Draws, event: tuple[int, ...], bounds: Bounds | None, cells: int, like: Tensor
) -> NDArray[np.float64] | None:
    """log Z of each of n draws, with shape (n,): on a grid where one serves, else None.

    Args:
        like: of the type and on the device that the draws take events.
    """
    if bounds is None or not grid_serves(event, bounds):
        return None
    given = (lambda x: draws.energies(x.to(like)) / draws.temperature[:, None]), bounds, event[0]
    return np.asarray(_midpoint(*given, cells, like.device, CHUNK_OF_DRAWS).numpy())


# --- draws of a base


class Based(NamedTuple):
    """exp(-E/T) within bounds, for an energy with a base."""

    energy: ReconstructionEnergy
    temperature: float
    bounds: Bounds | None

    @property
    def base(self) -> Base:
        found = self.energy.autoencoder.base
        assert isinstance(found, Base)
        return found


@torch.no_grad()
def weighted(of: Based, n: int, generator: torch.Generator, t: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`n` draws of the base's proposal q, (n, d), and log w = -E/T - log q, (n,), with w = 0 outside the bounds.

    Conditions t have shape (n, k), where the base has some.
    """
    y, (value, log_q) = draws(of.base, n, generator, t)
    log_weight = -(of.energy.error(y) + value).double() / of.temperature - log_q.double()
    if (bounds := of.bounds) is not None:
        own = y[:, : of.base.dimension]
        log_weight = log_weight.where(((own >= bounds[0]) & (own <= bounds[1])).all(dim=1), -math.inf)
    return y, log_weight


def proposed_log_z(of: Based, generator: torch.Generator) -> LogZ | None:
    """log Z as the mean weight of draws of the base; None where too few of them count.

    The weights are bounded, since b <= 2 q, so that no rare draw can decide about the mean. More are drawn where not
    enough of them count: for few rows of many columns Gaussians and kernels have little in common.
    """
    pieces: list[Tensor] = []
    for _ in range(ROUNDS):
        pieces.append(weighted(of, PROPOSED, generator)[1])
        value, variance = mean_weight(torch.cat(pieces))
        if variance <= 1 / LEAST_EFFECTIVE:
            return LogZ(value, math.sqrt(variance), of.bounds or (-math.inf, math.inf))
    return None


def mean_weight(log_weight: Tensor) -> tuple[float, float]:
    """The log of the mean weight, and its variance, for log w with shape (N,)."""
    value = float(torch.logsumexp(log_weight, 0)) - math.log(len(log_weight))
    return value, float(torch.softmax(log_weight, 0).square().sum()) - 1 / len(log_weight)


@torch.no_grad()
def conditional_log_z(of: Based, generator: torch.Generator) -> LogZ | None:
    """log Z(t) of an energy with conditions, put into its base: what is left is 0, with the error of the fit.

    The same draws serve all conditions, so that log Z(t) is as smooth as the energy is. Conditions are on lines between
    those of two rows, so that some are in a gap too. The error has the scatter of the weights, and that of log Z
    around its polynomial. None where too few draws count.
    """
    base, energy, temperature = of.base, of.energy, of.temperature
    assert isinstance(base, ConditionalBase)
    terms = len(base.offset.zero_())
    n = max(NODES, 4 * terms)
    nodes = torch.lerp(base.some(n, generator), base.some(n, generator), uniform((n, 1), generator, base.edges))
    nodes[:2] = base.edges
    state = generator.get_state()
    y, log_weight = weighted(of, AT_NODES // n, generator)
    free, found = log_weight + energy.error(y).double() / temperature, []
    for node in nodes:
        if base.cells is not None:  # what can occur depends on the condition
            generator.set_state(state)
            found.append(mean_weight(weighted(of, len(y) // 4, generator, node.expand(len(y) // 4, -1))[1]))
            continue
        y[:, base.dimension :] = node
        found.append(mean_weight(free - energy.error(y).double() / temperature))
    value, variance = torch.tensor(found, dtype=torch.float64).T
    x = base.terms(torch.cat([y[:n, : base.dimension], nodes], dim=1)).double().cpu()
    fitted = torch.linalg.lstsq(x, value[:, None]).solution[:, 0]
    base.offset.copy_(temperature * fitted)
    if not bool((variance <= 1 / LEAST_EFFECTIVE).all()):
        return None
    scatter = (value - x @ fitted).square().sum() / (n - terms)
    return LogZ(0.0, math.sqrt(float(variance.mean() + scatter)), of.bounds or (-math.inf, math.inf))


# --- grids


def cell_centres(bounds: Bounds, cells: int) -> Tensor:
    """Centres of `cells` equal cells between the bounds, float64, shape (cells,)."""
    low, high = bounds
    return low + (torch.arange(cells, dtype=torch.float64) + 0.5) * ((high - low) / cells)


def grid_points(axis: Tensor, dimension: int) -> Tensor:
    """All points with coordinates on `axis`, float32, shape (len(axis)^d, d); the first coordinate runs slowest."""
    axes = torch.meshgrid(*[axis] * dimension, indexing="ij")
    return torch.stack(axes, dim=-1).reshape(-1, dimension).float()


@torch.no_grad()
def evaluate_in_chunks(function: Energy, x: Tensor, device: Device = "cpu", chunk: int = CHUNK) -> Tensor:
    """function(x) with shape (..., N), in float64 on the CPU, in pieces of bounded memory."""
    pieces = counted("scoring", torch.split(x, chunk))
    return torch.cat([function(piece.to(device)).double().cpu() for piece in pieces], dim=-1)


def _midpoint(score: Energy, bounds: Bounds, dimension: int, cells: int, device: Device, chunk: int = CHUNK) -> Tensor:
    """log int exp(-score) with shape (...), for a score from (N, d) to (..., N)."""
    points = grid_points(cell_centres(bounds, cells), dimension)
    width = (bounds[1] - bounds[0]) / cells
    exponent = -evaluate_in_chunks(score, points, device, chunk)
    return torch.logsumexp(exponent, dim=-1) + dimension * math.log(width)


def grid_log_z(
    energy: Energy, temperature: float, bounds: Bounds, dimension: int, cells: int = 1000, device: Device = "cpu"
) -> LogZ:
    """log Z over the box, for events that are vectors of one, two or three components.

    Args:
        energy: from events with shape (N, d) to (N,), d = `dimension`.
        temperature: T.
        bounds: the box, lowest and highest value of every feature.
        cells: cells along each axis of the finer grid; an even number.

    >>> from normae.inference import grid_log_z
    >>> round(grid_log_z(lambda x: x.square().sum(1) / 2, 1.0, (-8.0, 8.0), 2, cells=100).value, 4)  # log 2 pi
    1.8379
    """
    refuse(not 1 <= dimension <= 3, f"a grid serves one to three dimensions, got {dimension}")
    require_that(cells >= 4 and cells % 2 == 0, "cells", "an even number of at least 4", cells)
    given = (lambda x: energy(x).double() / temperature), bounds, dimension
    coarse, fine = (float(_midpoint(*given, n, device)) for n in (cells // 2, cells))
    return LogZ(fine, abs(fine - coarse), bounds)


def grid_draws(
    energy: Energy, temperature: float, bounds: Bounds, dimension: int, n: int, generator: torch.Generator,
    cells: int = 1000, device: Device = "cpu",
) -> Tensor:  # fmt: skip
    """`n` events with shape (n, d), float32, independent and free of any chain, up to the width of a cell.

    A cell by its probability, then a point uniform in the cell, both from `generator`; the rest is as in `grid_log_z`.

    >>> import torch, normae.inference
    >>> of = (lambda x: x.square().sum(1) / 2, 1.0, (-8.0, 8.0), 1, 2000, torch.Generator().manual_seed(0))
    >>> float(normae.inference.grid_draws(*of).std().round(decimals=1))
    1.0
    """
    centres = grid_points(cell_centres(bounds, cells), dimension)
    weight = torch.softmax(-evaluate_in_chunks(energy, centres, device) / temperature, dim=0)
    cumulative = weight.cumsum(0)
    u = uniform((n,), generator, cumulative)
    index = torch.searchsorted(cumulative, u * cumulative[-1], right=True).clamp_max(len(cumulative) - 1)
    width = (bounds[1] - bounds[0]) / cells
    return centres[index] + (uniform((n, dimension), generator, centres) - 0.5) * width
