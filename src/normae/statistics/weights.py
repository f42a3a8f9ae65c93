"""Ratios of partition functions from the log weights of annealed chains.

Forward and reverse weights obey p_F(w) w = p_R(w) Z_1/Z_0. Their best estimate together is that of Bennett (1976).
"""

import math

import numpy as np
from scipy.special import expit, logsumexp


def log_mean_exp(log_weight: np.ndarray) -> np.ndarray:
    """log of the mean of exp over the last axis."""
    return np.asarray(logsumexp(log_weight, axis=-1) - math.log(log_weight.shape[-1]))


def effective_size(log_weight: np.ndarray) -> float:
    """(sum w)^2 / sum w^2 of weights with shape (N,)."""
    return float(np.exp(2 * logsumexp(log_weight) - logsumexp(2 * log_weight)))


def bennett(forward: np.ndarray, reverse: np.ndarray) -> np.ndarray:
    """log Z_1/Z_0 with shape (...), from log weights with shapes (..., N_F) and (..., N_R), by bisection."""
    shift = math.log(reverse.shape[-1] / forward.shape[-1])
    both = np.concatenate([forward, reverse], axis=-1)
    low, high = both.min(axis=-1) - abs(shift) - 50, both.max(axis=-1) + abs(shift) + 50
    for _ in range(50):
        middle = (low + high) / 2
        up = expit(forward - middle[..., None] + shift).sum(-1)
        down = expit(middle[..., None] - reverse - shift).sum(-1)
        low, high = np.where(up > down, middle, low), np.where(up > down, high, middle)
    return np.asarray((low + high) / 2)
