"""Do the error bars of a preset hold? Coverage over independent trainings on independent training samples."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from normae.config import read
from normae.errors import InputError
from normae.evaluation.toy_posterior import LEVELS, CoverageTest, coverage_test
from normae.figures import Curve, coverage_curves, figure_style, new_figure, pull_histogram, region_coverage
from normae.files import write_json
from normae.progress import counted
from normae.report import save_figure
from normae.runs.folder import RunFolder, locked
from normae.runs.load import load
from normae.sources import load_events
from normae.statistics import Estimate, coverage_over_trainings, pulls_over_trainings


def coverage_of_group(path: str | Path, device: str = "auto") -> dict[str, Estimate]:
    """Write coverage.json and figures/ of a folder of seeds, and return the numbers.

    Means over trainings, with their standard errors; `spread` is that of one training.
    """
    group = RunFolder(path)
    members = group.members()
    if len(members) < 2:
        raise InputError(f"{path}: expected a folder with at least 2 trainings of different seeds (--seeds 0-15)")
    with locked(group.path):
        tests = [_test(member, device) for member in counted("trainings", members)]
        numbers = summary(tests)
        write_json(
            group.path / "coverage.json", {name: {"value": e.value, "error": e.error} for name, e in numbers.items()}
        )
        _draw(group, tests)
    return numbers


def _test(member: RunFolder, device: str) -> CoverageTest:
    config = read(member.config)
    model = load(member.path, device)
    events = load_events(config.data, config.seed)
    if not config.posteriors:
        raise InputError(f"{member.path}: deterministic, it has no error bars whose coverage could be judged")
    if events.density is None or model.event != (2,):
        raise InputError(f"{member.path}: coverage needs a known two-dimensional density, and this run has none")
    return coverage_test(model, config, events.density, events.test)


def summary(tests: Sequence[CoverageTest]) -> dict[str, Estimate]:
    """Coverage at the usual levels, by region, pulls and accuracy, as means over trainings with their errors.

    What has no error is left out: a region with test events in one training only, a total width of two trainings.
    """
    numbers: dict[str, Estimate] = {"trainings": Estimate(len(tests), 0.0)}
    places = [int(np.argmin(np.abs(tests[0].levels - level))) for level in LEVELS]
    for kind in ("quantile", "gaussian"):
        band = coverage_over_trainings([test.log_density[kind] for test in tests])
        regional = coverage_over_trainings([test.by_region[kind] for test in tests])
        for level, k in zip(LEVELS, places, strict=True):
            name = f"coverage_{kind}_{100 * level:.0f}"
            numbers[name] = Estimate(float(band.mean[k]), float(band.error[k]))
            numbers[f"{name}_spread"] = Estimate(float(band.spread[k]), 0.0)
            for region, (mean, error) in enumerate(zip(regional.mean[:, k], regional.error[:, k], strict=True)):
                numbers[f"{name}_region_{region}"] = Estimate(float(mean), float(error))
        farthest = max(abs(test.log_density[kind][k] - LEVELS[i]) for test in tests for i, k in enumerate(places))
        numbers[f"farthest_training_{kind}"] = Estimate(float(farthest), 0.0)
    pulls = pulls_over_trainings([test.pull for test in tests])
    numbers |= {"pull_mean": pulls.mean, "pull_width": pulls.width, "pull_total_width": pulls.total_width}
    for name in ("kl", "sigma", "error"):
        values = np.array([getattr(test, name) for test in tests])
        numbers[name] = Estimate(float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5))
    return {name: value for name, value in numbers.items() if np.isfinite(value.error)}


def _draw(group: RunFolder, tests: Sequence[CoverageTest]) -> None:
    levels = tests[0].levels
    with figure_style():
        bands = {
            (name, kind): coverage_over_trainings([getattr(test, name)[kind] for test in tests])
            for name in ("log_density", "density", "by_region")
            for kind in ("quantile", "gaussian")
        }
        curves = [
            Curve(label, bands[name, "quantile"].mean, bands[name, "gaussian"].mean, bands[name, "quantile"].spread)
            for name, label in (("log_density", r"$\log p_\theta$"), ("density", r"$p_\theta$"))
        ]
        figure, axes = new_figure()
        coverage_curves(axes[0, 0], levels, curves)
        columns = {"level": levels}
        for (name, kind), band in bands.items():
            if name != "by_region":
                columns |= {f"{name}_{kind}": band.mean, f"{name}_{kind}_spread": band.spread}
        save_figure(figure, group.figures, "coverage", columns)
        figure, axes = new_figure()
        regional = bands["by_region", "quantile"]
        region_coverage(axes[0, 0], levels, regional.mean, bands["by_region", "gaussian"].mean, regional.spread)
        columns = {"level": levels} | {f"region_{k}": row for k, row in enumerate(regional.mean)}
        save_figure(figure, group.figures, "coverage-regions", columns)
        figure, axes = new_figure()
        together = {
            r"$\log p_\theta$": np.concatenate([test.pull for test in tests]),
            r"$p_\theta$": np.concatenate([test.density_pull for test in tests]),
        }
        pull_histogram(axes[0, 0], together)
        thin = slice(None, None, max(1, len(tests) // 2))
        columns = {"log_density": together[r"$\log p_\theta$"][thin], "density": together[r"$p_\theta$"][thin]}
        save_figure(figure, group.figures, "pulls", columns)
