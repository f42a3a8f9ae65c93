"""The weights of one model or of several, as one flat tensor.

Several models of one architecture (seeds, an ensemble) are trained side by side. Their weights are one tensor of
shape (S, P), a row for each model; the named weights are views of it. An optimizer step, an average, a norm, a
rollback or a checkpoint is then a single operation, whatever the architecture.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a module's parameters, in order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        """The layout of `module`'s parameters."""
        named = list(module.named_parameters())
        return cls(tuple(name for name, _ in named), tuple(tuple(p.shape) for _, p in named))

    @property
    def sizes(self) -> list[int]:
        """Number of weights of each parameter."""
        return [int(torch.Size(shape).numel()) for shape in self.shapes]

    def flatten(self, modules: Sequence[nn.Module]) -> Tensor:
        """The weights of the modules with shape (S, P), a copy."""
        rows = [torch.cat([p.detach().reshape(-1) for _, p in m.named_parameters()]) for m in modules]
        return torch.stack(rows)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Named views with shape (S, *parameter) of weights with shape (S, P); one split, so one backward node."""
        pieces = torch.split(flat, self.sizes, dim=1)
        named = zip(self.names, self.shapes, pieces, strict=True)
        return {name: piece.reshape(flat.shape[0], *shape) for name, shape, piece in named}

    def load(self, module: nn.Module, row: Tensor) -> None:
        """Copy one row of weights, with shape (P,), into `module`."""
        with torch.no_grad():
            for name, view in self.views(row[None]).items():
                module.get_parameter(name).copy_(view[0])


def all_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers by name, live."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


@torch.no_grad()
def fill(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy weights and buffers, by name, into a network."""
    own = all_tensors(network)
    for name, tensor in tensors.items():
        own[name].copy_(tensor)


def prefixed(parameters: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The parameters below `prefix`, named as that submodule names them."""
    return {name[len(prefix) :]: p for name, p in parameters.items() if name.startswith(prefix)}


def call(module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """`module(x)` for a stack of S models.

    Args:
        module: the architecture; its own weights are not used.
        parameters: with shape (S, *parameter) each.
        x: events with shape (S * B, *event), model after model.

    Returns:
        Outputs with shape (S * B, *out), each block computed with its own model's weights.
    """
    if not parameters:
        unweighted: Tensor = module(x)
        return unweighted
    members = next(iter(parameters.values())).shape[0]
    if members == 1:
        single: Tensor = functional_call(module, {name: p[0] for name, p in parameters.items()}, (x,))
        return single
    stacked: Tensor = vmap(lambda p, block: functional_call(module, p, (block,)))(
        dict(parameters), x.unflatten(0, (members, -1))
    )
    return stacked.flatten(0, 1)
