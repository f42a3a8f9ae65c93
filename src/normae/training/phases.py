"""The phases of a training by epochs: an autoencoder's, and that of the normalized autoencoder.

The gradient of the negative log-likelihood, Eq. (training_ebm) of the paper, is that of

    L = (<E(x)>_data - <E(x)>_model) / T

with the negative samples held fixed. Added are the paper's regularizers: the mean square of latent points (positive and
negative), the sum of squared weights, and the mean square of the negative energies. In the "plain" form the first term
is not divided by T; the regularizers are never rescaled. The temperature is trained on the same L with detached
energies; with t = log T, dL/dt = -(E+ - E-)/T. All values are one for each of S models. A base of the energy is the
same for all weights and cancels: E+ and E- are then reconstruction errors, and T stays as the start left it.
Of weighted events <E>_data is the weighted mean, exact for negative weights too; the chains do not know of weights.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from normae.networks.mlp import MLP
from normae.networks.reconstruction import ReconstructionEnergy, mean_square
from normae.sampling.chain import Runner, adapted, into_bounds, negatives, run_chain
from normae.tensors import norm
from normae.training.backends import capture_graph
from normae.training.config import PhaseConfig, TrainingConfig
from normae.training.state import Order, Setup, State

TUNING = 12  # short chains that find the step size before the first update, after a start by classification
TUNING_CHAINS = 64


def by_member(values: Tensor, members: int) -> Tensor:
    """Mean over the block of each model, (S * B, ...) -> (S,)."""
    return values.reshape(members, -1).mean(1)


def regularizers(weights: Tensor, latent: list[Tensor], config: PhaseConfig) -> Tensor:
    """Latent and L2 penalties with shape (S,), for weights (S, P) and latent points (S * B, d_z)."""
    members = weights.shape[0]
    total = weights.new_zeros(members)
    if config.latent_penalty > 0:
        for z in latent:
            total = total + config.latent_penalty * by_member(z.square(), members)
    if config.l2_penalty > 0:
        total = total + config.l2_penalty * weights.square().sum(1)
    return total


def contrastive(positive: Tensor, negative: Tensor, temperature: Tensor, config: TrainingConfig) -> Tensor:
    """The likelihood term and the negative-energy penalty, (S,), for energies (S * B,) and temperatures (S,)."""
    members = len(temperature)
    gap = by_member(positive, members) - by_member(negative, members)
    if config.loss_scale == "temperature":
        gap = gap / temperature
    if config.negative_penalty > 0:
        gap = gap + config.negative_penalty * by_member(negative.square(), members)
    return gap


def temperature_gradient(positive: Tensor, negative: Tensor, temperature: Tensor) -> Tensor:
    """dL/dlog T with shape (S, 1)."""
    members = len(temperature)
    gap = by_member(positive, members) - by_member(negative, members)
    slope: Tensor = -gap / temperature
    return slope.detach()[:, None]


def clip_rows(grad: Tensor, largest: float | None) -> Tensor:
    """The gradient of each model, (S, P), limited in norm."""
    if largest is None:
        return grad
    scale: Tensor = largest / norm(grad, keepdim=True).clamp_min(largest)
    return grad * scale


class Phase(ABC):
    """A part of a training with a loss of its own; its settings are those of its name, where `config` gives no others.

    A subclass says what an update is: `update`, in place on the state's tensors, can be captured in a CUDA graph.

    Attributes:
        batch: events of an update on this process.
        per_epoch: iterations of an epoch; an incomplete last batch is left out.
        length: iterations of the phase, at most.
    """

    name: str
    config: PhaseConfig

    def __init__(self, setup: Setup, state: State, config: PhaseConfig | None = None) -> None:
        self.setup, self.state, self.config = setup, state, config or getattr(setup.schedules, self.name)
        self.batch = min(self.config.batch // setup.group.size, setup.data.size)
        self.per_epoch = setup.data.size // self.batch
        whole = self.config.epochs * self.per_epoch
        self.length = whole if self.config.iterations is None else self.config.iterations

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self.state.iteration >= self.length

    def begin(self) -> None:
        """The first moment, with fresh optimizers."""
        for optimizer in (self.state.optimizer, self.state.temperature_optimizer):
            for tensor in optimizer.state().values():
                tensor.zero_()

    def prepare(self) -> None:
        """Get ready for iterations from wherever the state is."""
        setup = self.setup
        self.order = Order(setup.seeds, setup.group.named(self.name), setup.data.size, self.batch, setup.device)
        self.index = torch.zeros(setup.members, self.batch, dtype=torch.int64, device=setup.device)
        graph = setup.backend.graph
        self.iterate = capture_graph(self.update, self.state.tensors, self.state.generators) if graph else self.update

    def factor(self) -> float:
        """What the learning rates are multiplied by: warm-up times schedule."""
        iteration = self.state.iteration
        rise = min(1.0, (iteration + 1) / (self.config.warmup + 1))
        if self.config.schedule == "constant":
            return rise
        return rise * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * iteration / max(1, self.length))))

    def advance(self) -> None:
        """One iteration."""
        state, schedules, factor = self.state, self.setup.schedules, self.factor()
        self.index.copy_(self.order.rows(state.iteration))
        state.rate.copy_(state.rate_scale * (self.config.learning_rate * factor))
        state.temperature_rate.copy_(state.rate_scale * (schedules.temperature.learning_rate * factor))
        state.keep.fill_(min(schedules.training.average, (state.iteration + 1) / (state.iteration + 10)))
        self.iterate()
        state.position[1] += 1

    @abstractmethod
    def update(self) -> None:
        """One update of the weights."""

    def values(self, means: dict[str, list[float]]) -> dict[str, list[float]]:
        """A line of metrics, from the means of `SUMS`."""
        return {"positive_energy": means["positive_energy"], "learning_rate": self.state.rate.tolist()}

    def measured(self) -> dict[str, list[float]]:
        """What a line of metrics has beside the means over its window."""
        return {}

    def finish(self) -> None:  # noqa: B027
        """The last moment."""

    def leaf(self) -> Tensor:
        """The weights to differentiate by, (S, P + B), after the power iteration of an update."""
        if self.state.spectral is not None:
            self.state.spectral.iterate(self.state.weights)
        return self.state.weights.detach().requires_grad_(True)

    def noisy_energy(self, leaf: Tensor, draw: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (S * B,) and latent points of events, with the iteration's draw, or with local noise if so set."""
        noise, state = self.setup.noise, self.state
        if not noise.local(self.name):
            return state.energy(noise.weights(leaf, draw)).with_latent(x)
        local = noise.local_energy(leaf)
        z = local.encode(x)
        return mean_square(x - local.drawn(z, state.generators)), z


