"""Templates as a pyhf workspace: HistFactory's model in JSON.

Expected events in a bin are mu s_b + n_b, each sample moved by shared nuisance parameters: `staterror`, the limited
number of simulated events; `histosys` for each shift of the covariance over weight draws, n_b + a d_b with a ~ N(0, 1),
under the same name in all samples, so that one parameter moves them together; `normsys` for the yield of the
background. Without data the observation is the background expectation (Asimov).
"""

from typing import Any

import numpy as np

from normae.search.templates import Templates
from normae.statistics.histogram import Floats

CHANNEL, STRENGTH = "anomaly", "mu"
STRENGTH_BOUNDS = [0.0, 10.0]
SMALLEST = 1e-9
"""Of an expected count: pyhf needs positive ones."""


def workspace(templates: Templates) -> dict[str, Any]:
    """The workspace as JSON values."""
    samples = [_sample(templates, name) for name in templates.samples]
    data = templates.background.value if templates.data is None else templates.data
    poi = STRENGTH if templates.signal is not None else ""
    parameters = [{"name": STRENGTH, "bounds": [STRENGTH_BOUNDS], "inits": [1.0]}] if poi else []
    return {
        "channels": [{"name": CHANNEL, "samples": samples}],
        "observations": [{"name": CHANNEL, "data": _numbers(data)}],
        "measurements": [{"name": "search", "config": {"poi": poi, "parameters": parameters}}],
        "version": "1.0.0",
    }


def _sample(templates: Templates, name: str) -> dict[str, Any]:
    sample = templates.samples[name]
    modifiers: list[dict[str, Any]] = []
    if name == "signal":
        modifiers.append({"name": STRENGTH, "type": "normfactor", "data": None})
    elif templates.normalization:
        size = templates.normalization
        modifiers.append(_modifier("background_yield", "normsys", {"hi": 1 + size, "lo": 1 / (1 + size)}))
    if sample.variance.any():
        modifiers.append(_modifier(f"staterror_{CHANNEL}", "staterror", _numbers(np.sqrt(sample.variance))))
    for k, shift in enumerate(templates.shifts[name]):
        moved = {"hi_data": _positive(sample.value + shift), "lo_data": _positive(sample.value - shift)}
        modifiers.append(_modifier(f"weights_{k}", "histosys", moved))
    return {"name": name, "data": _positive(sample.value), "modifiers": modifiers}


def _modifier(name: str, kind: str, data: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "data": data}


def _positive(values: Floats) -> list[float]:
    return _numbers(np.maximum(values, SMALLEST))


def _numbers(values: Floats) -> list[float]:
    return [float(value) for value in values]
