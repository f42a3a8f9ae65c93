"""A Bayesian model: a density for every weight draw, each normalized with its own Z.

    log p_k(x) = -E_k(x)/T_k - log Z_k,   k = 1 ... n draws.

`energy`, `score` and `log_prob` are means over 100 fixed draws (seed 0): the mean of log p, not the log of the mean.
Of a posterior with several modes (`Modes`) they are the log of the mean: a mixture. Where the draws come from is the
`Posterior`'s affair.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normae.errors import InputError, LogZUnknown
from normae.inference.log_z import LogZ, cell_centres, grid_log_z, grid_points
from normae.inference.model import Model
from normae.networks.autoencoder import Autoencoder
from normae.networks.reconstruction import ReconstructionEnergy
from normae.posterior.draws import Draws, Posterior
from normae.posterior.modes import Modes, together
from normae.random import stream
from normae.sampling.chain import Chain
from normae.sampling.config import SamplingConfig

DRAWS = 100
"""Number of draws behind `energy`, `score` and `log_prob`."""
CELLS = 300
"""Cells along each axis for the log Z of a draw: the midpoint rule has converged on a density that chains can walk."""
CHUNK = 1 << 20
"""Numbers of events taken at once; at least 64 events, and at most 8192."""


class BayesianModel(Model):
    """A Bayesian normalized autoencoder.

    Args:
        autoencoder: with the weights at the posterior's centre.
        posterior: over weights.
        temperature: T at the centre.
        cells: cells along each axis for the log Z of each draw, over the bounds of the feature chain.
    """

    def __init__(
        self,
        autoencoder: Autoencoder,
        posterior: Posterior,
        temperature: float,
        event: tuple[int, ...],
        sampling: SamplingConfig,
        log_z: LogZ | None = None,
        name: str = "model",
        cells: int = CELLS,
    ) -> None:
        super().__init__(autoencoder, temperature, event, sampling, log_z, name)
        self.posterior = posterior
        self.cells = cells
        self._kept: dict[tuple[int, int], Draws] = {}
        self._log_z_draws: dict[tuple[int, int], np.ndarray] = {}

    def to(self, device: torch.device | str) -> "BayesianModel":
        """The same model with its weights on `device`."""
        super().to(device)
        self.posterior = self.posterior.to(device)
        self._kept = {}
        return self

    # --- draws

    def draw(self, generator: torch.Generator) -> Model:
        """One weight draw: an ordinary deterministic model, with its own log Z where a grid serves."""
        draws = self.posterior.draws(1, generator)
        return self._deterministic(draws.one(0), float(draws.temperature[0]))

    def _deterministic(self, energy: ReconstructionEnergy, temperature: float) -> Model:
        model = Model(self.autoencoder, temperature, self.event, self.sampling, None, f"a draw of {self.name}", energy)
        if self._grid_serves():
            bounds = self.sampling.feature.bounds
            assert bounds is not None
            cells = 2 * (self.cells // 2)
            model.log_z = grid_log_z(energy, temperature, bounds, self.event[0], cells, self.device)
        return model

    def _grid_serves(self) -> bool:
        return self.sampling.feature.bounds is not None and len(self.event) == 1 and self.event[0] <= 2

    def energy_draws(self, x: Any, n: int = DRAWS, seed: int = 0) -> Any:
        """E for each of `n` draws, with shape (n, N), for x with shape (N, *event)."""
        return self._draws(x, n, seed, lambda energy, _: energy)

    def score_draws(self, x: Any, n: int = DRAWS, seed: int = 0) -> Any:
        """E/T for each of `n` draws, with shape (n, N)."""
        return self._draws(x, n, seed, lambda energy, temperature: energy / temperature)

    def log_prob_draws(self, x: Any, n: int = DRAWS, seed: int = 0) -> Any:
        """log p for each of `n` draws, with shape (n, N), each row normalized with its own log Z."""
        log_z = torch.from_numpy(self.log_z_draws(n, seed))[:, None]
        return self._draws(x, n, seed, lambda energy, temperature: -energy / temperature - log_z.to(energy))

    def draw_set(self, n: int, seed: int) -> Draws:
        """The draws of a seed, kept: they hold what is the same for every batch of events."""
        if n < 1:
            raise InputError(f"n: expected at least 1 draw, got {n}")
        if (n, seed) not in self._kept:
            self._kept = {(n, seed): self.posterior.draws(n, stream(seed, "draws"))}
        return self._kept[n, seed]

    def _draws(self, x: Any, n: int, seed: int, function: Callable[[Tensor, Tensor], Tensor]) -> Any:
        draws = self.draw_set(n, seed)
        temperature = draws.temperature[:, None]
        most = min(max(CHUNK // int(np.prod(self.event)), 64), 1 << 13)
        return self._apply(lambda events: function(draws.energies(events), temperature), x, most)

    # --- what the fixed draws say together

    @property
    def mixture(self) -> bool:
        """Whether the density is the mean of those of the draws, and not that of the mean score."""
        return isinstance(self.posterior, Modes)

    def central(self, scores: Any, n: int = DRAWS, seed: int = 0) -> Any:
        """What the `n` draws of a seed with the scores (n, N) say together, with shape (N,).

        Their mean; the score of a mixture, in which each draw counts with its own log Z where a grid serves.
        """
        if self.mixture and self._grid_serves():
            log_z = self.log_z_draws(n, seed)
            away = (log_z - log_z.mean())[:, None]
            scores = scores + (torch.from_numpy(away).to(scores) if isinstance(scores, Tensor) else away)
        return together(scores, self.mixture)

    def energy(self, x: Any) -> Any:
        """E of 100 fixed draws together, with shape (N,): their mean, or T times the score of a mixture."""
        return self.temperature * self.score(x) if self.mixture else self.energy_draws(x).mean(0)

    def score(self, x: Any) -> Any:
        """E/T of 100 fixed draws together, with shape (N,): their mean, or that of a mixture."""
        return self.central(self.score_draws(x))

    def log_prob(self, x: Any) -> Any:
        """log p of 100 fixed draws together, with shape (N,): its mean, or that of a mixture."""
        return -together(-self.log_prob_draws(x), self.mixture)

    # --- normalization

    def log_z_draws(self, n: int = DRAWS, seed: int = 0) -> np.ndarray:
        """log Z of each draw, with shape (n,), float64: by the midpoint rule over the chain's bounds."""
        if (n, seed) not in self._log_z_draws:
            if not self._grid_serves():
                raise LogZUnknown(
                    f"{self.name}: log Z of each weight draw is taken on a grid over the feature chain's bounds, in at "
                    f"most two dimensions, and events have shape {self.event}; use score_draws, which is E/T"
                )
            self._log_z_draws[n, seed] = self._grid_log_z_draws(n, seed)
        return self._log_z_draws[n, seed]

    def _grid_log_z_draws(self, n: int, seed: int) -> np.ndarray:
        bounds = self.sampling.feature.bounds
        assert bounds is not None
        points = grid_points(cell_centres(bounds, self.cells), self.event[0]).numpy()
        exponent = -self.score_draws(points, n, seed).astype(np.float64)
        cell = ((bounds[1] - bounds[0]) / self.cells) ** self.event[0]
        top = exponent.max(axis=1, keepdims=True)
        total: np.ndarray = np.log(np.exp(exponent - top).sum(axis=1) * cell) + top[:, 0]
        return total

    # --- samples

    def sample_chain(
        self,
        n: int,
        generator: torch.Generator,
        latent_steps: int | None = None,
        feature_steps: int | None = None,
        trace: int | None = None,
    ) -> Chain:
        """As `Model.sample_chain`, each chain with one draw from start to end, of at most 100 draws."""
        count = min(n, DRAWS)
        each = -(-n // count)
        draws = self.posterior.draws(count, generator)
        temperature = draws.temperature.repeat_interleave(each)
        chain = self._walk(draws.stacked(), count * each, generator, latent_steps, feature_steps, trace, temperature)
        order = torch.randperm(count * each, generator=generator, device=generator.device)[:n].to(self.device)
        trace_kept = None if chain.trace is None else chain.trace[:, order]
        return Chain(chain.position[order], chain.energy[order], chain.acceptance.mean(1, keepdim=True), trace_kept)

    def continue_chain(self, position: Tensor, generator: torch.Generator, steps: int) -> Chain:  # noqa: ARG002
        """Not offered: the draws with which the chains began are gone, and a chain keeps its draw to the end."""
        raise InputError(
            f"{self.name}: a Bayesian model's chains cannot go on without their draws; sample longer chains"
        )
