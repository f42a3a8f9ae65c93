"""The temperature of a trained run, estimated from background events alone, with each way beside the model's own.

| name | what |
| --- | --- |
| configurational | <abs(grad E)^2> / <laplacian E> at the events |
| denoising | at events y = x + sigma eps: the T for which grad E(y) / T predicts eps / sigma best |
| components | the same in the leading principal components of the residuals, and in each of them by itself |
| latent | the same for E~(z) = E(f_d(z)) at the events' latent points, along the sphere where there is one |
| manifold | where exp(-E~/T) over the latent sphere has the mean of E~ of the events; on a sphere only |
| equipartition | 2 <E> / d_eff, d_eff the effective dimension of the residuals |

The events are the run's validation sample, or its test sample where it has none: the training has not seen them. A base
has kernels at validation events too, so that a run with one is asked at test events; its energy is not the residuals'
alone, and neither "latent" nor "equipartition" holds. Of a folder of jets as many are used as it holds.
`statistics.thermometers` makes temperatures of gradients and curvatures.

**The laplacian** is a second difference along random directions v of unit covariance,

    laplacian E(x) ~ < [E(x + h v) - 2 E(x) + E(x - h v)] / h^2 >_v,

exact in the mean for a quadratic energy at any h. ReLU, PReLU and pooling put part of the curvature into kinks, where a
second derivative by autograd is blind; differences see a kink whenever x - h v and x + h v lie on its two sides, and
the mean over events has what belongs to it. Energies should be float64: differences of float32 lose their digits.

**Denoising** asks the same of smeared events y = x + sigma eps. The minimum over beta of <|beta grad E - eps/sigma|^2>
is beta = 1/T = <grad E . eps> / (sigma <|grad E|^2>), and <grad E . eps> / sigma is the mean laplacian at y, kinks
included. It takes gradients alone. For a standard Gaussian T = 1 + sigma^2, that of the smeared events, exactly.

In a subspace with orthonormal columns B, v = B u: the integration by parts behind the temperature holds in every fixed
direction. On a sphere, v is tangent and the step goes along the great circle.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normae import statistics
from normae.config import Run, read
from normae.data import SparseEvents
from normae.data.images import moments
from normae.energy import Energy, value_and_grad
from normae.errors import InputError, decided, refuse
from normae.figures import figure_style, new_figure
from normae.figures.ratios import component_temperatures, temperature_estimates
from normae.files import write_json
from normae.inference import Model
from normae.networks.reconstruction import ReconstructionEnergy
from normae.networks.scoring_energy import ScoringEnergy
from normae.progress import counted
from normae.report import save_figure
from normae.runs.folder import RunFolder, locked
from normae.runs.load import load, run_of
from normae.sampling.langevin import geodesic_move, tangent
from normae.sources import KINDS, check_jets, file_in, held_out, jets_path, load_events, read_sparse
from normae.statistics.arrays import Array, Estimate
from normae.tensors import norm, normal, stream

ROWS = 512  # events at a time
NUMBERS = 2**18  # their features: the gradient of a convolutional network keeps some hundred times as many
EVEN_POINTS, QUICK_POINTS = 20_000, 5_000  # on the latent sphere; the second where a mean is enough
COMPONENTS = 20  # most principal components of the residuals that are looked at
WIDTH, LATENT_WIDTH = 0.1, 0.02  # of a difference; the first in units of the residuals' root mean square
MOST_PAIRS = 4000  # events whose pairs give the effective dimension


class Curvature(NamedTuple):
    """At N events: |grad E|^2 and laplacian E, each with shape (N, k) by direction, or (N, 1) for their sum."""

    gradient_square: NDArray[np.float64]
    laplacian: NDArray[np.float64]

    def temperature(self, k: int | None, seed: int) -> Estimate:
        """Along direction k, or over all directions."""
        square, laplacian = (part.sum(axis=1) if k is None else part[:, k] for part in self)
        generator = stream(seed, f"temperature/bootstrap/{k or 0}")
        return statistics.configurational_temperature(square, laplacian, generator=generator)


def curvature(
    energy: Energy, x: Tensor, width: float, generator: torch.Generator, directions: int = 8, sphere: bool = False
) -> Curvature:
    """In all directions, summed, from random ones at events (N, *event): arrays with shape (N, 1).

    `width` is h, small against the lengths over which the energy changes; `sphere` asks along it, for unit vectors.
    """

    def part(rows: Tensor) -> tuple[Tensor, Tensor]:
        value, grad = value_and_grad(energy, rows)
        total = torch.zeros_like(value)
        with torch.no_grad():
            for _ in counted("curvature", range(directions)):
                v = normal(rows.shape, generator, rows)
                v = width * (tangent(rows, v) if sphere else v)
                plus, minus = (geodesic_move(rows, s * v).position if sphere else rows + s * v for s in (1, -1))
                total += energy(plus) + energy(minus) - 2 * value
        grad = tangent(rows, grad) if sphere else grad
        return grad.flatten(1).square().sum(1, keepdim=True), total[:, None] / (directions * width**2)

    return _piecewise(x, part)


def curvature_along(energy: Energy, x: Tensor, basis: Tensor, width: Tensor) -> Curvature:
    """In each of k fixed directions, the orthonormal columns (d, k) of `basis`, with h (k,): arrays (N, k)."""

    def part(rows: Tensor) -> tuple[Tensor, Tensor]:
        value, grad = value_and_grad(energy, rows)
        columns = []
        with torch.no_grad():
            for h, direction in zip(width, basis.T, strict=True):
                step = (h * direction).reshape(rows.shape[1:])
                columns.append((energy(rows + step) + energy(rows - step) - 2 * value) / h**2)
        return (grad.flatten(1) @ basis).square(), torch.stack(columns, dim=1)

    return _piecewise(x, part)


def denoising(energy: Energy, x: Tensor, width: float, generator: torch.Generator, draws: int = 8) -> Curvature:
    """The same at events with shape (N, *event) that are smeared by `width`: arrays with shape (N, 1).

    Each of the `draws` of the noise is taken with both signs, which leaves the mean as it is and most of its error out.
    """

    def part(rows: Tensor) -> tuple[Tensor, Tensor]:
        square, laplacian = rows.new_zeros(2, len(rows), 1)
        for _ in counted("denoising", range(draws)):
            noise = normal(rows.shape, generator, rows)
            plus, minus = (value_and_grad(energy, rows + sign * width * noise)[1].flatten(1) for sign in (1, -1))
            square += (plus.square() + minus.square()).sum(1, keepdim=True) / (2 * draws)
            laplacian += ((plus - minus) * noise.flatten(1)).sum(1, keepdim=True) / (2 * draws * width)
        return square, laplacian

    return _piecewise(x, part)


def _piecewise(x: Tensor, part: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Curvature:
    """What `part` says of as many events at a time as memory allows."""
    pieces = torch.split(x, max(1, min(ROWS, NUMBERS // max(1, x[0].numel()))))
    found = zip(*(part(rows) for rows in pieces), strict=True)
    return Curvature(*(torch.cat(column).double().cpu().numpy() for column in found))


# --- energies over the decoder's manifold, f_d(z) with z on the latent sphere


def even_energies(energy: ReconstructionEnergy, like: Tensor, seed: int, points: int) -> Array:
    """E(f_d(z)) at points that are spread evenly over the sphere in which `like` (N, d_z) lies."""
    even = normal((points, like.shape[1]), stream(seed, "temperature/manifold", like.device), like)
    return latent_energies(energy, even / norm(even, keepdim=True))


@torch.no_grad()
def latent_energies(energy: ReconstructionEnergy, z: Tensor) -> Array:
    """E(f_d(z)) of latent points (N, d_z)."""
    inner = energy.latent()
    return np.asarray(torch.cat([inner(rows) for rows in torch.split(z, ROWS)]).double().cpu().numpy())


def late_mean(history: Sequence[dict[str, Any]], name: str) -> Estimate:
    """Mean of a logged number over the last tenth of the NAE phase, without what a rollback took back."""
    lines: list[dict[str, Any]] = []
    for line in history:
        if line.get("phase") == "training" and name in line:
            while lines and lines[-1]["iteration"] >= line["iteration"]:
                lines.pop()
            lines.append(line)
    values = np.array([line[name] for line in lines[-max(2, len(lines) // 10) :]], dtype=np.float64)
    if len(values) < 2:
        return Estimate(float(values.mean()) if len(values) else np.nan, np.nan)
    return statistics.line_mean(values)


def chain_metrics(run: RunFolder, config: Run, model: Model) -> dict[str, Estimate]:
    """Energies of the last negative samples, and of samples at T on the decoder's manifold; none without a sphere.

    Chains that reach equilibrium on the manifold, and are then relaxed in feature space, end at or below its energy.
    What has no error is left out, and so are ensembles, whose members have a manifold each.
    """
    if config.ensemble is not None or not config.training.epochs or not model.autoencoder.sphere:
        return {}
    negative = late_mean(run.read_history(), "negative_energy")
    if not np.isfinite(negative.value):
        return {}
    z = torch.zeros(1, config.network.latent, device=model.device)
    found = even_energies(ScoringEnergy(model.autoencoder), z, config.seed, QUICK_POINTS)
    metrics = {"negative_energy": negative, "manifold_energy": statistics.thermal_mean(found, model.temperature)}
    return {name: one for name, one in metrics.items() if np.isfinite(one.error)}


@dataclass(frozen=True)
class Temperatures:
    """What each way says."""

    model: float  # the temperature that the run was trained with, or ended with
    estimates: dict[str, Estimate]  # by name
    by_component: list[Estimate]  # of each principal component of the residuals, the leading first
    shares: list[float]  # of the residuals' variance in each of these components
    dimension: Estimate  # effective dimension of the residuals
    mean_energy: Estimate  # at the events
    events: int  # how many

    def content(self) -> dict[str, Any]:
        """As JSON holds it; an error that is not known is null."""

        def pair(estimate: Estimate) -> dict[str, float | None]:
            return {name: float(n) if np.isfinite(n) else None for name, n in estimate._asdict().items()}

        found = {"model": self.model, "estimates": {name: pair(e) for name, e in self.estimates.items()}}
        found |= {"by_component": [pair(e) for e in self.by_component], "component_shares": self.shares}
        found |= {"effective_dimension": pair(self.dimension), "mean_energy": pair(self.mean_energy)}
        return found | {"events": self.events}


def estimate_temperatures(
    run: str | Path, events: int = 2000, seed: int = 0, device: str = "auto", data: str | Path | None = None
) -> Temperatures:
    """The estimates for `run`, from at most so many `events`, of other `data` than its own where given."""
    refuse(events < 10, f"events: expected at least 10, got {events}")
    if read(run_of(run).config).modes:
        raise InputError(f"{run}: a mixture of several trainings, which have a temperature each; give one of them")
    model = load(run, device).centre  # of members with coordinates of their own, one of them
    if (on := model.coordinates.lattice) is not None and bool(((on[1] > 0) & (on[3] - on[2] < 20)).any()):
        decided(f"{run}: a column has 20 values or fewer; its density has steps, so that no estimate of T holds")
    x = model.coordinates.forward(_events(run, data, events).to(model.device).double())
    if model.coordinates.kind == "components":  # the density is of jets with the noise that the training added
        x = model.coordinates.noisy(x, 1, stream(seed, "temperature/noise"))
    refuse(len(x) < 10, f"{run}: expected at least 10 events that it was not trained on, got {len(x)}")
    energy = ScoringEnergy(copy.deepcopy(model.autoencoder).double())
    with torch.no_grad():
        z = torch.cat([energy.encode(rows) for rows in torch.split(x, ROWS)])
        residual = (x - torch.cat([energy.decode(at) for at in torch.split(z, ROWS)])).flatten(1)
        energies, based = torch.cat([energy(rows) for rows in torch.split(x, ROWS)]), model.autoencoder.base is not None
    value = residual.square().mean(1)
    few, pairs = (part[:MOST_PAIRS].cpu().numpy() for part in (value, residual))
    parted = statistics.equipartition(few, pairs, generator=stream(seed, "equipartition"))
    width = WIDTH * float(value.mean()) ** 0.5
    whole = curvature(energy, x, width, stream(seed, "temperature", x.device))
    sphere = model.autoencoder.sphere
    scale = LATENT_WIDTH * (1.0 if sphere else float(z.std(0).mean()))
    inner = curvature(energy.latent(), z, scale, stream(seed, "temperature/latent", x.device), sphere=sphere)
    _, covariance = moments(residual, residual.device)
    variances, vectors = torch.linalg.eigh(covariance)
    leading = variances.flip(0)[:COMPONENTS].clamp_min(0)
    shares: list[float] = (leading / covariance.trace()).tolist()
    along = curvature_along(energy, x, vectors.flip(1)[:, :COMPONENTS], WIDTH * leading.sqrt())
    smeared = denoising(energy, x, width, stream(seed, "temperature/denoising", x.device))
    found = {"configurational": whole, "denoising": smeared, "components": along}
    found |= {} if based else {"latent": inner}
    estimates = {name: part.temperature(None, seed) for name, part in found.items()}
    if sphere:
        even = even_energies(ScoringEnergy(model.autoencoder), z.float(), seed, EVEN_POINTS)
        estimates["manifold"] = statistics.manifold_temperature(even, latent_energies(energy, z))
    estimates |= {} if based else {"equipartition": parted.temperature}
    by_component = [along.temperature(k, seed) for k in range(len(shares))]
    mean = statistics.sample_mean(energies.cpu().numpy())
    return Temperatures(model.temperature, estimates, by_component, shares, parted.dimension, mean, len(x))


def _events(run: str | Path, data: str | Path | None, most: int) -> Tensor:
    """The first events, with shape (N, *event), that the run was not trained on; of a folder of jets what is there."""
    config = read(run_of(run).config)
    source, based = config.data, config.base is not None
    if data is not None:
        if source.density is not None:
            raise InputError("--data: the run was trained on a known density, and its events are drawn; leave it out")
        source = replace(source, path=str(data)) if source.jets is not None else replace(source, file=str(data))
    if source.jets in KINDS:
        known, part = run_of(run).read_provenance(), 2 if source.validation and not based else 1
        path = check_jets(jets_path(source, judged=True), known)
        if not path.is_dir():
            return held_out(read_sparse(path, source.jets), source, config.seed, part).first(most).dense()
        try:
            path = file_in(path, "test" if based else "val")
        except InputError:
            path = file_in(path, "test")
        return read_sparse(path, source.jets).first(most).dense()
    lacking = based and data is None and source.test == 0
    refuse(lacking, f"{run}: its base knows all rows, since no test rows were held out; give others with --data")
    events = run_of(run).events(config) if data is None else load_events(source, config.seed)
    held = events.test if events.validation is None or based else events.validation
    assert not isinstance(held, SparseEvents)  # jets are above
    return held[:most]


def write_temperatures(run: str | Path, found: Temperatures) -> Path:
    """Write temperature.json, and figures/temperature, into a run folder."""
    folder = RunFolder.existing(run)
    path = folder.path / "temperature.json"
    rows = found.estimates | {f"component {k + 1}": part for k, part in enumerate(found.by_component)}
    temperatures, errors = (np.array(column) for column in zip(*rows.values(), strict=True))
    columns = {"estimate": np.array([*rows]), "temperature": temperatures, "error": errors}
    with locked(folder.path), figure_style():
        write_json(path, found.content())
        figure, axes = new_figure(1, 2, panel=(4.8, 3.5))
        temperature_estimates(axes[0, 0], found.estimates, found.model)
        component_temperatures(axes[0, 1], found.by_component, found.model)
        save_figure(figure, folder.figures, "temperature", columns | {"model": np.full(len(rows), found.model)})
    return path
