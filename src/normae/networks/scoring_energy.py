"""The energy of a finished model, in the fastest form that serves.

Scores need no gradient. For a convolutional autoencoder a GPU then takes the fused kernel (`conv_cuda`), which rounds
factors to 10 bits of mantissa: energies of the paper's jet network differ by some 3e-4 of their value from those in
float32. A CPU takes, for many images, layers compiled for eight channels (`conv_lanes`; numba), and for few the layers
themselves. Gradients, chains, and every other architecture are those of `ReconstructionEnergy`.
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

from normae.networks.autoencoder import Autoencoder, to_sphere
from normae.networks.own import EnergyNetwork, OwnEnergy
from normae.networks.reconstruction import Layout, ReconstructionEnergy, conv_shape

log = logging.getLogger(__name__)

PIECE = 2048  # images at a time of the compiled forward pass
CHUNK = 128  # images at a time of torch's layers: their activations stay in the caches
LANES = 8
PIXELS = 10  # of a row at a time: half a side must be a multiple of it
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
        shape = conv_shape(autoencoder)
        self._image = shape is not None
        self._lanes_fit = shape is not None and lanes_serve(shape.side, shape.channels)
        self._lanes: LanesForward | None = None
        self._fused: ReconstructionEnergy | None = None
        weight = next(autoencoder.parameters())
        if self._image and weight.device.type == "cuda" and weight.dtype == torch.float32:
            from normae.networks.conv_cuda import FusedConvEnergy, why_not

            if (reason := why_not(autoencoder, weight.device, "energies")) is None:
                layout = Layout.of(autoencoder)
                self._fused = FusedConvEnergy(autoencoder, layout, layout.flatten([autoencoder]))
            else:
                log.warning("the fused energy cannot be used: %s; scoring with the layers one by one", reason)

    def __call__(self, x: Tensor) -> Tensor:
        here = self._fused is not None or x.device.type == "cpu"
        if not self._image or not here or (x.requires_grad and torch.is_grad_enabled()):
            return super().__call__(x)
        if self._fused is not None:
            return self._fused(x.detach())
        if self._lanes_fit and len(x) >= WORTH and x.dtype == torch.float32:
            self._lanes = self._lanes or LanesForward(self.autoencoder)
            return torch.cat([self._lanes(piece) for piece in torch.split(x, PIECE)])
        with torch.no_grad():
            return torch.cat([super(ScoringEnergy, self).__call__(piece) for piece in torch.split(x, CHUNK)])


# --- compiled layers


def lanes_serve(side: int, channels: int) -> bool:
    """Whether the kernels fit a network of these sizes, and can be compiled here."""
    return channels == LANES and side % (2 * PIXELS) == 0 and importlib.util.find_spec("numba") is not None


class LanesForward:
    """E(x) of an autoencoder for which `lanes_serve`, on a CPU, in as many threads as torch has."""

    def __init__(self, autoencoder: Autoencoder) -> None:
        from normae.networks import conv_lanes

        self._forward = conv_lanes.forward
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
        self._run(images, self._encoder, maps[:, 0].numpy())
        z = self._to_latent(maps)
        hidden = self._from_latent(to_sphere(z) if self.sphere else z).reshape(n, side // 2, side // 2)
        out = torch.empty(n, side, side)
        self._run(hidden.contiguous().numpy(), self._decoder, out.numpy())
        if self._sigmoid:
            out.sigmoid_()
        return (x.reshape(n, side, side) - out).square_().mean((1, 2))

    def _run(self, x: Array, weights: tuple[Array | np.float32, ...], found: Array) -> None:
        threads = max(1, min(torch.get_num_threads(), len(x)))
        edges = np.linspace(0, len(x), threads + 1).astype(int)
        parts = [slice(*pair) for pair in pairwise(edges)]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda part: self._forward(x[part], *weights, found[part]), parts))


def _packed(layers: Sequence[nn.Module]) -> tuple[Array | np.float32, ...]:
    """Weights (L, 72, 8), biases (L, 8) and slopes (L,) of the layers to eight channels; those of the last layer."""
    *wide, last = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    slopes = [float(bend.get_parameter("weight")) for layer, bend in pairwise(layers) if layer in wide]
    weights = np.zeros((len(wide), 9 * LANES, LANES), np.float32)
    for row, layer in zip(weights, wide, strict=True):
        row[: 9 * layer.in_channels] = layer.weight.detach().permute(2, 3, 1, 0).reshape(-1, LANES)
    biases = torch.stack([layer.get_parameter("bias").detach() for layer in wide]).numpy()
    taps = last.weight.detach()[0].permute(1, 2, 0).reshape(9, LANES).contiguous()
    return weights, biases, np.array(slopes, np.float32), taps.numpy(), np.float32(last.get_parameter("bias").item())
