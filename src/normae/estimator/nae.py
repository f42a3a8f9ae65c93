"""A normalized autoencoder for tables, in scikit-learn's way."""

import hashlib
import json
import logging
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from copy import deepcopy
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from normae.config import read
from normae.data import Rows
from normae.data.frames import Missing, as_frame, as_rows, column_names, no_index, unmasked
from normae.errors import InputError, LogZUnknown, check_once, refuse
from normae.files import write_json
from normae.inference import LogZ
from normae.networks import Autoencoder
from normae.networks.own import own_network
from normae.posterior.draw import Rows as AllDraws
from normae.progress import plain, shown_by
from normae.runs.automatic import Wishes, automatic_run, check_table, split_sizes
from normae.runs.door import keep, keep_table, kept_data, open_kept, train_in_memory, write_kept
from normae.runs.folder import DATA, RunFolder, read_json
from normae.runs.load import load_run
from normae.sources import load_events
from normae.statistics.arrays import unweighted

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]
MOST_KEPT = 100_000  # rows of a training table that is kept for `save`
FACTS = "estimator.json"  # the file of a saved run with what the estimator adds
ARRAYS: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": False}


def _is_bayesian(estimator: "NormalizedAutoencoder") -> bool:
    if not estimator.bayesian:
        raise AttributeError("error bars need NormalizedAutoencoder(bayesian=True)")
    return True


