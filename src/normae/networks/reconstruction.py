"""The energy of a normalized autoencoder: the reconstruction error, mean over features.

    E(x) = 1/d sum_i (x_i - x'_i)^2,   E~(z) = E(f_d(z)),   p(x) = exp(-E(x)/T) / Z.

For MLPs `value_and_grad` and `held` are written with explicit pullbacks: with the residual r = x - f(x),

    grad E = 2/d (r - J_f^T r),   grad E~(z) = J_d^T grad E(f_d(z)).

The energy of a table has a base, to which the reconstruction error is added (`networks.base`).

One object stands for S models side by side (seeds, an ensemble): events come as S equal blocks, model after model. All
weights are one tensor (S, P), and the named ones are views of it: an optimizer step, a rollback or a checkpoint is a
single operation, whatever the architecture.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from normae.energy import autograd_value_and_grad
from normae.errors import InputError
from normae.networks.autoencoder import Autoencoder, Upsample, conv_decoder, conv_encoder, to_sphere
from normae.networks.mlp import ACTIVATIONS, MLP, Pass, Plan, split_decoder
from normae.tensors import Generators, normal, sum_features

# --- the weights of S models


Named = Mapping[str, Tensor]
"""Weights by name, of one model or of several side by side."""


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a module's parameters, in order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        """The layout of `module`'s parameters."""
        named = list(module.named_parameters())
        return cls(tuple(name for name, _ in named), tuple(tuple(p.shape) for _, p in named))

    @property
    def sizes(self) -> list[int]:
        """Number of weights of each parameter."""
        return [int(torch.Size(shape).numel()) for shape in self.shapes]

    def columns(self) -> dict[str, Tensor]:
        """Where each parameter stands among the P weights, with shape (size,)."""
        return dict(zip(self.names, torch.arange(sum(self.sizes)).split(self.sizes), strict=True))

    def flatten(self, modules: Sequence[nn.Module]) -> Tensor:
        """The weights of the modules with shape (S, P), a copy."""
        rows = [torch.cat([p.detach().reshape(-1) for _, p in m.named_parameters()]) for m in modules]
        return torch.stack(rows)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Named views with shape (S, *parameter) of weights with shape (S, P); one split, so one backward node."""
        pieces = torch.split(flat, self.sizes, dim=1)
        named = zip(self.names, self.shapes, pieces, strict=True)
        return {name: piece.reshape(flat.shape[0], *shape) for name, shape, piece in named}


def all_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers by name, live."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


@torch.no_grad()
def fill(network: nn.Module, tensors: Named) -> None:
    """Copy weights and buffers, by name, into a network."""
    own = all_tensors(network)
    for name, tensor in tensors.items():
        own[name].copy_(tensor)


def prefixed(parameters: Named, prefix: str) -> dict[str, Tensor]:
    """The parameters below `prefix`, named as that submodule names them."""
    return {name[len(prefix) :]: p for name, p in parameters.items() if name.startswith(prefix)}


def call(module: nn.Module, parameters: Named, x: Tensor) -> Tensor:
    """`module(x)` for a stack of S models.

    Args:
        module: the architecture; its own weights are not used.
        parameters: with shape (S, *parameter) each.
        x: events with shape (S * B, *event), model after model.

    Returns:
        Outputs with shape (S * B, *out), each block computed with its own model's weights.
    """
    if not parameters:
        out: Tensor = module(x)
    elif (members := next(iter(parameters.values())).shape[0]) == 1 and isinstance(module, MLP) and module.whole:
        out = module.at({name: p.squeeze(0) for name, p in parameters.items()}, x)
    elif members == 1:
        out = functional_call(module, {name: p[0] for name, p in parameters.items()}, (x,))
    else:
        each = vmap(lambda p, block: functional_call(module, p, (block,)))
        out = each(dict(parameters), x.unflatten(0, (members, -1))).flatten(0, 1)
    return out


def last_input(decoder: nn.Module, parameters: Named, z: Tensor) -> tuple[Tensor, nn.Module, str]:
    """What comes into the decoder's last layer for latent points z, that layer, and the prefix of its names."""
    parts = split_decoder(decoder)
    if parts is None:
        raise InputError("local reparameterization needs an MLP or an nn.Sequential ending in a layer as decoder")
    body, layer, prefix = parts
    before = {name: p for name, p in parameters.items() if not name.startswith(prefix)}
    return call(body, before, z), layer, prefix


