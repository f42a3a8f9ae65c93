"""Jets as a table: K whitened components of a picture, y_k = <v_k, x^a - c> / w_k, and the density of y + sigma eps.

An energy of 1600 pixels cannot be a density of jets that a chain samples; one of a few components can. x are pixels,
a is their power, c the mean of x^a, v_k orthonormal functions on the picture and w_k the width of each. c, v and w are
of a sample of background, so that they know no other class; those that ship with the package are of QCD jets, and
models of any class that share them are densities of the same rows: the difference of their log p is a likelihood
ratio. A density that is asked for a ratio must be smooth at the scale of what it cannot know: Gaussian noise of width
sigma, in units of w, is added to the rows of a training, and p is the density of the rows with their noise. A picture
is scored at its own y, where the noise is 0: a score is a function of the picture alone.

log p is that of the K components: what a picture has beside them does not count, and there is no log |dy/dx|.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from normae.coordinates import ComponentsConfig, Coordinates
from normae.data import SparseEvents
from normae.data.images import leading, moments
from normae.errors import InputError

SHIPPED = Path(__file__).parent / "jets" / "components.npz"
SIDE = 40  # pixels along an axis of a jet's picture
OWN_EVENTS = 20_000  # most events that components of their own are found with
FLOOR = 1e-12  # least pixel: below it the slope of x^a has no meaning
CHUNK = 2048


@dataclass(frozen=True)
class ComponentsCoordinates(Coordinates):
    """The map from pictures with shape (N, *event) to K components with shape (N, K)."""

    kind: ClassVar[str] = "components"

    centre: Tensor  # c with shape (*event)
    basis: Tensor  # v with shape (K, *event), orthonormal
    width: Tensor  # w with shape (K,)
    power: Tensor  # a and sigma, with shape ()
    noise: Tensor

    @classmethod
    def of(cls, config: ComponentsConfig, events: SparseEvents) -> "ComponentsCoordinates":
        """The components that ship, or those of N pictures with shape (N, *event)."""
        if config.basis == "jets":
            centre, basis, width = (part[: config.number] if k else part for k, part in enumerate(shipped()))
            if tuple(basis.shape[1:]) != tuple(events.shape[1:]):
                raise InputError(f'basis: "jets" has pictures of shape {basis.shape[1:]}; take basis = "own"')
        else:
            centre, basis, width = principal(events, config.power, config.number)
        numbers = (torch.tensor(value, dtype=torch.float64) for value in (config.power, config.noise))
        return cls(centre, basis, width, *numbers)

    def first(self, config: ComponentsConfig, source: str) -> "ComponentsCoordinates":
        """The first of these components, with the noise of `config`; `source` names the run that has them."""
        if config.number > len(self.width) or config.power != float(self.power):
            raise InputError(
                f"coordinates.components: {source} has {len(self.width)} of pixels to the power of "
                f"{float(self.power):g}, expected {config.number} with {config.power:g}"
            )
        noise = torch.tensor(config.noise, dtype=torch.float64)
        return replace(self, basis=self.basis[: config.number], width=self.width[: config.number], noise=noise)

    @property
    def event(self) -> tuple[int, ...]:
        """The shape of a picture."""
        return tuple(self.centre.shape)

    @property
    def colouring(self) -> Tensor:
        """1 with shape (K, K): components are white already."""
        return torch.eye(len(self.width), dtype=torch.float64, device=self.width.device)

    def forward(self, x: Tensor) -> Tensor:
        """y with shape (N, K), in float64."""
        u: Tensor = x.double().clamp_min(FLOOR) ** self.power - self.centre
        return u.flatten(1) @ self.basis.double().flatten(1).T / self.width

    def inverse(self, y: Tensor) -> Tensor:
        """Pictures with shape (N, *event) that are nothing beside their components; their pixels sum to one."""
        u = (y.double() * self.width) @ self.basis.double().flatten(1)
        x: Tensor = (self.centre.flatten() + u).clamp_min(0) ** (1 / self.power)
        return (x / x.sum(1, keepdim=True).clamp_min(FLOOR)).float().reshape(-1, *self.event)

    def noisy(self, y: Tensor, copies: int, generator: torch.Generator) -> Tensor:
        """`copies` of rows y with shape (N, K), each with its own noise, (copies * N, K)."""
        many = y.repeat(copies, 1)
        return many + torch.randn(many.shape, generator=generator, dtype=y.dtype).to(y.device) * self.noise

    def rows(self, events: SparseEvents) -> Tensor:
        """y of all pictures, some at a time, with shape (N, K)."""
        return torch.cat([self.forward(events[piece]) for piece in torch.split(torch.arange(len(events)), CHUNK)])

    def picture(self, step: Tensor, slope: Tensor) -> Tensor:
        """A sum over components, step times slope (N, K), as one over pixels (N, *event): both seen in the picture."""
        basis = self.basis.double().flatten(1)
        parts: Tensor = ((step.double() * self.width) @ basis) * ((slope.double() / self.width) @ basis)
        return parts.reshape(-1, *self.event)


def principal(events: SparseEvents, power: float, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Centre, orthonormal basis and widths of the leading components of x^a, each with its largest pixel positive."""
    few, event = events.first(OWN_EVENTS), events.shape[1:]
    mean, covariance = moments(few, function=lambda x: x.clamp_min(FLOOR) ** power)
    if number >= min(len(mean), len(few)):
        raise InputError(f"coordinates.components.number: expected fewer than {min(len(mean), len(few))}, got {number}")
    basis = leading(covariance, number).T
    basis = basis * basis.gather(1, basis.abs().argmax(1, keepdim=True)).sign()
    width = torch.einsum("ki,ij,kj->k", basis, covariance, basis).sqrt()
    return mean.unflatten(0, event), basis.unflatten(1, event).float(), width


@cache
def shipped() -> tuple[Tensor, Tensor, Tensor]:
    """Centre, basis and widths of the components of QCD jets that ship; from half precision, made orthonormal again."""
    with np.load(SHIPPED, allow_pickle=False) as content:
        centre, basis, width = (torch.from_numpy(content[name].astype(np.float64)) for name in content.files)
    left, _, right = torch.linalg.svd(basis, full_matrices=False)
    event = (1, SIDE, SIDE)
    return centre.reshape(event), (left @ right).float().unflatten(1, event), width


def read_components(tensors: Mapping[str, Tensor], rows: tuple[int, ...], source: str) -> ComponentsCoordinates:
    """Those of the tensors in a model's file, for `rows` of (K,) components; `source` names the file in messages."""
    event = tuple(tensors["centre"].shape) if "centre" in tensors else ()
    shapes = {"centre": event, "basis": (*rows, *event), "width": rows, "power": (), "noise": ()}
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != shapes:
        raise InputError(f"{source}: the components do not belong to the model; train it again")
    return ComponentsCoordinates(**tensors)
