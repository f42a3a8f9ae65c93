"""What the statistics ask of an array: one dimension, float64, no NaN, enough entries."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normae.errors import InputError

Array = NDArray[np.float64]


def as_vector(values: ArrayLike, name: str, least: int = 1) -> Array:
    """`values` of any shape as float64 with shape (N,), N >= `least`; NaN is refused, infinities are not."""
    vector = np.asarray(values, dtype=np.float64).ravel()
    if vector.size < least:
        raise InputError(f"{name}: expected at least {least} values, got {vector.size}")
    if missing := int(np.isnan(vector).sum()):
        raise InputError(f"{name}: expected numbers, got {missing} NaN among {vector.size} values")
    return vector


def as_pair(first: ArrayLike, second: ArrayLike, names: tuple[str, str], least: int = 1) -> tuple[Array, Array]:
    """Two arrays of the same shape as a pair of vectors with shape (N,)."""
    shapes = np.shape(first), np.shape(second)
    if shapes[0] != shapes[1]:
        raise InputError(f"expected {names[0]} and {names[1]} of one shape, got {shapes[0]} and {shapes[1]}")
    return as_vector(first, names[0], least), as_vector(second, names[1], least)
