"""Which temperature: from samples alone, and from the slope of the dual test.

**Without a signal sample.** For events of p = exp(-E/T)/Z integration by parts gives the configurational temperature,

    <(dE/dx_i)^2> = T <d^2 E/dx_i^2>,    so    T = <|grad E|^2> / <laplacian E>.

**Equipartition.** An energy that is quadratic in d_eff independent residuals of equal width has <E> = T d_eff / 2. The
effective dimension of residuals with covariance C is the participation ratio d_eff = (tr C)^2 / tr C^2. tr C^2 is
estimated without bias by the mean of (r_i r_j)^2 over pairs of different events, whatever the number of features.

**On the manifold.** A density exp(-E/T) over a space of finite measure has the likelihood's optimum where its mean
energy is that of the data,

    <E>_T = sum_k E_k exp(-E_k/T) / sum_k exp(-E_k/T) = <E>_data,

with E_k at points that are spread evenly. <E>_T grows with T, d<E>_T/dT = Var_T(E)/T^2, so there is one root at most.

**From the slope.** Trainings at temperatures T_k give slopes m_k of the dual test, Eq. (m_fit) of the paper. They are
fitted by a power law, log m = a + b (log T - c), with weights from the errors of m, so that slopes near zero count
little, and with c the weighted mean of log T, where the errors of a and b are independent. The root and its error are

    log T* = c - a / b,    sigma(log T*)^2 = (s_a^2 + (log T* - c)^2 s_b^2) / b^2.

One training differs from the next by more than the error of its slope, which counts events. So a scatter s is added in
quadrature: at least `SCATTER`, and more where three or more points ask for it (chi^2 = ndf).
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from normae.errors import refuse, require_that
from normae.statistics.arrays import Estimate, as_vector, resampled

SCATTER = 0.03  # by which slopes of two trainings of a toy with the same settings are taken to differ, at least
LEAST_SLOPE = 0.05
FIRST_FACTOR, LARGEST_FACTOR = 2.0, 4.0  # from the first temperature to the second; beyond those that were tried
MARGIN = 0.1  # of a bracket that the next temperature stays away from its ends
LEAST_POINTS = 50  # of those spread evenly that must count; with 30 errors come out too small by a third


def configurational_temperature(
    gradient_square: ArrayLike, laplacian: ArrayLike, n_bootstrap: int = 200, *, generator: torch.Generator
) -> Estimate:
    """<|grad E|^2> / <laplacian E> over events, (N,) each, with a bootstrap's error: infinite for a mean of no sign."""
    above, below = as_vector(gradient_square, "gradient_square", least=2), as_vector(laplacian, "laplacian", least=2)
    refuse(above.size != below.size, f"expected a laplacian for each of {above.size} events, got {below.size}")
    all_alike = np.ones(above.size, dtype=bool)
    drawn = resampled(lambda counts: (counts @ above, counts @ below), all_alike, n_bootstrap, generator)
    certain = np.abs(drawn[:, 1].mean()) > 3 * drawn[:, 1].std(ddof=1)
    error = float(np.std(drawn[:, 0] / drawn[:, 1], ddof=1)) if certain else math.inf
    return Estimate(float(above.sum() / below.sum()), error)


class Equipartition(NamedTuple):
    """T = 2 <E> / d_eff, with the effective dimension that it comes from."""

    temperature: Estimate
    dimension: Estimate


