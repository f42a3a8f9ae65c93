"""The energy of a finished model, in the fastest form that serves, and the forward passes that a CPU has for it.

Scores need no gradient. For a convolutional autoencoder a GPU then takes the fused kernel (`conv_cuda`), which rounds
factors to 10 bits of mantissa: energies of the paper's jet network differ by some 3e-4 of their value from those in
float32. A CPU takes, in pieces whose activations stay in the caches,

    for many images, layers compiled for eight channels (`conv_lanes`; numba);
    otherwise the layers of torch, as a CPU likes them (`forward_only`).

Values are those of the layers, up to rounding. Gradients, chains, and every other architecture are those of
`ReconstructionEnergy`. Memory is bounded, however many events come.
"""

import importlib.util
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import conv2d, interpolate, leaky_relu_, pad

from normae.networks.autoencoder import Autoencoder, to_sphere
from normae.networks.conv import Upsample
from normae.networks.conv_packing import conv_shape
from normae.networks.mlp import MLP
from normae.networks.own import EnergyNetwork, OwnEnergy
from normae.networks.reconstruction import Layout, ReconstructionEnergy, mean_square

log = logging.getLogger(__name__)

PIECE = 2048
"""Images at a time of the compiled forward pass."""
CHUNK = 64
"""Images at a time of torch's layers: their activations stay in the caches."""
FOLD = 4
"""Neighbours in a row of a large image that are computed as if they were channels of one pixel."""
LANES = 8
PIXELS = 10
"""Of a row at a time: half a side must be a multiple of it."""
WORTH = 512
"""Images for which it is worth to load the kernels, which takes a second, and half a minute the first time of all."""
Array = NDArray[np.float32]


def scoring_energy(network: Autoencoder) -> ReconstructionEnergy:
    """The energy of a finished network."""
    return OwnEnergy(network) if isinstance(network, EnergyNetwork) else ScoringEnergy(network)


class ScoringEnergy(ReconstructionEnergy):
    """E(x) of one autoencoder with fixed weights."""

    def __init__(self, autoencoder: Autoencoder) -> None:
        super().__init__(autoencoder)
        shape = None if isinstance(autoencoder.encoder, MLP) else conv_shape(autoencoder)
        self._image = shape is not None
        self._lanes_fit = shape is not None and lanes_serve(shape.side, shape.channels)
        self._lanes: LanesForward | None = None
        self._fused: ReconstructionEnergy | None = None
        weight = next(autoencoder.parameters())
        if self._image and weight.device.type == "cuda" and weight.dtype == torch.float32:
            self._fused = _fused(autoencoder)

    def __call__(self, x: Tensor) -> Tensor:
        if self._fused is not None and not _differentiated(x):
            return self._fused(x.detach())
        if not self._on_cpu(x):
            return super().__call__(x)
        if self._lanes_fit and len(x) >= WORTH and x.dtype == torch.float32:
            self._lanes = self._lanes or LanesForward(self.autoencoder)
            return torch.cat([self._lanes(piece) for piece in torch.split(x, PIECE)])
        return torch.cat([mean_square(piece - self.decode(self.encode(piece))) for piece in torch.split(x, CHUNK)])

    def encode(self, x: Tensor) -> Tensor:
        """As `ReconstructionEnergy.encode`."""
        if not self._on_cpu(x):
            return super().encode(x)
        z = forward_only(self.autoencoder.encoder, x)
        return to_sphere(z) if self.autoencoder.sphere else z

    def decode(self, z: Tensor) -> Tensor:
        """As `ReconstructionEnergy.decode`."""
        return forward_only(self.autoencoder.decoder, z) if self._on_cpu(z) else super().decode(z)

    def _on_cpu(self, x: Tensor) -> bool:
        return self._image and x.device.type == "cpu" and not _differentiated(x)


