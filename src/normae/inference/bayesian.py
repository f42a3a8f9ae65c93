"""A Bayesian model: a density for every weight draw, each normalized with its own Z.

    log p_k(x) = -E_k(x)/T - log Z_k,   k = 1 ... n draws.

`energy`, `score` and `log_prob` are means over 100 fixed draws (seed 0): the mean of log p, not the log of the mean.
Where only the decoder's last layer is Bayesian, its input h(x) is the same for all draws and is computed once; a draw
then costs one small product, E_k = mean_i (x_i - (W_k h + b_k)_i)^2.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normae.energy import ReconstructionEnergy
from normae.errors import InputError
from normae.inference.log_z import LogZ, cell_centres, grid_points
from normae.inference.model import Model
from normae.networks.autoencoder import Autoencoder
from normae.networks.bayesian import split_decoder, width
from normae.networks.mlp import MLP
from normae.networks.parameters import Layout, call, prefixed
from normae.random import stream
from normae.sampling.chain import Chain
from normae.sampling.config import SamplingConfig

DRAWS = 100
"""Number of draws behind `energy`, `score` and `log_prob`."""
CHUNK = 1 << 15


class BayesianModel(Model):
    """A Bayesian normalized autoencoder.

    Args:
        autoencoder: with the posterior means as weights.
        rho: of the Bayesian weights by parameter name; their width is softplus(rho).
        cells: cells along each axis for the log Z of each draw, over the bounds of the feature chain.
    """

    def __init__(
        self,
        autoencoder: Autoencoder,
        rho: Mapping[str, Tensor],
        temperature: float,
        event: tuple[int, ...],
        sampling: SamplingConfig,
        log_z: LogZ | None = None,
        name: str = "model",
        cells: int = 500,
    ) -> None:
        super().__init__(autoencoder, temperature, event, sampling, log_z, name)
        self.layout = Layout.of(autoencoder)
        self.widths = {key: width(value) for key, value in rho.items()}
        self.cells = cells
        self._log_z_draws: dict[tuple[int, int], np.ndarray] = {}

    def to(self, device: torch.device | str) -> "BayesianModel":
        """The same model with its weights on `device`."""
        super().to(device)
        self.widths = {key: value.to(device) for key, value in self.widths.items()}
        return self

    # --- draws

    def draw(self, generator: torch.Generator) -> Model:
        """One weight draw: an ordinary deterministic model, with its own log Z where a grid serves."""
        weights = self._drawn(1, generator)
        parameters = {name: value[0] for name, value in weights.items()}
        return self._deterministic(parameters)

    def _drawn(self, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """All weights by name, with shape (n, *parameter); the Bayesian ones drawn."""
        drawn: dict[str, Tensor] = {}
        for name, mean in self.autoencoder.named_parameters():
            drawn[name] = mean.expand(n, *mean.shape)
            if name in self.widths:
                noise = torch.randn(n, *mean.shape, generator=generator, device=generator.device).to(mean.device)
                drawn[name] = mean + self.widths[name] * noise
        return drawn

    def _deterministic(self, parameters: Mapping[str, Tensor]) -> Model:
        from copy import deepcopy

        copy = deepcopy(self.autoencoder)
        with torch.no_grad():
            for name, value in parameters.items():
                copy.get_parameter(name).copy_(value)
        model = Model(copy, self.temperature, self.event, self.sampling, None, f"a draw of {self.name}")
        if self._grid_serves():
            from normae.inference.log_z import grid_log_z

            bounds = self.sampling.feature.bounds
            assert bounds is not None
            model.log_z = grid_log_z(
                model.energy_function, self.temperature, bounds, self.event[0], self.cells, self.device
            )
        return model

    def _grid_serves(self) -> bool:
        return self.sampling.feature.bounds is not None and len(self.event) == 1 and self.event[0] <= 2

    def energy_draws(self, x: Any, n: int = DRAWS, seed: int = 0) -> Any:
        """E for each of `n` draws, with shape (n, N), for x with shape (N, *event)."""
        return self._draws(x, n, seed, lambda energy: energy)

    def score_draws(self, x: Any, n: int = DRAWS, seed: int = 0) -> Any:
        """E/T for each of `n` draws, with shape (n, N)."""
        return self._draws(x, n, seed, lambda energy: energy / self.temperature)

    def log_prob_draws(self, x: Any, n: int = DRAWS, seed: int = 0) -> Any:
        """log p for each of `n` draws, with shape (n, N), each row normalized with its own log Z."""
        log_z = torch.from_numpy(self.log_z_draws(n, seed))[:, None]
        return self._draws(x, n, seed, lambda energy: -energy / self.temperature - log_z.to(energy))

    def _draws(self, x: Any, n: int, seed: int, function: Callable[[Tensor], Tensor]) -> Any:
        if n < 1:
            raise InputError(f"n: expected at least 1 draw, got {n}")
        weights = self._drawn(n, stream(seed, "draws"))
        if isinstance(x, Tensor):
            return function(self._energies(weights, self._check(x)))
        events = self._check(torch.from_numpy(np.array(x, dtype=np.float32)))
        with torch.no_grad():
            pieces = [function(self._energies(weights, p.to(self.device))).cpu() for p in torch.split(events, CHUNK)]
        return torch.cat(pieces, dim=1).numpy()

    def _energies(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """E of every draw, with shape (n, N)."""
        if self._only_last_layer():
            return self._last_layer_energies(weights, x)
        n = next(iter(weights.values())).shape[0]
        rows = [
            ReconstructionEnergy(self.autoencoder, {k: v[i : i + 1] for k, v in weights.items()})(x) for i in range(n)
        ]
        return torch.stack(rows)

    def _only_last_layer(self) -> bool:
        decoder = self.autoencoder.decoder
        if not isinstance(decoder, MLP | torch.nn.Sequential):
            return False
        prefix = "decoder." + split_decoder(decoder)[2]
        return all(name.startswith(prefix) for name in self.widths)

    def _last_layer_energies(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        body, layer, prefix = split_decoder(self.autoencoder.decoder)
        z = self._energy.encode(x)
        own = {name: p[None] for name, p in self.autoencoder.decoder.named_parameters() if not name.startswith(prefix)}
        hidden = call(body, own, z)
        last = prefixed(weights, f"decoder.{prefix}")
        n = next(iter(last.values())).shape[0]
        if isinstance(layer, torch.nn.Linear):
            out = torch.einsum("nh,koh->kno", hidden, last["weight"]) + last["bias"][:, None]
            return (x[None] - out).square().mean(-1)
        out = call(layer, last, hidden.repeat(n, *[1] * (hidden.ndim - 1)))
        return (x.repeat(n, *[1] * (x.ndim - 1)) - out).square().flatten(1).mean(1).reshape(n, len(x))

    # --- means over the fixed draws

    def energy(self, x: Any) -> Any:
        """Mean over 100 fixed draws of E, with shape (N,)."""
        return self.energy_draws(x).mean(0)

    def score(self, x: Any) -> Any:
        """Mean over 100 fixed draws of E/T, with shape (N,)."""
        return self.score_draws(x).mean(0)

    def log_prob(self, x: Any) -> Any:
        """Mean over 100 fixed draws of log p, with shape (N,)."""
        return self.log_prob_draws(x).mean(0)

    # --- normalization

    def log_z_draws(self, n: int = DRAWS, seed: int = 0) -> np.ndarray:
        """log Z of each draw, with shape (n,), float64: by the midpoint rule over the chain's bounds."""
        if (n, seed) not in self._log_z_draws:
            if not self._grid_serves():
                _ = self.log_z  # the named error
            self._log_z_draws[n, seed] = self._grid_log_z_draws(n, seed)
        return self._log_z_draws[n, seed]

    def _grid_log_z_draws(self, n: int, seed: int) -> np.ndarray:
        bounds = self.sampling.feature.bounds
        assert bounds is not None
        points = grid_points(cell_centres(bounds, self.cells), self.event[0]).numpy()
        energies = self.energy_draws(points, n, seed)
        cell = ((bounds[1] - bounds[0]) / self.cells) ** self.event[0]
        exponent = -energies.astype(np.float64) / self.temperature
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
        draws = min(n, DRAWS)
        each = -(-n // draws)
        energy = ReconstructionEnergy(self.autoencoder, self._drawn(draws, generator))
        chain = self._walk(energy, draws * each, generator, latent_steps, feature_steps, trace)
        order = torch.randperm(draws * each, generator=generator, device=generator.device)[:n].to(self.device)
        trace_kept = None if chain.trace is None else chain.trace[:, order]
        return Chain(chain.position[order], chain.energy[order], chain.acceptance.mean(1, keepdim=True), trace_kept)

    def continue_chain(self, position: Tensor, generator: torch.Generator, steps: int) -> Chain:  # noqa: ARG002
        """Not offered: the draws with which the chains began are gone, and a chain keeps its draw to the end."""
        raise InputError(
            f"{self.name}: a Bayesian model's chains cannot go on without their draws; sample longer chains"
        )
