"""The autoencoder x -> z -> x', any encoder with any decoder, and the paper's choice for vectors."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from normae.errors import InputError
from normae.networks.mlp import MLP
from normae.tensors import norm


def to_sphere(z: Tensor) -> Tensor:
    """z / |z| with shape (N, d), safe at zero."""
    return z / norm(z, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)


class Autoencoder(nn.Module):
    """An encoder and a decoder that the user brings.

    Args:
        encoder: maps events (N, *event) to latent points (N, d_z).
        decoder: maps latent points (N, d_z) to events (N, *event).
        latent_dimension: d_z.
        sphere: whether latent points are normalized to the unit sphere.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, latent_dimension: int, sphere: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.latent_dimension = latent_dimension
        self.sphere = sphere

    def forward(self, x: Tensor) -> Tensor:
        """Reconstructions with shape (N, *event)."""
        z: Tensor = self.encoder(x)
        out: Tensor = self.decoder(to_sphere(z) if self.sphere else z)
        return out


@dataclass(frozen=True)
class NetworkConfig:
    """An MLP encoder and its mirror as decoder: the paper's toy network by default."""

    latent: int = 3
    hidden: tuple[int, ...] = (128, 128, 128)
    activation: Literal["relu", "silu", "gelu", "tanh"] = "relu"
    latent_space: Literal["euclidean", "sphere"] = "euclidean"

    def __post_init__(self) -> None:
        if self.latent < 1:
            raise InputError(f"network.latent: expected at least 1, got {self.latent}")
        if not self.hidden or min(self.hidden) < 1:
            raise InputError(f"network.hidden: expected one or more widths of at least 1, got {list(self.hidden)}")
        if self.latent_space == "sphere" and self.latent < 2:
            raise InputError("network.latent: expected at least 2 for a spherical latent space, got 1")


def build_mlp_autoencoder(config: NetworkConfig, event: tuple[int, ...], generator: torch.Generator) -> Autoencoder:
    """The MLP autoencoder of `config` for events of shape `event`, which must be vectors."""
    if len(event) != 1:
        raise InputError(f"an MLP autoencoder expects events that are vectors of shape (d,), got {event}")
    encoder = MLP([event[0], *config.hidden, config.latent], config.activation, generator)
    decoder = MLP([config.latent, *reversed(config.hidden), event[0]], config.activation, generator)
    return Autoencoder(encoder, decoder, config.latent, config.latent_space == "sphere")
