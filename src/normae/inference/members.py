"""A model of a table that is several: each of its members was trained on a half of the rows, two on those of one cut.

    log p(x) = 1/K sum_k log p_k(x),    p_k with coordinates, base, network, T and log Z of its own.

For a linear statistic, random halves scatter around the whole as the whole scatters around the truth. So the members
are the weight draws, all that there are, and their spread, times `bar`, is the error of their mean
(`posterior.draw.bar_of_halves`), but for what all of them get wrong alike. A draw is an energy in the coordinates y of
the whole table,

    E_k(y) = T_k (s_k(x) + log |dy/dx| + log Z_k - log Z),    log Z = 1/K sum_k log Z_k,

s_k the member's score, so that all draws have the same log Z.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normae.coordinates import Coordinates, Identity
from normae.errors import InputError
from normae.inference.log_z import LogZ
from normae.inference.model import DRAWS, Model
from normae.networks.reconstruction import ReconstructionEnergy
from normae.posterior.draw import Posterior
from normae.tensors import stream


class Members(Posterior):
    """The posterior of such a model, and its draws, all that there are, with the coordinates y(x) of the table."""

    def __init__(self, models: Sequence[Model], coordinates: Coordinates) -> None:
        self.models, self.coordinates = list(models), coordinates
        self.temperature = torch.tensor([model.temperature for model in models], dtype=torch.float64)
        known = [model.normalization() for model in models]
        self.log_z = None if any(one is None for one in known) else torch.tensor(np.array(known)[:, 0])

    def draws(self, n: int, generator: torch.Generator) -> "Members":  # noqa: ARG002
        return self

    def energies(self, x: Tensor) -> Tensor:
        """E of every member at rows x of the table, with shape (K, N)."""
        scores = torch.stack([model.rows(x).scores[0] for model in self.models]) + self.coordinates.log_slope(x)
        if self.log_z is not None:
            scores = scores + (self.log_z - self.log_z.mean()).to(scores)[:, None]
        return scores * self.temperature.to(scores)[:, None]

    def stacked(self) -> ReconstructionEnergy:
        raise InputError("expected a model with one network for a chain; take a member, model.draw(generator)")

    def one(self, k: int) -> ReconstructionEnergy:
        """The energy of member k alone, in its own coordinates and without its constant."""
        return self.models[k].energy_function


class MembersModel(Model):
    """Members as one model, in the units of the table, with the coordinates of the whole table.

    Args:
        bar: what the standard deviation over members is multiplied by to be the error of their mean.
    """

    def __init__(self, models: Sequence[Model], coordinates: Coordinates, name: str, bar: float = 1.0) -> None:
        first, posterior = models[0], Members(models, coordinates)
        self.bar = bar
        log_z = None
        if posterior.log_z is not None:
            error = math.sqrt(sum(model.log_z.error**2 for model in models)) / len(models)
            log_z = LogZ(float(posterior.log_z.mean()), error, first.log_z.bounds)
        super().__init__(
            first.autoencoder, float(posterior.temperature.mean()), first.seen_event, first.sampling, log_z, name,
            posterior=posterior, coordinates=coordinates, columns=first.columns, categories=first.categories,
        )  # fmt: skip
        self.members = posterior.models

    def to(self, device: Any) -> Model:
        """The same model with the weights of its members on `device`, or of a type such as torch.float64."""
        super().to(device)
        self.posterior = Members([model.to(device) for model in self.members], self.coordinates)
        return self

    @property
    def centre(self) -> Model:
        """One of the members."""
        return self.members[0]

    def in_components(self) -> Model:
        """Of pictures seen by their components: the same members as models of rows y with shape (N, K)."""
        return MembersModel([model.in_components() for model in self.members], Identity(), self.name)

    def _seen(self, events: Tensor) -> Tensor:
        """Rows of the table: members have coordinates of their own."""
        return events

    def normalization(self, n: int = DRAWS, seed: int = 0) -> NDArray[np.float64] | None:  # noqa: ARG002
        """log Z of each member with its constant, with shape (K,): the same for all."""
        return None if self._log_z is None else np.full(len(self.members), self._log_z.value)

    def explain(self, x: Any) -> Any:
        """The part of each column in the score, with shape (N, d): the mean over members."""
        return sum(model.explain(x) for model in self.members) / len(self.members)

    def draw(self, generator: torch.Generator) -> Model:
        """One of the members."""
        k = torch.randint(len(self.members), (1,), generator=generator, device=generator.device)
        return self.members[int(k)]

    def sample(self, n: int, seed: int = 0, *args: Any, **settings: Any) -> NDArray[Any]:
        """`n` rows with shape (n, d), as many of each member; arguments as in `Model.sample`."""
        each = -(-n // len(self.members))
        rows = [model.sample(each, seed + k, *args, **settings) for k, model in enumerate(self.members)]
        order = torch.randperm(each * len(rows), generator=stream(seed, "sample/members"))[:n]
        return np.asarray(np.concatenate(rows)[order.numpy()])
