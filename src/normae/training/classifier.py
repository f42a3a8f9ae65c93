"""Training of a supervised classifier of two classes: the reference of section 4.2 of the paper.

The network is the encoder of the autoencoder with one output f, the logit of class 1, trained on the binary
cross-entropy

    L = -mean[ y log s(f(x)) + (1 - y) log(1 - s(f(x))) ],    s the sigmoid,

with Adam; after each epoch the loss on a validation sample is measured, and the weights of the lowest one are the
result. Pixels of 1e-3 are divided by the root mean square pixel of the training sample, one number for all of them.

Like the training of an autoencoder it yields what happened, knows no path, keeps everything that changes in `state()`,
and runs as one CUDA graph where there is a device for it.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from normae.data import SparseEvents
from normae.errors import InputError, TrainingDiverged
from normae.networks.parameters import Layout, call
from normae.random import stream
from normae.training.backends import capture_graph
from normae.training.config import ClassifierConfig
from normae.training.guard import Record
from normae.training.loop import Checkpoint, Happening
from normae.training.state import Adam, snapshot

PHASE = "classifier"
ROWS = 2048
"""Images that are dense at a time outside the training."""
Classes = Sequence[SparseEvents]
"""Images of class 0 and of class 1."""


class ClassifierTrainer:
    """Trains one network on images of two classes.

    Args:
        network: maps images (N, *event) to logits (N, 1).
        train, validation: images of class 0 and of class 1.
        config: how to train.
        seed: gives the order of events.
        device: where to train.
    """

    def __init__(
        self,
        network: nn.Module,
        train: Classes,
        validation: Classes,
        config: ClassifierConfig,
        seed: int,
        device: torch.device,
    ) -> None:
        self.config, self.seed, self.device = config, seed, device
        self.network = network.to(device)
        self.layout = Layout.of(network)
        self.data, self.labels = _labelled(train, device)
        self.held, self.held_labels = _labelled(validation, device)
        self.scale = 1 / _root_mean_square(self.data)
        self.prior = math.log(len(train[1]) / len(train[0]))
        self.weights = self.layout.flatten([network]).to(device)
        self.best = self.weights.clone()
        self.best_loss = torch.full((), math.inf, dtype=torch.float64, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64)
        self.optimizer = Adam(self.weights)
        self.rate = torch.zeros(1, device=device)
        self.generators: list[torch.Generator] = []
        self.stop = False
        self._prepare()

    @property
    def batch(self) -> int:
        """Events of an update."""
        return min(self.config.batch, len(self.data))

    @property
    def per_epoch(self) -> int:
        """Updates of an epoch; an incomplete last batch is left out."""
        return len(self.data) // self.batch

    @property
    def iteration(self) -> int:
        """Updates so far."""
        return int(self.position[0])

    @property
    def finished(self) -> bool:
        return self.iteration >= self.length(PHASE)

    def length(self, phase: str) -> int:
        """Number of iterations of the only phase."""
        assert phase == PHASE
        return self.config.epochs * self.per_epoch

    def state(self) -> dict[str, Tensor]:
        """Everything that changes during the training. The tensors are live, not copies."""
        parts = {
            "weights": self.weights,
            "best": self.best,
            "best_loss": self.best_loss,
            "loss": self.loss,
            "position": self.position,
        }
        return parts | self.optimizer.state()

    tensors = state

    def snapshot(self) -> dict[str, Tensor]:
        """A copy of `state()`."""
        return snapshot(self.state())

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue from `state`, as `state()` gave it."""
        mine = self.state()
        if set(state) != set(mine) or any(state[name].shape != mine[name].shape for name in mine):
            raise InputError("the checkpoint does not belong to this configuration; start in another folder")
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(state[name])
        self._prepare()

    def run(self) -> Iterator[Happening]:
        """Train to the end, from wherever the training stands, or until `stop` is set."""
        yield Checkpoint(PHASE, self.iteration)
        while not self.finished:
            self._advance()
            if self.iteration % self.per_epoch == 0:
                yield self._epoch_over()
                yield Checkpoint(PHASE, self.iteration)
            elif self.stop:
                yield Checkpoint(PHASE, self.iteration)
            if self.stop:
                return

    def _prepare(self) -> None:
        self._epoch = -1
        self._order = torch.empty(0)
        self._index = torch.zeros(self.batch, dtype=torch.int64, device=self.device)
        self._iterate = capture_graph(self._update, self) if self.device.type == "cuda" else self._update

    def _advance(self) -> None:
        """One iteration. The order of an epoch comes from the seed alone, so nothing of it has to be stored."""
        epoch, place = divmod(self.iteration, self.per_epoch)
        if epoch != self._epoch:
            generator = stream(self.seed, f"{PHASE}/epoch/{epoch}", self.device)
            self._epoch = epoch
            self._order = torch.randperm(len(self.data), generator=generator, device=self.device)
        self._index.copy_(self._order[place * self.batch : (place + 1) * self.batch])
        self.rate.fill_(self.config.learning_rate * self._factor())
        self._iterate()
        self.position += 1

    def _factor(self) -> float:
        if self.config.schedule == "constant":
            return 1.0
        done = self.iteration / self.length(PHASE)
        return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done))

    def _update(self) -> None:
        leaf = self.weights.detach().requires_grad_(True)
        logit = self._logits(leaf, self.data[self._index])
        loss = binary_cross_entropy_with_logits(logit, self.labels[self._index])
        (grad,) = torch.autograd.grad(loss, leaf)
        self.optimizer.update(grad, self.rate)
        self.loss += loss.detach()

    def _logits(self, weights: Tensor, x: Tensor) -> Tensor:
        return call(self.network, self.layout.views(weights), x * self.scale).squeeze(1)

    @torch.no_grad()
    def held_logits(self, weights: Tensor) -> Tensor:
        """The logits of the validation sample, float64 with shape (N,), class 0 before class 1, for weights (1, P)."""
        rows = torch.arange(len(self.held), device=self.device)
        return torch.cat([self._logits(weights, self.held[index]) for index in torch.split(rows, ROWS)]).double()

    def _epoch_over(self) -> Record:
        """Measure, and keep the weights if they are the best so far."""
        held = self.held_logits(self.weights)
        loss = float(binary_cross_entropy_with_logits(held, self.held_labels.double()))
        train = float(self.loss) / self.per_epoch
        self.loss.zero_()
        if not (math.isfinite(loss) and math.isfinite(train)):
            raise TrainingDiverged(
                f"the loss is not finite at iteration {self.iteration}; lower classifier.learning_rate"
            )
        if loss < float(self.best_loss):
            self.best_loss.fill_(loss)
            self.best.copy_(self.weights)
        values = {"loss": train, "validation_loss": loss, "best_loss": float(self.best_loss)}
        epoch = self.iteration / self.per_epoch
        return Record(PHASE, self.iteration, epoch, {name: [value] for name, value in values.items()})


def _labelled(classes: Classes, device: torch.device) -> tuple[SparseEvents, Tensor]:
    """All images and their labels, 0 or 1 with shape (N,), on the device."""
    labels = torch.cat([torch.full((len(images),), float(k)) for k, images in enumerate(classes)])
    return SparseEvents.joined(classes).to(device), labels.to(device)


def _root_mean_square(images: SparseEvents) -> float:
    """Of the pixels of all images."""
    rows = torch.arange(len(images), device=images.device)
    total = sum(float(images[index].double().square().sum()) for index in torch.split(rows, ROWS))
    return math.sqrt(total / math.prod(images.shape))
