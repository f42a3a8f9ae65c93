"""Named random streams: one seed per run, and one generator for each purpose.

The stream of a name depends on the seed and on the name only, so that adding a purpose never changes the
numbers of the others. Nothing in the package uses torch's global generator.
"""

import hashlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def stream(seed: int, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """The generator of the stream `name` of a run with seed `seed`, on `device`."""
    digest = hashlib.sha256(f"normae/{seed}/{name}".encode()).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)


Generators = torch.Generator | Sequence[torch.Generator]
"""One generator, or one for each of S models whose samples stand in S equal blocks."""


def _draw(draw: Callable[..., Tensor], shape: Sequence[int], generators: Generators, like: Tensor) -> Tensor:
    if isinstance(generators, torch.Generator):
        generators = [generators]
    if len(generators) == 1:
        out = draw(shape, generator=generators[0], device=generators[0].device, dtype=like.dtype)
        return out.to(like.device)
    block = (shape[0] // len(generators), *shape[1:])
    return torch.cat([draw(block, generator=g, device=g.device, dtype=like.dtype) for g in generators]).to(like.device)


def normal(shape: Sequence[int], generators: Generators, like: Tensor) -> Tensor:
    """Standard normal numbers with the given shape, dtype and device of `like`."""
    return _draw(torch.randn, shape, generators, like)


def uniform(shape: Sequence[int], generators: Generators, like: Tensor) -> Tensor:
    """Numbers uniform in [0, 1) with the given shape, dtype and device of `like`."""
    return _draw(torch.rand, shape, generators, like)
