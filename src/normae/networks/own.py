"""Networks that the user brings: an encoder and a decoder, or one module that is the energy itself.

An energy must be a function of each event alone, else neither a chain nor a score of one event means anything. So what
looks at other events (BatchNorm), or throws dice (Dropout), is refused before anything is trained: by name where it has
one, and otherwise by what it does to a batch, to its rows one by one, and to the same batch again.
"""

from copy import deepcopy
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from normae.errors import InputError, refuse, require_that
from normae.networks.autoencoder import Autoencoder, NetworkConfig
from normae.networks.reconstruction import Named, ReconstructionEnergy, call, prefixed

TOLERANCE = 1e-4  # largest difference of two outputs that should be equal, as a share of the largest output


class EnergyNetwork(Autoencoder):
    """A module from events (N, *event) to energies (N,), where a network is expected; it has no latent space."""

    def __init__(self, energy: nn.Module) -> None:
        super().__init__(nn.Identity(), nn.Identity(), 0)
        self.energy = energy

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.energy(x)
        return out


class OwnEnergy(ReconstructionEnergy):
    """E(x) of S modules of one architecture, each the energy itself; arguments as in `ReconstructionEnergy`."""

    rebuilds = False

    def __init__(self, network: EnergyNetwork, parameters: Named | None = None) -> None:
        super().__init__(network, parameters, explicit=False)
        self.module, self.module_parameters = network.energy, prefixed(parameters or {}, "energy.")

    def __call__(self, x: Tensor) -> Tensor:
        return call(self.module, self.module_parameters, x)

    error = __call__

    def with_latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (N,), and zeros (N, 1) in place of latent points."""
        return self(x), x.new_zeros(len(x), 1)

    def _without_latent(self, *_: object) -> NoReturn:
        raise InputError("an energy of your own has no latent space; chains must begin at events")

    encode = decode = latent = latent_noise = _without_latent  # type: ignore[assignment]


def own_network(**given: Any) -> Autoencoder | None:
    """The network of the modules that the user gave, not copied: `encoder` and `decoder`, or `energy`; None of none."""
    modules = {name: module for name, module in given.items() if module is not None}
    if not modules:
        return None
    if set(modules) not in ({"encoder", "decoder"}, {"energy"}):
        raise InputError(f"expected encoder= and decoder=, or energy= alone, got {' and '.join(modules)}")
    for name, module in modules.items():
        require_that(isinstance(module, nn.Module), name, "a torch.nn.Module", type(module).__name__)
    if "energy" in modules:
        return EnergyNetwork(modules["energy"])
    encoder, decoder = modules["encoder"], modules["decoder"]
    if {id(p) for p in encoder.parameters()} & {id(p) for p in decoder.parameters()}:
        raise InputError("encoder and decoder share weights, expected networks with weights of their own")
    return Autoencoder(encoder, decoder, 0)


def copied(own: Autoencoder, config: NetworkConfig) -> Autoencoder:
    """A copy on the CPU, so that the user's modules stay as they are until the training is over."""
    try:
        network = deepcopy(own).cpu().eval()
    except (RuntimeError, TypeError) as error:
        raise InputError(f"the networks cannot be copied ({_first_line(error)})") from None
    network.latent_dimension, network.sphere = config.latent, config.latent_space == "sphere"
    return network


# --- what is refused


def check_network(own: Autoencoder, x: Tensor) -> int:
    """One sentence where the modules cannot be trained on events like x (N, *event); else d_z, 0 for an energy."""
    for name in ("energy",) if isinstance(own, EnergyNetwork) else ("encoder", "decoder"):
        _check_weights_and_layers(getattr(own, name), name)
    network = copied(own, NetworkConfig(latent=0, kind="own"))
    if isinstance(network, EnergyNetwork):
        energies = _checked(network.energy, "energy", x)
        got = f"{tuple(energies.shape)} from events of shape {tuple(x.shape)}"
        require_that(energies.shape == (len(x),), "energy", f"one number for each event, shape ({len(x)},)", got)
        return 0
    z = _checked(network.encoder, "encoder", x)
    points, got = z.ndim == 2 and len(z) == len(x), f"{tuple(z.shape)} from events of shape {tuple(x.shape)}"
    require_that(points and z.shape[1] > 0, "encoder", f"latent points of shape ({len(x)}, d_z)", got)
    events = _checked(network.decoder, "decoder", z)
    got = f"{tuple(events.shape)} from latent points of shape {tuple(z.shape)}"
    require_that(events.shape == x.shape, "decoder", f"events of shape {tuple(x.shape)}", got)
    return z.shape[1]


