"""The training loop with its guard, for everything that trains in phases.

A training is a sequence of phases. After each window of iterations the guard looks at the means over the window: who
ran away returns to a place where all was well, with a smaller learning rate. The loop yields what happened, and the
caller writes it down: nothing here knows a path.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normae.data import SparseEvents
from normae.errors import TrainingDiverged, check_memory, refuse, require_that
from normae.networks.autoencoder import Autoencoder
from normae.networks.bayesian import WeightNoise
from normae.networks.reconstruction import Layout
from normae.sampling.config import SamplingConfig
from normae.training.backends import Group, choose_backend
from normae.training.config import GuardConfig, Schedules
from normae.training.contrast import HELD_OUT, NOISE, Contrast
from normae.training.phases import Likelihood, Phase, Pretraining
from normae.training.state import SUMS, Data, Samples, Setup, State

COPIES = 8  # of the weights: gradient, two moments, average, best ones, and places to return to
RECENT = 2  # good places to return to that are kept beside the last and the beginning of the phase


class Record(NamedTuple):
    """Means over the last window of iterations, with shape (S,) each."""

    phase: str
    iteration: int
    epoch: float
    values: dict[str, list[float]]

    def of(self, k: int) -> dict[str, float]:
        """The values of model k."""
        return {name: column[k] for name, column in self.values.items()}


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


def gap(values: Mapping[str, float]) -> float:
    """abs(E+ - E-)/T of one model's values; 0 in a phase without negative samples."""
    if "negative_energy" not in values:
        return 0.0
    return abs(values["positive_energy"] - values["negative_energy"]) / values["temperature"]


class Guard:
    """Watches S models with these seeds, within the limits of `config`."""

    def __init__(self, config: GuardConfig, seeds: Sequence[int]) -> None:
        self.config, self.seeds = config, seeds
        self.good: list[dict[str, Tensor]] = []  # places to return to, the first of them the beginning of a phase

    def remember(self, training: "Trainer", record: Record) -> None:
        """A checkpoint is a place to return to if all is well: who runs away is ill for a while before."""
        limit = self.config.calm * self.config.largest_gap
        if all(gap(record.of(k)) <= limit for k in range(len(self.seeds))):
            self.good[1:] = [*self.good[1:][-RECENT:], training.snapshot()]

    def trouble(self, training: "Trainer", record: Record) -> dict[int, str]:
        """Models that ran away, each with the reason."""
        finite, found = torch.isfinite(training.weights).all(dim=1).tolist(), {}
        for k, seed in enumerate(self.seeds):
            reason = self._reason(record.of(k)) if finite[k] else "a weight is not finite"
            if reason:
                found[k] = f"seed {seed}: {reason} at iteration {record.iteration} of {record.phase}"
        return found

    def roll_back(self, training: "Trainer", trouble: dict[int, str]) -> None:
        """Return to the last of the good places, where the models in trouble go on with a smaller learning rate.

        That place is then struck off: whoever is in trouble again before the next checkpoint was ill there already,
        and returns to the one before, at last to the beginning of the phase.
        """
        scale, count = training.rate_scale.clone(), training.rollbacks.clone()
        for k in trouble:
            scale[k] *= self.config.backoff
            count[k] += 1
        if int(count.max()) > self.config.rollbacks:
            name = training.current.name
            remedy = f"lower {name}.learning_rate{' or sampling.feature.step_size' if name == 'training' else ''}"
            raise TrainingDiverged(f"{'; '.join(trouble.values())}, after {self.config.rollbacks} rollbacks; {remedy}")
        training.load(self.good.pop() if len(self.good) > 1 else self.good[0])
        training.rate_scale.copy_(scale)
        training.rollbacks.copy_(count)

    def _reason(self, values: dict[str, float]) -> str | None:
        for name, value in values.items():
            if not math.isfinite(value):
                return f"{name} is not finite"
        if gap(values) > self.config.largest_gap:
            return f"abs(E+ - E-)/T = {gap(values):.3g} exceeds {self.config.largest_gap:g}"
        if values.get("feature_acceptance", 1.0) < self.config.smallest_acceptance:
            return f"the feature chain accepts {values['feature_acceptance']:.2g} of its steps"
        return None


