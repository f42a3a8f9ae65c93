"""Ratios of partition functions: from the log weights of annealed chains, and of densities that have a common mean.

Forward and reverse weights obey p_F(w) w = p_R(w) Z_1/Z_0. Their best estimate together is that of Bennett (1976).
"""

import math

import numpy as np

from normae.errors import InputError
from normae.statistics.arrays import Array


def log_mean_exp(log_weight: np.ndarray) -> np.ndarray:
    """log of the mean of exp over the last axis."""
    top = log_weight.max(axis=-1, keepdims=True)
    mean: np.ndarray = np.log(np.exp(log_weight - top).mean(axis=-1)) + top[..., 0]
    return mean


def effective_size(log_weight: np.ndarray) -> float:
    """(sum w)^2 / sum w^2 of weights with shape (N,)."""
    weight = np.exp(log_weight - log_weight.max())
    return float(weight.sum() ** 2 / (weight**2).sum())


def bennett(forward: np.ndarray, reverse: np.ndarray) -> np.ndarray:
    """log Z_1/Z_0 with shape (...), from log weights with shapes (..., N_F) and (..., N_R), by bisection."""
    shift = math.log(reverse.shape[-1] / forward.shape[-1])
    both = np.concatenate([forward, reverse], axis=-1)
    middle: np.ndarray
    low, high = both.min(axis=-1) - abs(shift) - 50, both.max(axis=-1) + abs(shift) + 50
    for _ in range(50):
        middle = (low + high) / 2
        up = _logistic(forward - middle[..., None] + shift).sum(-1)
        down = _logistic(middle[..., None] - reverse - shift).sum(-1)
        low, high = np.where(up > down, middle, low), np.where(up > down, high, middle)
    middle = (low + high) / 2
    return middle


def _logistic(x: np.ndarray) -> np.ndarray:
    y: np.ndarray = 0.5 * (1 + np.tanh(x / 2))
    return y


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