def _check_weights_and_layers(module: nn.Module, name: str) -> None:
    """Weights in float32, all of them to be trained; no layer that is known to look at other events or throw dice."""
    named = list(module.named_parameters())
    trained = any(p.requires_grad for _, p in named)
    require_that(trained, name, "weights that require a gradient", "none; there is nothing to train")
    for key, p in named:
        if isinstance(p, nn.UninitializedParameter):
            raise InputError(f"{name}: {key!r} has no shape yet; call the module once on a batch of events")
        if not p.requires_grad:
            raise InputError(f"{name}: {key!r} requires no gradient, and all weights are trained; make it a buffer")
        require_that(p.dtype == torch.float32, name, "weights in float32", f"{p.dtype} in {key!r}; call .float()")

    for key, layer in module.named_modules():
        kind = type(layer).__name__ + (f" ({key!r})" if key else "")
        if isinstance(layer, _BatchNorm):
            raise InputError(f"{name}: {kind} makes one event depend on the others of its batch; take LayerNorm")
        if isinstance(layer, _DropoutNd) and layer.p > 0:
            raise InputError(f"{name}: {kind} makes the output depend on chance; leave it out, or set its p to 0")


def _checked(module: nn.Module, name: str, x: Tensor) -> Tensor:
    """The output at x, with shape (N, *out), of a module that is a function of each event alone."""
    before = {key: buffer.clone() for key, buffer in module.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        found = _output(module.train(), name, x)
        again, calm = _output(module, name, x), _output(module.eval(), name, x)
        rows = [_output(module, name, row) for row in x.split(1)]
    for key, buffer in module.named_buffers():
        if key not in before or not torch.equal(before[key], buffer):
            raise InputError(f"{name}: the buffer {key!r} changes when the module is called, expected one that stays")
    require_that(bool(torch.isfinite(found).all()), name, "finite numbers", "NaN or infinity")
    refuse(not _equal(found, again), f"{name}: the output depends on chance; two calls with the same events differ")
    refuse(not _equal(found, calm), f"{name}: the output is not the same in train and in eval mode")
    if len(found) != len(x) or any(len(row) != 1 for row in rows) or not _equal(found, torch.cat(rows)):
        raise InputError(f"{name}: the output for one event depends on the other events of its batch")
    _check_gradient(module, name, x)
    return found


def _output(module: nn.Module, name: str, x: Tensor) -> Tensor:
    try:
        found = module(x)
    except Exception as error:  # whatever a module of the user raises
        said = f"{type(error).__name__}, {_first_line(error)}"
        raise InputError(f"{name}: cannot take an array of shape {tuple(x.shape)}: {said}") from None
    kind = "a single number" if isinstance(found, Tensor) else type(found).__name__
    require_that(isinstance(found, Tensor) and found.ndim > 0, name, "a tensor with a row for each event", kind)
    return torch.as_tensor(found)


def _check_gradient(module: nn.Module, name: str, x: Tensor) -> None:
    leaf = x.clone().requires_grad_(True)
    with torch.enable_grad():
        value = module(leaf).sum()
    refuse(not value.requires_grad, f"{name}: the output has no gradient, expected one that can be differentiated")
    by_input, *by_weights = torch.autograd.grad(value, [leaf, *module.parameters()], allow_unused=True)
    for what, grads in (("input", [by_input]), ("weights", by_weights)):
        refuse(all(grad is None for grad in grads), f"{name}: the output has no gradient with respect to its {what}")


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= TOLERANCE * one.abs().max())


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
