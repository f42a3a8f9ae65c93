"""The energy of a finished model, in the fastest form that serves.

Scores need no gradient. For a convolutional autoencoder without one, a CPU takes compiled layers for many images and,
for few or without numba, layers that suit it, in pieces whose activations stay in the caches; a GPU takes the fused
kernel, which rounds factors to 10 bits of mantissa: energies of the paper's jet network then differ by some 3e-4 of
their value from those in float32. Gradients, chains, and every other architecture are those of `ReconstructionEnergy`.
Memory is bounded, however many events come.
"""

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn

from normae.energy import mean_square
from normae.networks.autoencoder import Autoencoder, to_sphere
from normae.networks.conv_forward import CHUNK, forward_only
from normae.networks.conv_lanes import WORTH, LanesForward, lanes_serve
from normae.networks.conv_packing import conv_shape
from normae.networks.parameters import Layout
from normae.networks.reconstruction import ReconstructionEnergy

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
        if self._fused is not None and not _differentiated(x):
            return self._fused(x.detach())
        if not self._on_cpu(x):
            return super().__call__(x)
        if self._lanes_fit and len(x) >= WORTH and x.dtype == torch.float32:
            self._lanes = self._lanes or LanesForward(self.autoencoder)
            return torch.cat([self._lanes(piece) for piece in torch.split(x, PIECE)])
        return torch.cat([mean_square(piece - self._decoded(self._encoded(piece))) for piece in torch.split(x, CHUNK)])

    def encode(self, x: Tensor) -> Tensor:
        """As `ReconstructionEnergy.encode`."""
        return _in_pieces(self._encoded, x) if self._on_cpu(x) else super().encode(x)

    def decode(self, z: Tensor) -> Tensor:
        """As `ReconstructionEnergy.decode`."""
        return _in_pieces(self._decoded, z) if self._on_cpu(z) else super().decode(z)

    def _on_cpu(self, x: Tensor) -> bool:
        return self._image and x.device.type == "cpu" and not _differentiated(x)

    def _encoded(self, x: Tensor) -> Tensor:
        assert isinstance(self.autoencoder.encoder, nn.Sequential)
        z = forward_only(self.autoencoder.encoder, x)
        return to_sphere(z) if self.autoencoder.sphere else z

    def _decoded(self, z: Tensor) -> Tensor:
        assert isinstance(self.autoencoder.decoder, nn.Sequential)
        return forward_only(self.autoencoder.decoder, z)


def _differentiated(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


def _in_pieces(network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.cat([network(piece) for piece in torch.split(x, CHUNK)])


def _fused(autoencoder: Autoencoder) -> ReconstructionEnergy | None:
    from normae.networks.conv_cuda import FusedConvEnergy, why_not

    reason = why_not(autoencoder, next(autoencoder.parameters()).device, "energies")
    if reason is not None:
        log.warning("the fused energy cannot serve: %s; scoring with the layers one by one", reason)
        return None
    layout = Layout.of(autoencoder)
    return FusedConvEnergy(autoencoder, layout, layout.flatten([autoencoder]))