@torch.no_grad()
def validation_energy(phase: Phase) -> dict[str, list[float]]:
    """The mean energy of each model's validation sample, where there is one, at the mean weights of a Bayesian one."""
    setup, samples = phase.setup, phase.setup.validation
    if samples is None:
        return {}
    energy = phase.state.energy(setup.noise.mean(phase.state.weights))
    total = torch.zeros(setup.members, dtype=torch.float64, device=setup.device)
    for index in samples.pieces():
        total += samples.weighed(energy.error(samples.take(index)), index).reshape(setup.members, -1).double().sum(1)
    return {"validation_energy": (total / samples.size).tolist()}


class Pretraining(Phase):
    """The autoencoder: the mean reconstruction error, and for Bayesian weights T KL/N with the initial T."""

    name = "pretraining"
    measured = validation_energy

    def update(self) -> None:
        config, state, noise, group = self.config, self.state, self.setup.noise, self.setup.group
        leaf = self.leaf()
        draw = noise.draw(state.weights, state.generators)
        each, z = self.noisy_energy(leaf, draw, self.setup.data.take(self.index))
        error = by_member(self.setup.data.weighed(each, self.index), self.setup.members)
        temperature = self.setup.schedules.temperature.initial
        loss = error + temperature * noise.kl(leaf) / self.setup.events
        if config.loss_scale == "temperature":
            loss = loss / temperature
        loss = loss + regularizers(noise.mean(leaf), [z], config)
        grad = group.mean(torch.autograd.grad(loss.sum(), leaf)[0])
        state.optimizer.update(clip_rows(grad, config.gradient_clip), state.rate)
        state.sums[0] += group.mean(error.detach())


