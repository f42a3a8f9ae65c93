"""p-values of a search with pyhf, and whether they are what they say under background only.

With t = -2 log [L(0, a^^)/L(mu^, a^)] for the likelihood maximized over the nuisance parameters at mu = 0, and over
mu too, the signed root r = sign(mu^) sqrt(t) is standard normal under background only if there are enough events, and

    p = 1 - Phi(r)

is uniform between 0 and 1: small where data look like signal on top of background. mu may be negative in the fit, so
that a deficit has a p-value above one half instead of one that is cut there.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
import pyhf
from numpy.typing import NDArray
from scipy.stats import kstest, norm

from normae.errors import InputError, refuse
from normae.progress import counted
from normae.search.templates import Templates, workspace
from normae.statistics.arrays import Array

REACH = 0.9  # how far down the fit may take mu: to where this share of the least covered bin's background is gone


class Discovery(NamedTuple):
    """Fitted signal strength, r, and the p-value of background only."""

    strength: float
    root: float
    p_value: float


class Uniformity(NamedTuple):
    """Kolmogorov and Smirnov's test of p-values, and shares below levels with their binomial errors."""

    ks_p_value: float
    share_below: dict[str, tuple[float, float]]


def build(spec: dict[str, Any]) -> Any:
    """The pyhf model of a workspace, which is checked against pyhf's schema."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "jsonschema.RefResolver", DeprecationWarning)  # pyhf's affair
            return pyhf.Workspace(spec).model()
    except (pyhf.exceptions.InvalidSpecification, pyhf.exceptions.InvalidModel) as error:
        raise InputError(f"not a pyhf workspace ({error})") from None


def discovery(templates: Templates, data: Array | None = None) -> Discovery:
    """The search's answer for counts with shape (B,); those of `templates` where None."""
    refuse(templates.signal is None, "a p-value needs a signal, whose strength is fitted; give --signal")
    spec = workspace(templates)
    model = build(spec)
    seen = spec["observations"][0]["data"] if data is None else data
    return _fit(model, templates, np.concatenate([seen, model.config.auxdata]))


def _fit(model: Any, templates: Templates, data: Array) -> Discovery:
    assert templates.signal is not None
    signal = np.maximum(templates.signal.value, 1e-300)
    lowest = -REACH * float((templates.background.value / signal).min())
    highest = float(10 * data[: len(signal)].sum() / signal.sum())
    bounds = list(model.config.suggested_bounds())
    start = list(model.config.suggested_init())
    bounds[model.config.poi_index], start[model.config.poi_index] = (lowest, highest), 0.0
    _, low = pyhf.infer.mle.fixed_poi_fit(0.0, data, model, start, bounds, return_fitted_val=True)
    best, top = pyhf.infer.mle.fit(data, model, start, bounds, return_fitted_val=True)
    strength = float(best[model.config.poi_index])
    root = float(np.sign(strength) * np.sqrt(max(float(low) - float(top), 0.0)))
    return Discovery(strength, root, float(norm.sf(root)))


def pseudo_experiments(templates: Templates, count: int, seed: int = 0) -> NDArray[np.float64]:
    """p-values with shape (count,) of data drawn from the background-only model, with constraints drawn anew."""
    model = build(workspace(templates))
    random = np.random.default_rng(seed)
    point = np.array(model.config.suggested_init())
    point[model.config.poi_index] = 0.0
    expected, centre = np.asarray(model.expected_actualdata(point)), np.asarray(model.expected_auxdata(point))
    widths = np.array([w for name in model.config.auxdata_order for w in model.config.param_set(name).width()])
    found = []
    for _ in counted("experiments", range(count)):
        data = random.poisson(expected).astype(np.float64)
        auxiliary = centre + widths * random.standard_normal(len(centre))  # all Gaussian here
        found.append(_fit(model, templates, np.concatenate([data, auxiliary])).p_value)
    return np.array(found)


def uniformity(p_values: Array) -> Uniformity:
    """Whether p-values with shape (n,) are uniform."""
    errors = {level: float(np.sqrt(level * (1 - level) / len(p_values))) for level in (0.05, 0.16, 0.5, 0.84)}
    shares = {f"{level:g}": (float((p_values <= level).mean()), error) for level, error in errors.items()}
    return Uniformity(float(kstest(p_values, "uniform").pvalue), shares)
