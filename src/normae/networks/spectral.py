"""Spectral normalization of rows of weights: every matrix divided by its largest singular value.

A weight of two or more axes is a matrix W with shape (out, in), a convolution's with in = channels * taps. With unit
vectors u, v from the power iteration v <- W^T u, u <- W v, each normalized, the singular value is s = u^T W v, and the
network is computed with W/s. The gradient goes through s with u and v held fixed.

One power iteration belongs to one update. Within an iteration of the training u, v and W stand still, so that a chain
sees plain weights and an energy that does not change under it; u and v are state, and belong to a checkpoint.

All weights of a model are one row (S, P). With uv the row of all products u_i v_j, and a matrix B with shape (P, L)
that says which column belongs to which layer, s = (uv W) B and W/s is one product with (1/s) B^T: a few operations,
whatever the number of layers, without an atomic sum.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from normae.networks.reconstruction import Layout
from normae.tensors import Generators, normal

FIRST_ITERATIONS = 15  # power iterations at the start, from random vectors


class SpectralNorm:
    """The normalization of S models' weights; those given, with shape (S, P), are for the first power iterations."""

    def __init__(self, layout: Layout, weights: Tensor, generators: Generators) -> None:
        self.layout = layout
        self.names = [name for name, shape in zip(layout.names, layout.shapes, strict=True) if len(shape) > 1]
        shapes = [shape for shape in layout.shapes if len(shape) > 1]
        self.sizes = [size for shape in shapes for size in (shape[0], int(torch.Size(shape[1:]).numel()))]
        columns = layout.columns()
        self.member = weights.new_zeros(weights.shape[1], len(self.names))
        for k, name in enumerate(self.names):
            self.member[columns[name], k] = 1
        self.vectors = normal((len(weights), sum(self.sizes)), generators, weights)
        self.settle(weights)

    def settle(self, weights: Tensor) -> None:
        """The power iterations that weights (S, P) need which u and v do not know yet."""
        for _ in range(FIRST_ITERATIONS):
            self.iterate(weights)

    @torch.no_grad()
    def iterate(self, weights: Tensor) -> None:
        """One power iteration of every matrix of weights (S, P), in place on u and v."""
        pairs, views = torch.split(self.vectors, self.sizes, dim=1), self.layout.views(weights)
        for name, u, v in zip(self.names, pairs[0::2], pairs[1::2], strict=True):
            matrix = views[name].flatten(2)
            v.copy_(normalize(torch.einsum("soi,so->si", matrix, u), dim=1))
            u.copy_(normalize(torch.einsum("soi,si->so", matrix, v), dim=1))

    def products(self) -> Tensor:
        """uv with shape (S, P); zero where a weight is not normalized."""
        found = self.vectors.new_zeros(len(self.vectors), len(self.member))
        pairs, views = torch.split(self.vectors, self.sizes, dim=1), self.layout.views(found)
        for name, u, v in zip(self.names, pairs[0::2], pairs[1::2], strict=True):
            torch.mul(u[:, :, None], v[:, None], out=views[name].flatten(2))
        return found

    def normalized(self, weights: Tensor) -> Tensor:
        """The weights (S, P) that the network is computed with; differentiable."""
        values = (self.products() * weights) @ self.member
        scale = (1 / values - 1) @ self.member.T
        return weights * (1 + scale)