def _differentiated(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


def _fused(autoencoder: Autoencoder) -> ReconstructionEnergy | None:
    from normae.networks.conv_cuda import FusedConvEnergy, why_not

    reason = why_not(autoencoder, next(autoencoder.parameters()).device, "energies")
    if reason is not None:
        log.warning("the fused energy cannot serve: %s; scoring with the layers one by one", reason)
        return None
    layout = Layout.of(autoencoder)
    return FusedConvEnergy(autoencoder, layout, layout.flatten([autoencoder]))


# --- torch's layers


@torch.no_grad()
def forward_only(network: nn.Module, x: Tensor) -> Tensor:
    """`network(x)` of an encoder or decoder of `networks.conv`, in pieces and without its gradient.

    Libraries block the channels of a convolution by eight or sixteen, so that eight channels in work well with channels
    last, and one channel out costs as much as sixteen. There the nine taps are one product of the C channels of every
    pixel with a matrix (C, 9), and nine shifted images are added. Where eight channels come out, four neighbours in a
    row are 32 channels of a convolution with stride 4, whose result has the same order in memory.
    """
    pieces = []
    for piece in torch.split(x, CHUNK):
        for layer in network.children():
            piece = _forward(layer, piece)
        pieces.append(piece)
    return torch.cat(pieces)


def _forward(layer: nn.Module, x: Tensor) -> Tensor:
    if isinstance(layer, nn.PReLU):  # never the first layer, so that x is ours
        return leaky_relu_(x, float(layer.weight))
    if isinstance(layer, nn.Conv2d):
        return _narrow(layer, x) if layer.out_channels == 1 else _convolve(layer, x)
    if isinstance(layer, nn.MaxPool2d) and not (x.shape[2] % 2 or x.shape[3] % 2):
        rows = torch.maximum(x[:, :, 0::2], x[:, :, 1::2])
        return torch.maximum(rows[..., 0::2], rows[..., 1::2])
    if isinstance(layer, Upsample):
        return interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    out: Tensor = layer(x)
    return out


def _convolve(layer: nn.Conv2d, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    weight, bias, out = layer.weight, _bias(layer), layer.out_channels
    if c == 1 or out > 8 or w < 32 or w % FOLD:
        return conv2d(_channels_last(x), _channels_last(weight), bias, padding=1)
    folded = torch.stack([pad(weight, (k, FOLD - 1 - k)) for k in range(FOLD)]).flatten(0, 1)
    y = conv2d(_channels_last(x), _channels_last(folded), bias.repeat(FOLD), stride=(1, FOLD), padding=1)
    return y.permute(0, 2, 3, 1).reshape(n, h, w, out).permute(0, 3, 1, 2)


def _channels_last(x: Tensor) -> Tensor:
    """Also for one channel, where the order in memory is the same and only the strides tell."""
    n, c, h, w = x.shape
    return x.contiguous(memory_format=torch.channels_last).as_strided((n, c, h, w), (c * h * w, 1, c * w, c))


def _narrow(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """C channels to one: images (N, C, h, w) to (N, 1, h, w)."""
    n, c, h, w = x.shape
    pixels = x.permute(0, 2, 3, 1).reshape(-1, c)
    taps = (layer.weight[0].reshape(c, 9).T @ pixels.T).view(9, n, h, w)
    out = taps[4] + _bias(layer)
    for k in (0, 1, 2, 3, 5, 6, 7, 8):
        dy, dx = k // 3 - 1, k % 3 - 1
        to = out[:, max(0, -dy) : h - max(0, dy), max(0, -dx) : w - max(0, dx)]
        to += taps[k, :, max(0, dy) : h + min(0, dy), max(0, dx) : w + min(0, dx)]
    return out[:, None]


def _bias(layer: nn.Conv2d) -> Tensor:
    assert layer.bias is not None
    return layer.bias.detach()


# --- compiled layers


def lanes_serve(side: int, channels: int) -> bool:
    """Whether the kernels fit a network of these sizes, and can be compiled here."""
    return channels == LANES and side % (2 * PIXELS) == 0 and importlib.util.find_spec("numba") is not None


class LanesForward:
    """E(x) of an autoencoder for which `lanes_serve`, on a CPU, in as many threads as torch has."""

    def __init__(self, autoencoder: Autoencoder) -> None:
        from normae.networks import conv_lanes

        self._kernels = conv_lanes
        self.sphere = autoencoder.sphere
        encoder, decoder = list(autoencoder.encoder.children()), list(autoencoder.decoder.children())
        self._encoder, self._decoder = _packed(encoder), _packed(decoder)
        self._to_latent, self._from_latent = nn.Sequential(*encoder[10:]), nn.Sequential(*decoder[:4])
        self._sigmoid = isinstance(decoder[-1], nn.Sigmoid)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Energies (N,) of images (N, 1, s, s)."""
        n, side = len(x), x.shape[-1]
        images = x.reshape(n, side, side).contiguous().numpy()
        maps = torch.empty(n, 1, side // 2, side // 2)
        self._run(self._kernels.encode, images, self._encoder, maps[:, 0].numpy())
        z = self._to_latent(maps)
        hidden = self._from_latent(to_sphere(z) if self.sphere else z).reshape(n, side // 2, side // 2)
        out = torch.empty(n, side, side)
        self._run(self._kernels.decode, hidden.contiguous().numpy(), self._decoder, out.numpy())
        if self._sigmoid:
            out.sigmoid_()
        return (x.reshape(n, side, side) - out).square_().mean((1, 2))

    @staticmethod
    def _run(kernel, x: Array, weights: tuple[Array | np.float32, ...], found: Array) -> None:  # type: ignore[no-untyped-def]
        threads = min(torch.get_num_threads(), len(x))
        if threads < 2:
            kernel(x, *weights, found)
            return
        edges = np.linspace(0, len(x), threads + 1).astype(int)
        parts = [slice(*pair) for pair in pairwise(edges)]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda part: kernel(x[part], *weights, found[part]), parts))


def _packed(layers: Sequence[nn.Module]) -> tuple[Array | np.float32, ...]:
    """Weights (L, 72, 8), biases (L, 8) and slopes (L,) of the layers to eight channels; those of the last layer."""
    *wide, last = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    slopes = [float(bend.get_parameter("weight")) for layer, bend in pairwise(layers) if layer in wide]
    weights = np.zeros((len(wide), 9 * LANES, LANES), np.float32)
    for row, layer in zip(weights, wide, strict=True):
        row[: 9 * layer.in_channels] = layer.weight.detach().permute(2, 3, 1, 0).reshape(-1, LANES)
    biases = torch.stack([_bias(layer) for layer in wide]).numpy()
    taps = last.weight.detach()[0].permute(1, 2, 0).reshape(9, LANES).contiguous()
    return weights, biases, np.array(slopes, np.float32), taps.numpy(), np.float32(_bias(last).item())
