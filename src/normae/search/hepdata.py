"""Templates as HEPData tables: a submission of YAML documents, each a dictionary here.

One table has the bins with their counts, the statistical error and the spread over weight draws; the other the whole
covariance over draws, which says how the bins move together.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from normae.search.templates import Sample, Templates
from normae.statistics.histogram import Floats

NAMES = {"score": "score E/T", "log_prob": "log p", "p_value": "p-value"}
FLOWS = "Events beyond the outer edges are counted in the outer bins."


def hepdata_tables(templates: Templates, comment: str) -> dict[str, list[dict[str, Any]]]:
    """The documents of each file of the submission, by its name.

    Args:
        comment: what the submission is about.
    """
    entries = [_entry("Histogram", "histogram.yaml", f"Events in bins of the {NAMES[templates.quantity]}. {FLOWS}")]
    files = {"histogram.yaml": [_histogram(templates)]}
    if templates.covariance is not None:
        words = "Covariance of the background's bins over weight draws of the Bayesian network. " + FLOWS
        entries.append(_entry("Covariance over weight draws", "covariance.yaml", words))
        files["covariance.yaml"] = [_covariance(templates, templates.covariance)]
    return {"submission.yaml": [{"comment": comment}, *entries], **files}


def _entry(name: str, file: str, description: str) -> dict[str, Any]:
    keywords = [{"name": "phrases", "values": ["anomaly detection", "normalized autoencoder"]}]
    return {"name": name, "description": description, "keywords": keywords, "data_file": file}


def _bins(edges: Floats) -> list[dict[str, float]]:
    return [{"low": float(low), "high": float(high)} for low, high in pairwise(edges)]


def _variable(name: str, values: list[Any]) -> dict[str, Any]:
    return {"header": {"name": name}, "values": values}


def _histogram(templates: Templates) -> dict[str, Any]:
    columns = [_variable(f"{name.capitalize()} events", _values(s)) for name, s in templates.samples.items()]
    if templates.data is not None:
        columns.append(_variable("Data events", [{"value": float(n)} for n in templates.data]))
    axis = _variable(NAMES[templates.quantity], _bins(templates.edges))
    return {"independent_variables": [axis], "dependent_variables": columns}


def _values(sample: Sample) -> list[dict[str, Any]]:
    errors = {"statistics": np.sqrt(sample.variance)}
    if sample.draws is not None:
        errors["weight draws"] = sample.draws.std(0, ddof=1)
    return [
        {
            "value": float(value),
            "errors": [{"symerror": float(error[b]), "label": label} for label, error in errors.items()],
        }
        for b, value in enumerate(sample.value)
    ]


def _covariance(templates: Templates, matrix: Floats) -> dict[str, Any]:
    bins = _bins(templates.edges)
    count = len(bins)
    own = matrix[:count, :count]
    first = _variable(f"{NAMES[templates.quantity]}, first bin", [dict(one) for one in bins for _ in bins])
    second = _variable(f"{NAMES[templates.quantity]}, second bin", [dict(one) for _ in bins for one in bins])
    values = _variable("Covariance", [{"value": float(value)} for value in own.ravel()])
    return {"independent_variables": [first, second], "dependent_variables": [values]}
