"""The temperature of a trained run, estimated from background events alone, with each way beside the model's own.

| name | what |
| --- | --- |
| configurational | <abs(grad E)^2> / <laplacian E> at the events |
| components | the same in the leading principal components of the residuals, and in each of them by itself |
| latent | the same for E~(z) = E(f_d(z)) at the events' latent points, along the sphere where there is one |
| manifold | where exp(-E~/T) over the latent sphere has the mean of E~ of the events; on a sphere only |
| equipartition | 2 <E> / d_eff, d_eff the effective dimension of the residuals |

The events are the run's validation sample, or its test sample where it has none: the training has not seen them. Of a
folder of jets as many are used as it holds.
"""

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normae.config import read
from normae.data import SparseEvents
from normae.data.linear import moments
from normae.errors import InputError
from normae.figures import component_temperatures, figure_style, new_figure, temperature_estimates
from normae.files import write_json
from normae.networks.reconstruction import ReconstructionEnergy
from normae.networks.scoring_energy import ScoringEnergy
from normae.random import stream
from normae.report import SavedFigure, save_figure
from normae.runs.folder import RunFolder
from normae.runs.load import load, run_of
from normae.sources import KINDS, Kind, file_in, jets_path, load_events, read_sparse
from normae.statistics import Estimate, configurational_temperature, equipartition, manifold_temperature
from normae.temperature.curvature import Curvature, curvature, curvature_along
from normae.temperature.latent import even_energies, latent_energies

COMPONENTS = 20
"""Most principal components of the residuals that are looked at."""
WIDTH = 0.1
"""Of a difference, in units of the residuals' root mean square."""
LATENT_WIDTH = 0.02
MOST_PAIRS = 4000
"""Events whose pairs give the effective dimension."""


@dataclass(frozen=True)
class Temperatures:
    """What each way says.

    Args:
        model: the temperature that the run was trained with, or ended with.
        estimates: by name.
        by_component: of each principal component of the residuals, the leading first.
        shares: of the residuals' variance in each of these components.
        dimension: effective dimension of the residuals.
        mean_energy: at the events.
        events: how many.
    """

    model: float
    estimates: dict[str, Estimate]
    by_component: list[Estimate]
    shares: list[float]
    dimension: Estimate
    mean_energy: Estimate
    events: int

    def content(self) -> dict[str, Any]:
        """As JSON holds it; an error that is not known is null."""
        return {
            "model": self.model,
            "estimates": {name: _pair(e) for name, e in self.estimates.items()},
            "by_component": [_pair(e) for e in self.by_component],
            "component_shares": self.shares,
            "effective_dimension": _pair(self.dimension),
            "mean_energy": _pair(self.mean_energy),
            "events": self.events,
        }


def _pair(estimate: Estimate) -> dict[str, float | None]:
    value, error = (float(n) if np.isfinite(n) else None for n in estimate)
    return {"value": value, "error": error}


def estimate_temperatures(
    run: str | Path, events: int = 2000, seed: int = 0, device: str = "auto", data: str | Path | None = None
) -> Temperatures:
    """The estimates for a run folder or a model of the zoo. Nothing is written.

    Args:
        events: most events that are used.
        data: another file or folder of the run's kind than the one it was trained on.
    """
    if events < 10:
        raise InputError(f"events: expected at least 10, got {events}")
    if read(run_of(run).config).modes:
        raise InputError(f"{run}: a mixture of several trainings, which have a temperature each; give one of them")
    model = load(run, device)
    x = model.coordinates.forward(_events(run, data, events).to(model.device).double())
    if len(x) < 10:
        raise InputError(f"{run}: expected at least 10 events that it was not trained on, got {len(x)}")
    energy = ScoringEnergy(copy.deepcopy(model.autoencoder).double())
    with torch.no_grad():
        z = torch.cat([energy.encode(rows) for rows in torch.split(x, 512)])
        residual = torch.cat([rows - energy.decode(at) for rows, at in _split(x, z)]).flatten(1)
    value = residual.square().mean(1)
    parted = equipartition(
        value[:MOST_PAIRS].cpu().numpy(), residual[:MOST_PAIRS].cpu().numpy(), generator=stream(seed, "equipartition")
    )
    width = WIDTH * float(value.mean()) ** 0.5
    whole = curvature(energy, x, width, stream(seed, "temperature", x.device))
    sphere = model.autoencoder.sphere
    scale = LATENT_WIDTH * (1.0 if sphere else float(z.std(0).mean()))
    inner = curvature(energy.latent(), z, scale, stream(seed, "temperature/latent", x.device), sphere=sphere)
    along, shares = _components(energy, x, residual)
    found = {"configurational": whole, "components": along.total(), "latent": inner}
    estimates = {name: _temperature(part, 0, seed) for name, part in found.items()}
    if sphere:
        on_sphere = manifold_temperature(even_energies(energy, z, seed), latent_energies(energy, z))
        estimates["manifold"] = on_sphere.temperature
    return Temperatures(
        model=model.temperature,
        estimates=estimates | {"equipartition": parted.temperature},
        by_component=[_temperature(along, k, seed) for k in range(len(shares))],
        shares=shares,
        dimension=parted.dimension,
        mean_energy=Estimate(float(value.mean()), float(value.std()) / len(value) ** 0.5),
        events=len(x),
    )


