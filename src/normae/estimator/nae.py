"""A normalized autoencoder for tables, in scikit-learn's way."""

import logging
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from normae.errors import InputError, LogZDisagreement
from normae.estimator.fitting import fit
from normae.estimator.normalization import log_z_of, loosened
from normae.estimator.preparation import Floats, Preparation
from normae.estimator.settings import HELD_OUT, Wishes, settings_for
from normae.inference import BayesianModel, LogZ, Model
from normae.posterior.laplace import LaplaceConfig, LaplacePosterior, fit_laplace
from normae.random import stream

log = logging.getLogger(__name__)

REFERENCE = 2000
"""Training rows that stand for the model where a draw's change of log Z is needed."""


def _is_bayesian(estimator: "NormalizedAutoencoder") -> bool:
    if not estimator.bayesian:
        raise AttributeError("error bars need bayesian=True")
    return True


class NormalizedAutoencoder(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """Density and anomaly score of a table: p(x) = exp(-E(x)/T)/Z with E the reconstruction error.

    Rows are whitened inside, so no scaler is needed before it. All settings that are None follow from the table.

    Args:
        contamination: share of the training rows that `predict` calls anomalous; it sets `offset_` and nothing else.
        bayesian: adds `score_std` and `score_draws`, from the posterior of the linearized network.
        latent: dimension of the latent space.
        hidden: widths of the hidden layers of the encoder; the decoder mirrors them.
        start_iterations: updates of the weights in the classification that training begins with, at most.
        iterations: updates of the weights in the likelihood training that follows.
        batch_size: rows of an update, and as many Langevin chains.
        learning_rate: of the start, decaying along a cosine, many times that of the likelihood training; lowered
            where a training runs away.
        chain_steps: Langevin steps of an update.
        noise: variance of the noise added to the training rows, in units of a column's variance.
        log_z: "auto" computes log Z after the training: on a grid in one or two columns, in more by annealed importance
            sampling, where its bounds agree; "never" leaves it out.
        device: "cpu", "cuda" or "auto".
        random_state: seed or generator for all randomness.

    Attributes:
        score_kind_: "log_prob" where log Z is known: `score_samples` is log p in the units of the table;
            "unnormalized" where it is not: log p up to a constant, -E/T plus the logarithm of the preparation's slope.
            A logged warning then says why.
        offset_: `decision_function` is `score_samples` minus it.
        temperature_: T.
        model_: the `normae.Model` in prepared coordinates.
        preparation_: the map from rows to these coordinates.
        n_features_in_, feature_names_in_: of the training table.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "contamination": [Interval(Real, 0, 0.5, closed="right")],
        "bayesian": ["boolean"],
        "latent": [Interval(Integral, 1, None, closed="left"), None],
        "hidden": ["array-like", None],
        "start_iterations": [Interval(Integral, 1, None, closed="left"), None],
        "iterations": [Interval(Integral, 1, None, closed="left"), None],
        "batch_size": [Interval(Integral, 2, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "chain_steps": [Interval(Integral, 1, None, closed="left")],
        "noise": [Interval(Real, 0, None, closed="neither"), None],
        "log_z": [StrOptions({"auto", "never"})],
        "device": [StrOptions({"auto", "cpu", "cuda"})],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        *,
        contamination: float = 0.1,
        bayesian: bool = False,
        latent: int | None = None,
        hidden: tuple[int, ...] | None = None,
        start_iterations: int | None = None,
        iterations: int | None = None,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        chain_steps: int = 8,
        noise: float | None = None,
        log_z: str = "auto",
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.contamination = contamination
        self.bayesian = bayesian
        self.latent = latent
        self.hidden = hidden
        self.start_iterations = start_iterations
        self.iterations = iterations
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.chain_steps = chain_steps
        self.noise = noise
        self.log_z = log_z
        self.device = device
        self.random_state = random_state

    # --- training

    def fit(self, X: Any, y: Any = None) -> "NormalizedAutoencoder":  # noqa: ARG002
        """Train on the rows of X, with shape (N, d); y is not used."""
        self._validate_params()
        table = self._finite(
            validate_data(self, X, dtype=np.float64, order="C", ensure_min_samples=2, ensure_all_finite=False)
        )
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        self.preparation_ = Preparation.of(table, self.noise)
        farthest = float(np.abs(self.preparation_.forward(table)).max())
        settings = settings_for(len(table), table.shape[1], farthest, self._wishes())
        train, held_out = self._split(table, settings.copies, random)
        fitted = fit(train, held_out, settings, seed, self._device())
        self.temperature_, self.chains_, self.n_tries_ = fitted.temperature, fitted.chains.numpy(), fitted.tries
        self.n_iter_ = max(1, fitted.iterations)
        event = (table.shape[1],)
        self.model_ = Model(
            fitted.autoencoder, fitted.temperature, event, fitted.sampling, name="NormalizedAutoencoder"
        )
        if self.bayesian:
            self._fit_posterior(torch.from_numpy(self.preparation_.noisy(table, 1, random)).float(), seed)
        self._normalize(fitted.chains, seed)
        self.offset_ = float(np.percentile(self._score(table), 100 * self.contamination))
        return self

    def _split(self, table: Floats, copies: int, random: np.random.RandomState) -> tuple[torch.Tensor, torch.Tensor]:
        """Noisy prepared rows to train on and to hold out; a table of less than 10 rows is used for both."""
        order = random.permutation(len(table))
        held = 0 if len(table) < 10 else round(HELD_OUT * len(table))
        parts = [(order[held:], copies), (order[:held] if held else order, max(1, 2000 // max(held, 1)))]
        train, held_out = (
            torch.from_numpy(self.preparation_.noisy(table[rows], n, random)).float() for rows, n in parts
        )
        return train, held_out

    def _wishes(self) -> Wishes:
        hidden = None if self.hidden is None else tuple(int(width) for width in self.hidden)
        return Wishes(
            self.latent, hidden, self.start_iterations, self.iterations, self.batch_size, self.learning_rate,
            self.chain_steps,
        )  # fmt: skip

    def _device(self) -> torch.device:
        wanted = ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device
        if wanted == "cuda" and not torch.cuda.is_available():
            raise InputError('device: expected "cpu" or "auto" on a machine without a CUDA device, got "cuda"')
        return torch.device(wanted)

    def _fit_posterior(self, rows: torch.Tensor, seed: int) -> None:
        model, n = self.model_, len(rows)
        inducing = min(1000, n)
        config = LaplaceConfig(rank=min(100, inducing - 1), inducing=inducing, events=min(20_000, n))
        found = fit_laplace(model.autoencoder, model.temperature, rows, config, stream(seed, "laplace"))
        posterior = LaplacePosterior(model.autoencoder, model.temperature, found, config.layers)
        self.model_ = BayesianModel(
            model.autoencoder, posterior, model.temperature, model.event, model.sampling, name=model.name
        )
        self.reference_ = rows[:REFERENCE].numpy()

    def _normalize(self, chains: torch.Tensor, seed: int) -> None:
        self.score_kind_ = "unnormalized"
        if self.log_z == "never":
            return
        try:
            self.model_.log_z = log_z_of(self.model_, chains, seed)
        except (LogZDisagreement, InputError) as error:  # a finished training is kept, whatever comes of its log Z
            log.warning("score_samples is log p up to a constant, since log Z is not known: %s", error)
        else:
            self.score_kind_ = "log_prob"

    @property
    def log_z_(self) -> LogZ:
        """log Z of the density of prepared rows, with its error; `LogZUnknown` where it is not known."""
        check_is_fitted(self)
        log_z: LogZ = self.model_.log_z
        return log_z

    # --- scores

    def _rows(self, X: Any) -> Floats:
        check_is_fitted(self)
        return self._finite(validate_data(self, X, dtype=np.float64, order="C", reset=False, ensure_all_finite=False))

    def _finite(self, table: Floats) -> Floats:
        """The table; one sentence instead of scikit-learn's paragraph where it has NaN or infinity."""
        spoiled = ~np.isfinite(table)
        if not spoiled.any():
            return table
        row, column = np.argwhere(spoiled)[0]
        what = "NaN" if np.isnan(table[row, column]) else "infinity (inf)"
        names = getattr(self, "feature_names_in_", range(table.shape[1]))
        raise InputError(
            f"X: expected finite numbers, got {what} in row {row}, column {names[column]!r}, and NaN or infinity in "
            f"{int(spoiled.any(1).sum())} of {len(table)} rows; fill or remove them first"
        )

    def _score(self, table: Floats) -> Floats:
        # the energy is called with tensors, since that of arrays goes through float32
        y, centre = torch.from_numpy(self.preparation_.forward(table)), self.model_.centre
        with torch.no_grad():
            energy = torch.cat([centre.energy(piece) for piece in torch.split(y, 1 << 14)])
        score: Floats = -energy.numpy() / self.temperature_ - self._constant() + self.preparation_.log_slope(table)
        return score

    def _constant(self) -> float:
        return float(self.model_.log_z.value) if self.score_kind_ == "log_prob" else 0.0

    def score_samples(self, X: Any) -> Floats:
        """log p of each row, or log p up to a constant, as `score_kind_` says, with shape (N,); low is anomalous."""
        return self._score(self._rows(X))

    def decision_function(self, X: Any) -> Floats:
        """`score_samples` minus `offset_`, with shape (N,): negative is anomalous."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """-1 for anomalous rows and 1 for the others, with shape (N,)."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def score(self, X: Any, y: Any = None) -> float:  # noqa: ARG002
        """Mean of `score_samples`: what cross-validation maximizes. Comparable where `score_kind_` is "log_prob"."""
        return float(self.score_samples(X).mean())

    # --- error bars

    @available_if(_is_bayesian)  # type: ignore[untyped-decorator]
    def score_draws(self, X: Any, n_draws: int = 100, random_state: int = 0) -> Floats:
        """`score_samples` of each of `n_draws` weight draws, with shape (n_draws, N).

        In one or two dimensions each draw has its own log Z. In more, its change is taken to first order, from the
        training rows: log Z_k - log Z = -<s_k - s>.
        """
        table = self._rows(X)
        if n_draws < 1:
            raise InputError(f"n_draws: expected at least 1, got {n_draws}")
        y = self.preparation_.forward(table)
        slope = self.preparation_.log_slope(table)
        model: Any = self.model_
        if self.score_kind_ == "log_prob" and model.event[0] <= 2:
            return np.asarray(model.log_prob_draws(y, n_draws, random_state), dtype=np.float64) + slope
        drawn = np.asarray(model.score_draws(np.concatenate([self.reference_, y]), n_draws, random_state), np.float64)
        known = len(self.reference_)
        own = np.asarray(model.centre.score(self.reference_), dtype=np.float64)
        change = (drawn[:, :known] - own).mean(1, keepdims=True)
        draws: Floats = change - drawn[:, known:] - self._constant() + slope
        return draws

    @available_if(_is_bayesian)  # type: ignore[untyped-decorator]
    def score_std(self, X: Any, n_draws: int = 100, random_state: int = 0) -> Floats:
        """Standard deviation of `score_samples` over weight draws, with shape (N,)."""
        if n_draws < 2:
            raise InputError(f"n_draws: expected at least 2 for a standard deviation, got {n_draws}")
        deviation: Floats = self.score_draws(X, n_draws, random_state).std(0, ddof=1)
        return deviation

    # --- samples

    def sample(self, n_samples: int = 1, random_state: int | np.random.RandomState | None = None) -> Floats:
        """New rows with shape (n_samples, d): the persistent chains of the training, gone on."""
        check_is_fitted(self)
        if n_samples < 1:
            raise InputError(f"n_samples: expected at least 1, got {n_samples}")
        random = check_random_state(self.random_state if random_state is None else random_state)
        start = torch.from_numpy(self.chains_[random.randint(len(self.chains_), size=n_samples)]).double()
        generator = stream(int(random.randint(2**31 - 1)), "sample")
        start = loosened(self.model_, self.model_.energy_function, start, generator)
        end = self.model_.centre.continue_chain(start, generator, self.model_.sampling.generation_steps).position
        return self.preparation_.inverse(end.numpy())