# --- their energies


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

    rebuilds = True
    """Whether the energy is the error of a reconstruction."""

    def __init__(self, autoencoder: Autoencoder, parameters: Named | None = None, explicit: bool = True) -> None:
        self.in_place = parameters is None  # the weights are the autoencoder's own: its modules are called as they are
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
        z = call(self.autoencoder.encoder, {} if self.in_place else self.encoder_parameters, x)
        return to_sphere(z) if self.autoencoder.sphere else z

    def decode(self, z: Tensor) -> Tensor:
        """Events with shape (N, *event)."""
        return call(self.autoencoder.decoder, {} if self.in_place else self.decoder_parameters, z)

    def __call__(self, x: Tensor) -> Tensor:
        return self.based(self.error(x), x)

    def error(self, x: Tensor) -> Tensor:
        """The reconstruction error alone, without a base, with shape (N,)."""
        return self.with_latent(x)[0]

    def with_latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Reconstruction errors (N,) and the latent points (N, d_z) that they went through."""
        z = self.encode(x)
        return mean_square(x - self.decode(z)), z

    def based(self, error: Tensor, x: Tensor) -> Tensor:
        """Energies with shape (..., N) of reconstruction errors with shape (..., N) at events x (N, *event)."""
        return error if self.autoencoder.base is None else error + self.autoencoder.base(x)

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (N,) and gradients (N, *event)."""
        return self.held().value_and_grad(x) if self.explicit else autograd_value_and_grad(self, x)

    def held(self) -> "ReconstructionEnergy | ExplicitEnergy":
        """For a chain, during which the weights stay: with buffers that are kept from gradient to gradient."""
        return ExplicitEnergy(self, latent=False) if self.explicit else self

    def latent_noise(self, n: int, generators: Generators, like: Tensor) -> Tensor:
        """Where latent chains begin, with shape (n, d_z): standard normal, or uniform on the sphere."""
        z = normal((n, self.autoencoder.latent_dimension), generators, like)
        return to_sphere(z) if self.autoencoder.sphere else z

    def latent(self) -> "LatentEnergy":
        """The energy over latent space, E~(z) = E(f_d(z))."""
        return LatentEnergy(self)

    def passes(self, name: str) -> Pass:
        """An explicit pass of the "encoder" or the "decoder", which must be MLPs."""
        network = getattr(self.autoencoder, name)
        parameters = self.encoder_parameters if name == "encoder" else self.decoder_parameters
        pairs = [(parameters[weight].detach(), parameters[bias].detach()) for weight, bias in network.layer_names()]
        layers = [(weight[0], bias[0]) for weight, bias in pairs] if self.members == 1 else pairs
        return Pass(layers, ACTIVATIONS[network.activation])


