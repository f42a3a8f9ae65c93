"""A start by classification: noise-contrastive estimation against the standard Gaussian.

A whitened table is not far from the standard Gaussian g(x) in d dimensions. A classifier that tells rows from draws of
g has as its best logit log p(x) - log g(x); with

    log p(x) = -E(x)/T - c

in that logit, the weights, log T and c = log Z are learned by plain classification, without a chain. The last layer's
first weights are made small: f(x) is near 0 as it begins and T = 2/d, so that p = g at the first step. Unlike the
likelihood, this loss can be computed for rows held out: the weights that suit them best are kept, which is what stops
a small table from being learned by heart. Gutmann and Hyvärinen, AISTATS 2010.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from normae.random import normal, stream
from normae.training.config import PhaseConfig
from normae.training.phases import Phase, clip_rows
from normae.training.state import Adam, Samples, Setup, State

START = 0.1
"""Factor on the last layer's first weights."""
HELD_OUT = 10_000
"""Most rows of the validation sample that are looked at; of the Gaussian there are `NOISE` times as many."""
NOISE = 4
CLIP = 1.0
"""Largest norm of the gradient."""


def minus_log_gaussian(x: Tensor) -> Tensor:
    """-log g with shape (N,), for x with shape (N, *event)."""
    flat = x.flatten(1)
    return 0.5 * flat.square().sum(1) + 0.5 * flat.shape[1] * math.log(2 * math.pi)


