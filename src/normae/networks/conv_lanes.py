"""The paper's convolutional autoencoder forward on a CPU, with kernels compiled for its eight channels.

Values are those of the layers, up to rounding. Where numba is not installed, or the network is another one,
`conv_forward` serves.
"""

import importlib.util
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normae.networks.autoencoder import Autoencoder, to_sphere

LANES = 8
PIXELS = 10
"""Of a row at a time: half a side must be a multiple of it."""
WORTH = 512
"""Images for which it is worth to load the kernels, which takes a second, and half a minute the first time of all."""
Array = NDArray[np.float32]


def lanes_serve(side: int, channels: int) -> bool:
    """Whether the kernels fit a network of these sizes, and can be compiled here."""
    return channels == LANES and side % (2 * PIXELS) == 0 and importlib.util.find_spec("numba") is not None


class LanesForward:
    """E(x) of the convolutional autoencoder of `networks.conv` on a CPU, in as many threads as torch has.

    Args:
        autoencoder: one for whose sizes `lanes_serve`.
    """

    def __init__(self, autoencoder: Autoencoder) -> None:
        from normae.networks import conv_lanes_kernels

        self._kernels = conv_lanes_kernels
        self.sphere = autoencoder.sphere
        encoder, decoder = autoencoder.encoder, autoencoder.decoder
        assert isinstance(encoder, nn.Sequential)
        assert isinstance(decoder, nn.Sequential)
        self._encoder, self._decoder = _packed(encoder), _packed(decoder)
        flat = next(k for k, layer in enumerate(encoder) if isinstance(layer, nn.Flatten))
        start = next(k for k, layer in enumerate(decoder) if isinstance(layer, nn.Unflatten))
        self._to_latent = encoder[flat - 1 :]
        self._from_latent = decoder[:start]
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
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda k: kernel(x[edges[k] : edges[k + 1]], *weights, found[edges[k] : edges[k + 1]]),
                          range(threads)))  # fmt: skip


def _packed(layers: nn.Sequential) -> tuple[Array | np.float32, ...]:
    """Weights (L, 72, 8), biases (L, 8) and slopes (L,) of the layers to eight channels; those of the last layer."""
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    bends = [layer for layer in layers if isinstance(layer, nn.PReLU)]
    slopes = {id(layer): bend for layer, bend in zip(layers, list(layers)[1:], strict=False) if bend in bends}
    wide, last = convolutions[:-1], convolutions[-1]
    weights, biases = np.zeros((len(wide), 9 * LANES, LANES), np.float32), np.zeros((len(wide), LANES), np.float32)
    for row, layer in enumerate(wide):
        taps = layer.weight.detach().permute(2, 3, 1, 0).reshape(-1, LANES)
        weights[row, : len(taps)], biases[row] = taps.numpy(), _bias(layer).numpy()
    bent = np.array([slopes[id(layer)].weight.item() for layer in wide], np.float32)
    taps = last.weight.detach()[0].permute(1, 2, 0).reshape(9, LANES).contiguous()
    return weights, biases, bent, taps.numpy(), np.float32(_bias(last).item())


def _bias(layer: nn.Conv2d) -> Tensor:
    assert layer.bias is not None
    return layer.bias.detach()
