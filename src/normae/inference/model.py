"""A trained model: energy, score, log-likelihood and samples, in the user's units.

    log p_k(x) = -E_k(y(x))/T_k - log Z_k + log |dy/dx|,   k = 1 ... n weight draws.

`coordinates` are the map y(x), `posterior` is where the draws come from; a deterministic model has one draw. `rows` has
what all draws say, and `energy`, `score` and `log_prob` what 100 fixed draws (seed 0) say together: the mean of log p,
not the log of the mean, unless the posterior is a mixture.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normae.components import ComponentsCoordinates
from normae.conditional import ConditionalCoordinates
from normae.coordinates import Coordinates, Identity, TableCoordinates
from normae.data.frames import Categories
from normae.errors import InputError, LogZUnknown, refuse, require_that
from normae.inference.generation import GENERATION_FACTOR, ChainEnergy, drawn, lengthened, loosened, samples_at
from normae.inference.log_z import Based, LogZ, choose_log_z, draws_log_z
from normae.inference.parts import parts_of
from normae.lattice import IMPOSSIBLE
from normae.networks.autoencoder import Autoencoder
from normae.networks.reconstruction import ReconstructionEnergy
from normae.networks.scoring_energy import scoring_energy
from normae.posterior.draw import Certain, Draws, Posterior, Rows, as_events, in_pieces
from normae.progress import counted, progress
from normae.sampling.chain import Chain, into_bounds, run_chain
from normae.sampling.config import SamplingConfig
from normae.tensors import keeps, stream

log = logging.getLogger(__name__)

DRAWS = 100  # number of draws behind `energy`, `score` and `log_prob`
CELLS = 300
"""Most cells along each axis for log Z of a draw: the midpoint rule has converged on a density that chains can walk."""
CHUNK = 1 << 20  # numbers of events that many draws see at once; at least 64 events, and at most 8192
MOST_SAMPLES = 100_000_000  # of one call, which holds them in memory
FEWEST_OUTSIDE, LOOKED_AT = 10, 1000  # events of a call whose units are doubted, and those of them that are looked at


class Model:
    """A normalized autoencoder, p(x) = exp(-E(y(x))/T)/Z |dy/dx|.

    Arrays may be numpy or torch, and what comes out is of the kind that went in. Of a data frame (pandas, polars,
    Arrow) a model that knows the names of its columns takes these, in whatever order they are.

    Args:
        autoencoder: the trained network, with the weights at the posterior's centre.
        temperature: T at the centre.
        event: shape of what the network sees, which is that of an event unless the coordinates say otherwise.
        sampling: the chains that it was trained with.
        log_z: log Z at the centre, where known.
        name: how the model is called in messages.
        energy: E, where it is not that of the autoencoder's own weights.
        posterior: over weights; without one the model is deterministic.
        coordinates: from events to what the network sees.
        columns: the names of the features of a table, where they have any.
        categories: of each column of text, whose values in arrays are their places; none of a column of numbers.
        chains: samples in the network's coordinates, with shape (M, *event), where new ones begin.
        cells: cells along each axis for the log Z of a draw, over the bounds of the feature chain.

    >>> import normae
    >>> model = normae.load("toy-1gauss-nae")
    >>> model.score([[0.0, 0.0], [3.0, 0.0]]).round(1)  # E/T, which is |x|^2/2 here
    array([0. , 4.6], dtype=float32)
    >>> model.energy([[3.0, 0.0]]).round(1), model.log_prob([[0.0, 0.0]]).round(1)
    (array([2.4], dtype=float32), array([-1.8], dtype=float32))
    """

    def __init__(
        self, autoencoder: Autoencoder, temperature: float, event: tuple[int, ...], sampling: SamplingConfig,
        log_z: LogZ | None = None, name: str = "model", energy: ReconstructionEnergy | None = None,
        posterior: Posterior | None = None, coordinates: Coordinates | None = None,
        columns: tuple[str, ...] | None = None, cells: int = CELLS, chains: Tensor | None = None,
        categories: Categories = (),
    ) -> None:  # fmt: skip
        self.autoencoder = autoencoder.eval().requires_grad_(False)
        self.temperature, self.seen_event, self.sampling = temperature, event, sampling
        self.name, self.columns, self.categories, self.cells, self.chains = name, columns, categories, cells, chains
        self.coordinates: Coordinates = Identity() if coordinates is None else coordinates
        self.event = coordinates.event if isinstance(coordinates, ComponentsCoordinates) else event
        ends = sampling.feature.bounds_rule == "reject" and autoencoder.base is None  # a base goes on
        bounds = sampling.feature.bounds if ends else None
        if isinstance(self.coordinates, Identity) and bounds is not None:
            self.coordinates = replace(self.coordinates, lattice=torch.tensor([0.0, 0.0, *bounds]).double()[:, None])
        self.box = bounds if isinstance(self.coordinates, TableCoordinates) else None  # of y, where p ends there
        self._log_z = log_z
        self._own = energy is None
        self.energy_function = scoring_energy(autoencoder) if energy is None else energy  # of y, at the centre
        self.posterior = self._certain() if posterior is None else posterior
        self._kept: dict[tuple[int, int], Draws] = {}
        self._log_z_draws: dict[tuple[int, int], NDArray[np.float64] | None] = {}

    bar = 1.0
    """What the standard deviation over draws is multiplied by to be the error of the score."""

    def _certain(self) -> Certain:
        return Certain(self.energy_function, self.like.new_full((1,), self.temperature))

    @property
    def like(self) -> Tensor:
        """One of the weights: of the type and on the device of all."""
        return next(self.autoencoder.parameters())

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.like.device

    def to(self, device: Any) -> "Model":
        """The same model with its weights on `device`, or of a type such as torch.float64."""
        refuse(not self._own, f"{self.name} stays where it was drawn; move the model before it is drawn from")
        self.autoencoder.to(device)
        self.energy_function = scoring_energy(self.autoencoder)
        self.posterior = self._certain() if self.posterior.certain else self.posterior
        if not isinstance(device, torch.dtype):  # coordinates are in float64 always
            self.coordinates = self.coordinates.to(device)
        self.chains = None if self.chains is None else self.chains.to(device)
        self._kept = {}
        return self

    @property
    def log_z(self) -> LogZ:
        """log Z with its error; a named error where it is not known."""
        if self._log_z is None:
            raise LogZUnknown(self._unknown(centre=True))
        return self._log_z

    @log_z.setter
    def log_z(self, value: LogZ) -> None:
        self._log_z = value

    def _unknown(self, centre: bool) -> str:
        known = "log Z is not known for events of shape {}; use score, which is E/T, or give the model a log Z"
        of_draws = (
            "log Z of each weight draw is taken on a grid over the feature chain's bounds, in at most two dimensions, "
            "and events have shape {}; use score_draws, which is E/T"
        )
        return f"{self.name}: {(known if centre else of_draws).format(self.event)}"

    @property
    def centre(self) -> "Model":
        """The deterministic model with the weights at the posterior's centre."""
        return self if self.posterior.certain else self._with()

    def in_components(self) -> "Model":
        """Of pictures seen by their components: the same density as a model of rows y with shape (N, K)."""
        return self._with(Identity())

    def _with(self, coordinates: Coordinates | None = None, **own: Any) -> "Model":
        kept: Any = {of: getattr(self, of) for of in ("temperature", "sampling", "name", "columns", "chains")}
        kept |= {"energy": self.energy_function, "log_z": self._log_z, "coordinates": coordinates or self.coordinates}
        return Model(self.autoencoder, event=self.seen_event, categories=self.categories, **kept | own)

    # --- what every draw says

    def rows(self, x: Any, n: int | None = None, seed: int = 0, log_z: NDArray[np.float64] | None = None) -> Rows:
        """What `n` weight draws say about events, 100 by default; a deterministic model has one, whatever n is.

        Args:
            x: events with shape (N, *event).
            seed: gives the draws.
            log_z: of each draw, where `normalization` has said it before.
        """
        n = DRAWS if n is None else n
        return self._rows(x, n, seed, self.normalization(n, seed) if log_z is None else log_z)

    def _rows(self, x: Any, n: int, seed: int, log_z: NDArray[np.float64] | None) -> Rows:
        draws = self.draw_set(n, seed)
        error = self._log_z.error if self.posterior.certain and self._log_z is not None else 0.0
        scores = self._through(lambda events: self._scores(draws, events), x)
        return Rows(scores, log_z, self.posterior.mixture, error, self._unknown(self.posterior.certain), self.bar)

    def _scores(self, draws: Draws, events: Tensor) -> Tensor:
        y, on = self._seen(events), self.coordinates.lattice if self._as_they_are else None
        box = self.box if on is None else on[2:]
        scores = draws.energies(y) / draws.temperature[:, None]
        scores = scores if self._as_they_are else scores - self.coordinates.log_slope(events)
        return scores if box is None else scores + IMPOSSIBLE * ((y < box[0]) | (y > box[1])).flatten(1).sum(1)

    def normalization(self, n: int = DRAWS, seed: int = 0) -> NDArray[np.float64] | None:
        """log Z of each draw, with shape (n,), float64; None where it is not known."""
        if self.posterior.certain:
            return None if self._log_z is None else np.array([self._log_z.value])
        if (n, seed) not in self._log_z_draws:
            bounds, draws = self.sampling.feature.bounds, self.draw_set(n, seed)
            self._log_z_draws[n, seed] = draws_log_z(draws, self.seen_event, bounds, self.cells, self.like)
        return self._log_z_draws[n, seed]

    def log_z_draws(self, n: int = DRAWS, seed: int = 0) -> NDArray[np.float64]:
        """log Z of each draw, with shape (n,), float64; a named error where it is not known."""
        if (found := self.normalization(n, seed)) is None:
            raise LogZUnknown(self._unknown(self.posterior.certain))
        return found

    def draw_set(self, n: int, seed: int) -> Draws:
        """The draws of a seed, kept: they hold what is the same for every batch of events."""
        require_that(n >= 1, "n", "at least 1 draw", n)
        if (n, seed) not in self._kept:
            self._kept = {(n, seed): self.posterior.draws(n, stream(seed, "draws"))}
        return self._kept[n, seed]

    # --- what the fixed draws say together

    def _chain_energy(self) -> ChainEnergy | None:
        """What stands for `energy` in a chain: a Bayesian model's is a mean, and coordinates are differentiated."""
        if not self.posterior.certain or not self._as_they_are:
            return None
        return ChainEnergy(self.energy_function, self.like.dtype, self.checked)

    def energy(self, x: Any) -> Any:
        """Reconstruction error, mean over features, with shape (N,) for x with shape (N, *event).

        Of a Bayesian model the mean over 100 fixed draws; of a mixture T times its score.
        """
        draws = self.draw_set(DRAWS, 0)
        if not self.posterior.mixture:
            return self._through(lambda events: draws.energies(self._seen(events)).mean(0), x)
        scores = self._through(lambda e: draws.energies(self._seen(e)) / draws.temperature[:, None], x)
        return self.temperature * Rows(scores, self.normalization(), mixture=True).score()

    energy.stands_for = _chain_energy  # type: ignore[attr-defined]

    def score(self, x: Any) -> Any:
        """E/T in the user's units with shape (N,): always defined, higher is more anomalous."""
        log_z = self.normalization(DRAWS, 0) if self.posterior.mixture else None
        return self._rows(self.doubted(x), DRAWS, 0, log_z).score()

    def explain(self, x: Any) -> Any:
        """The part of each feature in the score, with shape (N, *event): their sum is `score(x)`.

        For images a picture of where the error is; for rows of a table what each column adds, compared with the nearest
        row of the training (`inference.parts`).

        >>> import normae, numpy as np
        >>> model = normae.load("toy-1gauss-nae")
        >>> bool(np.allclose(model.explain([[0.0, 3.0]]).sum(1), model.score([[0.0, 3.0]]), rtol=1e-4))
        True
        """
        draws, log_z = self.draw_set(DRAWS, 0), self.normalization(DRAWS, 0) if self.posterior.mixture else None
        given = (self.energy_function, self.temperature, self.coordinates, self.posterior.certain)

        def score(at: Tensor) -> Tensor:
            if self.event == self.seen_event:
                scores = self._scores(draws, at)
            else:  # pictures, whose parts are found from their components
                scores = draws.energies(at.to(self.like)) / draws.temperature[:, None]
            return torch.as_tensor(Rows(scores, log_z, self.posterior.mixture).score())

        found = self._through(lambda events: parts_of(events, score, *given).movedim(0, -1), x)
        return found.movedim(-1, 0) if isinstance(found, Tensor) else np.moveaxis(found, -1, 0)

    def log_prob(self, x: Any) -> Any:
        """log p with shape (N,); a named error where log Z is not known."""
        return self._rows(self.doubted(x), DRAWS, 0, self.log_z_draws()).log_prob()

    # --- draws of a Bayesian model

    def draw(self, generator: torch.Generator) -> "Model":
        """One weight draw: an ordinary deterministic model, with its own log Z where a grid serves."""
        self._has_draws()
        draws = self.posterior.draws(1, generator)
        return self._deterministic(draws.one(0), float(draws.temperature[0]))

    def _deterministic(self, energy: ReconstructionEnergy, temperature: float) -> "Model":
        bounds, cells = self.sampling.feature.bounds, 2 * (self.cells // 2)
        log_z = choose_log_z(energy, temperature, self.seen_event, bounds, cells, self.device)
        return self._with(energy=energy, temperature=temperature, log_z=log_z, name=f"a draw of {self.name}")

    def energy_draws(self, x: Any, n: int = DRAWS, seed: int = 0) -> Any:
        """E for each of `n` draws, with shape (n, N), for x with shape (N, *event)."""
        self._has_draws()
        draws = self.draw_set(n, seed)
        return self._through(lambda events: draws.energies(self._seen(events)), x)

    def score_draws(self, x: Any, n: int = DRAWS, seed: int = 0) -> Any:
        """E/T in the user's units for each of `n` draws, with shape (n, N)."""
        self._has_draws()
        return self._rows(x, n, seed, None).scores

    def log_prob_draws(self, x: Any, n: int = DRAWS, seed: int = 0) -> Any:
        """log p for each of `n` draws, with shape (n, N), each row normalized with its own log Z.

        Their spread is an error bar that holds on average over events, not in every region: that of `toy-bayes-best`
        holds at the peaks and is too small off them, where anomalies are. The model's card has the coverage by region;
        `normae coverage` judges several runs.
        """
        self._has_draws()
        return self._rows(x, n, seed, self.log_z_draws(n, seed)).log_prob_draws()

    def _has_draws(self) -> None:
        if self.posterior.certain:
            raise InputError(f"{self.name} is deterministic and has no weight draws; train a Bayesian model for them")

    # --- events through the draws

    @property
    def _as_they_are(self) -> bool:
        """Whether the network sees events as they are."""
        return isinstance(self.coordinates, Identity)

    def _seen(self, events: Tensor) -> Tensor:
        """y with shape (N, *event), of the type of the weights."""
        y = events if self._as_they_are else self.coordinates.forward(events.double())
        return y.to(self.like.dtype)

    @property
    def event_dtype(self) -> type[np.floating[Any]]:
        """The type in which events are read: coordinates are in float64, so that a large offset costs no digits."""
        return np.float32 if self._as_they_are else np.float64

    def doubted(self, x: Any) -> Any:
        """Events x as they are, of a data frame as an array; a logged warning where they may be in other units."""
        seen, events = self.coordinates.range, as_events(x, self.columns, self.categories, self.name)
        if seen is None or tuple(events.shape[1:]) != self.event or len(events) < FEWEST_OUTSIDE:
            return events
        few = self.checked(events)[:: -(-len(events) // LOOKED_AT)]
        some = (few.detach() if isinstance(few, Tensor) else torch.from_numpy(np.array(few, float))).to(seen.low)
        for k in seen.outside(some).all(0).nonzero().flatten().tolist()[:1]:
            name = f"feature {k}" if self.columns is None else f"`{self.columns[k]}`"
            ends = (float(end) for end in (seen.low[k], seen.high[k], some[:, k].min(), some[:, k].max()))
            words = "%s: ALL rows lie outside the range of the training sample in %s"
            log.warning(
                f"{words} (%.6g to %.6g there, %.6g to %.6g here); is it in the same units?", self.name, name, *ends
            )
        return events

    def _through(self, function: Callable[[Tensor], Tensor], x: Any) -> Any:
        """`function` of a tensor, or of an array in pieces."""
        events = self.checked(as_events(x, self.columns, self.categories, self.name))
        if isinstance(events, Tensor):
            self._check_finite(torch.isfinite(events.detach()).flatten(1).all(dim=1))
            return function(events)
        most = None if self.posterior.certain else min(max(CHUNK // int(np.prod(self.event)), 64), 1 << 13)
        values, finite = in_pieces(function, events, self.device, most, self.event_dtype)
        self._check_finite(finite)
        return values.numpy()

    def checked(self, events: Any) -> Any:
        """Events, which must have the right shape and be real numbers; whole ones must keep all their digits."""
        shape, whole = tuple(events.shape), ", ".join(map(str, ("N", *self.event)))
        expected = f"events of shape {self.event} in an array of shape ({whole})"
        require_that(shape[1:] == self.event, self.name, expected, f"an array of shape {shape}")
        array = isinstance(events, np.ndarray)
        if array and (events.dtype.kind not in "biuf" or not keeps(events, self.event_dtype)):
            got = "text" if events.dtype.kind in "US" else events.dtype
            expected = f"real numbers that {self.event_dtype.__name__} can hold"
            raise InputError(f"{self.name}: expected {expected}, got {got}; convert them")
        return events

    def _check_finite(self, finite: Tensor) -> None:
        if not bool(finite.all()):
            first = int((~finite).nonzero()[0])
            kind = " (in float32)" if self._as_they_are else ""
            raise InputError(f"{self.name}: NaN or infinity{kind} in the events, the first at row {first}")

    # --- samples

    def sample(
        self, n: int, seed: int = 0, latent_steps: int | None = None, feature_steps: int | None = None,
        chunk: int = 50_000, condition: Any = None,
    ) -> NDArray[Any]:  # fmt: skip
        """`n` events with shape (n, *event), by the paper's recipe for generation.

        A latent chain from noise, without buffer, eight times as long as in training, decoded, clipped into the
        bounds, then a feature chain of `sampling.generation_steps`. Each chain of a Bayesian model has one draw from
        start to end. A model that knows the persistent chains of its training goes on from them. Events of a model
        with a base are draws of it, kept with the right probability, wherever enough are kept.

        Args:
            seed: gives all randomness.
            latent_steps, feature_steps: lengths of the chains, where they should differ from the recipe.
            chunk: events that are in memory at a time.
            condition: of p(x | m), m of one row or with shape (n, k); that of random rows of the training by default.

        >>> import normae
        >>> float(normae.load("toy-1gauss-nae").sample(500, latent_steps=10, feature_steps=50).std().round(1))
        1.0
        """
        require_that(1 <= n <= MOST_SAMPLES, "n", f"1 to {MOST_SAMPLES} events", n)
        generator = stream(seed, "sample", self.device)
        steps = latent_steps, feature_steps
        if isinstance(self.coordinates, ConditionalCoordinates) and steps == (None, None):
            return samples_at(self._based, self.coordinates, condition, n, chunk, generator)
        refuse(condition is not None, f"{self.name}: condition: expected a model of p(x | m), and no steps of chains")
        direct, found = self.autoencoder.base is not None and self.posterior.certain and feature_steps is None, []
        for first in counted("sampling", range(0, n, chunk)):
            count = min(chunk, n - first)
            end = drawn(self._based, count, generator) if direct else None
            end = self.sample_chain(count, generator, *steps).position if end is None else end
            found.append(self.coordinates.inverse(end).cpu().numpy())
        return np.concatenate(found)

    @property
    def _based(self) -> Based:
        return Based(self.energy_function, self.temperature, self.sampling.feature.bounds)

    def sample_chain(
        self, n: int, generator: torch.Generator, latent_steps: int | None = None, feature_steps: int | None = None
    ) -> Chain:
        """The feature chain of `sample`, arguments as there, in y with shape (n, *event), and its acceptance.

        A Bayesian model has at most 100 draws, and each chain one of them. Without a base the feature chain begins
        where those of the training ended, if they are known, else where a latent chain from noise has come to.
        """
        certain, based, sampling = self.posterior.certain, self.autoencoder.base is not None, self.sampling
        latent = lengthened(sampling.latent, latent_steps, GENERATION_FACTOR * sampling.latent.steps)
        feature = lengthened(sampling.feature, feature_steps, sampling.generation_steps)
        count = 1 if certain else min(n, DRAWS)
        each = -(-n // count)
        start = drawn(self._based, count * each, generator) if based else None
        energy: ReconstructionEnergy = self.energy_function
        temperature: float | Tensor = self.temperature
        if not certain:
            draws = self.posterior.draws(count, generator)
            energy, temperature = draws.stacked(), draws.temperature.repeat_interleave(each)
        if self.chains is not None and start is None:
            index = torch.randint(len(self.chains), (count * each,), generator=generator, device=generator.device)
            start = self.chains[index.to(self.device)].to(self.like)
            start = start if based else loosened(energy, start, feature, temperature, generator)
        with progress("chain", feature.steps + (latent.steps if start is None else 0)) as tick:
            if start is None:
                z = energy.latent_noise(count * each, generator, self.like)
                end = run_chain(energy.latent(), z, latent, temperature, generator, tick=tick)
                with torch.no_grad():
                    start = into_bounds(energy.decode(end.position), feature)
            chain = run_chain(energy, start, feature, temperature, generator, members=energy.members, tick=tick)
        if certain:
            return chain
        order = torch.randperm(count * each, generator=generator, device=generator.device)[:n].to(self.device)
        return Chain(chain.position[order], chain.energy[order], chain.acceptance.mean(1, keepdim=True), None)

    def continue_chain(self, position: Tensor, generator: torch.Generator, steps: int) -> Chain:
        """A feature chain of `steps` steps from `position` y, with shape (N, *event), on the model's device.

        Not offered for a Bayesian model: the draws with which its chains began are gone.
        """
        if not self.posterior.certain:
            raise InputError(f"{self.name}: a Bayesian model's chains cannot go on without their draws; sample longer")
        feature = lengthened(self.sampling.feature, steps, 0)
        return run_chain(self.energy_function, position, feature, self.temperature, generator)


class BayesianModel(Model):
    """A model whose `posterior` has more than one draw; arguments as in `Model`.

    >>> import normae, torch
    >>> model = normae.load("toy-1gauss-bnae")
    >>> model.log_prob_draws([[0.0, 0.0]], n=3).round(1).T  # the truth is -1.84
    array([[-1.8, -1.8, -1.8]], dtype=float32)
    >>> model.rows([[0.0, 0.0]], n=3).log_prob().round(1), model.score_draws([[0.0, 0.0]], n=3).round(1).T
    (array([-1.8], dtype=float32), array([[0., 0., 0.]], dtype=float32))
    >>> model.draw(torch.Generator().manual_seed(0)).log_prob([[0.0, 0.0]]).round(1)
    array([-1.8], dtype=float32)
    """
