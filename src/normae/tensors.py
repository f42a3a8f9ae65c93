"""Operations on tensors that all rooms share: named random streams, weights of rows, short sums, whole numbers.

One seed per run gives one generator for each purpose. The stream of a name depends on the seed and on the name only, so
that adding a purpose never changes the numbers of the others. Nothing in the package uses torch's global generator.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Device = torch.device | str
"""Where tensors are."""


def stream(seed: int, name: str, device: Device = "cpu") -> torch.Generator:
    """The generator of the stream `name` of a run with seed `seed`, on `device`."""
    digest = hashlib.sha256(f"normae/{seed}/{name}".encode()).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)


Generators = torch.Generator | Sequence[torch.Generator]
"""One generator, or one for each of S models whose samples stand in S equal blocks."""


def _draw(draw: Callable[..., Tensor], shape: Sequence[int], generators: Generators, like: Tensor) -> Tensor:
    each = [generators] if isinstance(generators, torch.Generator) else generators
    block = (shape[0] // len(each), *shape[1:])
    parts = [draw(block, generator=g, device=g.device, dtype=like.dtype) for g in each]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(like.device)


def normal(shape: Sequence[int], generators: Generators, like: Tensor) -> Tensor:
    """Standard normal numbers with the given shape, dtype and device of `like`."""
    return _draw(torch.randn, shape, generators, like)


def uniform(shape: Sequence[int], generators: Generators, like: Tensor) -> Tensor:
    """Numbers uniform in [0, 1) with the given shape, dtype and device of `like`."""
    return _draw(torch.rand, shape, generators, like)


def counts_as(weights: Tensor) -> int:
    """(sum w)^2 / sum w^2 of weights with shape (N,): the equal ones that would say as much, at least 1."""
    return max(1, round(float(weights.sum() ** 2 / weights.square().sum())))


def by_weight(weights: Tensor, n: int) -> Tensor:
    """Numbers of `n` rows in rising order, each as often as its weight says: at even steps of the sum of the first.

    Negative weights, with shape (N,) as all, take from those after them.
    """
    total = weights.cumsum(0).cummax(0).values.contiguous()
    steps = (torch.arange(n, dtype=total.dtype) + 0.5) / n * total[-1]
    return torch.searchsorted(total, steps).clamp_max(len(weights) - 1)


def norm(x: Tensor, keepdim: bool = False) -> Tensor:
    """Euclidean norm over the last axis."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=keepdim)
    return length


def sum_features(x: Tensor) -> Tensor:
    """Sum over the last axis; on a CPU by a product with ones: torch's sum of a short axis takes four times as long."""
    total: Tensor = x.sum(-1) if x.is_cuda else x @ x.new_ones(x.shape[-1])
    return total


WHOLE: dict[type[np.floating[Any]], int] = {np.float32: 2**24, np.float64: 2**53}
"""Up to which a type holds every whole number."""


def keeps(values: NDArray[Any], dtype: type[np.floating[Any]]) -> bool:
    """Whether whole numbers keep all their digits in `dtype`; other numbers are rounded, as they always are."""
    if values.dtype == dtype or values.itemsize < dtype().itemsize or values.dtype.kind not in "iuf" or not values.size:
        return True
    if -WHOLE[dtype] <= values.min() <= values.max() <= WHOLE[dtype]:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        kept = values.astype(dtype).astype(values.dtype) == values
        if values.dtype.kind == "f":  # beyond 2^53 every one is whole, and none is meant as a whole number
            kept |= (values != np.trunc(values)) | ~(np.abs(values) <= 2.0**53)
    return bool(kept.all())
