"""An Energy: a callable from events with shape (N, *event) to numbers with shape (N,).

    p(x) = exp(-E(x)/T) / Z.

Samplers, partition function and scoring see this callable and never a model class. It may offer `value_and_grad(x)`,
energies (N,) and their gradients (N, *event), both detached; and `held()` for a chain: itself with its weights held
fixed, ready for many gradients. Over events that come from a latent space chains can begin there, with what
`sampling.chain.negatives` asks for. `networks.reconstruction` has the energy of an autoencoder.

A method that is an energy has an attribute `stands_for`, a function of its object: the energy that is taken for it
wherever gradients are needed, or None. So a method of a model, handed to a chain, is as fast as the energy behind it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Energy = Callable[[Tensor], Tensor]
"""Events with shape (N, *event) to energies with shape (N,)."""


def autograd_value_and_grad(energy: Energy, x: Tensor) -> tuple[Tensor, Tensor]:
    """Energies (N,) and gradients (N, *event) of any energy, by reverse-mode differentiation."""
    leaf = x.detach().requires_grad_(True)
    with torch.enable_grad():
        value = energy(leaf)
        (grad,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), grad


def _behind(energy: Energy) -> Energy:
    """The energy that a marked method stands for, else the energy itself."""
    give = getattr(energy, "stands_for", None)
    return energy if give is None else give(getattr(energy, "__self__", None)) or energy


def value_and_grad(energy: Energy, x: Tensor) -> tuple[Tensor, Tensor]:
    """Energies (N,) and gradients (N, *event): the energy's own where it offers them, else by autograd."""
    energy = _behind(energy)
    own = getattr(energy, "value_and_grad", None)
    return autograd_value_and_grad(energy, x) if own is None else own(x)


def held(energy: Energy) -> Energy:
    """The energy with its weights held fixed for many gradients, where it offers that, else the energy itself."""
    energy = _behind(energy)
    hold = getattr(energy, "held", None)
    return energy if hold is None else hold()
