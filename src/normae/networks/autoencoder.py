"""The autoencoder x -> z -> x', any encoder with any decoder, and the paper's choices for vectors and for images.

Two things of the convolutional one are written otherwise than in the paper's table, and mean the same. A transposed
convolution of stride 1 equals a convolution with flipped, transposed weights, which every library has in a faster form:
the decoder's layers are convolutions, with the initial weights that torch gives to transposed ones. And bilinear
upsampling by two is a product with a fixed matrix U along each axis, x -> U x U^T, whose gradient is deterministic on
every device.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from normae.errors import InputError, check_memory, refuse, require_that
from normae.networks.base import Base, Bases
from normae.networks.mlp import MLP, drawn, linear
from normae.tensors import norm

OWN = (
    "network.kind: networks of your own come from Python, normae.train(data, encoder=..., decoder=...) or energy=...; "
    'expected "mlp" or "conv" here'
)


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
        spectral_norm: whether a training divides every weight matrix by its largest singular value.

    Attributes:
        base: what the reconstruction error is added to; None for nothing.
    """

    def __init__(
        self, encoder: nn.Module, decoder: nn.Module, latent_dimension: int, sphere: bool = False,
        spectral_norm: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.encoder, self.decoder, self.latent_dimension = encoder, decoder, latent_dimension
        self.sphere, self.spectral_norm = sphere, spectral_norm
        self.base: Base | Bases | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Reconstructions with shape (N, *event)."""
        z: Tensor = self.encoder(x)
        out: Tensor = self.decoder(to_sphere(z) if self.sphere else z)
        return out


@dataclass(frozen=True)
class NetworkConfig:
    """Encoder and decoder: the paper's toy network by default.

    Args:
        latent: dimension d_z of the latent space; 0 where an energy of one's own has none.
        hidden: widths of the hidden layers; of a "conv", the width of its one dense layer.
        activation: of the hidden layers; a "conv" has "prelu", with one slope a layer.
        latent_space: "sphere" normalizes latent points.
        kind: "mlp" for vectors, with the decoder as mirror of the encoder; "conv" for images, the paper's network;
            "own" for modules that the user gave in Python.
        channels: of the hidden images of a "conv".
        output: "sigmoid" keeps the pixels of a "conv" between 0 and 1.
        output_start: what the output of a "conv" starts near, such as the mean pixel; None leaves its bias random.
        spectral_norm: divide every weight matrix by its largest singular value while training. The finished model
            has the divided weights.
    """

    latent: int = 3
    hidden: tuple[int, ...] = (128, 128, 128)
    activation: Literal["relu", "silu", "gelu", "tanh", "prelu"] = "relu"
    latent_space: Literal["euclidean", "sphere"] = "euclidean"
    kind: Literal["mlp", "conv", "own"] = "mlp"
    channels: int = 8
    output: Literal["linear", "sigmoid"] = "linear"
    output_start: float | None = None
    spectral_norm: bool = False

    def __post_init__(self) -> None:
        least = 0 if self.kind == "own" else 1
        require_that(self.latent >= least, "network.latent", f"at least {least}", self.latent)
        widths = list(self.hidden)
        require_that(min(widths, default=0) >= 1, "network.hidden", "one or more widths of at least 1", widths)
        flat = self.latent_space != "sphere"
        require_that(flat or self.latent > 1, "network.latent", "at least 2 for a spherical latent space", self.latent)
        if self.kind == "mlp":
            only_conv, got = 'kind = "conv" with', 'kind = "mlp"'
            require_that(self.activation != "prelu", "network.activation", f'{only_conv} "prelu"', got)
            for name, default in (("channels", 8), ("output", "linear"), ("output_start", None)):
                require_that(getattr(self, name) == default, f"network.{name}", f"{only_conv} it", got)
        if self.kind == "conv":
            expected = '"prelu" for kind = "conv"'
            require_that(self.activation == "prelu", "network.activation", expected, f'"{self.activation}"')
            require_that(len(widths) == 1, "network.hidden", 'one width for kind = "conv"', widths)
            require_that(self.channels >= 1, "network.channels", "at least 1", self.channels)
            highest, start = 1.0 if self.output == "sigmoid" else math.inf, self.output_start
            fits = start is None or 0 < start < highest
            require_that(fits, "network.output_start", f"a number between 0 and {highest:g}", start)


def build_autoencoder(config: NetworkConfig, event: tuple[int, ...], generator: torch.Generator) -> Autoencoder:
    """The autoencoder of `config` for events of shape `event`, with weights drawn from `generator`."""
    refuse(config.kind == "own", OWN)
    build = build_mlp_autoencoder if config.kind == "mlp" else build_conv_autoencoder
    return build(config, event, generator)


def build_mlp_autoencoder(config: NetworkConfig, event: tuple[int, ...], generator: torch.Generator) -> Autoencoder:
    """The MLP autoencoder of `config` for events of shape `event`, which must be vectors."""
    refuse(len(event) != 1, f"an MLP autoencoder expects events that are vectors of shape (d,), got {event}")
    widths = [event[0], *config.hidden, config.latent]
    check_memory(8 * sum(a * b for a, b in pairwise(widths)), f"network.hidden = {list(config.hidden)}: a network")
    encoder = MLP(widths, config.activation, generator)
    decoder = MLP(widths[::-1], config.activation, generator)
    return Autoencoder(encoder, decoder, config.latent, config.latent_space == "sphere", config.spectral_norm)


def build_conv_autoencoder(config: NetworkConfig, event: tuple[int, ...], generator: torch.Generator) -> Autoencoder:
    """The convolutional autoencoder of `config` for images of shape `event` = (1, side, side), with an even side."""
    if len(event) != 3 or event[0] != 1 or event[1] != event[2] or event[1] % 2:
        raise InputError(f"a convolutional autoencoder expects images of shape (1, side, side), side even, got {event}")
    sizes = (event[1], config.channels, config.hidden[0], config.latent)
    weights = config.hidden[0] * (event[1] ** 2 // 4 + config.latent) + 27 * config.channels**2
    check_memory(8 * weights, f"network.hidden = {list(config.hidden)}, channels = {config.channels}: a network")
    encoder, sigmoid, start = conv_encoder(*sizes, generator), config.output == "sigmoid", config.output_start
    decoder = conv_decoder(*sizes, sigmoid, generator)
    if start is not None:
        bias = decoder[-2 if sigmoid else -1].get_parameter("bias")
        nn.init.constant_(bias, math.log(start / (1 - start)) if sigmoid else start)
    return Autoencoder(encoder, decoder, config.latent, config.latent_space == "sphere", config.spectral_norm)


# --- layers of the paper's convolutional network, for images (1, side, side)


class Upsample(nn.Module):
    """Bilinear upsampling by two of images (N, C, n, n) to (N, C, 2 n, 2 n); `matrix` is U with shape (2 n, n)."""

    matrix: Tensor

    def __init__(self, n: int) -> None:
        super().__init__()
        rows = interpolate(torch.eye(n)[:, None], scale_factor=2, mode="linear", align_corners=False)
        self.register_buffer("matrix", rows[:, 0].T.contiguous(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.matrix @ (x @ self.matrix.T)
        return out


def conv_encoder(side: int, channels: int, dense: int, latent: int, generator: torch.Generator) -> nn.Sequential:
    """The table's encoder: images (N, 1, side, side) to latent points (N, latent), not yet on the sphere."""
    small = (side // 2) ** 2
    return nn.Sequential(
        _conv(1, channels, generator), nn.PReLU(),
        _conv(channels, channels, generator), nn.PReLU(), nn.MaxPool2d(2, 2),
        _conv(channels, channels, generator), nn.PReLU(),
        _conv(channels, channels, generator), nn.PReLU(),
        _conv(channels, 1, generator), nn.PReLU(), nn.Flatten(),
        linear(small, dense, generator), nn.PReLU(),
        linear(dense, latent, generator),
    )  # fmt: skip


def conv_decoder(
    side: int, channels: int, dense: int, latent: int, sigmoid: bool, generator: torch.Generator
) -> nn.Sequential:
    """The table's decoder: latent points (N, latent) to images (N, 1, side, side)."""
    half = side // 2
    layers = [
        linear(latent, dense, generator), nn.PReLU(),
        linear(dense, half * half, generator), nn.PReLU(), nn.Unflatten(1, (1, half, half)),
        _conv(1, channels, generator, transposed=True), nn.PReLU(),
        _conv(channels, channels, generator, transposed=True), nn.PReLU(), Upsample(half),
        _conv(channels, channels, generator, transposed=True), nn.PReLU(),
        _conv(channels, 1, generator, transposed=True),
    ]  # fmt: skip
    return nn.Sequential(*layers, nn.Sigmoid()) if sigmoid else nn.Sequential(*layers)


def _conv(n_in: int, n_out: int, generator: torch.Generator, transposed: bool = False) -> nn.Conv2d:
    fan_in = 9 * (n_out if transposed else n_in)  # as torch counts it: the second axis of the weight
    return drawn(nn.Conv2d(n_in, n_out, 3, padding=1, device="meta"), 1 / math.sqrt(fan_in), generator)