def equipartition(energy: ArrayLike, residuals: ArrayLike, *, generator: torch.Generator) -> Equipartition:
    """The temperature at which residuals (N, d) share an energy (N,) equally; all pairs of events are used."""
    rows = np.asarray(residuals, dtype=np.float64)
    values = as_vector(energy, "energy", least=3)
    require_that(rows.shape[:-1] == values.shape, "residuals", f"residuals of shape ({values.size}, d)", rows.shape)
    rows = rows - rows.mean(axis=0)
    gram = rows @ rows.T
    square, own = np.diagonal(gram).copy(), gram**2
    np.fill_diagonal(own, 0.0)

    def both(weights: NDArray[np.int64]) -> tuple[float, float]:
        pairs = float(weights.sum()) ** 2 - float(weights @ weights)
        dimension = (weights @ square / weights.sum()) ** 2 / (weights @ own @ weights / pairs)
        return float(2 * (weights @ values / weights.sum()) / dimension), float(dimension)

    found = both(np.ones(values.size, dtype=np.int64))
    errors = resampled(both, np.ones(values.size, dtype=bool), 200, generator).std(axis=0, ddof=1)
    return Equipartition(Estimate(found[0], float(errors[0])), Estimate(found[1], float(errors[1])))


def manifold_temperature(even: ArrayLike, events: ArrayLike) -> Estimate:
    """The likelihood's optimum of T for a density exp(-E/T) on a space of finite measure.

    From energies (M,) at points that are spread evenly over it and (N,) at the data. NaN with an infinite error where
    the data lie as high as these points or below all of them; an infinite error where fewer than `LEAST_POINTS` count.
    """
    points, data = as_vector(even, "even", least=2), as_vector(events, "events", least=2)
    target, least = float(data.mean()), float(points.min())
    if not least < target < float(points.mean()) < math.inf:
        return Estimate(math.nan, math.inf)
    above = points - least
    ends = math.log(1e-6 * (target - least)), math.log(1e6 * float(above.max()))
    temperature = math.exp(brentq(lambda x: _boltzmann(above, math.exp(x)) @ above - (target - least), *ends))
    w = _boltzmann(above, temperature)
    if 1 / np.square(w).sum() < LEAST_POINTS:
        return Estimate(temperature, math.inf)
    away = (above - w @ above) / temperature
    counted = float(data.std(ddof=1)) / temperature / data.size**0.5
    error = temperature * math.hypot(counted, float(np.sqrt(np.square(w * away).sum()))) / float(w @ away**2)
    return Estimate(temperature, error)


def thermal_mean(even: ArrayLike, temperature: float) -> Estimate:
    """Mean of E over exp(-E/T), from energies (M,) at points spread evenly over a space of finite measure.

    The error is infinite where fewer than `LEAST_POINTS` count.
    """
    points = as_vector(even, "even", least=2)
    refuse(not temperature > 0, f"temperature: expected a positive number, got {temperature:g}")
    least = float(points.min())
    if not math.isfinite(least):
        return Estimate(math.nan, math.inf)
    above = points[points < math.inf] - least
    w = _boltzmann(above, temperature)
    mean = float(w @ above)
    error = float(np.sqrt(np.square(w * (above - mean)).sum()))
    return Estimate(least + mean, error if 1 / np.square(w).sum() >= LEAST_POINTS else math.inf)


