"""The training loop: autoencoder pretraining, then normalized-autoencoder training, for S models side by side.

The loop yields what happened, and the caller writes it down: nothing here knows a path. All that changes during
a training is a tensor in `state()` (weights, optimizers, averages, buffer, step sizes, generators, position), so
that a run which is stopped and loaded again continues with the same numbers, bit for bit on a CPU.
"""

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from normae.data import SparseEvents
from normae.energy import mean_square
from normae.errors import InputError, TrainingDiverged
from normae.networks.autoencoder import Autoencoder
from normae.networks.mlp import MLP
from normae.networks.parameters import Layout
from normae.networks.reconstruction import LocalEnergy, ReconstructionEnergy
from normae.networks.spectral import SpectralNorm
from normae.random import stream
from normae.sampling.buffer import ReplayBuffer
from normae.sampling.chain import run_chain
from normae.sampling.config import SamplingConfig
from normae.sampling.manifold import StepSizes, adapted, into_bounds, negatives
from normae.training.adam import Adam
from normae.training.backends import Backend, choose_backend
from normae.training.config import PhaseConfig, Schedules
from normae.training.losses import by_member, clip_rows, contrastive, regularizers, temperature_gradient
from normae.training.noise import WeightNoise
from normae.training.parallel import Group
from normae.training.samples import Samples

PHASES = ("pretraining", "training")
RECENT = 2
"""Good places to return to that are kept beside the last and the beginning of the phase."""
VALIDATION_ROWS = 2048
"""Of the validation sample that are dense at a time."""


class Record(NamedTuple):
    """Means over the last window of iterations, with shape (S,) each."""

    phase: str
    iteration: int
    epoch: float
    values: dict[str, list[float]]


class Checkpoint(NamedTuple):
    """A moment at which the caller should write `state()`."""

    phase: str
    iteration: int


class Rollback(NamedTuple):
    """Models returned to the last checkpoint, with the reason."""

    phase: str
    iteration: int
    reason: str


Happening = Record | Checkpoint | Rollback

_SUMS = ("positive_energy", "negative_energy", "latent_acceptance", "feature_acceptance")


