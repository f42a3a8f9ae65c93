"""An exported file against the model that it came from, with ONNX Runtime."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession, SessionOptions

from normae.errors import InputError

LOG_SEVERITY = 3
"""Errors only."""


class Difference(NamedTuple):
    """Of one output: the largest difference, and the largest in units of what is allowed."""

    largest: float
    share: float


def run_onnx(path: Path, events: NDArray[Any], batch: int = 512) -> dict[str, NDArray[Any]]:
    """All outputs of the file for events with shape (N, *event): the first alone, the others in batches."""
    options = SessionOptions()
    options.log_severity_level = LOG_SEVERITY
    session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    edges = [0, 1, *range(1 + batch, len(events), batch), len(events)]
    first = session.get_inputs()[0]
    kind = np.float64 if "double" in first.type else np.float32
    pieces = [
        session.run(names, {first.name: events[low:high].astype(kind)}) for low, high in pairwise(edges) if high > low
    ]
    return {name: np.concatenate([piece[k] for piece in pieces], axis=-1) for k, name in enumerate(names)}


def compare(
    found: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]], tolerance: float, temperature: float
) -> dict[str, Difference]:
    """Differences of all outputs that are in `expected`.

    A value of the score may be off by tolerance (1 + |score|), one of the energy by that times T.

    Args:
        found, expected: outputs by name, with shape (N,).
    """
    result = {}
    for name, wanted in expected.items():
        unit = temperature if name == "energy" else 1.0
        off = np.abs(found[name].astype(np.float64) - wanted)
        allowed = tolerance * (unit + np.abs(wanted))
        share = np.where(np.isfinite(off), off / allowed, np.inf)
        result[name] = Difference(float(off.max()), float(share.max()))
    return result


def refuse_beyond(differences: Mapping[str, Difference], tolerance: float, path: Path) -> None:
    """One sentence where a difference is beyond what is allowed."""
    worst = max(differences, key=lambda name: differences[name].share)
    if not differences[worst].share <= 1:
        raise InputError(
            f"{path}: not written, its {worst} differs from the model's by up to {differences[worst].largest:.3g}, "
            f"more than the tolerance {tolerance:g} of 1 + |{worst}| allows; try a larger --tolerance"
        )
