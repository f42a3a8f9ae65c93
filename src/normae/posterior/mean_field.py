"""Independent Gaussians over weights, and the draws that are other weights of the same network.

Where draws differ in the decoder's last layer only, its input h(x) is the same for all of them and is computed once; a
draw then costs one small product, E_k = mean_i (x_i - (W_k h + b_k)_i)^2.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from normae.energy import mean_square
from normae.networks.autoencoder import Autoencoder
from normae.networks.bayesian import ends_in_a_layer, split_decoder, width
from normae.networks.parameters import call, prefixed
from normae.networks.reconstruction import ReconstructionEnergy

CONVOLVED = 32
"""Events whose pictures of all draws are in memory at once: 10 MB for 50 draws of 40 x 40 pixels."""


class WeightDraws:
    """Draws that are weights of the network.

    Args:
        weights: by name, with shape (n, *parameter); those that are the same for all draws may have shape
            (1, *parameter).
        temperature: with shape (n,).
    """

    def __init__(self, autoencoder: Autoencoder, weights: Mapping[str, Tensor], temperature: Tensor) -> None:
        self.autoencoder, self.weights, self.temperature = autoencoder, dict(weights), temperature
        self.n = len(temperature)

    def stacked(self) -> ReconstructionEnergy:
        """The energies side by side."""
        weights = {name: value.expand(self.n, *value.shape[1:]) for name, value in self.weights.items()}
        return ReconstructionEnergy(self.autoencoder, weights)

    def one(self, k: int) -> ReconstructionEnergy:
        """The energy of draw k alone."""
        weights = {name: value[k % len(value)][None] for name, value in self.weights.items()}
        return ReconstructionEnergy(self.autoencoder, weights)

    def energies(self, x: Tensor) -> Tensor:
        """E of every draw, with shape (n, N)."""
        if self._only_last_layer():
            return self._last_layer_energies(x)
        return torch.stack([self.one(k)(x) for k in range(self.n)])

    def _only_last_layer(self) -> bool:
        decoder = self.autoencoder.decoder
        if not ends_in_a_layer(decoder):
            return False
        prefix = "decoder." + split_decoder(decoder)[2]
        return all(name.startswith(prefix) or len(value) == 1 for name, value in self.weights.items())

    def _last_layer_energies(self, x: Tensor) -> Tensor:
        body, layer, prefix = split_decoder(self.autoencoder.decoder)
        first = self.one(0)
        before = {name: p for name, p in first.decoder_parameters.items() if not name.startswith(prefix)}
        hidden = call(body, before, first.encode(x))
        last = prefixed(self.weights, f"decoder.{prefix}")
        if isinstance(layer, torch.nn.Linear):
            out = torch.einsum("nh,koh->kno", hidden, last["weight"]) + last["bias"][:, None]
            return (x[None] - out).square().mean(-1)
        if type(layer) is torch.nn.Conv2d and layer.groups == 1:
            return _convolved_energies(layer, last, hidden, x)
        each = ({name: value[k : k + 1] for name, value in last.items()} for k in range(self.n))
        return torch.stack([mean_square(x - call(layer, own, hidden)) for own in each])


def _convolved_energies(layer: torch.nn.Conv2d, last: Mapping[str, Tensor], hidden: Tensor, x: Tensor) -> Tensor:
    """E of n draws of a convolution, with shape (n, N): all draws as the channels of one, some events at a time."""
    weight, bias = last["weight"], last["bias"]
    draws, channels = max(len(weight), len(bias)), weight.shape[1]
    kernels = weight.expand(draws, *weight.shape[1:]).flatten(0, 1)
    offsets = bias.expand(draws, channels).flatten()
    found = []
    for h, event in zip(torch.split(hidden, CONVOLVED), torch.split(x, CONVOLVED), strict=True):
        out = torch.nn.functional.conv2d(h, kernels, offsets, layer.stride, layer.padding, layer.dilation)
        out = out.unflatten(1, (draws, channels)) - event[:, None]
        found.append(out.square().flatten(2).mean(-1).T)
    return torch.cat(found, dim=1)


class MeanField:
    """Independent Gaussians around the autoencoder's weights.

    Args:
        rho: of the Bayesian weights by parameter name; their width is softplus(rho).
    """

    certain, mixture = False, False

    def __init__(self, autoencoder: Autoencoder, rho: Mapping[str, Tensor], temperature: float) -> None:
        self.autoencoder, self.temperature = autoencoder, temperature
        self.widths = {name: width(value) for name, value in rho.items()}

    def to(self, device: torch.device | str) -> "MeanField":
        """The same posterior on `device`."""
        self.widths = {name: value.to(device) for name, value in self.widths.items()}
        return self

    def draws(self, n: int, generator: torch.Generator) -> WeightDraws:
        """Means plus widths times standard normal noise."""
        drawn: dict[str, Tensor] = {}
        for name, mean in self.autoencoder.named_parameters():
            drawn[name] = mean[None]
            if name in self.widths:
                noise = torch.randn(n, *mean.shape, generator=generator, device=generator.device).to(mean.device)
                drawn[name] = mean + self.widths[name] * noise
        some = next(iter(drawn.values()))
        return WeightDraws(self.autoencoder, drawn, some.new_full((n,), self.temperature))
