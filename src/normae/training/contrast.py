"""A start by classification: noise-contrastive estimation against a density q(x) that is known.

A classifier that tells rows from draws of q has as its best logit log p(x) - log q(x); with

    log p(x) = -E(x)/T - c

in that logit, the weights, log T and c = log Z are learned by plain classification, without a chain. The better q is,
the closer this comes to the likelihood: q is the proposal of the energy's base (`networks.base`), and for an energy
without one the standard Gaussian, from which a whitened table is not far. The last layer's first weights are made
small, so that f(x) is near 0 as it begins. Unlike the likelihood, this loss can be computed for rows held out: the
weights that suit them best are kept, which is what stops a small table from being learned by heart. Of weighted rows
both losses have the weighted mean, also with negative weights: p is then the density of the weighted rows. Gutmann and
Hyvärinen, AISTATS 2010. Of p(x | m) rows are told from draws of q with the m of other rows, and c is a polynomial in m.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from normae.networks.base import SCALE, Base, Bases
from normae.networks.conditional import ConditionalBase
from normae.networks.lattice import draws, known
from normae.tensors import normal, stream
from normae.training.config import PhaseConfig
from normae.training.phases import Phase, clip_rows
from normae.training.state import Adam, Order, Setup, State

START = 0.1  # factor on the last layer's first weights
ROWS = 100_000  # most rows that it sees, or as many as draws where these are more
HELD_OUT, NOISE = 5000, 4
"""Most rows of the validation sample that are looked at, and how many draws of q there are for each."""
CLIP = 1.0  # largest norm of the gradient
CHUNK = 1 << 14


def known_at(x: Tensor, bases: Sequence[Base], generator: torch.Generator) -> Tensor:
    """What does not change at events x (N, *event): -s log b of the base and log q, with shape (N, 2).

    Args:
        bases: events come as equal blocks for several of them; without any, q is the Gaussian.
        generator: of the places that rows have in their cells, where columns are on a lattice.
    """
    if not bases:
        flat = x.flatten(1)
        log_q = -0.5 * flat.square().sum(1) - 0.5 * flat.shape[1] * math.log(2 * math.pi)
        return torch.stack([torch.zeros_like(log_q), log_q], dim=1)
    pairs = zip(bases, x.chunk(len(bases)), strict=True)
    pieces = [known(one, piece, generator) for one, block in pairs for piece in block.split(CHUNK)]
    return torch.cat([torch.stack(piece, dim=1) for piece in pieces])


class Contrast(Phase):
    """Weights, T and c of S models; a model whose held-out loss has not improved for long is done.

    Attributes:
        draws_told: draws of q that the rows are told from: as many as rows, where no kernel makes that slow.
        looked_at, few: where the rows held out are, and the numbers of those that are looked at, (S, n).
        log_z: c, with shape (S, 1), or the coefficients of c(m), (S, K).
        best: the best rows of weights, log T and c, side by side.
        best_loss, latest: the held-out loss of `best` and of the last look, (S,).
        found: iteration of `best`, (S,).
    """

    name = "contrast"

    def __init__(self, setup: Setup, state: State) -> None:
        config = setup.schedules.contrast
        assert config is not None
        shared = {name: getattr(config, name) for name in ("iterations", "batch", "learning_rate")}
        super().__init__(setup, state, PhaseConfig(**shared, schedule="cosine"))
        self.contrast, base, data = config, setup.architecture.base, setup.data
        self.bases = [] if base is None else base.each if isinstance(base, Bases) else [base]
        slow = any(one.kernels for one in self.bases)
        self.draws_told = config.draws if slow else max(config.draws, min(data.size, ROWS))
        self.looked_at = setup.validation or data
        few = torch.arange(min(self.looked_at.size, HELD_OUT), device=setup.device)
        self.few = few.expand(setup.members, -1)
        terms = len(base.offset) if isinstance(base, ConditionalBase) else 1
        self.log_z = state.log_temperature.new_zeros(setup.members, terms)
        self.optimizer = Adam(self.log_z)
        self.best = self._row()
        self.best_loss, self.latest = state.sums.new_zeros(2, setup.members)
        self.found = torch.zeros_like(state.rollbacks)
        self.drawn: Tensor | None = None
        state.extra |= {f"contrast.{name}": getattr(self, name) for name in ("log_z", "best", "best_loss", "latest")}
        state.extra |= {"contrast.found": self.found} | self.optimizer.state("contrast.adam")

    @property
    def over(self) -> bool:
        """Whether the iterations are done, or every model is."""
        return super().over or bool((self._waited() >= 0).all())

    def _waited(self) -> Tensor:
        """Iterations since each model should have improved, (S,), below 0 before: who was best early is done early."""
        most = self.contrast.patience * self.contrast.every
        return self.state.iteration - self.found - (self.found // 2).clamp(most // 2, most) - self.contrast.every

    @property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.state.weights, self.state.log_temperature, self.log_z

    def _row(self) -> Tensor:
        return torch.cat(self._parts, dim=1)

    def begin(self) -> None:
        """p = b or the Gaussian, with the c that normalizes it; or the weights as they are, with one that rows like.

        With f(x) near 0 the error |x|^2/d makes p narrower than b, and T = s + 2/d undoes that: exactly so for a
        Gaussian b, and without base for s = 0.
        """
        super().begin()
        state, layout, base = self.state, self.setup.layout, self.setup.architecture.base
        if self.contrast.gaussian:
            last = max(k for k, shape in enumerate(layout.shapes) if len(shape) > 1)
            state.weights[:, sum(layout.sizes[:last]) : sum(layout.sizes)] *= START
        if base is not None or self.contrast.gaussian:
            temperature = (0.0 if base is None else SCALE) + 2 / math.prod(self.setup.data.event)
            state.log_temperature.fill_(math.log(temperature))
        rows = self.setup.data.take(self.few % self.setup.data.size)
        with torch.no_grad():
            given = self._noise(self.few) if self.contrast.gaussian else (rows, self._known(rows))
            logit = self._logit(*given, state.weights, state.log_temperature, torch.zeros_like(self.log_z))
        mean = logit.mean(1, keepdim=True)
        if self.contrast.gaussian:
            mean = torch.logsumexp(logit, 1, keepdim=True) - math.log(self.few.shape[1])
        self.log_z.zero_()[:, :1] = self.setup.group.mean(mean)
        self.found.zero_()
        self.best_loss.fill_(torch.inf)
        self.best.copy_(self._row())

    def _noise(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Draws of q with shape (S * B, *event), and what is known there, for numbers of draws with shape (S, B).

        They are the same for all models with the same q, whatever their seeds.
        """
        n = self.draws_told + NOISE * self.few.shape[1]
        if self.drawn is None:
            generator = stream(0, "contrast/draws", self.setup.device)
            with torch.no_grad():
                if self.bases:
                    drawn = [draws(one, n, generator) for one in self.bases]
                    self.draws = torch.cat([y for y, _ in drawn])
                    self.drawn = torch.cat([torch.stack(there, dim=1) for _, there in drawn])
                else:
                    self.draws = normal((n, *self.setup.data.event), generator, self.state.weights)
                    self.drawn = known_at(self.draws, (), generator)
        flat = (index + self._first(n) if len(self.bases) > 1 else index).flatten()
        return self.draws[flat], self.drawn[flat]

    def _known(self, x: Tensor) -> Tensor:
        return known_at(x, self.bases, stream(0, "contrast/places", self.setup.device))

    def prepare(self) -> None:
        """The rows, those held out, and the draws that they are told from: all come from the seeds alone."""
        setup, n = self.setup, self.few.shape[1]
        self.rows = min(setup.data.size, max(ROWS, self.contrast.draws))
        whole = torch.arange(self.rows, device=setup.device).expand(setup.members, -1)
        with torch.no_grad():
            held = self.looked_at.take(self.few)
            self.known = self._known(setup.data.take(whole))
            later = (self.draws_told + torch.arange(NOISE * n, device=setup.device)).expand(setup.members, -1)
            self.held = held, self._known(held), *self._noise(later)
        super().prepare()
        self.order = Order(setup.seeds, setup.group.named(self.name), self.rows, self.batch, setup.device)
        noise = setup.group.named("contrast/noise")
        self.noise_order = Order(setup.seeds, noise, self.draws_told, self.batch, setup.device)
        self.noise_index = torch.zeros_like(self.index)
        if self.state.iteration == 0:
            self._look()

    def advance(self) -> None:
        """One iteration, and where it is time a look at the rows held out."""
        self.noise_index.copy_(self.noise_order.rows(self.state.iteration))
        super().advance()
        done = self.state.iteration
        if done % self.contrast.every == 0 or done == self.length:
            self._look()

    @torch.no_grad()
    def _look(self) -> None:
        """Keep the weights of those models that are better than ever."""
        self.latest.copy_(self.setup.group.mean(self.loss(*self._parts, held=True)))
        better = (self.latest < self.best_loss) & (self._waited() <= 0)
        self.best_loss.copy_(torch.where(better, self.latest, self.best_loss))
        self.found.masked_fill_(better, self.state.iteration)
        self.best.copy_(torch.where(better[:, None], self._row(), self.best))

    def loss(self, weights: Tensor, log_temperature: Tensor, log_z: Tensor, held: bool = False) -> Tensor:
        """The cross-entropy of rows and draws, (S,): of the rows held out, or of a batch."""
        samples, index = self.setup.data, self.index
        if held:
            rows, known, noise, drawn = self.held
            samples, index = self.looked_at, self.few
        else:
            rows, known = samples.take(index), self.known[(index + self._first(self.rows)).flatten()]
            noise, drawn = self._noise(self.noise_index)
        members = self.setup.members
        x, there = (
            torch.cat([a.unflatten(0, (members, -1)), b.unflatten(0, (members, -1))], dim=1).flatten(0, 1)
            for a, b in ((rows, noise), (known, drawn))
        )
        logit = self._logit(x, there, weights, log_temperature, log_z)
        n = len(rows) // members
        return samples.weighed(softplus(-logit[:, :n]), index).mean(1) + softplus(logit[:, n:]).mean(1)

    def _first(self, n: int) -> Tensor:
        """Where each model begins in blocks of n events, (S, 1)."""
        return torch.arange(self.setup.members, device=self.setup.device)[:, None] * n

    def _logit(self, x: Tensor, known: Tensor, weights: Tensor, log_temperature: Tensor, log_z: Tensor) -> Tensor:
        """log p - log q of events (S * n, *event), with shape (S, n)."""
        members, base = self.setup.members, self.setup.architecture.base
        if isinstance(base, ConditionalBase):
            log_z = torch.einsum("snk,sk->sn", base.terms(x).unflatten(0, (members, -1)), log_z)
        energy = known[:, 0] + self.state.energy(self.setup.noise.mean(weights)).error(x)
        return -energy.reshape(members, -1) * (-log_temperature).exp() - log_z - known[:, 1].reshape(members, -1)

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
        of_weights, of_temperature, of_log_z = grad.split([part.shape[1] for part in grads], dim=1)
        state.optimizer.update(of_weights, rate)
        if self.setup.schedules.temperature.trained:
            state.temperature_optimizer.update(of_temperature, rate)
        self.optimizer.update(of_log_z, rate)
        state.sums[0] += self.setup.group.mean(loss.detach())

    def values(self, means: dict[str, list[float]]) -> dict[str, list[float]]:
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
        for part, best in zip(self._parts, self.best.split([p.shape[1] for p in self._parts], dim=1), strict=True):
            part.copy_(best)
