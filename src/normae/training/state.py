"""What changes during a training: tensors with a row for each of S models, and the generators.

All of it is in `tensors()`, so that a checkpoint needs no pickle, a rollback is a copy, and a run that is stopped and
loaded again continues with the same numbers, bit for bit on a CPU.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from normae.errors import InputError
from normae.networks.reconstruction import ReconstructionEnergy
from normae.networks.spectral import SpectralNorm
from normae.random import stream
from normae.sampling.manifold import ReplayBuffer
from normae.training.backends import put_back
from normae.training.setup import Setup

SUMS = ("positive_energy", "negative_energy", "latent_acceptance", "feature_acceptance")


class Adam:
    """Optimizer of weights with shape (S, P), in place, with a learning rate for each row.

        m <- b1 m + (1-b1) g,  v <- b2 v + (1-b2) g^2,  w <- w - rate m^ / (sqrt(v^) + eps)

    with m^ = m/(1-b1^k), v^ = v/(1-b2^k) at update k. The whole update can be captured in a CUDA graph. The numbers are
    those of torch.optim.Adam.
    """

    def __init__(self, weights: Tensor, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8) -> None:
        self.weights = weights
        self.betas = betas
        self.epsilon = epsilon
        self.first = torch.zeros_like(weights)
        self.second = torch.zeros_like(weights)
        self.updates = torch.zeros((), dtype=torch.float64, device=weights.device)

    def state(self, prefix: str = "adam") -> dict[str, Tensor]:
        """The tensors that a checkpoint holds."""
        return {
            f"{prefix}.first": self.first, f"{prefix}.second": self.second, f"{prefix}.updates": self.updates
        }  # fmt: skip

    @torch.no_grad()
    def update(self, grad: Tensor, rate: Tensor) -> None:
        """One step along `grad`, with shape (S, P), at learning rates with shape (S,)."""
        beta1, beta2 = self.betas
        self.updates += 1
        self.first.lerp_(grad, 1 - beta1)
        self.second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction1 = (1 - beta1**self.updates).to(grad.dtype)
        correction2 = (1 - beta2**self.updates).to(grad.dtype)
        scale = (self.second / correction2).sqrt_().add_(self.epsilon)
        self.weights.sub_((rate[:, None] / correction1) * self.first / scale)


def snapshot(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def check_state(mine: Mapping[str, Tensor], state: Mapping[str, Tensor], device: torch.device) -> None:
    """One sentence where a checkpoint is another configuration's, or another kind of device's."""
    others = {name for name in mine if name not in state or state[name].shape != mine[name].shape}
    if set(state) != set(mine) or any(not name.startswith("generator.") for name in others):
        raise InputError("the checkpoint does not belong to this configuration; start in another folder")
    if others:
        raise InputError(
            f"the checkpoint was not written on {device.type}: its random numbers go on only on the kind of "
            "device that it was written on; set `device` so, or start in another folder"
        )


class State:
    """S models in training.

    Args:
        setup: what stays.
        weights: their first weights, with shape (S, P).

    Attributes:
        position: number of the phase, and iterations of it that are done.
        rate_scale: factor on each model's learning rates, (S,), below 1 after a rollback.
        sums: of the numbers called `SUMS` over the window of metrics, float64 with shape (4, S).
        extra: tensors that a phase adds.
    """

    def __init__(self, setup: Setup, weights: Tensor) -> None:
        members, device, sampling = setup.members, setup.device, setup.sampling
        self.setup = setup
        self.generators = setup.streams("chain")
        self.spectral: SpectralNorm | None = None
        if setup.architecture.spectral_norm:
            streams = [stream(seed, "spectral", device) for seed in setup.seeds]
            self.spectral = SpectralNorm(setup.layout, weights, streams)
        self.weights = setup.noise.extended(weights)
        self.log_temperature = torch.full((members, 1), math.log(setup.schedules.temperature.initial), device=device)
        self.average, self.average_log_temperature = self.weights.clone(), self.log_temperature.clone()
        self.optimizer, self.temperature_optimizer = Adam(self.weights), Adam(self.log_temperature)
        point = (setup.architecture.latent_dimension,) if sampling.buffer_space == "latent" else setup.data.event
        self.buffer = ReplayBuffer.empty(members, -(-sampling.buffer // setup.group.size), point, device)
        sizes = torch.tensor((sampling.latent.step_size, sampling.feature.step_size), device=device)
        self.log_sizes = sizes.log()[:, None].repeat(1, members)
        self.rate_scale = torch.ones(members, device=device)
        self.rollbacks = torch.zeros(members, dtype=torch.int64, device=device)
        self.position = torch.zeros(2, dtype=torch.int64)
        self.sums = torch.zeros(len(SUMS), members, dtype=torch.float64, device=device)
        self.extra: dict[str, Tensor] = {}
        # what an iteration reads and the next one sets anew
        self.rate, self.temperature_rate = torch.zeros(2, members, device=device)
        self.keep = torch.zeros((), device=device)

    @property
    def iteration(self) -> int:
        """Iterations of the phase that are done."""
        return int(self.position[1])

    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes. The tensors are live, not copies."""
        parts = {
            "weights": self.weights,
            "log_temperature": self.log_temperature,
            "average": self.average,
            "average_log_temperature": self.average_log_temperature,
            "buffer": self.buffer.storage,
            "written": self.buffer.written,
            "log_sizes": self.log_sizes,
            "rate_scale": self.rate_scale,
            "rollbacks": self.rollbacks,
            "position": self.position,
            "sums": self.sums,
        }
        parts |= self.optimizer.state() | self.temperature_optimizer.state("temperature_adam") | self.extra
        parts |= {"spectral": self.spectral.vectors} if self.spectral is not None else {}
        return parts | {f"generator.{k}": g.get_state() for k, g in enumerate(self.generators)}

    def whole(self) -> dict[str, Tensor]:
        """`tensors()` with the buffers and generators of all processes, which must all ask for it."""
        state, group = self.tensors(), self.setup.group
        own = [name for name in state if name == "buffer" or name.startswith("generator.")]
        for name in own if group.size > 1 else []:
            first, *others = group.gather(state[name])
            state[name] = first
            state |= {f"process.{k}.{name}": tensor for k, tensor in enumerate(others, start=1)}
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `tensors()` or `whole()` gave."""
        prefix = f"process.{self.setup.group.rank}."
        own = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        state = {name: tensor for name, tensor in state.items() if not name.startswith("process.")} | own
        mine = self.tensors()
        check_state(mine, state, self.setup.device)
        put_back(mine, self.generators, state)

    def energy(self, weights: Tensor) -> ReconstructionEnergy:
        """The energy of the models with weights (S, P), divided by their singular values where that is asked for."""
        setup = self.setup
        if self.spectral is not None:
            weights = self.spectral.normalized(weights)
        return setup.backend.energy(setup.architecture, setup.layout, weights)

    def start(self) -> dict[str, Tensor]:
        """Copies of what an NAE training can begin with: rows of weights (S, P + B), not yet divided by their singular
        values, and the vectors of the spectral normalization (S, V), where there is one."""
        return snapshot({"weights": self.weights} | ({"spectral": self.spectral.vectors} if self.spectral else {}))

    @torch.no_grad()
    def begin_with(self, start: Mapping[str, Tensor]) -> None:
        """Take over what `start()` of a pretraining gave; without vectors they are found anew."""
        self.weights.copy_(start["weights"])
        if self.spectral is not None and "spectral" in start:
            self.spectral.vectors.copy_(start["spectral"])
        elif self.spectral is not None:
            self.spectral.settle(self.weights)

    def result(self, last: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of weights and rho (S, P + B), temperatures (S,) and step sizes (2, S), averaged where asked for.

        Args:
            last: the weights as they are now, as of an autoencoder before its NAE phase.
        """
        averaged = self.setup.schedules.training.average > 0 and not last
        weights = self.average if averaged else self.weights
        log_temperature = self.average_log_temperature if averaged else self.log_temperature
        if self.spectral is not None:
            weights = self.spectral.normalized(weights)
        return weights, log_temperature.exp().flatten(), self.log_sizes.exp()
