"""A weight draw: one sample of the posterior of the weights, fixed for as long as it is in use.

A training iteration (its chain, E+ and E-), a partition function or a score has one draw from its beginning to its end.
A draw is an ordinary energy with a temperature of its own,

    p_k(x) = exp(-E_k(x)/T_k) / Z_k,    k = 1 ... n.

A `Posterior` is where draws come from: `weights` (mean field, ensemble), `laplace`, `modes`. It gives `Draws`, n of
them at once, which know their n energies at any x, and each alone. A deterministic model has a posterior too, with
exactly one draw, `Certain`: so nobody has to ask which kind of model it is.

What draws say `together` is the mean of their log p. Of a mixture, a posterior with several modes, it is the log of the
mean of their p.
"""

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from normae.networks.reconstruction import ReconstructionEnergy


class Draws(Protocol):
    """n weight draws; `temperature` has shape (n,)."""

    temperature: Tensor

    def energies(self, x: Tensor) -> Tensor:
        """E of every draw, with shape (n, N), for x with shape (N, *event)."""

    def stacked(self) -> ReconstructionEnergy:
        """The energies side by side: n blocks of events, draw after draw."""

    def one(self, k: int) -> ReconstructionEnergy:
        """The energy of draw k alone."""


class Posterior(Protocol):
    """A distribution over weights, around those of an autoencoder."""

    @property
    def certain(self) -> bool:
        """Whether there is one draw only."""

    @property
    def mixture(self) -> bool:
        """Whether the density is the mean of those of the draws, and not that of the mean score."""

    def draws(self, n: int, generator: torch.Generator) -> Draws:
        """`n` draws, all from the generator; fewer where there are no more."""

    def to(self, device: torch.device | str) -> "Posterior":
        """The same posterior on `device`."""


class Certain:
    """The posterior of a deterministic model, and its only draw.

    Args:
        energy: E.
        temperature: T, with shape (1,).
    """

    certain, mixture = True, False

    def __init__(self, energy: ReconstructionEnergy, temperature: Tensor) -> None:
        self.energy, self.temperature = energy, temperature

    def draws(self, n: int, generator: torch.Generator) -> "Certain":  # noqa: ARG002
        """Itself, however many are asked for."""
        return self

    def to(self, device: torch.device | str) -> "Certain":
        """Itself: a model that moves makes a new one."""
        self.temperature = self.temperature.to(device)
        return self

    def energies(self, x: Tensor) -> Tensor:
        """E with shape (1, N)."""
        return self.energy(x)[None]

    def stacked(self) -> ReconstructionEnergy:
        """E."""
        return self.energy

    def one(self, k: int) -> ReconstructionEnergy:  # noqa: ARG002
        """E."""
        return self.energy


def together(scores: Any, mixture: bool) -> Any:
    """What draws with the scores (n, N), an array or a tensor, say together, with shape (N,).

    Their mean; of a mixture -log of the mean of exp(-score), which is the score of the mean density.
    """
    if not mixture:
        return scores.mean(0)
    found = np.log(len(scores)) - torch.logsumexp(-torch.as_tensor(scores), dim=0)
    return found if isinstance(scores, Tensor) else found.numpy()
