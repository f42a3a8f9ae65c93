"""The energy of a normalized autoencoder: the reconstruction error, mean over features.

    E(x) = 1/d sum_i (x_i - x'_i)^2,   E~(z) = E(f_d(z)),   p(x) = exp(-E(x)/T) / Z.

Everything downstream of the network sees a callable (N, *event) -> (N,), never a model class. A callable may
offer `value_and_grad(x)`; for MLPs it is written with explicit pullbacks: with the residual r = x - f(x),

    grad E = 2/d (r - J_f^T r),   grad E~(z) = J_d^T grad E(f_d(z)).

One object stands for S models side by side: events then come as S equal blocks, model after model.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from normae.networks.autoencoder import Autoencoder, to_sphere
from normae.networks.mlp import ACTIVATIONS, MLP, Layer, forward_saving, pullback
from normae.networks.parameters import call, prefixed

Energy = Callable[[Tensor], Tensor]
"""Events with shape (N, *event) to energies with shape (N,)."""


@runtime_checkable
class Differentiable(Protocol):
    """An energy that knows its own gradient."""

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies with shape (N,) and their gradients with shape (N, *event), both detached."""


def autograd_value_and_grad(energy: Energy, x: Tensor) -> tuple[Tensor, Tensor]:
    """Energies (N,) and gradients (N, *event) of any energy, by reverse-mode differentiation."""
    leaf = x.detach().requires_grad_(True)
    with torch.enable_grad():
        value = energy(leaf)
        (grad,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), grad


def value_and_grad(energy: Energy, x: Tensor) -> tuple[Tensor, Tensor]:
    """Energies (N,) and gradients (N, *event): the energy's own where it offers them, else by autograd."""
    if isinstance(energy, Differentiable):
        return energy.value_and_grad(x)
    return autograd_value_and_grad(energy, x)


def mean_square(residual: Tensor) -> Tensor:
    """Mean over features of the squared residual, (N, *event) -> (N,)."""
    return residual.square().flatten(1).mean(1)


class ReconstructionEnergy:
    """E(x) of S autoencoders of one architecture.

    Args:
        autoencoder: the architecture.
        parameters: its weights by name, with shape (S, *parameter); the autoencoder's own (S = 1) by default.
        explicit: use explicit pullbacks where both networks are MLPs; off means plain autograd.
    """

    def __init__(
        self, autoencoder: Autoencoder, parameters: Mapping[str, Tensor] | None = None, explicit: bool = True
    ) -> None:
        if parameters is None:
            parameters = {name: p[None] for name, p in autoencoder.named_parameters()}
        self.autoencoder = autoencoder
        self.encoder_parameters = prefixed(parameters, "encoder.")
        self.decoder_parameters = prefixed(parameters, "decoder.")
        self.members = next(iter(parameters.values())).shape[0]
        networks = (autoencoder.encoder, autoencoder.decoder)
        self.explicit = explicit and not autoencoder.sphere and all(isinstance(n, MLP) for n in networks)

    def encode(self, x: Tensor) -> Tensor:
        """Latent points with shape (N, d_z), on the sphere if the latent space is one."""
        z = call(self.autoencoder.encoder, self.encoder_parameters, x)
        return to_sphere(z) if self.autoencoder.sphere else z

    def decode(self, z: Tensor) -> Tensor:
        """Events with shape (N, *event)."""
        return call(self.autoencoder.decoder, self.decoder_parameters, z)

    def __call__(self, x: Tensor) -> Tensor:
        return mean_square(x - self.decode(self.encode(x)))

    def with_latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (N,) and the latent points (N, d_z) that they went through."""
        z = self.encode(x)
        return mean_square(x - self.decode(z)), z

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (N,) and gradients (N, *event)."""
        if not self.explicit:
            return autograd_value_and_grad(self, x)
        with torch.no_grad():
            energy, grad = self._explicit(self._blocks(x))
        return energy.reshape(-1), grad.reshape(x.shape)

    def latent(self) -> "LatentEnergy":
        """The energy over latent space, E~(z) = E(f_d(z))."""
        return LatentEnergy(self)

    def _blocks(self, x: Tensor) -> Tensor:
        return x if self.members == 1 else x.unflatten(0, (self.members, -1))

    def _layers(self, network: torch.nn.Module, parameters: Mapping[str, Tensor]) -> list[Layer]:
        assert isinstance(network, MLP)
        pairs = [(parameters[weight], parameters[bias]) for weight, bias in network.layer_names()]
        return [(weight[0], bias[0]) for weight, bias in pairs] if self.members == 1 else pairs

    def _explicit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        encoder, decoder = self.autoencoder.encoder, self.autoencoder.decoder
        assert isinstance(encoder, MLP)
        assert isinstance(decoder, MLP)
        e_layers = self._layers(encoder, self.encoder_parameters)
        d_layers = self._layers(decoder, self.decoder_parameters)
        e_act, d_act = ACTIVATIONS[encoder.activation], ACTIVATIONS[decoder.activation]
        z, e_saved = forward_saving(e_layers, x, e_act)
        out, d_saved = forward_saving(d_layers, z, d_act)
        residual = x - out
        back = pullback(e_layers, e_saved, pullback(d_layers, d_saved, residual, d_act), e_act)
        return residual.square().mean(-1), (2 / x.shape[-1]) * (residual - back)


class LatentEnergy:
    """E~(z) = E(f_d(z)), with its gradient where the energy has an explicit one."""

    def __init__(self, energy: ReconstructionEnergy) -> None:
        self.energy = energy

    def __call__(self, z: Tensor) -> Tensor:
        return self.energy(self.energy.decode(z))

    def value_and_grad(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (N,) and gradients (N, d_z)."""
        if not self.energy.explicit:
            return autograd_value_and_grad(self, z)
        e = self.energy
        decoder = e.autoencoder.decoder
        assert isinstance(decoder, MLP)
        layers, activation = e._layers(decoder, e.decoder_parameters), ACTIVATIONS[decoder.activation]
        with torch.no_grad():
            x, saved = forward_saving(layers, e._blocks(z), activation)
            energy, grad = e._explicit(x)
            back = pullback(layers, saved, grad, activation)
        return energy.reshape(-1), back.reshape(z.shape)
