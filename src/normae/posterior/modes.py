"""A posterior with several modes: the mean fields of trainings that differ in their seeds.

    q(w) = 1/K sum_j q_j(w),    p(x) = 1/K sum_j p_j(x),    p_j(x) = exp(-E_j(x)/T_j + c_j) / Z.

A mean field knows the width of the mode that its training has found, and nothing of the other modes. A draw is a draw
of one member, so that the spread over draws has both: within a mode, and from one training to another. The density of
the whole is the mean of the members' densities; their constants c_j come from `statistics.mixture_constants`.
"""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor

from normae.networks.autoencoder import Autoencoder
from normae.networks.reconstruction import ReconstructionEnergy
from normae.posterior.weights import MeanField, WeightDraws


class ModeDraws:
    """Draws of several mean fields in turn.

    Args:
        own: the draws of each member.
        chosen: the member of each draw, with shape (n,).
        constants: c_j, with shape (K,); `shift` has that of each draw, with shape (n,).
    """

    def __init__(self, own: Sequence[WeightDraws], chosen: Tensor, constants: Tensor) -> None:
        self.own, self.chosen, self.constants = list(own), chosen, constants
        self.places = [torch.nonzero(chosen == j)[:, 0] for j in range(len(self.own))]
        self.temperature = self._placed([draws.temperature for draws in self.own])
        self.shift = self._placed([c.expand(draws.n) for draws, c in zip(self.own, constants, strict=True)])

    def _placed(self, parts: Sequence[Tensor]) -> Tensor:
        """Rows of the members in the order of the draws."""
        found = parts[0].new_empty((len(self.chosen), *parts[0].shape[1:]))
        for place, part in zip(self.places, parts, strict=True):
            found[place] = part
        return found

    def energies(self, x: Tensor) -> Tensor:
        """E - T c of every draw, with shape (n, N): energies whose constants can be compared."""
        pairs = zip(self.own, self.constants, strict=True)
        return self._placed([draws.energies(x) - (draws.temperature * c)[:, None] for draws, c in pairs])

    def stacked(self) -> ReconstructionEnergy:
        """The energies side by side, without the constants, which no chain can see."""
        names = self.own[0].weights
        weights = {
            name: self._placed([d.weights[name].expand(d.n, *d.weights[name].shape[1:]) for d in self.own])
            for name in names
        }
        return ReconstructionEnergy(self.own[0].autoencoder, weights)

    def one(self, k: int) -> ReconstructionEnergy:
        """The energy of draw k alone, without its constant."""
        member = int(self.chosen[k])
        return self.own[member].one(int((self.chosen[:k] == member).sum()))


class Modes:
    """Mean fields of K trainings, each with the same weight but for one draw more or less.

    Args:
        members: the mean field of each.
        constants: c_j, with shape (K,).
    """

    certain, mixture = False, True

    def __init__(self, members: Sequence[MeanField], constants: Tensor) -> None:
        self.members, self.constants = list(members), constants

    @staticmethod
    def of(
        autoencoder: Autoencoder,
        weights: dict[str, Tensor],
        rho: dict[str, Tensor],
        temperatures: Tensor,
        constants: Tensor,
    ) -> "Modes":
        """From the weights and widths of all members, with shape (K, *parameter)."""
        fields = []
        for j, temperature in enumerate(temperatures.tolist()):
            member = deepcopy(autoencoder).eval().requires_grad_(False)
            member.load_state_dict({name: value[j] for name, value in weights.items()})
            fields.append(MeanField(member, {name: value[j] for name, value in rho.items()}, temperature))
        return Modes(fields, constants)

    def to(self, device: torch.device | str) -> "Modes":
        """The same posterior on `device`."""
        for field in self.members:
            field.autoencoder.to(device)
            field.to(device)
        self.constants = self.constants.to(device)
        return self

    def draws(self, n: int, generator: torch.Generator) -> ModeDraws:
        """The members in turn, beginning with any of them: their numbers of draws differ by one at most."""
        count = len(self.members)
        order = torch.randperm(count, generator=generator, device=generator.device)[:n].tolist()
        chosen = torch.arange(n) % len(order)
        own = [self.members[j].draws(int((chosen == k).sum()), generator) for k, j in enumerate(order)]
        return ModeDraws(own, chosen, self.constants[order])