def _events(run: str | Path, data: str | Path | None, most: int) -> Tensor:
    """The first events, with shape (N, *event), that the run was not trained on; of a folder of jets what is there."""
    config = read(run_of(run).config)
    source = config.data
    if data is not None:
        if source.density is not None:
            raise InputError("--data: the run was trained on a known density, and its events are drawn; leave it out")
        source = replace(source, path=str(data)) if source.jets is not None else replace(source, file=str(data))
    if source.jets in KINDS and jets_path(source).is_dir():
        return _held_jets(jets_path(source), source.jets, most)
    events = load_events(source, config.seed)
    held = events.test if events.validation is None else events.validation
    return held.first(most).dense() if isinstance(held, SparseEvents) else held[:most]


def _held_jets(folder: Path, kind: Kind, most: int) -> Tensor:
    """Validation jets of a folder, or test jets where it has no such file."""
    try:
        path = file_in(folder, "val")
    except InputError:
        path = file_in(folder, "test")
    return read_sparse(path, kind).first(most).dense()


def _split(x: Tensor, z: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(torch.split(x, 512), torch.split(z, 512), strict=True))


def _components(energy: ReconstructionEnergy, x: Tensor, residual: Tensor) -> tuple[Curvature, list[float]]:
    """Curvature along the leading principal components of the residuals, and their shares of the variance."""
    _, covariance = moments(residual, residual.device)
    values, vectors = torch.linalg.eigh(covariance)
    k = min(COMPONENTS, len(values))
    values, basis = values.flip(0)[:k].clamp_min(0), vectors.flip(1)[:, :k]
    shares: list[float] = (values / covariance.trace()).tolist()
    return curvature_along(energy, x, basis, WIDTH * values.sqrt()), shares


def _temperature(part: Curvature, k: int, seed: int) -> Estimate:
    generator = stream(seed, f"temperature/bootstrap/{k}")
    return configurational_temperature(part.gradient_square[:, k], part.laplacian[:, k], generator=generator)


def write_temperatures(run: str | Path, found: Temperatures, figures: bool = True) -> Path:
    """Write temperature.json, and figures/temperature, into a run folder."""
    folder = RunFolder.existing(run)
    path = folder.path / "temperature.json"
    write_json(path, found.content())
    if figures:
        _draw(found, folder.figures)
    return path


def _draw(found: Temperatures, folder: Path) -> SavedFigure:
    """figures/temperature: every estimate, and that of each component of the residuals."""
    with figure_style():
        figure, axes = new_figure(1, 2, panel=(4.8, 3.5))
        temperature_estimates(axes[0, 0], found.estimates, found.model)
        component_temperatures(axes[0, 1], found.by_component, found.model)
        names = [*found.estimates, *(f"component {k + 1}" for k in range(len(found.by_component)))]
        rows = [*found.estimates.values(), *found.by_component]
        columns = {
            "estimate": np.array(names),
            "temperature": np.array([e.value for e in rows]),
            "error": np.array([e.error for e in rows]),
            "model": np.full(len(rows), found.model),
        }
        return save_figure(figure, folder, "temperature", columns)
