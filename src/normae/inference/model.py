"""A trained model: energy, score, log-likelihood and samples."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normae.errors import InputError, LogZUnknown
from normae.inference.log_z import LogZ
from normae.inference.pieces import in_pieces
from normae.networks.autoencoder import Autoencoder
from normae.networks.reconstruction import ReconstructionEnergy
from normae.networks.scoring_energy import ScoringEnergy
from normae.random import stream
from normae.sampling.chain import Chain, run_chain
from normae.sampling.config import ChainConfig, SamplingConfig
from normae.sampling.manifold import into_bounds

GENERATION_FACTOR = 8
"""The paper generates with latent chains eight times as long as in training."""


MOST_SAMPLES = 100_000_000
"""Of one call, which holds them in memory."""


class Model:
    """A normalized autoencoder, p(x) = exp(-E(x)/T)/Z.

    Arrays may be numpy or torch, and what comes out is of the kind that went in.

    Args:
        autoencoder: the trained network.
        temperature: T.
        event: shape of an event.
        sampling: the chains that it was trained with.
        log_z: log Z, where known.
        name: how the model is called in messages.
        energy: E, where it is not that of the autoencoder's own weights.
    """

    def __init__(
        self,
        autoencoder: Autoencoder,
        temperature: float,
        event: tuple[int, ...],
        sampling: SamplingConfig,
        log_z: LogZ | None = None,
        name: str = "model",
        energy: ReconstructionEnergy | None = None,
    ) -> None:
        self.autoencoder = autoencoder.eval().requires_grad_(False)
        self.temperature = temperature
        self.event = event
        self.sampling = sampling
        self.name = name
        self._log_z = log_z
        self._own = energy is None
        self._energy = ScoringEnergy(autoencoder) if energy is None else energy

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.autoencoder.parameters()).device

    def to(self, device: torch.device | str) -> "Model":
        """The same model with its weights on `device`."""
        if not self._own:
            raise InputError(f"{self.name} stays where it was drawn; move the model before it is drawn from")
        self.autoencoder.to(device)
        self._energy = ScoringEnergy(self.autoencoder)
        return self

    @property
    def log_z(self) -> LogZ:
        """log Z with its error; a named error where it is not known."""
        if self._log_z is None:
            raise LogZUnknown(
                f"{self.name}: log Z is not known for events of shape {self.event}; use score, which is E/T, "
                "or give the model a log Z"
            )
        return self._log_z

    @log_z.setter
    def log_z(self, value: LogZ) -> None:
        self._log_z = value

    @property
    def energy_function(self) -> ReconstructionEnergy:
        """E as a callable from tensors (N, *event) to (N,), with its own `value_and_grad`."""
        return self._energy

    def energy(self, x: Any) -> Any:
        """Reconstruction error, mean over features, with shape (N,) for x with shape (N, *event)."""
        return self._apply(self._energy, x)

    def score(self, x: Any) -> Any:
        """E/T with shape (N,): always defined, higher is more anomalous."""
        return self._apply(lambda events: self._energy(events) / self.temperature, x)

    def log_prob(self, x: Any) -> Any:
        """log p = -E/T - log Z with shape (N,)."""
        log_z = self.log_z.value
        return self._apply(lambda events: -self._energy(events) / self.temperature - log_z, x)

    def _apply(self, function: Any, x: Any, most: int | None = None) -> Any:
        """`function` of a tensor, or of an array in pieces of at most `most` events."""
        events = x if isinstance(x, Tensor) else np.asarray(x)
        if tuple(events.shape[1:]) != self.event:
            whole = ("N", *self.event)
            raise InputError(
                f"{self.name}: expected events of shape {self.event} in an array of shape "
                f"({', '.join(map(str, whole))}), got an array of shape {tuple(events.shape)}"
            )
        dtype = next(self.autoencoder.parameters()).dtype
        if isinstance(events, Tensor):
            self._check(torch.isfinite(events.detach()).flatten(1).all(dim=1))
            return function(events.to(dtype))
        values, finite = in_pieces(lambda piece: function(piece.to(dtype)), events, self.device, most)
        self._check(finite)
        return values.numpy()

    def _check(self, finite: Tensor) -> None:
        if not bool(finite.all()):
            first = int((~finite).nonzero()[0])
            raise InputError(f"{self.name}: NaN or infinity (in float32) in the events, the first at row {first}")

    def draw(self, generator: torch.Generator) -> "Model":  # noqa: ARG002
        """One weight draw; only a Bayesian model has them."""
        raise InputError(f"{self.name} is deterministic and has no weight draws; train a Bayesian model for them")

    def log_prob_draws(self, x: Any, n: int = 100, seed: int = 0) -> Any:  # noqa: ARG002
        """log p for each of `n` weight draws; only a Bayesian model has them."""
        raise InputError(f"{self.name} is deterministic and has no weight draws; train a Bayesian model for them")

    def sample(
        self,
        n: int,
        seed: int = 0,
        latent_steps: int | None = None,
        feature_steps: int | None = None,
        chunk: int = 50_000,
    ) -> np.ndarray:
        """`n` events with shape (n, *event), by the paper's recipe for generation.

        A latent chain from noise, without buffer, eight times as long as in training, decoded, clipped into the
        bounds, then a feature chain as long as in training (or `sampling.generation` steps, where a preset says so).

        Args:
            seed: gives all randomness.
            latent_steps, feature_steps: lengths of the chains, where they should differ from the recipe.
            chunk: events that are in memory at a time.
        """
        if not 1 <= n <= MOST_SAMPLES:
            raise InputError(f"n: expected 1 to {MOST_SAMPLES} events, got {n}")
        generator = stream(seed, "sample", self.device)
        pieces = [
            self.sample_chain(min(chunk, n - start), generator, latent_steps, feature_steps).position.cpu().numpy()
            for start in range(0, n, chunk)
        ]
        return np.concatenate(pieces)

    def sample_chain(
        self,
        n: int,
        generator: torch.Generator,
        latent_steps: int | None = None,
        feature_steps: int | None = None,
        trace: int | None = None,
    ) -> Chain:
        """The feature chain of `sample`, with positions (n, *event) and its acceptance, on the model's device."""
        return self._walk(self._energy, n, generator, latent_steps, feature_steps, trace)

    def _walk(
        self,
        energy: ReconstructionEnergy,
        n: int,
        generator: torch.Generator,
        latent_steps: int | None,
        feature_steps: int | None,
        trace: int | None,
        temperature: float | Tensor | None = None,
    ) -> Chain:
        """Latent chain from noise, decoded and clipped into the bounds, then the feature chain, on `energy`."""
        temperature = self.temperature if temperature is None else temperature
        latent = _lengthened(self.sampling.latent, latent_steps, GENERATION_FACTOR * self.sampling.latent.steps)
        feature = _lengthened(self.sampling.feature, feature_steps, self.sampling.generation_steps)
        like = next(self.autoencoder.parameters())
        z = energy.latent_noise(n, generator, like)
        end = run_chain(energy.latent(), z, latent, temperature, generator)
        with torch.no_grad():
            start = into_bounds(energy.decode(end.position), feature)
        return run_chain(energy, start, feature, temperature, generator, trace=trace, members=energy.members)

    def continue_chain(self, position: Tensor, generator: torch.Generator, steps: int) -> Chain:
        """A feature chain of `steps` steps from `position`, with shape (N, *event), on the model's device."""
        feature = _lengthened(self.sampling.feature, steps, 0)
        return run_chain(self._energy, position, feature, self.temperature, generator)


def _lengthened(config: ChainConfig, steps: int | None, otherwise: int) -> ChainConfig:
    if steps is not None and steps < 0:
        raise InputError(f"steps: expected a length of at least 0, got {steps}")
    return replace(config, steps=otherwise if steps is None else steps, adapt=None)
