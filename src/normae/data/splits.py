"""Splits of one sample into parts that cannot overlap."""

from collections.abc import Sequence

import torch
from torch import Tensor

from normae.errors import refuse


def split(n: int, sizes: Sequence[int], generator: torch.Generator) -> list[Tensor]:
    """Index sets of the given sizes into `n` events, disjoint by construction.

    All parts are consecutive pieces of one permutation. A sample that is too short is an error, never a shared event.

    >>> import torch, normae.data
    >>> train, test = normae.data.split(10, [8, 2], torch.Generator().manual_seed(0))
    >>> sorted(train.tolist() + test.tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    refuse(any(size < 0 for size in sizes), f"expected sizes of at least 0, got {list(sizes)}")
    refuse(sum(sizes) > n, f"expected at least {sum(sizes)} events for parts of {list(sizes)}, got {n}")
    order = torch.randperm(n, generator=generator)
    parts = torch.split(order[: sum(sizes)], list(sizes))
    return list(parts)
