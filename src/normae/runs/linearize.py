"""Error bars for a run that was trained without: the posterior of its linearized network."""

from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

from torch import Tensor

from normae.config import read, to_toml
from normae.errors import InputError
from normae.files import write_json, write_text
from normae.networks.bayesian import Which
from normae.posterior.laplace import LaplaceConfig, fit_laplace
from normae.random import stream
from normae.runs.folder import RunFolder, locked, read_tensors, write_tensors
from normae.runs.load import load
from normae.runs.session import prepare
from normae.sources import events_hash, load_events


def linearize(
    path: str | Path, out: str | Path, layers: str = "all", prior_width: float = 1.0, device: str = "auto"
) -> RunFolder:
    """Write to the new folder `out` the run at `path`, which is deterministic or Laplacian, with a posterior."""
    run, target = RunFolder.existing(path), RunFolder(out)
    if target.path.exists():
        raise InputError(f"{out}: exists; choose a new folder")
    config = read(run.config)
    if config.posteriors not in ([], ["laplace"]):
        raise InputError(f"{path}: has a posterior already, [{config.posteriors[0]}]")
    if layers not in get_args(Which):
        raise InputError(f"layers: expected one of {list(get_args(Which))}, got {layers!r}")
    model = load(run.path, device)
    events = prepare(config, load_events(config.data, config.seed)).events
    provenance = run.read_provenance()
    if events_hash(events) != provenance["data_sha256"]:
        raise InputError(f"{path}: the training data have changed since the run was made")
    rows, copies = events.plain()
    if not isinstance(rows, Tensor):
        raise InputError(f"{path}: expected events that are vectors; use [bayesian] for images")
    laplace = _settings(cast("Which", layers), prior_width, len(rows))
    linearized = replace(config, laplace=laplace, log_z=None)
    tensors, header = read_tensors(run.model)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("laplace.")}
    generator = stream(config.seed, "laplace")
    copies *= config.coordinates.copies
    fitted = fit_laplace(model.autoencoder, model.temperature, rows, laplace, generator, copies)
    with locked(target.path):
        write_text(target.config, to_toml(linearized))
        write_json(target.provenance, provenance)
        if run.history.is_file():
            write_text(target.history, run.history.read_text(encoding="utf-8"))
        write_tensors(target.model, kept | fitted.tensors(), header)
    return target


def _settings(layers: Which, prior_width: float, events: int) -> LaplaceConfig:
    """The usual ones, or smaller ones where there are fewer training events."""
    usual = LaplaceConfig()
    inducing = min(usual.inducing, events)
    return LaplaceConfig(layers, prior_width, min(usual.rank, inducing - 1), inducing, min(usual.events, events))
