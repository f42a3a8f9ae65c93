"""The bases of models that are trained side by side, each with one of its own."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from normae.networks.base import Base


class Bases(nn.Module):
    """The bases of S models side by side: events come as S equal blocks, model after model."""

    def __init__(self, each: Iterable[Base]) -> None:
        super().__init__()
        self.each = list(each)
        for k, base in enumerate(self.each):
            self.add_module(str(k), base)

    def blocks(self, y: Tensor) -> Iterator[tuple[Base, Tensor]]:
        """Every base with its events (B, d) of y (S * B, d)."""
        return zip(self.each, y.chunk(len(self.each)), strict=True)

    def forward(self, y: Tensor) -> Tensor:
        """-s log b with shape (S * B,), for y with shape (S * B, d)."""
        return torch.cat([base(block) for base, block in self.blocks(y)])

    def value_and_grad(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """-s log b with shape (S * B,) and its gradient with shape (S * B, d)."""
        found = [base.value_and_grad(block) for base, block in self.blocks(y)]
        return torch.cat([value for value, _ in found]), torch.cat([grad for _, grad in found])
