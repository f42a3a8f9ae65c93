"""The energy of a finished model, in the fastest form that serves.

Scores need no gradient. For a convolutional autoencoder without one, a CPU takes compiled layers for many images and,
for few or without numba, layers that suit it, in pieces whose activations stay in the caches; a GPU takes the fused
kernel, which rounds factors to 10 bits of mantissa: energies of the paper's jet network then differ by some 3e-4 of
their value from those in float32. Gradients, chains, and every other architecture are those of `ReconstructionEnergy`.
Memory is bounded, however many events come.
"""

import logging

import torch
from torch import Tensor, nn

from normae.energy import ReconstructionEnergy, mean_square
from normae.networks.autoencoder import Autoencoder, to_sphere
from normae.networks.conv_forward import CHUNK, forward_only
from normae.networks.conv_lanes import WORTH, LanesForward, lanes_serve
from normae.networks.parameters import Layout
from normae.sampling.conv_packing import conv_shape

log = logging.getLogger(__name__)

PIECE = 2048
"""Images at a time of the compiled forward pass."""


class ScoringEnergy(ReconstructionEnergy):
    """E(x) of one autoencoder with fixed weights.

    Args:
        autoencoder: the trained network.
    """

    def __init__(self, autoencoder: Autoencoder) -> None:
        super().__init__(autoencoder)
        shape = conv_shape(autoencoder)
        self._image = shape is not None
        self._lanes_fit = shape is not None and lanes_serve(shape.side, shape.channels)
        self._lanes: LanesForward | None = None
        self._fused: ReconstructionEnergy | None = None
        weight = next(autoencoder.parameters())
        if self._image and weight.device.type == "cuda" and weight.dtype == torch.float32:
            self._fused = _fused(autoencoder)

    def __call__(self, x: Tensor) -> Tensor:
        if not self._image or (x.requires_grad and torch.is_grad_enabled()):
            return super().__call__(x)
        if self._fused is not None:
            return self._fused(x.detach())
        if x.device.type != "cpu":
            return super().__call__(x)
        if self._lanes_fit and len(x) >= WORTH and x.dtype == torch.float32:
            self._lanes = self._lanes or LanesForward(self.autoencoder)
            return torch.cat([self._lanes(piece) for piece in torch.split(x, PIECE)])
        return torch.cat([self._piece(piece) for piece in torch.split(x, CHUNK)])

    def _piece(self, x: Tensor) -> Tensor:
        encoder, decoder = self.autoencoder.encoder, self.autoencoder.decoder
        assert isinstance(encoder, nn.Sequential)
        assert isinstance(decoder, nn.Sequential)
        z = forward_only(encoder, x)
        return mean_square(x - forward_only(decoder, to_sphere(z) if self.autoencoder.sphere else z))


def _fused(autoencoder: Autoencoder) -> ReconstructionEnergy | None:
    from normae.sampling.conv_fused import FusedConvEnergy, why_not

    reason = why_not(autoencoder)
    if reason is not None:
        log.warning("the fused energy cannot serve: %s; scoring with the layers one by one", reason)
        return None
    layout = Layout.of(autoencoder)
    return FusedConvEnergy(autoencoder, layout, layout.flatten([autoencoder]))
