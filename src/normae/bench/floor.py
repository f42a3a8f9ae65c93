"""The least time that an iteration of an MLP autoencoder can take: its matrix products, or the memory that they move.

A gradient with respect to the event is a forward pass and a pullback, so one product with each weight matrix W there
and one back. A latent gradient goes through decoder, encoder and decoder. An update takes a forward pass, a pullback
(but for the first layer) and one product for the gradient of each W, for positive and for negative events.

`products` runs these products and nothing else, with the weights as a layer stores them (out, in), and inputs and
outputs allocated beforehand, one for each width, so that they are in the cache where they fit. `fastest_products` takes
the same products in the form that is fastest on a CPU, as our own passes do: weights transposed beforehand, and y^T = W
x^T where the result is narrow. It is the stricter floor, of the same operations. `copies` writes each
result of the chains once by copying an array of its size: what would be left if arithmetic cost nothing.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from normae.networks.mlp import NARROW


@dataclass(frozen=True)
class Sizes:
    """What an iteration works on: widths of encoder and decoder, events of a batch, steps of the chains."""

    encoder: tuple[int, ...]
    decoder: tuple[int, ...]
    batch: int
    latent_steps: int
    feature_steps: int


class Floor:
    """The products and the copies of one iteration."""

    def __init__(self, sizes: Sizes, device: torch.device, generator: torch.Generator) -> None:
        encoder, decoder = list(pairwise(sizes.encoder)), list(pairwise(sizes.decoder))
        feature = _there_and_back(encoder) + _there_and_back(decoder)
        latent = _there_and_back(decoder) + feature
        self.batch = sizes.batch
        self.chains = latent * (sizes.latent_steps + 1) + feature * (sizes.feature_steps + 1)
        self.layers = encoder + decoder
        self.update = [(a, b, False) for a, b in decoder] + 2 * _there_and_back(self.layers)
        for _ in range(2):
            self.update.remove((*encoder[0], True))

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device)

        widths = {*sizes.encoder, *sizes.decoder}
        self.weights = {(a, b): draw(b, a) / a**0.5 for a, b in self.layers}
        self.transposed = {pair: weight.t().contiguous() for pair, weight in self.weights.items()}
        self.narrow = {width: torch.empty(width, sizes.batch, device=device) for width in widths if width < NARROW}
        self.gradients = {(a, b): torch.empty(b, a, device=device) for a, b in self.layers}
        self.inputs = {width: draw(sizes.batch, width) for width in widths}
        self.outputs = {width: torch.empty(sizes.batch, width, device=device) for width in widths}

    @torch.no_grad()
    def products(self) -> None:
        """Run them: x W^T, or v W on the way back, for W with shape (b, a)."""
        for a, b, back in self.chains + self.update:
            if back:
                torch.mm(self.inputs[b], self.weights[a, b], out=self.outputs[a])
            else:
                torch.mm(self.inputs[a], self.weights[a, b].t(), out=self.outputs[b])
        self._weight_gradients()

    @torch.no_grad()
    def fastest_products(self) -> None:
        """Run them in their fastest form."""
        for a, b, back in self.chains + self.update:
            left, right = self.weights[a, b], self.transposed[a, b]
            if back:
                left, right = right, left
            n_in, n_out = right.shape
            if n_out < NARROW <= n_in:
                torch.mm(left, self.inputs[n_in].t(), out=self.narrow[n_out])
            else:
                torch.mm(self.inputs[n_in], right, out=self.outputs[n_out])
        self._weight_gradients()

    def _weight_gradients(self) -> None:
        for a, b in 2 * self.layers:
            torch.mm(self.inputs[b].t(), self.inputs[a], out=self.gradients[a, b])

    @torch.no_grad()
    def copies(self) -> None:
        """Write as much as the products of the chains do."""
        for a, b, back in self.chains:
            width = a if back else b
            self.outputs[width].copy_(self.inputs[width])

    def flop(self) -> float:
        """Floating-point operations of `products`."""
        done = [*((a, b) for a, b, _ in self.chains + self.update), *2 * self.layers]
        return 2.0 * self.batch * sum(a * b for a, b in done)


def _there_and_back(layers: list[tuple[int, int]]) -> list[tuple[int, int, bool]]:
    """One product with the weight matrix of each layer, and one on the way back."""
    return [(a, b, back) for back in (False, True) for a, b in layers]
