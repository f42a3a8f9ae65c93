"""Which estimate of the temperature predicts m = 1: each without a signal sample, beside what the dual test asks for.

For a fixed pair of energies with one T the slope m of the dual test is proportional to T, so that it is 1 at T/m. That
needs the other class. The estimates of `normae temperature estimate` do not. For the toy T is learned, and m is 1.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from normae import zoo
from normae.figures import ComparedTemperatures, figure_style, new_figure, temperatures_compared
from normae.report import save_figure
from normae.runs.folder import RunFolder
from normae.statistics import Estimate
from normae.temperature.estimates import estimate_temperatures

JETS, POINTS = 500, 20_000
"""Events of each class of jets, and of a toy density."""
TOYS = {"toy-1gauss-nae": "one Gaussian", "toy-2gauss-nae": "two Gaussians"}


def compare_temperatures(
    pairs: Mapping[str, tuple[RunFolder, RunFolder]], slopes: Mapping[str, Estimate], data: Path | None, device: str
) -> list[ComparedTemperatures]:
    """A row for each model of each pair, by network, and for each toy of the zoo.

    Args:
        pairs: the runs on QCD jets and on tops.
        slopes: m of each pair at its temperature.
    """
    rows = []
    for network, runs in pairs.items():
        for run, name in zip(runs, ("QCD", "top"), strict=True):
            found = estimate_temperatures(run.path, JETS, device=device, data=data)
            wanted = _of_unit_slope(found.model, slopes[network])
            rows.append(ComparedTemperatures(f"{network}, {name} jets", found.model, wanted, found.estimates))
    for name, words in TOYS.items():
        if name in zoo.names():
            found = estimate_temperatures(name, POINTS, device=device)
            learned = Estimate(found.model, 0.0)
            rows.append(ComparedTemperatures(f"toy NAE, {words}", found.model, learned, found.estimates))
    return rows


def _of_unit_slope(temperature: float, slope: Estimate) -> Estimate:
    value = temperature / slope.value
    return Estimate(value, value * slope.error / slope.value)


def draw_compared(rows: list[ComparedTemperatures], folder: Path) -> None:
    """figures/temperatures: every estimate over the temperature at which m = 1."""
    with figure_style():
        figure, axes = new_figure(1, 1, panel=(6.2, 1.0 + 0.42 * len(rows)))
        temperatures_compared(axes[0, 0], rows)
        cells = [(row, name, estimate) for row in rows for name, estimate in row.estimates.items()]
        columns = {
            "model": np.array([row.name for row, _, _ in cells]),
            "estimate": np.array([name for _, name, _ in cells]),
            "temperature": np.array([estimate.value for _, _, estimate in cells]),
            "error": np.array([estimate.error for _, _, estimate in cells]),
            "unit_slope": np.array([row.wanted.value for row, _, _ in cells]),
            "unit_slope_error": np.array([row.wanted.error for row, _, _ in cells]),
        }
        save_figure(figure, folder, "temperatures", columns)


def temperature_rows(rows: list[ComparedTemperatures]) -> list[list[str]]:
    """T of the model, T at m = 1, and each estimate over the latter."""
    names = list(dict.fromkeys(name for row in rows for name in row.estimates))
    table = [["model", "its T", "T at m = 1", *(f"{name} / T(m = 1)" for name in names)]]
    for row in rows:
        cells = [_over(row.estimates.get(name), row.wanted.value) for name in names]
        table.append([row.name, f"{row.model:.3g}", str(row.wanted), *cells])
    return table


def _over(estimate: Estimate | None, unit: float) -> str:
    if estimate is None or not np.isfinite(estimate.value):
        return "—"
    if not np.isfinite(estimate.error):
        return f"{estimate.value / unit:.2g} (error not known)"
    return str(Estimate(estimate.value / unit, estimate.error / unit))