def _boltzmann(above: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Weights with shape (M,) and sum 1 of points at energies above the lowest."""
    weights = np.exp(-above / temperature)
    return np.asarray(weights / weights.sum())


# --- the root of m(T) - 1


class SlopePoint(NamedTuple):
    """The slope of the dual test that a pair of trainings at this temperature gave."""

    temperature: float
    slope: Estimate


class SlopeLine(NamedTuple):
    """log m = level + slope * (log T - centre), the latter two with errors, and the scatter between trainings."""

    centre: float
    level: Estimate
    slope: Estimate
    scatter: float

    @property
    def root(self) -> Estimate | None:
        """log T* at which m = 1; None where the slope is not known to differ from zero."""
        b, error = self.slope
        if not abs(b) > error:
            return None
        away = -self.level.value / b
        return Estimate(self.centre + away, math.hypot(self.level.error, away * error) / abs(b))


def slope_line(points: Sequence[SlopePoint], scatter: float = SCATTER) -> SlopeLine | None:
    """The power law through the points with m > 0.05; what lies below, a model without a ratio, says nothing about it.

    None where there are none of them at two temperatures. `scatter` is that of m between trainings, at least.
    """
    used = [point for point in points if point.slope.value > LEAST_SLOPE]
    temperatures = [point.temperature for point in used]
    if not used or max(temperatures) < (1 + 1e-6) * min(temperatures):
        return None
    line, chi2 = _power_law(used, scatter)
    freedom = len(used) - 2
    if freedom < 1 or chi2 <= freedom:
        return line
    low, high = scatter, 10.0
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _power_law(used, middle)[1] > freedom else (low, middle)
    return _power_law(used, high)[0]


def _power_law(points: Sequence[SlopePoint], scatter: float) -> tuple[SlopeLine, float]:
    """The line and its chi^2; errors of log m are those of m at the fitted m, so that a low m does not weigh more."""
    x, m, error = (np.array(column) for column in zip(*((math.log(t), *e) for t, e in points), strict=True))
    width, fitted, y = np.maximum(np.hypot(error, scatter), 1e-9), m, np.log(m)
    for _ in range(5):
        weights = np.square(fitted / width)
        centre, level = (float(weights @ column / weights.sum()) for column in (x, y))
        spread = float(weights @ np.square(x - centre))
        slope = float(weights @ ((x - centre) * (y - level))) / spread
        fitted = np.exp(np.clip(level + slope * (x - centre), math.log(LEAST_SLOPE), 3))
    chi2 = float(weights @ np.square(y - level - slope * (x - centre)))
    errors = (1 / math.sqrt(float(weights.sum())), 1 / math.sqrt(spread))
    return SlopeLine(centre, Estimate(level, errors[0]), Estimate(slope, errors[1]), scatter), chi2


def unit_slope_temperature(points: Sequence[SlopePoint], scatter: float = SCATTER) -> Estimate:
    """T* with m(T*) = 1, and its error; NaN where the slope does not depend on T beyond its errors, or is not known."""
    line = slope_line(points, scatter)
    if line is None or (root := line.root) is None or not abs(root.value) < 700:
        return Estimate(math.nan, math.inf)
    return Estimate(math.exp(root.value), math.exp(root.value) * root.error)


def next_temperature(points: Sequence[SlopePoint], start: float, scatter: float = SCATTER) -> float:
    """Where to train next: `start` first, then outwards until m - 1 changes sign, then between the nearest two.

    The paper finds larger slopes at smaller temperatures, which is believed for as long as the points show no slope.
    """
    if not points:
        return start
    ordered = sorted(points)
    if len({point.temperature for point in ordered}) == 1:
        return ordered[0].temperature * (FIRST_FACTOR if ordered[0].slope.value > 1 else 1 / FIRST_FACTOR)
    low, high = math.log(ordered[0].temperature), math.log(ordered[-1].temperature)
    line = slope_line(points, scatter)
    root = None if line is None else line.root
    neighbours = [(a, b) for a, b in pairwise(ordered) if a.temperature < b.temperature]
    pairs = [(a, b) for a, b in neighbours if (a.slope.value - 1) * (b.slope.value - 1) <= 0]
    if pairs:  # where m - 1 changes sign: the closest in m
        left, right = min(pairs, key=lambda pair: sum(abs(point.slope.value - 1) for point in pair))
        x, y = math.log(left.temperature), math.log(right.temperature)
        share = 0.5 if root is None else (root.value - x) / (y - x)
        return math.exp(x + min(max(share, MARGIN), 1 - MARGIN) * (y - x))
    step, reach = math.log(FIRST_FACTOR), math.log(LARGEST_FACTOR)
    if root is None:
        return math.exp(high + reach if ordered[0].slope.value > 1 else low - reach)
    if low < root.value < high:  # the points contradict it: go beyond the better end
        down = abs(ordered[0].slope.value - 1) < abs(ordered[-1].slope.value - 1)
        return math.exp(low - step if down else high + step)
    return math.exp(max(root.value, low - reach) if root.value <= low else min(root.value, high + reach))
