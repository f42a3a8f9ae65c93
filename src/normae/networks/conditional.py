"""The base of a table with conditioning columns: y = (r, t), r the columns of p(x | m) and t the condition.

    E(r, t) = -s log b(r) + 1/d |y - f(y)|^2 + T c(t).

The coordinates have taken out of r what depends on the condition simply, and b knows none of it. The network sees both.
c is a polynomial in t: log Z(t) of the rest, fitted when the training is over (`inference.log_z`), so that exp(-E/T) is
a density of r at every t.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from normae.conditional import ConditionalCoordinates, degree_of, polynomials
from normae.energy import autograd_value_and_grad
from normae.networks.base import Base, BaseConfig, fit_base, read_base

MOST_TERMS = 70  # of c(t)


class ConditionalBase(Base):
    """-s log b(r) + T c(t), for y = (r, t) with shape (N, d + k).

    Args:
        tensors: as of `Base`, and `conditions` with shape (n, k), t of rows of the training; `edges` (2, k), the range
            of t; `offset` (K,), the coefficients of T c(t).
    """

    conditions: Tensor
    edges: Tensor
    offset: Tensor

    NAMES = (*Base.NAMES, "conditions", "edges", "offset")

    def terms(self, y: Tensor) -> Tensor:
        """The polynomials that c is a sum of, with shape (N, K)."""
        t = y[:, self.dimension :]
        return polynomials(t, self.edges, degree_of(len(self.offset), t.shape[1]))

    def forward(self, y: Tensor) -> Tensor:
        return self.both(y)[0]

    def both(self, y: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        value, log_q = super().both(y, rows)
        return value + self.terms(y) @ self.offset, log_q

    def propose(self, n: int, generator: torch.Generator) -> Tensor:
        """`n` draws (r, t) with shape (n, d + k): r of q, t of random rows of the training."""
        return torch.cat([super().propose(max(n, 2), generator)[:n], self.some(n, generator)], dim=1)

    def some(self, n: int, generator: torch.Generator) -> Tensor:
        """t of `n` random rows of the training, with shape (n, k)."""
        which = torch.randint(len(self.conditions), (n,), generator=generator, device=generator.device)
        return self.conditions[which.to(self.conditions.device)]

    def value_and_grad(self, y: Tensor) -> tuple[Tensor, Tensor]:
        return autograd_value_and_grad(self, y)


def fit_conditional_base(
    rows: Tensor, coordinates: ConditionalCoordinates, config: BaseConfig, generator: torch.Generator,
    places: Tensor | None = None,
) -> ConditionalBase:  # fmt: skip
    """The base of rows y with shape (N, d + k); arguments as of `fit_base`."""
    frame, k = torch.linalg.inv(coordinates.whitening), len(coordinates.given)
    own = None if places is None else places[:, : len(frame)]
    base = fit_base(rows[:, : len(frame)], frame, config, generator, None, own)
    chosen = torch.randperm(len(rows), generator=generator)[: config.rows]
    offset = torch.zeros(math.comb(degree_of(MOST_TERMS, k) + k, k))
    given = {"conditions": rows[chosen, len(frame) :], "edges": coordinates.edges, "offset": offset}
    return ConditionalBase(dict(base.named_buffers()) | given)


def read_any_base(tensors: Mapping[str, Tensor], d: int, source: str) -> Base:
    """The base of the tensors in a model's file, with conditions or without; `source` names the file in messages."""
    own = {name: tensors[name] for name in ConditionalBase.NAMES[-3:] if name in tensors}
    sizes = [tuple(tensor.shape) for tensor in own.values()]
    k = sizes[0][-1] if len(sizes) == 3 and len(sizes[0]) == 2 and sizes[0][0] else 0
    right = k and sizes[1:] == [(2, k), (math.comb(degree_of(MOST_TERMS, k) + k, k),)]
    plain = {name: tensor for name, tensor in tensors.items() if not right or name not in own}
    base = read_base(plain, d - k if right else d, source)
    return ConditionalBase(dict(base.named_buffers()) | own) if right else base