class LocalEnergy(ReconstructionEnergy):
    """The mean of E over local reparameterization of the decoder's last layer: E at the mean weights, plus a variance.

        <E>(x) = E(x) + 1/d sum_i v_i(x),    v = W_s^2 h^2 + b_s^2,

    with h the last layer's input and s the widths of its weights. A chain whose energy has fresh noise at every step
    walks on this mean.

    Args:
        widths: s of the last layer's parameters, by the autoencoder's names, with shape (S, *parameter).
    """

    def __init__(self, autoencoder: Autoencoder, parameters: Named, widths: Named) -> None:
        super().__init__(autoencoder, parameters, explicit=False)
        self.variances = {name.rpartition(".")[2]: s.square() for name, s in widths.items()}

    def moments(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the output at latent points z, with shape (N, *event) each."""
        hidden, last, prefix = last_input(self.autoencoder.decoder, self.decoder_parameters, z)
        mean = call(last, prefixed(self.decoder_parameters, prefix), hidden)
        return mean, call(last, self.variances, hidden.square())

    def drawn(self, z: Tensor, generators: Generators) -> Tensor:
        """Events (N, *event) of latent points z, each with noise of its own."""
        mean, variance = self.moments(z)
        return mean + variance.clamp_min(1e-30).sqrt() * normal(mean.shape, generators, mean)

    def with_latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encode(x)
        mean, variance = self.moments(z)
        return mean_square(x - mean) + variance.flatten(1).mean(1), z

    def coefficients(self) -> Tensor:
        """For a linear last layer, the mean over features of s^2 of each weight and of the biases, (S, in + 1)."""
        return torch.cat([self.variances["weight"].mean(1), self.variances["bias"].mean(1, keepdim=True)], dim=1)


class LatentEnergy:
    """E~(z) = E(f_d(z)), with its gradient where the energy has an explicit one."""

    def __init__(self, energy: ReconstructionEnergy) -> None:
        self.energy = energy

    def __call__(self, z: Tensor) -> Tensor:
        return self.energy(self.energy.decode(z))

    def value_and_grad(self, z: Tensor) -> tuple[Tensor, Tensor]:
        held = self.held()
        return autograd_value_and_grad(self, z) if held is self else held.value_and_grad(z)

    def held(self) -> "LatentEnergy | ExplicitEnergy":
        explicit = self.energy.explicit and self.energy.autoencoder.base is None
        return ExplicitEnergy(self.energy, latent=True) if explicit else self


class ExplicitEnergy:
    """E(x), or `latent` E~(z), of MLP autoencoders by explicit pullbacks, for as long as the weights stay."""

    ROWS = 4096
    """On a CPU, events that are worked on at a time, so that their activations stay in the cache."""

    def __init__(self, energy: ReconstructionEnergy, latent: bool) -> None:
        self.energy, self.members, self.latent = energy, energy.members, latent
        self.encoder, self.decoder = energy.passes("encoder"), energy.passes("decoder")
        self._planned: dict[torch.Size, Callable[[Tensor], tuple[Tensor, Tensor]]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        return self.energy(self.energy.decode(x) if self.latent else x)

    @torch.no_grad()
    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (N,) and gradients (N, d)."""
        blocks = x if self.members == 1 else x.unflatten(0, (self.members, -1))
        rows = x.shape[0] if x.is_cuda else self.ROWS // self.members + 1
        parts = [self._at(part) for part in blocks.split(rows, dim=-2)]
        energy, grad = parts[0]
        if len(parts) > 1:
            energy, grad = torch.cat([e for e, _ in parts], dim=-1), torch.cat([g for _, g in parts], dim=-2)
        return energy.reshape(-1), grad.reshape(x.shape)

    def _at(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if x.shape not in self._planned:
            self._planned[x.shape] = self._plan(x)
        energy, grad = self._planned[x.shape](x)
        if (base := self.energy.autoencoder.base) is not None:
            value, slope = base.value_and_grad(x.reshape(-1, x.shape[-1]))
            energy, grad = energy + value.reshape(energy.shape), grad + slope.reshape(grad.shape)
        return energy, grad

    def _plan(self, like: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """What gives energies and gradients at points with the shape of `like`."""
        plan: Plan = []
        start = torch.empty_like(like)
        events, entered = self.decoder.forward(start, plan) if self.latent else (start, [])
        z, encoded = self.encoder.forward(events, plan)
        out, decoded = self.decoder.forward(z, plan)
        residual, half = torch.empty_like(events), torch.empty_like(events)
        plan.append(partial(torch.sub, events, out, out=residual))
        back = self.encoder.pullback(self.decoder.pullback(residual, decoded, plan), encoded, plan)
        plan.append(partial(torch.sub, residual, back, out=half))
        found = self.decoder.pullback(half, entered, plan) if self.latent else half
        d = events.shape[-1]

        def run(x: Tensor) -> tuple[Tensor, Tensor]:
            start.copy_(x)
            for operation in plan:
                operation()
            return sum_features(residual.square()) / d, torch.mul(found, 2 / d, out=torch.empty_like(start))

        return run


# --- what fast kernels must know of a network


@dataclass(frozen=True)
class ConvShape:
    """What the kernels must know of a convolutional autoencoder."""

    side: int
    channels: int
    hidden: int
    latent: int
    sphere: bool
    sigmoid: bool

    @property
    def small(self) -> int:
        """Pixels of the small image."""
        return (self.side // 2) ** 2

    @property
    def hp(self) -> int:
        """The hidden vector's padded length."""
        return max(16, 1 << (self.hidden - 1).bit_length())

    @property
    def zp(self) -> int:
        """The latent point's padded length."""
        return max(8, 1 << (self.latent - 1).bit_length())

    @property
    def gathered(self) -> int:
        """Length of what a program gathers."""
        return 45 * self.channels * (self.channels + 1) + 16


def conv_shape(architecture: Autoencoder) -> ConvShape | None:
    """The shape, if the autoencoder is `build_conv_autoencoder`'s; otherwise None."""
    encoder, decoder = architecture.encoder, architecture.decoder
    if not isinstance(encoder, nn.Sequential) or not isinstance(decoder, nn.Sequential):
        return None
    upsample = next((layer for layer in decoder if isinstance(layer, Upsample)), None)
    if upsample is None or not isinstance(encoder[0], nn.Conv2d) or not isinstance(decoder[0], nn.Linear):
        return None
    sizes = (upsample.matrix.shape[0], encoder[0].out_channels, decoder[0].out_features, architecture.latent_dimension)
    sigmoid, generator = isinstance(decoder[-1], nn.Sigmoid), torch.Generator()
    expected = (conv_encoder(*sizes, generator), conv_decoder(*sizes, sigmoid, generator))
    for mine, theirs in zip(expected, (encoder, decoder), strict=True):
        if [type(layer) for layer in mine] != [type(layer) for layer in theirs] or Layout.of(mine) != Layout.of(theirs):
            return None
    return ConvShape(*sizes, architecture.sphere, sigmoid)