class Likelihood(Phase):
    """The normalized autoencoder, with negative samples from its chains."""

    name = "training"
    config: TrainingConfig
    measured = validation_energy

    def begin(self) -> None:
        """Fresh optimizers and averages, the first chains, and a step size that suits them."""
        super().begin()
        state, setup = self.state, self.setup
        state.average.copy_(state.weights)
        state.average_log_temperature.copy_(state.log_temperature)
        if setup.sampling.buffer_space == "feature":
            if setup.sampling.chains_from == "data":
                start = self._rows(state.buffer.capacity)
            else:
                n, energy = setup.members * state.buffer.capacity, state.energy(setup.noise.mean(state.weights))
                with torch.no_grad():
                    start = energy.decode(energy.latent_noise(n, state.generators, state.weights))
            state.buffer.storage.copy_(into_bounds(start, setup.sampling.feature).unflatten(0, (setup.members, -1)))
        if setup.schedules.contrast is not None or setup.sampling.chains_from == "data":
            self._tune()

    def _rows(self, n: int) -> Tensor:
        """Random training events, `n` for each model, (S * n, *event)."""
        size, device = self.setup.data.size, self.setup.device
        picks = [torch.randint(size, (n,), generator=g, device=device) for g in self.setup.streams("chains")]
        return self.setup.data.take(torch.stack(picks))

    def _tune(self) -> None:
        """The step size with which chains from training events are accepted as often as they should be."""
        state, setup, chain = self.state, self.setup, self.setup.sampling.feature
        generators, position = setup.streams("step size"), into_bounds(self._rows(TUNING_CHAINS), chain)
        energy = state.energy(setup.noise.mean(state.weights))
        temperature = state.log_temperature.exp().repeat_interleave(TUNING_CHAINS)
        two = replace(chain, steps=2)
        for _ in range(TUNING):
            size = state.log_sizes[1].exp().repeat_interleave(TUNING_CHAINS)
            end = run_chain(energy, position, two, temperature, generators, size, members=setup.members)
            if setup.architecture.base is None:  # rows may be colder than a base is: the chains begin there
                position = end.position
            accepted = setup.group.mean(end.acceptance.mean(0))
            state.log_sizes[1] += (accepted - (chain.adapt or 0.65)).to(state.log_sizes)

    def update(self) -> None:
        """One update of the weights, the temperature, the averages, the buffer and the step sizes."""
        config, state, setup, noise, group = self.config, self.state, self.setup, self.setup.noise, self.setup.group
        leaf = self.leaf()
        temperature = state.log_temperature.exp().flatten()
        draw = noise.draw(state.weights, state.generators)
        energy, runner = self._chain_energy(draw)
        numbers = temperature, state.log_sizes.exp(), self.batch
        negative = negatives(energy, setup.sampling, state.buffer, *numbers, state.generators, runner)
        e_plus, z_plus = self.noisy_energy(leaf, draw, setup.data.take(self.index))
        e_plus = setup.data.weighed(e_plus, self.index)
        e_minus, z_minus = self.noisy_energy(leaf, draw, negative.position)
        loss = contrastive(e_plus, e_minus, temperature, config)
        loss = loss + regularizers(noise.mean(leaf), [z_plus, z_minus], config)
        scale = 1.0 if config.loss_scale == "temperature" else temperature
        loss = loss + scale * noise.kl(leaf) / setup.events
        grad = group.mean(torch.autograd.grad(loss.sum(), leaf)[0])
        state.optimizer.update(clip_rows(grad, config.gradient_clip), state.rate)
        energies = [by_member(e.detach(), setup.members) for e in (e_plus, e_minus)]
        means = [*energies, negative.latent_acceptance, negative.feature_acceptance]
        self._follow(group.mean(torch.stack([mean.double() for mean in means])), temperature)

    def _chain_energy(self, draw: Tensor) -> tuple[ReconstructionEnergy, Runner]:
        """What the chains of an iteration walk on, and what runs them."""
        setup, state, noise = self.setup, self.state, self.setup.noise
        if not noise.local(self.name):
            return state.energy(noise.weights(state.weights, draw)), setup.backend.runner
        runner = setup.backend.runner if isinstance(setup.architecture.decoder, MLP) else run_chain
        return noise.local_energy(state.weights), runner

    def _follow(self, numbers: Tensor, temperature: Tensor) -> None:
        """What an iteration's numbers, called `SUMS` and with shape (4, S), move beside the weights."""
        state, sampling = self.state, self.setup.sampling
        if self.setup.schedules.temperature.trained and self.setup.architecture.base is None:
            gradient = temperature_gradient(numbers[0], numbers[1], temperature).to(temperature.dtype)
            state.temperature_optimizer.update(gradient, state.temperature_rate)
        state.average.lerp_(state.weights, 1 - state.keep)
        state.average_log_temperature.lerp_(state.log_temperature, 1 - state.keep)
        for k, chain in enumerate((sampling.latent, sampling.feature)):
            state.log_sizes[k] = adapted(state.log_sizes[k], numbers[2 + k], chain.adapt)
        state.sums += numbers

    def values(self, means: dict[str, list[float]]) -> dict[str, list[float]]:
        values = means | {"learning_rate": self.state.rate.tolist()}
        values["temperature"] = self.state.log_temperature.exp().flatten().tolist()
        values["latent_step_size"], values["feature_step_size"] = self.state.log_sizes.exp().tolist()
        return values
