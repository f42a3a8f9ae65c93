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

from collections.abc import Callable, Iterable
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
        self.sizes = sizes
        self.layers = {pair for widths in (sizes.encoder, sizes.decoder) for pair in pairwise(widths)}
        widths = {*sizes.encoder, *sizes.decoder}

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device)

        self.weights = {(a, b): draw(b, a) / a**0.5 for a, b in self.layers}
        self.transposed = {pair: weight.t().contiguous() for pair, weight in self.weights.items()}
        self.narrow = {width: torch.empty(width, sizes.batch, device=device) for width in widths if width < NARROW}
        self.gradients = {(a, b): torch.empty(b, a, device=device) for a, b in self.layers}
        self.inputs = {width: draw(sizes.batch, width) for width in widths}
        self.outputs = {width: torch.empty(sizes.batch, width, device=device) for width in widths}

    def _gradients(self) -> Iterable[tuple[int, ...]]:
        """The networks that a chain runs through, there and back, in the order of an iteration."""
        encoder, decoder = self.sizes.encoder, self.sizes.decoder
        for _ in range(self.sizes.latent_steps + 1):
            yield from (decoder, encoder, decoder)
        for _ in range(self.sizes.feature_steps + 1):
            yield from (encoder, decoder)

    @torch.no_grad()
    def products(self) -> None:
        """Run them."""
        self._run(self._product)

    @torch.no_grad()
    def fastest_products(self) -> None:
        """Run them in their fastest form."""
        self._run(self._fastest_product)

    def _run(self, product: Callable[[int, int, bool], object]) -> None:
        for widths in self._gradients():
            for back in (False, True):
                for a, b in pairwise(widths):
                    product(a, b, back)
        for a, b in pairwise(self.sizes.decoder):
            product(a, b, False)
        for _ in range(2):
            layers = [*pairwise(self.sizes.encoder), *pairwise(self.sizes.decoder)]
            for k, (a, b) in enumerate(layers):
                product(a, b, False)
                if k > 0:
                    product(a, b, True)
                torch.mm(self.inputs[b].t(), self.inputs[a], out=self.gradients[a, b])

    def _product(self, a: int, b: int, back: bool) -> None:
        """x W^T, or v W on the way back, for W with shape (b, a)."""
        if back:
            torch.mm(self.inputs[b], self.weights[a, b], out=self.outputs[a])
        else:
            torch.mm(self.inputs[a], self.weights[a, b].t(), out=self.outputs[b])

    def _fastest_product(self, a: int, b: int, back: bool) -> None:
        left, right = self.weights[a, b], self.transposed[a, b]
        if back:
            left, right = right, left
        n_in, n_out = right.shape
        if n_out < NARROW <= n_in:
            torch.mm(left, self.inputs[n_in].t(), out=self.narrow[n_out])
        else:
            torch.mm(self.inputs[n_in], right, out=self.outputs[n_out])

    @torch.no_grad()
    def copies(self) -> None:
        """Write as much as the products of the chains do."""
        for widths in self._gradients():
            for a, b in pairwise(widths):
                self.outputs[b].copy_(self.inputs[b])
                self.outputs[a].copy_(self.inputs[a])

    def flop(self) -> float:
        """Floating-point operations of `products`."""
        per = {w: sum(2.0 * a * b for a, b in pairwise(w)) for w in (self.sizes.encoder, self.sizes.decoder)}
        chain = sum(2 * per[w] for w in self._gradients())
        encoder, decoder = self.sizes.encoder, self.sizes.decoder
        update = 2 * 3 * (per[encoder] + per[decoder]) - 2 * 2.0 * encoder[0] * encoder[1]
        return self.sizes.batch * (chain + update + per[decoder])
