"""What a training of S models works on: what stays as it is, and what changes.

What stays is in `Setup`: the samples, the order of their events, what a row of weights means. What changes is in
`State`: tensors with a row for each model, and the generators. All of it is in `tensors()`, so that a checkpoint needs
no pickle, a rollback is a copy, and a run that is stopped and loaded again continues with the same numbers, bit for bit
on a CPU.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normae.data import SparseEvents
from normae.errors import InputError
from normae.networks.autoencoder import Autoencoder
from normae.networks.bayesian import WeightNoise, rho_of
from normae.networks.reconstruction import Layout, ReconstructionEnergy, prefixed
from normae.networks.spectral import SpectralNorm
from normae.sampling.chain import ReplayBuffer
from normae.sampling.config import SamplingConfig
from normae.tensors import counts_as, stream
from normae.training.backends import Backend, Group, put_back
from normae.training.config import Schedules

CHANGING = (
    "weights", "log_temperature", "average", "average_log_temperature", "log_sizes", "rate_scale", "rollbacks",
    "position", "sums",
)  # fmt: skip
PIECE = 2048  # events that are dense at a time outside the training
SUMS = ("positive_energy", "negative_energy", "latent_acceptance", "feature_acceptance")


# --- what stays


Data = Sequence[Tensor] | Sequence[SparseEvents]
"""S tensors with shape (N, *event), or S sets of N sparse images."""


class Samples:
    """S samples of equal size N, on the device, model after model.

    Args:
        device: where batches are taken.
        weights: S tensors with shape (N,) and mean 1, of events that have weights.
    """

    def __init__(self, samples: Data, device: torch.device, weights: Sequence[Tensor] | None = None) -> None:
        if len({tuple(sample.shape) for sample in samples}) != 1:
            raise InputError(f"expected training samples of one shape, got {[tuple(s.shape) for s in samples]}")
        self.size, self.device = len(samples[0]), device
        self.event = tuple(samples[0].shape[1:])
        sparse = [sample for sample in samples if isinstance(sample, SparseEvents)]
        whole = SparseEvents.joined(sparse) if sparse else torch.cat([s for s in samples if isinstance(s, Tensor)])
        self._events = whole.to(device)
        self.counts_as = self.size if weights is None else min(counts_as(w) for w in weights)
        self._weights = None if weights is None else torch.cat(list(weights)).float().to(device)
        self._first = torch.arange(len(samples), device=device)[:, None] * self.size

    def take(self, index: Tensor) -> Tensor:
        """The events at `index`, int64 with shape (S, B): dense, with shape (S * B, *event)."""
        return self._events[(index + self._first).flatten()]

    def pieces(self) -> Iterator[Tensor]:
        """Numbers of all events, with shape (S, B) and B such that dense ones fit into memory."""
        for rows in torch.arange(self.size, device=self.device).split(PIECE):
            yield rows.expand(len(self._first), -1)

    def weighed(self, values: Tensor, index: Tensor) -> Tensor:
        """Values at the events of `index`, with S * B entries, times the weights of these events."""
        if self._weights is None:
            return values
        return values * self._weights[(index + self._first).flatten()].reshape(values.shape)


class Order:
    """Which of `n` events an iteration takes: from the seeds and the name alone, so that nothing has to be stored.

    An incomplete last batch of an epoch is left out.
    """

    def __init__(self, seeds: Sequence[int], name: str, n: int, batch: int, device: torch.device) -> None:
        self.seeds, self.name, self.n, self.batch, self.device = seeds, name, n, batch, device
        self.per_epoch = n // batch
        self._epoch, self._order = -1, torch.empty(0)

    def rows(self, iteration: int) -> Tensor:
        """The numbers of the events, int64 with shape (S, B)."""
        epoch, place = divmod(iteration, self.per_epoch)
        if epoch != self._epoch:
            streams = [stream(seed, f"{self.name}/epoch/{epoch}", self.device) for seed in self.seeds]
            orders = [torch.randperm(self.n, generator=generator, device=self.device) for generator in streams]
            self._epoch, self._order = epoch, torch.stack(orders)
        return self._order[:, place * self.batch : (place + 1) * self.batch]


@dataclass(frozen=True)
class Setup:
    """S models of one architecture, each with its own sample and its own seed.

    Args:
        architecture: on the device; its own weights are not used.
        data: this process's part of the training samples.
        validation: samples at which the energy is watched; each process has all of them.
    """

    architecture: Autoencoder
    layout: Layout
    noise: WeightNoise
    data: Samples
    validation: Samples | None
    schedules: Schedules
    sampling: SamplingConfig
    backend: Backend
    seeds: list[int]
    device: torch.device
    group: Group

    @property
    def members(self) -> int:
        """S."""
        return len(self.seeds)

    @property
    def events(self) -> int:
        """Training events of all processes; of weighted ones, what they count as."""
        return self.data.counts_as * self.group.size

    def streams(self, name: str) -> list[torch.Generator]:
        """The random stream `name` of each model on this process."""
        return [stream(seed, self.group.named(name), self.device) for seed in self.seeds]


# --- what changes


class Adam:
    """Optimizer of weights with shape (S, P), in place, with a learning rate for each row.

        m <- b1 m + (1-b1) g,  v <- b2 v + (1-b2) g^2,  w <- w - rate m^ / (sqrt(v^) + eps)

    with m^ = m/(1-b1^k), v^ = v/(1-b2^k) at update k. The whole update can be captured in a CUDA graph. The numbers are
    those of torch.optim.Adam.
    """

    BETAS = (0.9, 0.999)
    EPSILON = 1e-8

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights
        self.first = torch.zeros_like(weights)
        self.second = torch.zeros_like(weights)
        self.updates = torch.zeros((), dtype=torch.float64, device=weights.device)

    def state(self, prefix: str = "adam") -> dict[str, Tensor]:
        """The tensors that a checkpoint holds."""
        return {f"{prefix}.{name}": getattr(self, name) for name in ("first", "second", "updates")}

    @torch.no_grad()
    def update(self, grad: Tensor, rate: Tensor) -> None:
        """One step along `grad`, with shape (S, P), at learning rates with shape (S,)."""
        beta1, beta2 = self.BETAS
        self.updates += 1
        self.first.lerp_(grad, 1 - beta1)
        self.second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction1 = (1 - beta1**self.updates).to(grad.dtype)
        correction2 = (1 - beta2**self.updates).to(grad.dtype)
        scale = (self.second / correction2).sqrt_().add_(self.EPSILON)
        self.weights.sub_((rate[:, None] / correction1) * self.first / scale)


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
        self.weights, noise = weights, setup.noise
        if noise.config is not None:  # the first rho stand behind the means
            rho = weights.new_full((members, len(noise.columns)), rho_of(noise.config.initial_width))
            self.weights = torch.cat([weights, rho], dim=1)
        self.log_temperature = torch.full((members, 1), math.log(setup.schedules.temperature.initial), device=device)
        self.average, self.average_log_temperature = self.weights.clone(), self.log_temperature.clone()
        self.optimizer, self.temperature_optimizer = Adam(self.weights), Adam(self.log_temperature)
        point = (setup.architecture.latent_dimension,) if sampling.buffer_space == "latent" else setup.data.event
        self.buffer = ReplayBuffer(members, -(-sampling.buffer // setup.group.size), point, device)
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
        parts = {name: getattr(self, name) for name in CHANGING}
        parts |= {"buffer": self.buffer.storage, "written": self.buffer.written}
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
        own, mine = prefixed(state, f"process.{self.setup.group.rank}."), self.tensors()
        state = {name: tensor for name, tensor in state.items() if not name.startswith("process.")} | own
        others = {name for name in mine if name not in state or state[name].shape != mine[name].shape}
        if set(state) != set(mine) or any(not name.startswith("generator.") for name in others):
            raise InputError("the checkpoint does not belong to this configuration; start in another folder")
        if others:
            raise InputError(
                f"the checkpoint was not written on {self.setup.device.type}: its random numbers go on only on the "
                "kind of device that it was written on; set `device` so, or start in another folder"
            )
        put_back(mine, self.generators, state)

    def energy(self, weights: Tensor) -> ReconstructionEnergy:
        """The energy of the models with weights (S, P), not yet divided by their singular values."""
        setup = self.setup
        return setup.backend.energy(setup.architecture, setup.layout, self._normalized(weights))

    def start(self) -> dict[str, Tensor]:
        """Copies of what an NAE training can begin with: rows of weights (S, P + B), not yet divided by their singular
        values, and the vectors of the spectral normalization (S, V), where there is one."""
        return {name: tensor.clone() for name, tensor in self.tensors().items() if name in ("weights", "spectral")}

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
        weights = self._normalized(self.average if averaged else self.weights)
        log_temperature = self.average_log_temperature if averaged else self.log_temperature
        return weights, log_temperature.exp().flatten(), self.log_sizes.exp()

    def _normalized(self, weights: Tensor) -> Tensor:
        """Divided by their singular values where that is asked for."""
        return weights if self.spectral is None else self.spectral.normalized(weights)
