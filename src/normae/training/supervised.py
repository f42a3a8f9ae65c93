"""Networks that are trained on labels: a short fit in one call, and the classifier of jets as a training of the loop.

The classifier of section 4.2 of the paper is the encoder of the autoencoder with one output f, the logit of class 1,
trained on the binary cross-entropy with Adam. The weights of the lowest loss on a validation sample, which is measured
after each epoch, are the result. Images are divided by the root mean square pixel of the training sample.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from normae.data import SparseEvents
from normae.networks.own import EnergyNetwork
from normae.progress import counted
from normae.sampling.config import SamplingConfig
from normae.training.config import ClassifierConfig, GuardConfig, PhaseConfig, Schedules
from normae.training.phases import Phase
from normae.training.state import Setup, State
from normae.training.trainer import Trainer

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
    weights: Sequence[Tensor], loss: Callable[[Tensor], Tensor], n: int, generator: torch.Generator, *, epochs: int,
    batch: int, learning_rate: float, cosine: bool = False, validate: Callable[[], float] | None = None,
    patience: int | None = None, what: str = "classifier",
) -> Losses:  # fmt: skip
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
    train, held = [], []
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


class Classification(Phase):
    """One network on images of two classes; of each sample the first `zeros` events are of class 0.

    Attributes:
        scale: what images are multiplied with.
        prior: log(n_1 / n_0) of the training sample.
        best: the weights (1, P) of the lowest validation loss.
        held_labels: of the validation sample, with shape (N,).
    """

    name = "classifier"

    def __init__(self, setup: Setup, state: State, config: ClassifierConfig, zeros: tuple[int, int]) -> None:
        super().__init__(setup, state, PhaseConfig(**asdict(config)))
        data, held = setup.data, setup.validation
        assert held is not None
        pairs = ((data.size, zeros[0]), (held.size, zeros[1]))
        self.labels, self.held_labels = ((torch.arange(n, device=setup.device) >= first).float() for n, first in pairs)
        squares = sum(float(data.take(index).double().square().sum()) for index in data.pieces())
        self.scale = 1 / math.sqrt(squares / (data.size * math.prod(data.event)))
        self.prior = math.log((data.size - zeros[0]) / zeros[0])
        self.best = state.weights.clone()
        self.best_loss = torch.full((), math.inf, dtype=torch.float64, device=setup.device)
        state.extra |= {"classifier.best": self.best, "classifier.best_loss": self.best_loss}

    def update(self) -> None:
        leaf = self.leaf()
        logit = self._logits(leaf, self.setup.data.take(self.index))
        loss = binary_cross_entropy_with_logits(logit, self.labels[self.index[0]])
        (grad,) = torch.autograd.grad(loss, leaf)
        self.state.optimizer.update(grad, self.state.rate)
        self.state.sums[0] += loss.detach()

    def _logits(self, weights: Tensor, x: Tensor) -> Tensor:
        return self.state.energy(weights)(x * self.scale).squeeze(1)

    @torch.no_grad()
    def held_logits(self, weights: Tensor) -> Tensor:
        """The logits of the validation sample, float64 with shape (N,), class 0 before class 1, for weights (1, P)."""
        held = self.setup.validation
        assert held is not None
        return torch.cat([self._logits(weights, held.take(index)) for index in held.pieces()]).double()

    def values(self, means: dict[str, list[float]]) -> dict[str, list[float]]:
        return {"loss": means["positive_energy"]}

    def measured(self) -> dict[str, list[float]]:
        """The loss after an epoch; the weights are kept if they are the best so far."""
        logit = self.held_logits(self.state.weights)
        loss = float(binary_cross_entropy_with_logits(logit, self.held_labels.double()))
        if loss < float(self.best_loss):
            self.best_loss.fill_(loss)
            self.best.copy_(self.state.weights)
        return {"validation_loss": [loss], "best_loss": [float(self.best_loss)]}


def classifier_trainer(
    network: nn.Module, train: Classes, validation: Classes, config: ClassifierConfig, seed: int, device: torch.device
) -> Trainer:
    """Trains one network on images of two classes; its phase is a `Classification`.

    Args:
        network: maps images (N, *event) to logits (N, 1).
        train, validation: images of class 0 and of class 1.
        seed: gives the order of events.
    """
    n, zeros = sum(len(images) for images in train), (len(train[0]), len(validation[0]))
    per_epoch = n // min(config.batch, n)
    schedules = Schedules(guard=GuardConfig(log_every=per_epoch, checkpoint_every=per_epoch))
    sampling = SamplingConfig(backend="graph" if device.type == "cuda" else "reference", buffer=1)
    own, phases = [EnergyNetwork(network)], [partial(Classification, config=config, zeros=zeros)]
    events, held = [SparseEvents.joined(train)], [SparseEvents.joined(validation)]
    return Trainer(own, events, schedules, sampling, [seed], device, validation=held, phases=phases)
