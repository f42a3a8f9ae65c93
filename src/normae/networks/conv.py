"""The paper's convolutional autoencoder for images (1, side, side).

Two things are written otherwise than in the paper's table, and mean the same. A transposed convolution of stride 1
equals a convolution with flipped, transposed weights, which every library has in a faster form: the decoder's layers
are convolutions, with the initial weights that torch gives to transposed ones. And bilinear upsampling by two is a
product with a fixed matrix U along each axis, x -> U x U^T, whose gradient is deterministic on every device.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from normae.networks.mlp import draw_uniform, linear


def upsampling_matrix(n: int) -> Tensor:
    """Bilinear upsampling by two of n points along one axis, with shape (2 n, n)."""
    rows = interpolate(torch.eye(n)[:, None], scale_factor=2, mode="linear", align_corners=False)
    return rows[:, 0].T.contiguous()


class Upsample(nn.Module):
    """Bilinear upsampling by two of images (N, C, n, n) to (N, C, 2 n, 2 n)."""

    matrix: Tensor

    def __init__(self, n: int) -> None:
        super().__init__()
        self.register_buffer("matrix", upsampling_matrix(n), persistent=False)

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


def start_output_at(decoder: nn.Sequential, value: float) -> None:
    """Set the last layer's bias so that the output starts near `value`, such as the mean pixel."""
    sigmoid = isinstance(decoder[-1], nn.Sigmoid)
    layer = decoder[-2 if sigmoid else -1]
    assert isinstance(layer, nn.Conv2d)
    assert layer.bias is not None
    with torch.no_grad():
        layer.bias.fill_(math.log(value / (1 - value)) if sigmoid else value)


def _conv(n_in: int, n_out: int, generator: torch.Generator, transposed: bool = False) -> nn.Conv2d:
    layer: nn.Conv2d = nn.utils.skip_init(nn.Conv2d, n_in, n_out, 3, padding=1)
    fan_in = 9 * (n_out if transposed else n_in)  # as torch counts it: the second axis of the weight
    draw_uniform(layer, 1 / math.sqrt(fan_in), generator)
    return layer
