"""Detectors that the tables compare, each with its default settings: `fit(rows, seed)` gives a `Fitted`.

`bench/tables.py` and `bench/public_tables.py` take them from here. What sees standardized columns has a `Standardized`
around it, so that a density is still one in the units of the table.
"""

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import skew
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity, LocalOutlierFactor, NearestNeighbors
from sklearn.preprocessing import StandardScaler
from sklearn.svm import OneClassSVM

from normae import NormalizedAutoencoder

Array = np.ndarray


class Fitted(NamedTuple):
    """The score of rows (N, d), with shape (N,): high is normal; `density` says whether it is log p."""

    score: Callable[[Array], Array]
    density: bool = False


Fit = Callable[[Array, int], Fitted]


@dataclass(frozen=True)
class Standardized:
    """A detector that sees columns of mean 0 and variance 1."""

    fit: Fit

    def __call__(self, rows: Array, seed: int) -> Fitted:
        scaler = StandardScaler().fit(rows)
        score, density = self.fit(scaler.transform(rows), seed)
        shift = np.log(scaler.scale_).sum() if density else 0.0
        return Fitted(lambda x: score(scaler.transform(x)) - shift, density)


@dataclass(frozen=True)
class Nae:
    """`normae.NormalizedAutoencoder`, with some settings that are not its defaults."""

    settings: dict[str, Any]

    def __call__(self, rows: Array, seed: int) -> Fitted:
        model = NormalizedAutoencoder(random_state=seed, **self.settings).fit(rows)
        return Fitted(model.score_samples, model.score_kind_ == "log_prob")


def forest(rows: Array, seed: int) -> Fitted:
    return Fitted(IsolationForest(random_state=seed).fit(rows).score_samples)


def neighbours(rows: Array, seed: int) -> Fitted:  # noqa: ARG001
    """Distance to the fifth neighbour."""
    model = NearestNeighbors(n_neighbors=5).fit(rows)
    return Fitted(lambda x: -model.kneighbors(x)[0][:, -1])


def local_outliers(rows: Array, seed: int) -> Fitted:  # noqa: ARG001
    return Fitted(LocalOutlierFactor(novelty=True).fit(rows).score_samples)


def support_vectors(rows: Array, seed: int) -> Fitted:  # noqa: ARG001
    return Fitted(OneClassSVM().fit(rows).score_samples)


def gaussians(rows: Array, seed: int) -> Fitted:
    """A mixture of five full Gaussians; of few rows one Gaussian for every 50."""
    components = max(1, min(5, len(rows) // 50))
    model = GaussianMixture(components, reg_covar=1e-3, random_state=seed).fit(rows)
    return Fitted(model.score_samples, density=True)


def gaussians_by_bic(rows: Array, seed: int, most: int = 20, patience: int = 5) -> Fitted:
    """1 to `most` full Gaussians, as many as have the lowest BIC; no more are tried after `patience` in vain."""
    models, criteria = [], []
    for components in range(1, min(most, len(rows)) + 1):
        models.append(GaussianMixture(components, reg_covar=1e-3, random_state=seed).fit(rows))
        criteria.append(models[-1].bic(rows))
        if components - np.argmin(criteria) > patience:
            break
    return Fitted(models[int(np.argmin(criteria))].score_samples, density=True)


def empirical_tails(rows: Array, seed: int) -> Fitted:  # noqa: ARG001
    """ECOD: minus the logarithms of a row's tail probabilities, summed over columns; the largest of three sums.

    The tails are the left ones, the right ones, and for each column that to which its skewness points. They count the
    row itself among the n training rows, so that none is 0.
    """
    ordered, left_skewed = np.sort(rows, axis=0), skew(rows, axis=0) < 0

    def score(x: Array) -> Array:
        columns = list(zip(ordered.T, x.T, strict=True))
        below = np.stack([np.searchsorted(known, column, "right") for known, column in columns], axis=1)
        above = len(rows) - np.stack([np.searchsorted(known, column, "left") for known, column in columns], axis=1)
        left, right = (-np.log((counts + 1) / (len(rows) + 1)) for counts in (below, above))
        by_skewness = np.where(left_skewed, left, right)
        largest: Array = np.max([tails.sum(axis=1) for tails in (left, right, by_skewness)], axis=0)
        return -largest

    return Fitted(score)


def residual(rows: Array, seed: int) -> Fitted:  # noqa: ARG001
    """Squared distance from the principal components that have 90 % of the variance."""
    model = PCA(n_components=0.9, svd_solver="full").fit(rows)
    return Fitted(lambda x: -((x - model.inverse_transform(model.transform(x))) ** 2).sum(axis=1))


def kernels(rows: Array, seed: int) -> Fitted:  # noqa: ARG001
    """A kernel density, its bandwidth by cross-validation."""
    search = GridSearchCV(KernelDensity(), {"bandwidth": np.geomspace(0.03, 3, 15)})
    return Fitted(search.fit(rows).best_estimator_.score_samples, density=True)


@dataclass(frozen=True)
class Pyod:
    """A detector of PyOD, by its module and its name there."""

    module: str
    name: str

    def __call__(self, rows: Array, seed: int) -> Fitted:
        kind = getattr(importlib.import_module(f"pyod.models.{self.module}"), self.name)
        offered = {"random_state": seed, "verbose": 0, "n_features": rows.shape[1]}
        taken = offered.keys() & inspect.signature(kind).parameters
        model = kind(**{name: offered[name] for name in taken}).fit(rows)
        return Fitted(lambda x: -model.decision_function(x))


def flow(rows: Array, seed: int) -> Fitted:
    """A neural spline flow of zuko, stopped on a fifth of the rows."""
    zuko = importlib.import_module("zuko")
    torch.manual_seed(seed)
    events = torch.from_numpy(rows).float()[torch.randperm(len(rows))]
    held = len(events) // 5
    model = zuko.flows.NSF(events.shape[1], transforms=3, hidden_features=(64, 64))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    best, kept, waited = np.inf, model.state_dict(), 0
    for step in range(1, 1501):
        batch = events[held + torch.randint(len(events) - held, (256,))]
        optimizer.zero_grad()
        (-model().log_prob(batch).mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 0:
            with torch.no_grad():
                loss = float(-model().log_prob(events[:held]).mean())
            waited = 0 if loss < best else waited + 1
            if loss < best:
                best, kept = loss, {name: value.clone() for name, value in model.state_dict().items()}
            if waited == 8:
                break
    model.load_state_dict(kept)

    @torch.no_grad()
    def score(x: Array) -> Array:
        log_p: Array = model().log_prob(torch.from_numpy(x).float()).numpy()
        return log_p

    return Fitted(score, density=True)


def installed(detectors: dict[str, Fit], needs: dict[str, str]) -> dict[str, Fit]:
    """The detectors whose package is there; the others are named in a printed line.

    Args:
        needs: the package of a detector that needs one.
    """
    absent = {name for name in detectors if name in needs and importlib.util.find_spec(needs[name]) is None}
    for name in sorted(absent):
        print(f"{name} is left out: {needs[name]} is not installed", flush=True)
    return {name: fit for name, fit in detectors.items() if name not in absent}
