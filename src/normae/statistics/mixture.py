"""The mean of densities of which each is known up to a constant."""

import numpy as np

from normae.errors import InputError
from normae.statistics.arrays import Array

LEAST = 10
"""Events that constants can come from."""
ROUNDS = 10_000
CLOSE = 1e-6
"""Where the iteration for the constants ends: all shares of the events are the same to this part."""
SMALLEST = 1e-30
"""Share at which a constant grows as fast as it may."""


def mixture_constants(scores: Array) -> Array:
    """Constants c_j with which every member has the same share of the events; the largest of them is 0.

    Where events follow the mean p of K normalized densities, the mean of p_j/p over them is the integral of p_j, which
    is 1 for each j. So sum_x exp(-s_j + c_j) / sum_i exp(-s_i + c_i) is N/K for all of them; that fixes c but for a
    constant common to all.

    Args:
        scores: E/T of each member, with shape (K, N).
    """
    count, events = scores.shape
    if events < LEAST or not np.isfinite(scores).all():
        raise InputError(f"expected finite scores of at least {LEAST} events of every model, got others or fewer")
    constants = scores.mean(axis=1)
    for _ in range(ROUNDS):
        exponent = constants[:, None] - scores
        exponent -= exponent.max(axis=0)
        shares = np.exp(exponent)
        off = np.log(np.maximum(count * (shares / shares.sum(axis=0)).mean(axis=1), SMALLEST))
        if np.abs(off).max() < CLOSE:
            break
        constants -= off
    else:
        raise InputError("expected models that describe the same events, got scores with nothing in common")
    found: Array = constants - constants.max()
    return found
