"""ROC curves: what share of the background passes a cut that keeps a share of the signal.

A cut at t keeps the signal efficiency eps_S = P(s > t | signal) and the background efficiency eps_B = P(s > t |
background); the background rejection is 1/eps_B. With m signal and n background events the counting error of eps_B at a
given eps_S has two parts: the background that passes fluctuates, and so does the cut, a quantile of the signal,

    Var(eps_B) = eps_B (1 - eps_B) / n  +  (d eps_B / d eps_S)^2 eps_S (1 - eps_S) / m.

The slope of the curve is its difference quotient over two standard deviations of eps_S to each side.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from normae.errors import InputError
from normae.statistics.arrays import Array, as_vector
from normae.statistics.estimate import Estimate


def background_efficiency(signal: ArrayLike, background: ArrayLike, efficiencies: ArrayLike) -> Array:
    """eps_B at each signal efficiency, with shape (K,), for scores with shapes (M,) and (N,).

    The cut is the order statistic of the signal that keeps at least the wanted share; a background event that ties with
    it counts one half.
    """
    wanted = np.atleast_1d(np.asarray(efficiencies, dtype=np.float64))
    if not ((wanted >= 0) & (wanted <= 1)).all():
        raise InputError(f"expected signal efficiencies from 0 to 1, got {wanted.min():g} to {wanted.max():g}")
    rising = np.sort(as_vector(signal, "signal", least=2))
    below = np.sort(as_vector(background, "background", least=2))
    kept = np.ceil(np.round(wanted * rising.size, 9)).astype(np.int64)
    cuts = np.append(rising, np.inf)[rising.size - kept]
    above = below.size - 0.5 * (np.searchsorted(below, cuts, "left") + np.searchsorted(below, cuts, "right"))
    return np.asarray(above / below.size, dtype=np.float64)


def rejection(signal: ArrayLike, background: ArrayLike, efficiency: float) -> Estimate:
    """1/eps_B at one signal efficiency, with its counting error.

    Where no background event passes, the rejection is only known to be large: the number of background events, with an
    error as large.
    """
    m, n = np.size(signal), np.size(background)
    if not 0 < efficiency < 1:
        raise InputError(f"expected a signal efficiency between 0 and 1, got {efficiency}")
    width = max(2 * math.sqrt(efficiency * (1 - efficiency) / m), 1 / m)
    low, high = max(efficiency - width, 0.0), min(efficiency + width, 1.0)
    before, share, after = background_efficiency(signal, background, [low, efficiency, high])
    if share <= 0:
        return Estimate(float(n), float(n))
    slope = (after - before) / (high - low)
    variance = share * (1 - share) / n + slope**2 * efficiency * (1 - efficiency) / m
    return Estimate(float(1 / share), float(math.sqrt(variance) / share**2))