class Trainer:
    """Models in training, and the loop that trains them: S of one architecture, each on its own sample and seed.

    Args:
        autoencoders: the S models.
        data: their training samples, S tensors of one shape (N, *event), or S sets of sparse images.
        schedules, sampling: how to train, and how to make negative samples.
        seeds: one for each model.
        device: where to train.
        group: the processes that train together; each takes its part of the events, of the batch and of the buffer.
        validation: samples at which the energy is watched, S of one shape; each process takes all of them.
        weights: of the events of `data` and of `validation`, S tensors (N,) with mean 1 each, where events have some.
        phases: what makes those of another training than that of an autoencoder.

    Attributes:
        setup: what stays during the training.
        models: what changes, among it `position`, the number of the phase and its iterations that are done; `weights`
            (S, P); `rate_scale` (S,), factors on the learning rates; `rollbacks` (S,), how often each was put back.
        guard: says when a model has run away, and where it returns to.
        stop: set by the caller, from a signal or another thread.
    """

    stop = False

    def __init__(
        self, autoencoders: Sequence[Autoencoder], data: Data, schedules: Schedules, sampling: SamplingConfig,
        seeds: Sequence[int], device: torch.device, group: Group | None = None, validation: Data | None = None,
        weights: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
        phases: Sequence[Callable[[Setup, State], Phase]] | None = None,
    ) -> None:  # fmt: skip
        group = group or Group()
        architecture = deepcopy(autoencoders[0]).to(device)  # its fixed matrices must be where the events are
        layout = Layout.of(architecture)
        noise = WeightNoise(schedules.bayesian, architecture, device)
        own, watched = (None, None) if weights is None else (_part(weights[0], schedules, group), weights[1])
        samples = Samples(_part(data, schedules, group), device, own)
        held = None if validation is None else Samples(validation, device, watched)
        backend = choose_backend(sampling.backend, architecture, sampling, device)
        backend = replace(backend, graph=False) if group.size > 1 else backend
        self.setup = Setup(
            architecture, layout, noise, samples, held, schedules, sampling, backend, list(seeds), device, group
        )
        if device.type == "cpu":
            self._check_memory()
        self.models = State(self.setup, layout.flatten(autoencoders).to(device))
        first = Pretraining if schedules.contrast is None else Contrast
        self.phases = [kind(self.setup, self.models) for kind in phases or (first, Likelihood)]
        self.position, self.weights = self.models.position, self.models.weights
        self.rate_scale, self.rollbacks = self.models.rate_scale, self.models.rollbacks
        self.guard = Guard(schedules.guard, self.setup.seeds)
        self.enter(0)

    def _check_memory(self) -> None:
        """Weights are held many times, and all events that are looked at pass through the widest layer at once."""
        setup, contrast = self.setup, self.setup.schedules.contrast
        looked_at = (1 + NOISE) * min((setup.validation or setup.data).size, HELD_OUT)
        events, widest = looked_at if contrast else 0, max(max(shape, default=1) for shape in setup.layout.shapes)
        size = 4 * setup.members * (COPIES * sum(setup.layout.sizes) + 2 * events * widest)
        check_memory(size, "network: its training")

    def run(self) -> Iterator[Happening]:
        """Train to the end, from wherever the training stands, or until it is asked to stop.

        What the caller changes when a phase begins (its first `Checkpoint`) is where a rollback goes back to.
        """
        guard = self.guard
        yield Checkpoint(*self.place)
        guard.good = [self.snapshot()]
        while not self.finished:
            if self.current.over:
                self.current.finish()
                self.enter(int(self.position[0]) + 1)
                yield Checkpoint(*self.place)
                guard.good = [self.snapshot()]
                continue
            self.current.advance()
            iteration, last = self.place[1], self.current.over
            looked = iteration % guard.config.log_every == 0 or last
            if looked:
                record = self.record()
                trouble = guard.trouble(self, record)
                if trouble:
                    guard.roll_back(self, trouble)
                    yield Rollback(*self.place, "; ".join(trouble.values()))
                    continue
                yield record
            if iteration % guard.config.checkpoint_every == 0 and not last:
                guard.remember(self, record)
                yield Checkpoint(*self.place)
            if self.setup.group.any(self.stop):
                if looked or not guard.trouble(self, self.means()):
                    yield Checkpoint(*self.place)
                return

    @property
    def finished(self) -> bool:
        """Whether all phases are over."""
        return int(self.position[0]) >= len(self.phases)

    @property
    def place(self) -> tuple[str, int]:
        """Name of the phase, "finished" after the last, and the iterations of it that are done."""
        return "finished" if self.finished else self.current.name, int(self.position[1])

    @property
    def current(self) -> Phase:
        """The phase under way, the last one when all are over."""
        return self.phases[min(int(self.position[0]), len(self.phases) - 1)]

    def length(self, phase: str) -> int:
        """Iterations of a phase, at most."""
        return next(p.length for p in self.phases if p.name == phase)

    @property
    def note(self) -> str:
        """How many of the rows the phase uses, where it is not all of them."""
        used, size = getattr(self.current, "rows", math.inf), self.setup.data.size
        return f", uses {used:,} of {size:,} rows" if used < size else ""

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of what changes on this process."""
        return {name: tensor.clone() for name, tensor in self.models.tensors().items()}

    def state(self) -> dict[str, Tensor]:
        """Everything that changes, of all processes, which must all ask for it; live, not copies."""
        return self.models.whole()

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state()` or `snapshot()` gave."""
        self.models.load(state)
        if not self.finished:
            self.current.prepare()

    def enter(self, phase: int) -> None:
        """Begin a phase."""
        self.position.copy_(torch.tensor([phase, 0]))
        if not self.finished:
            self.current.begin()
            self.current.prepare()

    def begin_with(self, start: dict[str, Tensor]) -> None:
        """Enter the NAE phase with what `models.start()` of a pretraining gave."""
        self.models.begin_with(start)
        self.enter(1)

    def means(self) -> Record:
        """Means over the window so far."""
        name, iteration = self.place
        every = self.setup.schedules.guard.log_every
        means = (self.models.sums / min(iteration % every or every, iteration)).tolist()
        values = self.current.values(dict(zip(SUMS, means, strict=True)))
        return Record(name, iteration, iteration / self.current.per_epoch, values)

    def record(self) -> Record:
        """`means()` and what is measured at the end of a window; a new window begins."""
        record = self.means()
        self.models.sums.zero_()
        record.values.update(self.current.measured())
        return record


def _part(data: Any, schedules: Schedules, group: Group) -> Any:
    """This process's events of each model, with shape (N, *event), or their weights."""
    if group.size == 1:
        return data
    start = "pretraining" if schedules.contrast is None else "contrast"
    for name in (start, "training"):
        batch = getattr(schedules, name).batch
        require_that(batch % group.size == 0, f"{name}.batch", f"a multiple of the {group.size} processes", batch)
    n = len(data[0]) // group.size
    refuse(n == 0, f"expected at least one event for each of {group.size} processes, got {len(data[0])} events")
    rows = torch.arange(group.rank, n * group.size, group.size)
    return [d.rows(rows) if isinstance(d, SparseEvents) else d[rows] for d in data]
