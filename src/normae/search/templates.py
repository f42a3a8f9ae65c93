"""What a search takes over: binned samples with what is known of their errors, and documents of them for others.

**HEPData**: a submission of YAML documents. One table has the bins with their counts, the statistical error and the
spread over weight draws; the other the whole covariance over draws, which says how the bins move together.

**pyhf**: HistFactory's model in JSON. Expected events in a bin are mu s_b + n_b, each sample moved by shared nuisance
parameters: `staterror`, the limited number of simulated events; `histosys` for each shift of the covariance over weight
draws, n_b + a d_b with a ~ N(0, 1), under the same name in all samples, so that one parameter moves them together;
`normsys` for the yield of the background. Without data the observation is the background expectation (Asimov).
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import Any

import numpy as np

from normae.statistics.arrays import Array
from normae.statistics.histogram import covariance, shifts

NAMES = {"score": "score E/T", "log_prob": "log p", "p_value": "p-value"}
FLOWS = "Events beyond the outer edges are counted in the outer bins."
CHANNEL, STRENGTH = "anomaly", "mu"


@dataclass(frozen=True)
class Sample:
    """A histogram.

    Args:
        value, variance: sums of weights and of squared weights in each bin, with shape (B,).
        draws: `value` for each weight draw, with shape (K, B); None for a deterministic model.
        events: that were filled.
    """

    value: Array
    variance: Array
    draws: Array | None
    events: int

    def __add__(self, other: "Sample") -> "Sample":
        draws = None if self.draws is None or other.draws is None else self.draws + other.draws
        return Sample(self.value + other.value, self.variance + other.variance, draws, self.events + other.events)

    def scaled(self, factor: float) -> "Sample":
        """With all weights times `factor`."""
        draws = None if self.draws is None else factor * self.draws
        return Sample(factor * self.value, factor**2 * self.variance, draws, self.events)


@dataclass(frozen=True)
class Templates:
    """The samples of one channel.

    Args:
        quantity: "score", "log_prob" or "p_value".
        edges: of the B bins, with shape (B + 1,); events beyond the outer ones are in the outer bins.
        background: what is expected without a signal.
        signal: what comes on top for a strength of 1.
        data: counts with shape (B,) that were seen.
        normalization: relative uncertainty of the background's yield; 0 for none.
        least: of the covariance, shifts that move no bin by this share of its statistical error are left out.

    >>> import numpy as np
    >>> from normae.search import Sample, Templates
    >>> counts, draws = np.array([4.0, 1.0]), np.array([[3.0, 2.0], [5.0, 0.0]])
    >>> background = Sample(counts, variance=counts, draws=draws, events=5)
    >>> Templates("score", np.array([0.0, 1.0, 2.0]), background).covariance
    array([[ 2., -2.],
           [-2.,  2.]])
    """

    quantity: str
    edges: Array
    background: Sample
    signal: Sample | None = None
    data: Array | None = None
    normalization: float = 0.0
    least: float = 0.01

    @property
    def samples(self) -> dict[str, Sample]:
        """By name, in the order in which they are stacked."""
        found = {"background": self.background}
        return found if self.signal is None else found | {"signal": self.signal}

    @cached_property
    def covariance(self) -> Array | None:
        """Over weight draws, with shape (B, B), or (2 B, 2 B) with a signal, background first."""
        draws = [sample.draws for sample in self.samples.values()]
        stacked = [one for one in draws if one is not None]
        return covariance(np.concatenate(stacked, axis=1)) if len(stacked) == len(draws) else None

    @cached_property
    def shifts(self) -> dict[str, Array]:
        """Of each sample, with shape (r, B): its part of the r shifts that all samples share."""
        bins = len(self.edges) - 1
        if self.covariance is None:
            return {name: np.zeros((0, bins)) for name in self.samples}
        poisson = np.sqrt(np.maximum(self.background.value, 0) + self.background.variance)
        found = shifts(self.covariance, np.tile(poisson, len(self.samples)), self.least)
        return {name: found[:, k * bins : (k + 1) * bins] for k, name in enumerate(self.samples)}


def hepdata_tables(templates: Templates, comment: str) -> dict[str, list[dict[str, Any]]]:
    """The documents of each file of the submission, by its name; `comment` is what it is about."""
    quantity = NAMES[templates.quantity]
    bins = [{"low": float(low), "high": float(high)} for low, high in pairwise(templates.edges)]
    counts = {f"{name.capitalize()} events": _values(sample) for name, sample in templates.samples.items()}
    if templates.data is not None:
        counts["Data events"] = [{"value": float(n)} for n in templates.data]
    words = f"Events in bins of the {quantity}. {FLOWS}"
    tables = [("Histogram", "histogram.yaml", words, {quantity: bins}, counts)]
    if templates.covariance is not None:
        words = "Covariance of the background's bins over weight draws of the Bayesian network. " + FLOWS
        first, second = ([dict(pair[k]) for pair in product(bins, bins)] for k in (0, 1))
        axes = {f"{quantity}, first bin": first, f"{quantity}, second bin": second}
        own = templates.covariance[: len(bins), : len(bins)].ravel()
        values = {"Covariance": [{"value": float(value)} for value in own]}
        tables.append(("Covariance over weight draws", "covariance.yaml", words, axes, values))
    files: dict[str, list[dict[str, Any]]] = {"submission.yaml": [{"comment": comment}]}
    keywords = [{"name": "phrases", "values": ["anomaly detection", "normalized autoencoder"]}]
    for name, file, description, axes, values in tables:
        entry = {"name": name, "description": description, "keywords": keywords, "data_file": file}
        files["submission.yaml"].append(entry)
        kinds = {"independent_variables": axes, "dependent_variables": values}
        of_kinds = ([{"header": {"name": n}, "values": v} for n, v in of.items()] for of in kinds.values())
        files[file] = [dict(zip(kinds, of_kinds, strict=True))]
    return files


def _values(sample: Sample) -> list[dict[str, Any]]:
    errors = {"statistics": np.sqrt(sample.variance)}
    if sample.draws is not None:
        errors["weight draws"] = sample.draws.std(0, ddof=1)
    own = [[{"symerror": e, "label": label} for e in error.tolist()] for label, error in errors.items()]
    return [{"value": value, "errors": of} for value, *of in zip(sample.value.tolist(), *own, strict=True)]


def workspace(templates: Templates) -> dict[str, Any]:
    """The workspace as JSON values."""
    samples = [_sample(templates, name) for name in templates.samples]
    data = templates.background.value if templates.data is None else templates.data
    poi = STRENGTH if templates.signal is not None else ""
    parameters = [{"name": STRENGTH, "bounds": [[0.0, 10.0]], "inits": [1.0]}] if poi else []
    return {
        "channels": [{"name": CHANNEL, "samples": samples}],
        "observations": [{"name": CHANNEL, "data": [float(n) for n in data]}],
        "measurements": [{"name": "search", "config": {"poi": poi, "parameters": parameters}}],
        "version": "1.0.0",
    }


def _sample(templates: Templates, name: str) -> dict[str, Any]:
    sample = templates.samples[name]
    modifiers: list[dict[str, Any]] = []
    if name == "signal":
        modifiers.append({"name": STRENGTH, "type": "normfactor", "data": None})
    elif templates.normalization:
        sides = {"hi": 1 + templates.normalization, "lo": 1 / (1 + templates.normalization)}
        modifiers.append({"name": "background_yield", "type": "normsys", "data": sides})
    if sample.variance.any():
        errors = np.sqrt(sample.variance).tolist()
        modifiers.append({"name": f"staterror_{CHANNEL}", "type": "staterror", "data": errors})
    for k, shift in enumerate(templates.shifts[name]):
        moved = {"hi_data": _positive(sample.value + shift), "lo_data": _positive(sample.value - shift)}
        modifiers.append({"name": f"weights_{k}", "type": "histosys", "data": moved})
    return {"name": name, "data": _positive(sample.value), "modifiers": modifiers}


def _positive(values: Array) -> list[float]:
    """Of expected counts, of which pyhf needs positive ones."""
    return [float(value) for value in np.maximum(values, 1e-9)]