class Trainer:
    """Trains S autoencoders of one architecture, each on its own sample with its own seed.

    Args:
        autoencoders: S models of one architecture.
        data: their training samples, S tensors of one shape (N, *event), or S sets of sparse images.
        schedules: how to train.
        sampling: how to make negative samples.
        seeds: one seed for each model.
        device: where to train.
        group: the processes that train together; each takes its part of the events, of the batch and of the buffer.
        validation: samples at which the energy is watched, S of one shape; each process takes all of them.
    """

    def __init__(
        self,
        autoencoders: Sequence[Autoencoder],
        data: Sequence[Tensor] | Sequence[SparseEvents],
        schedules: Schedules,
        sampling: SamplingConfig,
        seeds: Sequence[int],
        device: torch.device,
        group: Group | None = None,
        validation: Sequence[Tensor] | Sequence[SparseEvents] | None = None,
    ) -> None:
        self.group = group = group or Group()
        self.architecture = deepcopy(autoencoders[0]).to(device)  # its fixed matrices must be where the events are
        self.layout = Layout.of(self.architecture)
        self.schedules, self.sampling = schedules, sampling
        self.seeds, self.device = list(seeds), device
        self.members = len(autoencoders)
        self.noise = WeightNoise(self.layout, schedules.bayesian, self.architecture, device)
        self.data = Samples(self._part(data), device)
        self.validation = None if validation is None else Samples(validation, device)
        self.generators = [stream(seed, self._named("chain"), device) for seed in seeds]
        weights = self.layout.flatten(autoencoders).to(device)
        self.spectral: SpectralNorm | None = None
        if self.architecture.spectral_norm:
            self.spectral = SpectralNorm(self.layout, weights, [stream(seed, "spectral", device) for seed in seeds])
        self._allocate(self.noise.extended(weights))
        self.backend: Backend = choose_backend(sampling.backend, self.architecture, sampling, device)
        if group.size > 1:
            self.backend = replace(self.backend, graph=False)
        self.stop = False
        self._enter(0)

    def _part(self, data: Sequence[Tensor] | Sequence[SparseEvents]) -> Sequence[Tensor] | Sequence[SparseEvents]:
        """This process's events of each model, with shape (N, *event)."""
        size = self.group.size
        if size == 1:
            return data
        for name, config in zip(PHASES, (self.schedules.pretraining, self.schedules.training), strict=True):
            if config.batch % size:
                raise InputError(f"{name}.batch: expected a multiple of the {size} processes, got {config.batch}")
        n = len(data[0]) // size
        if n == 0:
            raise InputError(f"expected at least one event for each of {size} processes, got {len(data[0])} events")
        rows = torch.arange(self.group.rank, n * size, size)
        dense = [d[rows] for d in data if isinstance(d, Tensor)]
        return dense or [d.rows(rows) for d in data if isinstance(d, SparseEvents)]

    def _named(self, name: str) -> str:
        """The random stream `name` of this process; the first one has the streams of a training by itself."""
        return name if self.group.rank == 0 else f"{name}/process/{self.group.rank}"

    def _allocate(self, weights: Tensor) -> None:
        members, device = self.members, self.device
        initial = math.log(self.schedules.temperature.initial)
        self.weights = weights
        self.log_temperature = torch.full((members, 1), initial, device=device)
        self.average = weights.clone()
        self.average_log_temperature = self.log_temperature.clone()
        point = (self.architecture.latent_dimension,) if self.sampling.buffer_space == "latent" else self.data.event
        self.buffer = ReplayBuffer.empty(members, -(-self.sampling.buffer // self.group.size), point, device)
        sizes = (self.sampling.latent.step_size, self.sampling.feature.step_size)
        self.log_sizes = torch.tensor(sizes, device=device).log()[:, None].repeat(1, members)
        self.rate_scale = torch.ones(members, device=device)
        self.rollbacks = torch.zeros(members, dtype=torch.int64, device=device)
        self.position = torch.zeros(2, dtype=torch.int64)
        self.sums = torch.zeros(len(_SUMS), members, dtype=torch.float64, device=device)
        self.rate = torch.zeros(members, device=device)
        self.temperature_rate = torch.zeros(members, device=device)
        self.keep = torch.zeros((), device=device)
        kept = 0 if self.schedules.swag is None else self.schedules.swag.snapshots
        self.snapshots = weights.new_zeros(members, kept, weights.shape[1])
        self.optimizer = Adam(self.weights)
        self.temperature_optimizer = Adam(self.log_temperature)

    # --- where the training stands

    @property
    def phase(self) -> int:
        return int(self.position[0])

    @property
    def iteration(self) -> int:
        return int(self.position[1])

    @property
    def config(self) -> PhaseConfig:
        """Settings of the current phase."""
        return (self.schedules.pretraining, self.schedules.training)[min(self.phase, 1)]

    @property
    def batch(self) -> int:
        """Events of an update on this process."""
        return min(self.config.batch // self.group.size, self.data.size)

    @property
    def events(self) -> int:
        """Training events of all processes."""
        return self.data.size * self.group.size

    def iterations(self, phase: int) -> int:
        """Number of iterations of a phase; an incomplete last batch of an epoch is left out."""
        config = (self.schedules.pretraining, self.schedules.training)[phase]
        n = self.data.size
        return config.epochs * (n // min(config.batch // self.group.size, n))

    def length(self, phase: str) -> int:
        """Number of iterations of the phase called `phase`."""
        return self.iterations(PHASES.index(phase))

    @property
    def finished(self) -> bool:
        return self.phase >= len(PHASES)

    # --- checkpoints

    def state(self) -> dict[str, Tensor]:
        """Everything that changes during a training. The tensors are live, not copies."""
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
            "snapshots": self.snapshots,
        }
        parts |= {f"adam.{name}": value for name, value in self.optimizer.state().items()}
        parts |= {f"temperature_adam.{name}": value for name, value in self.temperature_optimizer.state().items()}
        parts |= {"spectral": self.spectral.vectors} if self.spectral is not None else {}
        return parts | {f"generator.{k}": g.get_state() for k, g in enumerate(self.generators)}

    def whole_state(self) -> dict[str, Tensor]:
        """`state()` with the buffers and generators of all processes, which must all ask for it."""
        state = self.state()
        own = [name for name in state if name == "buffer" or name.startswith("generator.")]
        for name in own if self.group.size > 1 else []:
            first, *others = self.group.gather(state[name])
            state[name] = first
            state |= {f"process.{k}.{name}": tensor for k, tensor in enumerate(others, start=1)}
        return state

    def load_whole(self, state: dict[str, Tensor]) -> None:
        """Continue from `state`, as `whole_state()` gave it."""
        prefix = f"process.{self.group.rank}."
        own = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        self.load({name: tensor for name, tensor in state.items() if not name.startswith("process.")} | own)

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue from `state`, as `state()` gave it."""
        mine = self.state()
        others = {name for name in mine if name not in state or state[name].shape != mine[name].shape}
        if set(state) != set(mine) or any(not name.startswith("generator.") for name in others):
            raise InputError("the checkpoint does not belong to this configuration; start in another folder")
        if others:
            raise InputError(
                f"the checkpoint was not written on {self.device.type}: its random numbers go on only on the kind of "
                "device that it was written on; set `device` so, or start in another folder"
            )
        for k, generator in enumerate(self.generators):
            generator.set_state(state[f"generator.{k}"].cpu())
        with torch.no_grad():
            for name, tensor in mine.items():
                if not name.startswith("generator."):
                    tensor.copy_(state[name])
        self._prepare()

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of `state()`."""
        return {name: tensor.clone() for name, tensor in self.state().items()}

    # --- another training's start

    def start(self) -> dict[str, Tensor]:
        """Copies of what an NAE training can begin with: rows of weights (S, P + B), not yet divided by their singular
        values, and the vectors of the spectral normalization (S, V), where there is one."""
        parts = {"weights": self.weights} | ({"spectral": self.spectral.vectors} if self.spectral is not None else {})
        return {name: tensor.clone() for name, tensor in parts.items()}

    def begin_with(self, start: dict[str, Tensor]) -> None:
        """Enter the NAE phase with what `start()` of a pretraining gave; without vectors they are found anew."""
        with torch.no_grad():
            self.weights.copy_(start["weights"])
            if self.spectral is not None and "spectral" in start:
                self.spectral.vectors.copy_(start["spectral"])
            elif self.spectral is not None:
                self.spectral.settle(self.weights)
        self._enter(1)

    # --- the loop

    def run(self) -> Iterator[Happening]:
        """Train to the end, from wherever the training stands, or until `stop` is set.

        What the caller changes when a phase begins (its first `Checkpoint`) is where a rollback goes back to.
        """
        yield Checkpoint(self._phase_name(), self.iteration)
        good = [self.snapshot()]
        guard = self.schedules.guard
        while not self.finished:
            if self.iteration >= self.iterations(self.phase):
                self._enter(self.phase + 1)
                yield Checkpoint(self._phase_name(), self.iteration)
                good = [self.snapshot()]
                continue
            self._advance()
            last = self.iteration == self.iterations(self.phase)
            looked = self.iteration % guard.log_every == 0 or last
            if looked:
                record = self._record()
                trouble = self._trouble(record)
                if trouble:
                    self._roll_back(good, trouble)
                    yield Rollback(self._phase_name(), self.iteration, "; ".join(trouble.values()))
                    continue
                yield record
            if self.iteration % guard.checkpoint_every == 0 and not last:
                if self._well(record):
                    good[1:] = [*good[1:][-RECENT:], self.snapshot()]
                yield Checkpoint(self._phase_name(), self.iteration)
            if self.group.any(self.stop):
                if looked or not self._trouble(self._means()):
                    yield Checkpoint(self._phase_name(), self.iteration)
                return

    def _phase_name(self) -> str:
        return "finished" if self.finished else PHASES[self.phase]

    def _enter(self, phase: int) -> None:
        """Begin a phase: fresh optimizers, and at the start of the NAE phase fresh averages and a first buffer."""
        self.position[0], self.position[1] = phase, 0
        for optimizer in (self.optimizer, self.temperature_optimizer):
            for tensor in optimizer.state().values():
                tensor.zero_()
        if phase == 1:
            self.average.copy_(self.weights)
            self.average_log_temperature.copy_(self.log_temperature)
            if self.sampling.buffer_space == "feature":
                self._fill_buffer()
        self._prepare()

    def _prepare(self) -> None:
        self._epoch = -1
        self._order = torch.empty(0)
        self._index = torch.zeros(self.members, self.batch, dtype=torch.int64, device=self.device)
        iterate = (self._pretrain, self._train)[min(self.phase, 1)]
        self._iterate = self.backend.capture(iterate, self)

    def _fill_buffer(self) -> None:
        energy = self._energy(self.noise.mean(self.weights))
        n = self.members * self.buffer.capacity
        with torch.no_grad():
            start = energy.decode(energy.latent_noise(n, self.generators, self.weights))
        self.buffer.storage.copy_(into_bounds(start, self.sampling.feature).unflatten(0, (self.members, -1)))

    def _advance(self) -> None:
        """One iteration."""
        per_epoch = self.data.size // self.batch
        epoch, place = divmod(self.iteration, per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._shuffle(epoch)
        self._index.copy_(self._order[:, place * self.batch : (place + 1) * self.batch])
        factor = self._factor()
        self.rate.copy_(self.rate_scale * (self.config.learning_rate * factor))
        self.temperature_rate.copy_(self.rate_scale * (self.schedules.temperature.learning_rate * factor))
        decay = self.schedules.training.average
        self.keep.fill_(min(decay, (self.iteration + 1) / (self.iteration + 10)))
        self._iterate()
        self.position[1] += 1
        self._keep_snapshot()

    def _keep_snapshot(self) -> None:
        """The weights of this iteration, where it is one of those that SWA-Gaussian asks for."""
        if self.schedules.swag is None or self.phase != 1:
            return
        kept, total = self.schedules.swag.snapshots, self.iterations(1)
        first = total - max(kept, round(self.schedules.swag.share * total))
        done = self.iteration - first
        if done > 0 and done * kept // (total - first) > (done - 1) * kept // (total - first):
            self.snapshots[:, done * kept // (total - first) - 1] = self.weights

    def _shuffle(self, epoch: int) -> Tensor:
        """The order of events in an epoch, with shape (S, N): from the seed alone, so nothing has to be stored."""
        name = self._named(f"{PHASES[self.phase]}/epoch/{epoch}")
        n = self.data.size
        orders = [
            torch.randperm(n, generator=stream(seed, name, self.device), device=self.device) for seed in self.seeds
        ]
        return torch.stack(orders)

    def _factor(self) -> float:
        """What the learning rates are multiplied by: warm-up times schedule."""
        rise = min(1.0, (self.iteration + 1) / (self.config.warmup + 1))
        if self.config.schedule == "constant":
            return rise
        done = self.iteration / max(1, self.iterations(self.phase))
        return rise * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))

    # --- one iteration, in place on the state's tensors

    def _events(self) -> Tensor:
        return self.data.take(self._index)

    def _energy(self, weights: Tensor) -> ReconstructionEnergy:
        if self.spectral is not None:
            weights = self.spectral.normalized(weights)
        return self.backend.energy(self.architecture, self.layout, weights)

    def _turn_spectral(self) -> None:
        """The power iteration of an update, before anything sees the weights."""
        if self.spectral is not None:
            self.spectral.iterate(self.weights)

    def _pretrain(self) -> None:
        config = self.schedules.pretraining
        self._turn_spectral()
        leaf = self.weights.detach().requires_grad_(True)
        draw = self.noise.draw(self.weights, self.generators)
        local = self.noise.local("pretraining")
        energy = self._energy(self.noise.mean(leaf) if local else self.noise.weights(leaf, draw))
        x = self._events()
        if local:
            z = energy.encode(x)
            each = mean_square(x - self.noise.decode(leaf, z, self.generators))
        else:
            each, z = energy.with_latent(x)
        error = by_member(each, self.members)
        temperature = self.schedules.temperature.initial
        loss = error + temperature * self.noise.kl(leaf) / self.events
        if config.loss_scale == "temperature":
            loss = loss / temperature
        loss = loss + regularizers(self.noise.mean(leaf), [z], config)
        grad = self.group.mean(torch.autograd.grad(loss.sum(), leaf)[0])
        self.optimizer.update(clip_rows(grad, config.gradient_clip), self.rate)
        self.sums[0] += self.group.mean(error.detach())

    def _train(self) -> None:
        config = self.schedules.training
        self._turn_spectral()
        temperature = self.log_temperature.exp().flatten()
        sizes = StepSizes(*self.log_sizes.exp())
        draw = self.noise.draw(self.weights, self.generators)
        chain_energy, runner = self._energy(self.noise.weights(self.weights, draw)), self.backend.runner
        if self.noise.local("training"):
            mean = self.layout.views(self.noise.mean(self.weights))
            chain_energy = LocalEnergy(self.architecture, mean, self.noise.widths(self.weights))
            runner = runner if isinstance(self.architecture.decoder, MLP) else run_chain
        negative = negatives(
            chain_energy, self.sampling, self.buffer, temperature, sizes, self.batch, self.generators, runner
        )
        leaf = self.weights.detach().requires_grad_(True)
        e_plus, z_plus = self._noisy_energy(leaf, draw, self._events())
        e_minus, z_minus = self._noisy_energy(leaf, draw, negative.position)
        loss = contrastive(e_plus, e_minus, temperature, config)
        loss = loss + regularizers(self.noise.mean(leaf), [z_plus, z_minus], config)
        scale = 1.0 if config.loss_scale == "temperature" else temperature
        loss = loss + scale * self.noise.kl(leaf) / self.events
        grad = self.group.mean(torch.autograd.grad(loss.sum(), leaf)[0])
        self.optimizer.update(clip_rows(grad, config.gradient_clip), self.rate)
        energies = [by_member(e.detach(), self.members) for e in (e_plus, e_minus)]
        means = [*energies, negative.latent_acceptance, negative.feature_acceptance]
        numbers = self.group.mean(torch.stack([mean.double() for mean in means]))
        if self.schedules.temperature.trained:
            gradient = temperature_gradient(numbers[0], numbers[1], temperature).to(temperature.dtype)
            self.temperature_optimizer.update(gradient, self.temperature_rate)
        self.average.lerp_(self.weights, 1 - self.keep)
        self.average_log_temperature.lerp_(self.log_temperature, 1 - self.keep)
        chains = (self.sampling.latent, self.sampling.feature)
        for size, acceptance, chain in zip(self.log_sizes, numbers[2:], chains, strict=True):
            size.copy_(adapted(size, acceptance, chain.adapt))
        self.sums += numbers

    def _noisy_energy(self, leaf: Tensor, draw: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (S * B,) and latent points of events, with the iteration's draw, or with local noise if so set."""
        if not self.noise.local("training"):
            return self._energy(self.noise.weights(leaf, draw)).with_latent(x)
        z = self._energy(self.noise.mean(leaf)).encode(x)
        return mean_square(x - self.noise.decode(leaf, z, self.generators)), z

    # --- metrics and the guard

    def _record(self) -> Record:
        record = self._means()
        self.sums.zero_()
        if self.validation is not None:
            record.values["validation_energy"] = self._validate(self.validation)
        return record

    @torch.no_grad()
    def _validate(self, samples: Samples) -> list[float]:
        """The mean energy of each model's validation sample, at the mean weights of a Bayesian one."""
        energy = self._energy(self.noise.mean(self.weights))
        total = torch.zeros(self.members, dtype=torch.float64, device=self.device)
        for rows in torch.split(torch.arange(samples.size, device=self.device), VALIDATION_ROWS):
            each = energy(samples.take(rows.expand(self.members, -1)))
            total += each.reshape(self.members, -1).double().sum(1)
        means: list[float] = (total / samples.size).tolist()
        return means

    def _means(self) -> Record:
        """Means over the window so far."""
        window = self.iteration % self.schedules.guard.log_every or self.schedules.guard.log_every
        means = (self.sums / min(window, self.iteration)).tolist()
        values = dict(zip(_SUMS, means, strict=True))
        values["learning_rate"] = self.rate.tolist()
        if self.phase == 0:
            values = {name: values[name] for name in ("positive_energy", "learning_rate")}
        else:
            values["temperature"] = self.log_temperature.exp().flatten().tolist()
            values["latent_step_size"], values["feature_step_size"] = self.log_sizes.exp().tolist()
        epoch = self.iteration / (self.data.size // self.batch)
        return Record(PHASES[self.phase], self.iteration, epoch, values)

    def _trouble(self, record: Record) -> dict[int, str]:
        """Models that ran away, each with the reason."""
        finite = torch.isfinite(self.weights).all(dim=1).tolist()
        found: dict[int, str] = {}
        for k in range(self.members):
            values = {name: column[k] for name, column in record.values.items()}
            reason = self._reason(values) if finite[k] else "a weight is not finite"
            if reason:
                found[k] = f"seed {self.seeds[k]}: {reason} at iteration {record.iteration} of {record.phase}"
        return found

    def _well(self, record: Record) -> bool:
        """Whether this is a place to return to: a model that runs away is ill for a while before it is in trouble."""
        guard = self.schedules.guard
        columns = record.values
        if "temperature" not in columns:
            return True
        energies = zip(columns["positive_energy"], columns["negative_energy"], columns["temperature"], strict=True)
        return max(abs(up - down) / t for up, down, t in energies) <= guard.calm * guard.largest_gap

    def _reason(self, values: dict[str, float]) -> str | None:
        guard = self.schedules.guard
        for name, value in values.items():
            if not math.isfinite(value):
                return f"{name} is not finite"
        if "temperature" not in values:
            return None
        gap = abs(values["positive_energy"] - values["negative_energy"]) / values["temperature"]
        if gap > guard.largest_gap:
            return f"abs(E+ - E-)/T = {gap:.3g} exceeds {guard.largest_gap:g}"
        if values["feature_acceptance"] < guard.smallest_acceptance:
            return f"the feature chain accepts {values['feature_acceptance']:.2g} of its steps"
        return None

    def _roll_back(self, good: list[dict[str, Tensor]], trouble: dict[int, str]) -> None:
        """Return to the last of the good places, where the models in trouble go on with a smaller learning rate.

        That place is then struck off: whoever is in trouble again before the next checkpoint was ill there already,
        and returns to the one before, at last to the beginning of the phase.
        """
        guard = self.schedules.guard
        scale, count = self.rate_scale.clone(), self.rollbacks.clone()
        for k in trouble:
            scale[k] *= guard.backoff
            count[k] += 1
        if int(count.max()) > guard.rollbacks:
            raise TrainingDiverged(
                f"{'; '.join(trouble.values())}, after {guard.rollbacks} rollbacks; "
                "lower training.learning_rate or the chain's step_size"
            )
        self.load(good.pop() if len(good) > 1 else good[0])
        self.rate_scale.copy_(scale)
        self.rollbacks.copy_(count)

    # --- the result

    def result(self, last: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of weights and rho (S, P + B), temperatures (S,) and step sizes (2, S), averaged where asked for.

        Args:
            last: the weights as they are now, as of an autoencoder before its NAE phase.
        """
        if self.schedules.swag is not None and not last:
            return self.snapshots.mean(1), self.average_log_temperature.exp().flatten(), self.log_sizes.exp()
        averaged = self.schedules.training.average > 0 and not last
        weights = self.average if averaged else self.weights
        log_temperature = self.average_log_temperature if averaged else self.log_temperature
        if self.spectral is not None:
            weights = self.spectral.normalized(weights)
        return weights, log_temperature.exp().flatten(), self.log_sizes.exp()
