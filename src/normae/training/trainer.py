"""The training of S autoencoders side by side: a start (autoencoder or classification), then the likelihood."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from normae.data import SparseEvents
from normae.errors import InputError
from normae.networks.autoencoder import Autoencoder
from normae.networks.reconstruction import Layout
from normae.sampling.manifold import SamplingConfig
from normae.training.backends import Group, choose_backend
from normae.training.config import Schedules
from normae.training.contrast import Contrast
from normae.training.guard import Guard, Record
from normae.training.loop import Happening, run
from normae.training.phases import Likelihood, Phase, Pretraining
from normae.training.setup import Samples, Setup, WeightNoise
from normae.training.state import SUMS, State, snapshot

VALIDATION_ROWS = 2048
"""Of the validation sample that are dense at a time."""
ADVICE = "lower training.learning_rate or the chain's step_size"
Data = Sequence[Tensor] | Sequence[SparseEvents]


class Trainer:
    """Trains S autoencoders of one architecture, each on its own sample with its own seed; see `loop.Training`.

    Args:
        autoencoders: S models of one architecture.
        data: their training samples, S tensors of one shape (N, *event), or S sets of sparse images.
        schedules: how to train.
        sampling: how to make negative samples.
        seeds: one seed for each model.
        device: where to train.
        group: the processes that train together; each takes its part of the events, of the batch and of the buffer.
        validation: samples at which the energy is watched, S of one shape; each process takes all of them.

    Attributes:
        setup: what stays during the training.
        models: what changes.
    """

    def __init__(
        self,
        autoencoders: Sequence[Autoencoder],
        data: Data,
        schedules: Schedules,
        sampling: SamplingConfig,
        seeds: Sequence[int],
        device: torch.device,
        group: Group | None = None,
        validation: Data | None = None,
    ) -> None:
        group = group or Group()
        architecture = deepcopy(autoencoders[0]).to(device)  # its fixed matrices must be where the events are
        layout = Layout.of(architecture)
        noise = WeightNoise(layout, schedules.bayesian, architecture, device)
        samples = Samples(_part(data, schedules, group), device)
        held = None if validation is None else Samples(validation, device)
        backend = choose_backend(sampling.backend, architecture, sampling, device)
        backend = replace(backend, graph=False) if group.size > 1 else backend
        self.setup = Setup(
            architecture, layout, noise, samples, held, schedules, sampling, backend, list(seeds), device, group
        )
        self.models = State(self.setup, layout.flatten(autoencoders).to(device))
        first = Pretraining if schedules.contrast is None else Contrast
        self.phases: list[Phase] = [first(self.setup, self.models), Likelihood(self.setup, self.models)]
        self.stop = False
        self.enter(0)

    # --- where the training stands

    @property
    def current(self) -> Phase:
        """The phase under way, the last one when all are over."""
        return self.phases[min(int(self.models.position[0]), len(self.phases) - 1)]

    @property
    def finished(self) -> bool:
        """Whether all phases are over."""
        return int(self.models.position[0]) >= len(self.phases)

    @property
    def place(self) -> tuple[str, int]:
        """Name of the phase, and its iterations that are done."""
        return "finished" if self.finished else self.current.name, self.models.iteration

    @property
    def over(self) -> bool:
        """Whether the phase has come to its end."""
        return self.current.over

    def length(self, phase: str) -> int:
        """Iterations of the phase called `phase`, at most."""
        return next(p.length for p in self.phases if p.name == phase)

    # --- what the guard sees

    @property
    def weights(self) -> Tensor:
        """With shape (S, P + B)."""
        return self.models.weights

    @property
    def rate_scale(self) -> Tensor:
        """Factor on the learning rates, (S,)."""
        return self.models.rate_scale

    @property
    def rollbacks(self) -> Tensor:
        """How often each model was put back, (S,)."""
        return self.models.rollbacks

    def state(self) -> dict[str, Tensor]:
        """Everything that changes, of all processes, which must all ask for it. The tensors are live, not copies."""
        return self.models.whole()

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of what changes on this process."""
        return snapshot(self.models.tensors())

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state()` or `snapshot()` gave."""
        self.models.load(state)
        if not self.finished:
            self.current.prepare()

    # --- what the loop does

    def run(self) -> Iterator[Happening]:
        """Train to the end, from wherever the training stands, or until `stop` is set."""
        return run(self, Guard(self.setup.schedules.guard, self.setup.seeds, ADVICE))

    def enter(self, phase: int) -> None:
        """Begin a phase."""
        self.models.position.copy_(torch.tensor([phase, 0]))
        if not self.finished:
            self.current.begin()
            self.current.prepare()

    def enter_next(self) -> None:
        """Leave a phase and begin the next."""
        self.current.finish()
        self.enter(int(self.models.position[0]) + 1)

    def begin_with(self, start: dict[str, Tensor]) -> None:
        """Enter the NAE phase with what `models.start()` of a pretraining gave."""
        self.models.begin_with(start)
        self.enter(1)

    def advance(self) -> None:
        """One iteration."""
        self.current.advance()

    def stopping(self) -> bool:
        """Whether any process was asked to stop."""
        return self.setup.group.any(self.stop)

    def means(self) -> Record:
        """Means over the window so far."""
        name, iteration = self.place
        every = self.setup.schedules.guard.log_every
        means = (self.models.sums / min(iteration % every or every, iteration)).tolist()
        values = self.current.values(dict(zip(SUMS, means, strict=True)))
        return Record(name, iteration, iteration / self.current.per_epoch, values)

    def record(self) -> Record:
        """`means()` with the energy of the validation sample; a new window begins."""
        record = self.means()
        self.models.sums.zero_()
        if self.setup.validation is not None and not isinstance(self.current, Contrast):
            record.values["validation_energy"] = self._validation_energy(self.setup.validation)
        return record

    @torch.no_grad()
    def _validation_energy(self, samples: Samples) -> list[float]:
        """The mean energy of each model's validation sample, at the mean weights of a Bayesian one."""
        members, device = self.setup.members, self.setup.device
        energy = self.models.energy(self.setup.noise.mean(self.models.weights))
        total = torch.zeros(members, dtype=torch.float64, device=device)
        for rows in torch.split(torch.arange(samples.size, device=device), VALIDATION_ROWS):
            total += energy(samples.take(rows.expand(members, -1))).reshape(members, -1).double().sum(1)
        means: list[float] = (total / samples.size).tolist()
        return means


def _part(data: Data, schedules: Schedules, group: Group) -> Data:
    """This process's events of each model, with shape (N, *event)."""
    if group.size == 1:
        return data
    start = "pretraining" if schedules.contrast is None else "contrast"
    for name in (start, "training"):
        batch = getattr(schedules, name).batch
        if batch % group.size:
            raise InputError(f"{name}.batch: expected a multiple of the {group.size} processes, got {batch}")
    n = len(data[0]) // group.size
    if n == 0:
        raise InputError(f"expected at least one event for each of {group.size} processes, got {len(data[0])} events")
    rows = torch.arange(group.rank, n * group.size, group.size)
    dense = [d[rows] for d in data if isinstance(d, Tensor)]
    return dense or [d.rows(rows) for d in data if isinstance(d, SparseEvents)]
