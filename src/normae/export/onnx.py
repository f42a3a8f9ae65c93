"""`normae export --onnx`: a run as an ONNX file that was compared with the run before it got its name."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normae.config import Run
from normae.errors import InputError, refuse, require, require_that
from normae.files import check_new, output
from normae.inference import Model
from normae.inference.model import DRAWS
from normae.runs.folder import RunFolder
from normae.runs.load import load_run
from normae.sources import load_events
from normae.version import __version__

EVENTS = 1000  # of the check
TOLERANCE = 1e-3  # on the score, absolute up to 1 and relative beyond


class Difference(NamedTuple):
    """Of one output: the largest difference, and the largest in units of what is allowed."""

    largest: float
    share: float


def export_onnx(
    run: str | Path, out: str | Path, draws: int = DRAWS, tolerance: float = TOLERANCE, force: bool = False
) -> dict[str, Difference]:
    """Write the model of a run folder or of the zoo to `out`, an .onnx file.

    Args:
        draws: weight draws of a Bayesian model, the mean over which is exported.
        tolerance: on the score of 1,000 events, against the model; beyond it nothing is written.
        force: replace what is there.

    Returns:
        The largest difference of each output.
    """
    out = Path(out)
    require_that(out.suffix == ".onnx", "--out", "a name that ends in .onnx", out)
    require_that(tolerance > 0, "--tolerance", "a positive number", tolerance)
    check_new(out, force)
    require("export", "onnx", "onnxruntime")
    from normae.export.graph import onnx_model

    model, folder, config, _ = load_run(run)
    none = f"{run}: {{}} has no ONNX form; {{}}".format
    refuse(config.coordinates.condition, none("a model of p(x | m)", "score its files with normae score"))
    refuse(model.posterior.mixture, none("a mixture of several trainings", "export the runs behind it"))
    content = onnx_model(model, draws, about(folder, model))
    events = some_events(config, model, EVENTS)
    rows = model.rows(events, draws)
    energy = model.energy(events) if model.posterior.certain else model.energy_draws(events, draws).mean(0)
    expected = {"energy": energy, "score": rows.score()}
    expected |= {} if (spread := rows.spread()) is None else {"score_std": spread}
    expected |= {} if rows.log_z is None else {"log_prob": rows.log_prob()}
    with output(out, force) as temporary:
        temporary.write_bytes(content.SerializeToString())
        differences = compare(run_onnx(temporary, events), expected, tolerance, model.temperature)
        worst = max(differences, key=lambda name: differences[name].share)
        off = f"its {worst} differs from the model's by up to {differences[worst].largest:.3g}"
        more = f"more than the tolerance {tolerance:g} of 1 + |{worst}| allows"
        refuse(not differences[worst].share <= 1, f"{out}: not written, {off}, {more}; try a larger --tolerance")
    return differences


def run_onnx(path: Path, events: NDArray[Any], batch: int = 512) -> dict[str, NDArray[Any]]:
    """All outputs of the file for events with shape (N, *event): the first alone, the others in batches."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.log_severity_level = 3  # errors only
    session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    first = session.get_inputs()[0]
    events = events.astype(np.float64 if "double" in first.type else np.float32)
    parts = [part for part in np.split(events, [1, *range(1 + batch, len(events), batch)]) if len(part)]
    pieces = [session.run(names, {first.name: part}) for part in parts]
    return {name: np.concatenate([piece[k] for piece in pieces], axis=-1) for k, name in enumerate(names)}


def compare(
    found: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]], tolerance: float, temperature: float
) -> dict[str, Difference]:
    """Of the outputs in `expected`: a score may be off by tolerance (1 + |score|), an energy by T times that."""
    result = {}
    for name, wanted in expected.items():
        unit = temperature if name == "energy" else 1.0
        off = np.abs(found[name].astype(np.float64) - wanted)
        share = np.where(np.isfinite(off), off / (tolerance * (unit + np.abs(wanted))), np.inf)
        result[name] = Difference(float(off.max()), float(share.max()))
    return result


def some_events(config: Run, model: Model, count: int) -> NDArray[Any]:
    """Events of the run's test sample, with shape (count, *event), in the type that the model reads.

    Where there are too few, mixtures of pairs of them are added; where there are none, events of the model are taken.
    """
    kind, found = model.event_dtype, np.zeros(0)
    if config.data.test > 0 or config.data.jets is not None:
        with suppress(InputError):  # the data are not on this machine
            found = load_events(config.data, config.seed).test[:count].numpy().astype(kind)
    if len(found) == 0:
        return model.sample(count).astype(kind)
    random, missing = np.random.default_rng(0), count - len(found)
    first, second = random.integers(len(found), size=(2, missing))
    share = random.random((missing, *[1] * len(model.event)), dtype=np.float32)
    return np.concatenate([found, share * found[first] + (1 - share) * found[second]])


def about(folder: RunFolder, model: Model) -> dict[str, Any]:
    """What a file says of the run: columns with their categories, whose places it takes, and commit of the training."""
    commit = folder.read_provenance()["commit"] if folder.provenance.is_file() else None
    return {"columns": model.columns, "categories": model.categories, "commit": commit, "normae": __version__}