class Contrast(Phase):
    """Weights, T and c of S models; a model whose held-out loss has not improved for long is done.

    Attributes:
        log_z: c, with shape (S, 1).
        best: the best rows of weights, log T and c, with shape (S, P + B + 2).
        best_loss, latest: the held-out loss of `best` and of the last look, (S,).
        found: iteration of `best`, (S,).
    """

    name = "contrast"

    def __init__(self, setup: Setup, state: State) -> None:
        super().__init__(setup, state)
        assert setup.schedules.contrast is not None
        self.contrast = setup.schedules.contrast
        rate = self.contrast.learning_rate
        self.config = PhaseConfig(batch=self.contrast.batch, learning_rate=rate, schedule="cosine")
        self.log_z = torch.zeros_like(state.log_temperature)
        self.optimizer = Adam(self.log_z)
        self.best = self._row()
        self.best_loss, self.latest = state.sums.new_zeros(2, setup.members)
        self.found = torch.zeros_like(state.rollbacks)
        state.extra |= {f"contrast.{name}": getattr(self, name) for name in ("log_z", "best", "best_loss", "latest")}
        state.extra |= {"contrast.found": self.found} | self.optimizer.state("contrast.adam")

    @property
    def length(self) -> int:
        """Iterations, at most."""
        return self.contrast.iterations

    @property
    def over(self) -> bool:
        """Whether the iterations are done, or every model is."""
        return super().over or bool((self._waited() >= 0).all())

    def _waited(self) -> Tensor:
        """Iterations since each model should have improved, (S,), below 0 before."""
        return self.state.iteration - self.found - (self.contrast.patience + 1) * self.contrast.every

    def _row(self) -> Tensor:
        return torch.cat([self.state.weights, self.state.log_temperature, self.log_z], dim=1)

    def begin(self) -> None:
        """p = g, or the weights as they are with the c that makes data and Gaussian equally likely on average."""
        super().begin()
        state, setup = self.state, self.setup
        if self.contrast.gaussian:
            self._begin_as_gaussian()
        else:
            rows = setup.data.take(torch.arange(min(setup.data.size, HELD_OUT), device=setup.device)[None])
            with torch.no_grad():
                logit = self._logit(rows, state.weights, state.log_temperature, torch.zeros_like(self.log_z))
            self.log_z.copy_(setup.group.mean(logit.mean(1, keepdim=True)))
        self.found.zero_()
        self.best_loss.fill_(torch.inf)
        self.best.copy_(self._row())

    def _begin_as_gaussian(self) -> None:
        """Small weights of the last layer, T = 2/d, and the Gaussian's log Z."""
        state, layout = self.state, self.setup.layout
        d = math.prod(self.setup.data.event)
        last = max(k for k, shape in enumerate(layout.shapes) if len(shape) > 1)
        state.weights[:, sum(layout.sizes[:last]) : sum(layout.sizes)] *= START
        state.log_temperature.fill_(math.log(2 / d))
        self.log_z.fill_(0.5 * d * math.log(2 * math.pi))

    def prepare(self) -> None:
        """The rows held out, and the draws that they are told from, come from the seeds alone."""
        setup = self.setup
        samples: Samples = setup.validation or setup.data
        n = min(samples.size, HELD_OUT)
        self.held = samples.take(torch.arange(n, device=setup.device).expand(setup.members, -1))
        streams = [stream(seed, "contrast/held out", setup.device) for seed in setup.seeds]
        self.held_noise = normal((setup.members * NOISE * n, *setup.data.event), streams, self.held)
        if self.state.iteration == 0:
            self._look()
        super().prepare()

    def advance(self) -> None:
        """One iteration, and where it is time a look at the rows held out."""
        super().advance()
        done = self.state.iteration
        if done % self.contrast.every == 0 or done == self.length:
            self._look()

    @torch.no_grad()
    def _look(self) -> None:
        """Keep the weights of those models that are better than ever."""
        self.latest.copy_(self.loss(self.state.weights, self.state.log_temperature, self.log_z, held=True))
        better = (self.latest < self.best_loss) & (self._waited() <= 0)
        self.best_loss.copy_(torch.where(better, self.latest, self.best_loss))
        self.found.masked_fill_(better, self.state.iteration)
        self.best.copy_(torch.where(better[:, None], self._row(), self.best))

    def loss(self, weights: Tensor, log_temperature: Tensor, log_z: Tensor, held: bool = False) -> Tensor:
        """The cross-entropy of rows and draws, (S,): of the rows held out, or of a batch and fresh draws."""
        setup, state = self.setup, self.state
        rows = self.held if held else setup.data.take(self.index)
        noise = self.held_noise if held else normal(rows.shape, state.generators, rows)
        blocks = [x.unflatten(0, (setup.members, -1)) for x in (rows, noise)]
        x = torch.cat(blocks, dim=1).flatten(0, 1)
        logit = self._logit(x, weights, log_temperature, log_z)
        n = blocks[0].shape[1]
        return softplus(-logit[:, :n]).mean(1) + softplus(logit[:, n:]).mean(1)

    def _logit(self, x: Tensor, weights: Tensor, log_temperature: Tensor, log_z: Tensor) -> Tensor:
        """log p - log g of events (S * n, *event), with shape (S, n)."""
        members = self.setup.members
        energy = self.state.energy(self.setup.noise.mean(weights)).with_latent(x)[0].reshape(members, -1)
        return minus_log_gaussian(x).reshape(members, -1) - energy * (-log_temperature).exp() - log_z

    def update(self) -> None:
        """One update of the weights, T and c: AdamW for the weights, Adam for the two numbers."""
        state, rate = self.state, self.state.rate
        leaf = self.leaf()
        log_temperature, log_z = (t.detach().requires_grad_(True) for t in (state.log_temperature, self.log_z))
        loss = self.loss(leaf, log_temperature, log_z)
        grads = torch.autograd.grad(loss.sum(), (leaf, log_temperature, log_z))
        grad = clip_rows(self.setup.group.mean(torch.cat(grads, dim=1)), CLIP)
        decayed = self.setup.noise.mean(state.weights)
        decayed.mul_(1 - self.contrast.weight_decay * rate[:, None])
        state.optimizer.update(grad[:, :-2], rate)
        if self.setup.schedules.temperature.trained:
            state.temperature_optimizer.update(grad[:, -2:-1], rate)
        self.optimizer.update(grad[:, -1:], rate)
        state.sums[0] += self.setup.group.mean(loss.detach())

    def values(self, means: dict[str, list[float]]) -> dict[str, list[float]]:
        """A line of metrics."""
        return {
            "loss": means["positive_energy"],
            "validation_loss": self.latest.tolist(),
            "best_loss": self.best_loss.tolist(),
            "temperature": self.state.log_temperature.exp().flatten().tolist(),
            "learning_rate": self.state.rate.tolist(),
        }

    @torch.no_grad()
    def finish(self) -> None:
        """The best weights, T and c are the result."""
        self.state.weights.copy_(self.best[:, :-2])
        self.state.log_temperature.copy_(self.best[:, -2:-1])
        self.log_z.copy_(self.best[:, -1:])
