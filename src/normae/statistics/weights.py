"""Ratios of partition functions from the log weights of annealed chains.

Forward and reverse weights obey p_F(w) w = p_R(w) Z_1/Z_0. Their best estimate together is that of Bennett (1976).
"""

import math

import numpy as np


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
