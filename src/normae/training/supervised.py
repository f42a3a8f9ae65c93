"""Networks that are trained on labels: a short fit in one call, and the classifier of jets as a training of the loop.

The classifier of section 4.2 of the paper is the encoder of the autoencoder with one output f, the logit of class 1,
trained on the binary cross-entropy

    L = -mean[ y log s(f(x)) + (1 - y) log(1 - s(f(x))) ],    s the sigmoid,

with Adam; after each epoch the loss on a validation sample is measured, and the weights of the lowest one are the
result. Pixels of 1e-3 are divided by the root mean square pixel of the training sample, one number for all of them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from normae.data import SparseEvents
from normae.networks.reconstruction import Layout, call
from normae.progress import counted
from normae.training.backends import capture_graph, put_back
from normae.training.config import ClassifierConfig, GuardConfig
from normae.training.state import Adam, Order, check_state, rate_factor
from normae.training.trainer import Guard, Record, Training

PHASE = "classifier"
ROWS = 2048  # images that are dense at a time outside the training
Classes = Sequence[SparseEvents]
"""Images of class 0 and of class 1."""


class Losses(NamedTuple):
    """Of each epoch; those of the validation part are missing where there is none."""

    train: tuple[float, ...]
    validation: tuple[float, ...]


def permutation(n: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """The numbers 0..n - 1 in a random order, on `device`."""
    return torch.randperm(n, generator=generator, device=generator.device).to(device)


@torch.enable_grad()
def fit(
    weights: Sequence[Tensor],
    loss: Callable[[Tensor], Tensor],
    n: int,
    generator: torch.Generator,
    *,
    epochs: int,
    batch: int,
    learning_rate: float,
    cosine: bool = False,
    validate: Callable[[], float] | None = None,
    patience: int | None = None,
    what: str = "classifier",
) -> Losses:
    """Train `weights` in place with Adam; with `validate`, the best of them stay.

    Args:
        loss: mean over the events whose numbers, int64 with shape (B,), it gets.
        n: number of events.
        generator: of their order, anew in each epoch.
        cosine: the learning rate falls to zero along a cosine.
        validate: loss of the events held out, after each epoch.
        patience: epochs without a better one after which the training ends.
        what: is trained, for those who watch its progress.
    """
    optimizer = torch.optim.Adam(weights, lr=learning_rate, fused=True)
    steps = max(epochs * -(-n // batch), 1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if cosine else None
    train: list[float] = []
    held: list[float] = []
    best, kept = 0, [weight.detach().clone() for weight in weights]
    for epoch in counted(what, range(epochs)):
        if patience is not None and epoch - best >= patience:
            break
        total = torch.zeros((), device=weights[0].device)
        for rows in permutation(n, generator, weights[0].device).split(batch):
            value = loss(rows)
            optimizer.zero_grad()
            torch.autograd.backward(value)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            total += value.detach() * len(rows)
        train.append(total.item() / n)
        if validate is not None:
            held.append(validate())
            if held[-1] < min(held[:-1], default=math.inf):
                best, kept = len(held), [weight.detach().clone() for weight in weights]
    for weight, value in zip(weights, kept if validate is not None else weights, strict=True):
        weight.data.copy_(value)
    return Losses(tuple(train), tuple(held))


class ClassifierTrainer(Training):
    """Trains one network on images of two classes.

    Args:
        network: maps images (N, *event) to logits (N, 1).
        train, validation: images of class 0 and of class 1.
        config: how to train.
        seed: gives the order of events.
        device: where to train.
    """

    names = (PHASE,)

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
        rows = torch.split(torch.arange(len(self.data), device=device), ROWS)
        squares = sum(float(self.data[index].double().square().sum()) for index in rows)
        self.scale = 1 / math.sqrt(squares / math.prod(self.data.shape))
        self.prior = math.log(len(train[1]) / len(train[0]))
        self.batch = min(config.batch, len(self.data))
        self.weights = self.layout.flatten([network]).to(device)
        self.optimizer = Adam(self.weights)
        self.rate, self.rate_scale = torch.zeros(1, device=device), torch.ones(1, device=device)
        self.rollbacks = torch.zeros(1, dtype=torch.int64, device=device)
        self.best = self.weights.clone()
        self.best_loss = torch.full((), math.inf, dtype=torch.float64, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.position = torch.zeros(2, dtype=torch.int64)
        self._prepare()
        per_epoch = self.order.per_epoch
        limits = GuardConfig(log_every=per_epoch, checkpoint_every=per_epoch)
        self.guard = Guard(limits, [seed], "lower classifier.learning_rate")

    @property
    def over(self) -> bool:
        return self.place[1] >= self.length(PHASE)

    def length(self, phase: str) -> int:
        assert phase == PHASE
        return self.config.epochs * self.order.per_epoch

    def tensors(self) -> dict[str, Tensor]:
        names = ("weights", "best", "best_loss", "loss", "position", "rate_scale", "rollbacks")
        return {name: getattr(self, name) for name in names} | self.optimizer.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        check_state(self.tensors(), state, self.device)
        put_back(self.tensors(), [], state)
        self._prepare()

    def enter_next(self) -> None:
        self.position.copy_(torch.tensor([1, 0]))

    def _prepare(self) -> None:
        self.order = Order([self.seed], PHASE, len(self.data), self.batch, self.device)
        self._index = torch.zeros(self.batch, dtype=torch.int64, device=self.device)
        graph = self.device.type == "cuda" and not self.finished
        self._iterate = capture_graph(self._update, self.tensors, []) if graph else self._update

    def advance(self) -> None:
        iteration = self.place[1]
        self._index.copy_(self.order.rows(iteration)[0])
        factor = rate_factor(iteration, self.length(PHASE), self.config.schedule)
        self.rate.copy_(self.rate_scale * (self.config.learning_rate * factor))
        self._iterate()
        self.position[1] += 1

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

    def means(self) -> Record:
        """The mean loss of the epoch so far."""
        iteration, per_epoch = self.place[1], self.order.per_epoch
        loss = float(self.loss) / (iteration % per_epoch or per_epoch)
        return Record(PHASE, iteration, iteration / per_epoch, {"loss": [loss]})

    def record(self) -> Record:
        """The losses after an epoch; the weights are kept if they are the best so far."""
        record = self.means()
        self.loss.zero_()
        loss = float(binary_cross_entropy_with_logits(self.held_logits(self.weights), self.held_labels.double()))
        if loss < float(self.best_loss):
            self.best_loss.fill_(loss)
            self.best.copy_(self.weights)
        record.values.update(validation_loss=[loss], best_loss=[float(self.best_loss)])
        return record


def _labelled(classes: Classes, device: torch.device) -> tuple[SparseEvents, Tensor]:
    """All images and their labels, 0 or 1 with shape (N,), on the device."""
    labels = torch.cat([torch.full((len(images),), float(k)) for k, images in enumerate(classes)])
    return SparseEvents.joined(classes).to(device), labels.to(device)