class NormalizedAutoencoder(OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """Density and anomaly score of a table: p(x) = exp(-E(x)/T)/Z, E a base plus the reconstruction error.

    The base is a density of the rows, of Gaussians and kernels, which the network corrects. Rows are whitened inside,
    so no scaler is needed before it. All settings that are None follow from the table. `fit`
    is the training of `normae.train`, and what `save` writes is a run folder that every command takes.

    Args:
        contamination: share of the training rows that `predict` calls anomalous; it sets `offset_` and nothing else.
        bayesian: trains eight models, each on a random half of the rows; the score is the mean of their log p, and
            `score_std` and `score_draws` are what they differ by.
        latent: dimension of the latent space.
        hidden: widths of the hidden layers of the encoder; the decoder mirrors them.
        start_iterations: updates of the weights in the classification of rows against draws of the base, at most.
        iterations: updates of the weights in a likelihood training that follows; none where it is None.
        batch_size: rows of an update, and as many Langevin chains.
        learning_rate: of the classification, decaying along a cosine, many times that of the likelihood training;
            lowered where a training runs away.
        chain_steps: Langevin steps of an update of the likelihood training.
        noise: the least variance of a direction when rows are whitened, in units of a column's variance; none is added
            to the rows.
        log_z: "auto" computes log Z after the training: from draws of the base where enough of them count, otherwise on
            a grid in one or two columns, and in more by annealed importance sampling, where its bounds agree; "never"
            leaves it out.
        condition: names or places of columns m: the density is p(x | m) of the others. Rows hold all columns.
        missing: of rows with missing values, NaN: "refuse" them, or "drop" them from the training; they have no score.
        device: "cpu", "cuda" or "auto".
        random_state: seed or generator for all randomness.
        verbose: 1 prints progress with the time left.

    Attributes:
        score_kind_: "log_prob" where log Z is known: `score_samples` is log p in the units of the table;
            "unnormalized" where it is not: log p up to a constant. A logged warning then says why.
        offset_: `decision_function` is `score_samples` minus it.
        temperature_: T.
        model_: the `normae.Model`, in the units of the table.
        n_features_in_, feature_names_in_: of the training table.
        frame_: no row of the data frame that was fitted; None of an array.

    >>> import numpy as np, normae
    >>> rows = np.random.default_rng(0).normal(size=(200, 1))
    >>> nae = normae.NormalizedAutoencoder(bayesian=True, start_iterations=20, iterations=5, random_state=0).fit(rows)
    >>> nae.score_samples([[0.0]]).round(), nae.predict([[0.0], [9.0]])
    (array([-1.]), array([ 1, -1]))
    >>> nae.score_std([[0.0]]) < 1
    array([ True])
    >>> float(nae.sample(100, random_state=0).std().round())
    1.0
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "contamination": [Interval(Real, 0, 0.5, closed="right")], "bayesian": ["boolean"],
        "latent": [Interval(Integral, 1, None, closed="left"), None], "hidden": ["array-like", None],
        "start_iterations": [Interval(Integral, 1, None, closed="left"), None],
        "iterations": [Interval(Integral, 0, None, closed="left"), None],
        "batch_size": [Interval(Integral, 2, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "chain_steps": [Interval(Integral, 1, None, closed="left")],
        "noise": [Interval(Real, 0, None, closed="neither"), None], "log_z": [StrOptions({"auto", "never"})],
        "condition": ["array-like", str, Integral, None], "missing": [StrOptions({"refuse", "drop"})],
        "device": [StrOptions({"auto", "cpu", "cuda"})], "random_state": ["random_state"], "verbose": ["verbose"],
    }  # fmt: skip

    def __init__(
        self, *, contamination: float = 0.1, bayesian: bool = False, latent: int | None = None,
        hidden: tuple[int, ...] | None = None, start_iterations: int | None = None, iterations: int | None = None,
        batch_size: int = 256, learning_rate: float = 1e-3, chain_steps: int = 4, noise: float | None = None,
        log_z: str = "auto", condition: Sequence[str | int] | str | int | None = None, missing: str = "refuse",
        device: str = "cpu", random_state: int | np.random.RandomState | None = None, verbose: int = 0,
    ) -> None:  # fmt: skip
        self.contamination, self.bayesian, self.latent, self.hidden = contamination, bayesian, latent, hidden
        self.start_iterations, self.iterations, self.batch_size = start_iterations, iterations, batch_size
        self.learning_rate, self.chain_steps, self.noise, self.log_z = learning_rate, chain_steps, noise, log_z
        self.condition, self.missing, self.device = condition, missing, device
        self.random_state, self.verbose = random_state, verbose

    # --- training

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> "NormalizedAutoencoder":  # noqa: ARG002
        """Train on the rows of X, with shape (N, d); y is not used.

        Args:
            sample_weight: with shape (N,); the model is the density of the weighted rows. Negative ones count as such.
        """
        self._validate_params()
        X = no_index(X)
        rows = self._weighted(X, sample_weight, reset=True).whole("X")
        self.frame_ = None if column_names(X) is None else X[:0]
        values, weights = check_table(rows, "X")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        hidden = None if self.hidden is None else tuple(int(width) for width in self.hidden)
        wishes = Wishes(
            self.latent, hidden, self.start_iterations, self.iterations, self.batch_size, self.learning_rate,
            self.chain_steps, self.noise, self.bayesian, self.log_z == "auto",
            () if self.condition is None else self.condition,
        )  # fmt: skip
        data = kept_data(rows, *split_sizes(len(values), test=False))
        run = automatic_run(values, data, wishes, type(self).__name__, seed, self.device, weights)
        with shown_by(plain()) if self.verbose else nullcontext():
            self._take(train_in_memory(run, load_events(data, seed, rows)))
        self.table_: Rows | Path | None = rows if len(values) <= MOST_KEPT else None
        self._set_offset(rows.values, rows.weights)
        if self.score_kind_ == "unnormalized" and self.log_z == "auto":
            log.warning("score_samples is log p up to a constant, since log Z is not known: %s", self._failure())
        return self

    def _take(self, run: dict[str, bytes], own: Autoencoder | None = None) -> None:
        self.run_, self._own = run, own
        self._open()
        self.temperature_ = self.model_.temperature
        facts = [json.loads(line) for line in run.get("metrics.jsonl", b"").splitlines()]
        self.n_iter_ = max([1, *(line["iteration"] for line in facts if line["phase"] == "contrast")])
        self.score_kind_ = "unnormalized"
        with suppress(LogZUnknown):
            if self.log_z != "never" and np.isfinite(self.model_.log_z.value):
                self.score_kind_ = "log_prob"

    def _open(self) -> None:
        self.model_ = open_kept(self.run_, self._own).model
        self.model_.name = type(self).__name__
        # in float64: a row's score must not depend on the rows that are scored with it; the user's code is in float32
        self._precise = deepcopy(self.model_).to(torch.float64) if self._own is None else self.model_

    def _failure(self) -> str:
        return str(json.loads(self.run_["provenance.json"]).get("log_z", {}).get("failed", "it was not asked for"))

    @property
    def log_z_(self) -> LogZ:
        """log Z of the density in the network's coordinates, with its error; `LogZUnknown` where it is not known."""
        check_is_fitted(self)
        return self.model_.log_z

    # --- run folders

    def save(self, folder: str | Path) -> None:
        """Write a run folder that every command takes, and `load` reads.

        The training table is in it as data.npz, where it has at most 100,000 rows.
        """
        check_is_fitted(self)
        write_kept(self.run_, folder)
        if self.table_ is not None:
            keep_table(Path(folder), self.table_)
        # a generator is no number: of it the run keeps the seed that it gave
        settings = {name: x for name, x in self.get_params().items() if not isinstance(x, np.random.RandomState)}
        offset = self.offset_ if np.isfinite(self.offset_) else None  # of a run whose table was not there
        write_json(Path(folder) / FACTS, self._bound({"offset": offset} | settings))

    def _bound(self, facts: dict[str, Any]) -> dict[str, Any]:
        """With a checksum of them and of the model."""
        words = json.dumps(facts, sort_keys=True, default=lambda numbers: numbers.tolist())
        return facts | {"checksum": hashlib.sha256(words.encode() + self.run_["model.safetensors"]).hexdigest()}

    @classmethod
    def load(cls, folder: str | Path, **modules: nn.Module | None) -> "NormalizedAutoencoder":
        """The estimator of a run folder on a table, whether `save`, `normae train` or `normae.train` made it.

        Args:
            modules: `encoder` and `decoder`, or `energy`, as in `normae.load`. A pickle holds them; `fit` takes others.

        >>> import numpy as np, normae
        >>> nae = normae.NormalizedAutoencoder(start_iterations=20, iterations=5, log_z="never", random_state=0)
        >>> nae.fit(np.random.default_rng(0).normal(size=(100, 1))).save("run")
        >>> normae.NormalizedAutoencoder.load("run").predict([[0.0], [9.0]])
        array([ 1, -1])
        """
        own = own_network(**modules)
        model, _, config, _ = load_run(folder, own=own)
        if config.data.file is None or len(model.event) != 1:
            raise InputError(f"{folder}: expected a run on a table, got events of shape {model.event}")
        estimator = cls(
            bayesian=config.halves > 0, latent=config.network.latent or None, hidden=config.network.hidden,
            condition=config.coordinates.condition or None, random_state=config.seed,
        )  # fmt: skip
        estimator._take(keep(folder), own and model.autoencoder)
        estimator.n_features_in_ = model.event[0]
        if model.columns is not None:
            estimator.feature_names_in_ = np.array(model.columns, dtype=object)
        estimator.table_, estimator.frame_ = Path(folder).resolve() / DATA, None
        estimator._find_offset(RunFolder(folder))
        return estimator

    def _find_offset(self, run: RunFolder) -> None:
        """From what `save` wrote, else from the rows held out; without either `predict` calls no row anomalous."""
        facts = run.path / FACTS
        if facts.is_file():
            said = read_json(facts)
            whole = isinstance(said, dict) and said == self._bound({k: x for k, x in said.items() if k != "checksum"})
            refuse(not whole, f"{facts}: damaged, or not of the model beside it; take it from a copy, or save again")
            settings = {name: x for name, x in said.items() if name not in ("offset", "checksum")}
            self.set_params(**{name: tuple(x) if isinstance(x, list) else x for name, x in settings.items()})
            if said["offset"] is not None:
                self.offset_ = float(said["offset"])
                return
        try:
            events = run.events(read(run.config))
            self._set_offset(events.test.numpy(), None if events.weights is None else events.weights.test.numpy())
        except InputError as error:
            log.warning("predict calls no row anomalous, since the run's table is not here: %s", error)
            self.offset_ = -np.inf

    def _set_offset(self, table: Floats, weights: Floats | None) -> None:
        """From the rows, or from every k-th where they are many."""
        some = slice(None, None, -(-len(table) // MOST_KEPT))
        scores = unweighted(self._score(table[some]), None if weights is None else weights[some])
        self.offset_ = float(np.percentile(scores, 100 * self.contamination))

    def __getstate__(self) -> dict[str, Any]:
        """Without the model, which is made again from the files of the run."""
        return {name: value for name, value in super().__getstate__().items() if name not in ("model_", "_precise")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "run_" in state:
            self._open()

    # --- scores

    def _checked(self, X: Any, reset: bool = False) -> Rows:
        """The rows of an array or of a data frame, text as codes; a training finds names and categories (`reset`)."""
        missing: Missing = "drop" if reset and self.missing == "drop" else "refuse"
        X = unmasked(no_index(X))
        given = column_names(X)
        if given is None:
            try:
                validate_data(self, X, reset=reset, ensure_min_samples=1 + reset, **ARRAYS)
            except ValueError:
                if np.asarray(X).dtype.kind in "OUS":
                    as_rows(X, None, "X", missing)  # says that it is text, which is all that NumPy's error shows
                raise
            return as_rows(np.asarray(X, order="C"), getattr(self, "feature_names_in_", None), "X", missing)
        check_once(given, "X")
        validate_data(self, X if hasattr(X, "shape") else X.to_pandas(), reset=reset, skip_check_array=True)
        if reset and given == list(getattr(X, "column_names", X.columns)) and not hasattr(self, "feature_names_in_"):
            self.feature_names_in_ = np.array(given, dtype=object)  # an older scikit-learn sees none
        known = None if reset else column_names(self.frame_)  # scikit-learn keeps no names that are not text
        if given != list(map(str, known or getattr(self, "feature_names_in_", given))):
            raise ValueError(f"X: expected the columns of the fit in their order, got {given[:12]}")
        rows = as_rows(X, None, "X", missing, None if reset else self.model_.categories)
        return rows if hasattr(self, "feature_names_in_") else rows._replace(columns=None)

    def _weighted(self, X: Any, weights: Any, reset: bool = False) -> Rows:
        wanted = "expected an array with shape (N,), got a name; give its values and leave the column out of X"
        refuse(isinstance(weights, str), f"sample_weight: {wanted}")
        return self._checked(X, reset).weighted(weights, "sample_weight")

    def _score(self, table: Floats) -> Floats:
        return np.asarray(-self._all(table).score())

    def _all(self, table: Floats) -> AllDraws:
        """-log p of every member, or -log p up to a constant."""
        rows: AllDraws = self._precise.rows(self._precise.doubted(table))
        return rows if self.score_kind_ == "unnormalized" else rows._replace(scores=-rows.log_prob_draws())

    def score_samples(self, X: Any) -> Floats:
        """log p of each row, or log p up to a constant, as `score_kind_` says, with shape (N,); low is anomalous."""
        check_is_fitted(self)
        return self._score(self._checked(X).values)

    def decision_function(self, X: Any) -> Floats:
        """`score_samples` minus `offset_`, with shape (N,): negative is anomalous."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """-1 for anomalous rows and 1 for the others, with shape (N,)."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:  # noqa: ARG002
        """Weighted mean of log p, for cross-validation; `LogZUnknown` where log Z is not known.

        Without it the means of two fits differ by a constant that nobody knows.
        """
        check_is_fitted(self)
        if self.score_kind_ == "unnormalized":
            why = "log Z was left out; fit with log_z='auto'" if self.log_z == "never" else self._failure()
            raise LogZUnknown(f"score: {why}. score_samples orders rows without it")
        rows = self._weighted(X, sample_weight)
        return float(np.average(self._score(rows.values), weights=rows.weights))

    # --- error bars

    @available_if(_is_bayesian)  # type: ignore[untyped-decorator]
    def score_draws(self, X: Any) -> Floats:
        """log p of each member, with shape (8, N): its own training on half of the rows, normalized by itself."""
        check_is_fitted(self)
        if self.score_kind_ == "unnormalized":
            raise LogZUnknown("score_draws: log Z of the members is not known, and they differ by it; see score_kind_")
        return np.asarray(-self._all(self._checked(X).values).scores)

    @available_if(_is_bayesian)  # type: ignore[untyped-decorator]
    def score_std(self, X: Any) -> Floats:
        """The error of `score_samples` with shape (N,). It aims at 68 %; docs/estimator.md has what was reached.

        The standard deviation over members, times `model_.bar`: of what they differ by, their rows count as they are,
        and the chance of a training as that of a mean of two.
        """
        return np.asarray(AllDraws(self.score_draws(X), bar=self.model_.bar).spread())

    # --- samples

    def sample(
        self, n_samples: int = 1, random_state: int | np.random.RandomState | None = None, condition: Any = None
    ) -> Any:
        """New rows with shape (n_samples, d): draws of the base that are kept; chains where too few are.

        An array, or a data frame like that of `fit`: of its kind, with its names and types, and text as it was.

        Args:
            condition: of p(x | m), m of one row, or of all with shape (n_samples, k); that of random rows by default.
        """
        check_is_fitted(self)
        refuse(n_samples < 1, f"n_samples: expected at least 1, got {n_samples}")
        random = check_random_state(self.random_state if random_state is None else random_state)
        table: Floats = self.model_.sample(n_samples, int(random.randint(2**31 - 1)), condition=condition)
        rows = Rows(table, self.model_.columns, None, self.model_.categories)
        return table if self.frame_ is None else as_frame(rows, self.frame_)
