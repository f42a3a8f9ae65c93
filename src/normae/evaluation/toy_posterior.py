"""The study of a Bayesian run on a known density: the error bars of section 3.3 and appendix C.1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from normae import statistics
from normae.config import Run, read
from normae.coordinates import Identity
from normae.data import Density
from normae.errors import InputError, refuse
from normae.evaluation import toy
from normae.evaluation.evaluate import Captions, Metrics, draw_one, draw_training, good_if, posterior_words
from normae.evaluation.toy import DensityTest, ToyStudy
from normae.figures import densities, figure_style, new_figure
from normae.figures.curves import training_curves
from normae.files import write_json
from normae.inference import Model, Rows, cell_centres, grid_points
from normae.progress import counted
from normae.report import Check, save_figure
from normae.report.paper import BAYES
from normae.runs.folder import RunFolder, locked
from normae.runs.load import load
from normae.sources import load_events
from normae.statistics.arrays import Estimate, over
from normae.tensors import stream

LEVELS = (0.5, 0.68, 0.9, 0.95)  # at which coverage is a metric
KINDS: Any = ("quantile", "gaussian")  # of intervals
LABELS = {"log_density": r"$\log p_\theta$", "density": r"$p_\theta$"}  # what they are of
Interval = tuple[str, str]  # one of each
EVENTS = 50_000  # test events with all draws: a coverage is judged over trainings, not over more events of one
REGION_NAMES = ("below 3", "3 to 6", "6 to 12", "12 to 25", "25 and above")  # of -log p, by `REGION_EDGES`
REGION_GRID = 100  # points along each axis of the grid on which coverage is taken region by region


class BayesianToyStudy(ToyStudy):
    """A Bayesian run on a known density."""

    needed = (*ToyStudy.needed[:-2], "pull_width", "coverage_quantile_68", "coverage_quantile_95", "sigma_log_p",
              "relative_density_ratio")  # fmt: skip
    paper = BAYES
    kind = "Bayesian normalized"
    own: ClassVar = {
        f"coverage_quantile_68_region_{k}": f"coverage of 68 % intervals on the grid where −log p is {name}"
        for k, name in enumerate(REGION_NAMES)
    }

    def measure(self, model: Model, density: Density, events: Tensor) -> tuple["PosteriorTest", Metrics]:
        """All draws beside the truth, and every number of section 3.3."""
        test = posterior_test(model, self.config, density, events)
        metrics = {"temperature": Estimate(model.temperature, 0.0), "log_z": over(model.log_z_draws())}
        metrics |= toy.agreement(test) | posterior_metrics(test)
        generator = stream(self.config.seed, "evaluation/exact")
        exact = exact_draws(model, self.config.evaluation.classifier.points, generator)
        metrics |= toy.sample_metrics(model, self.config, density, exact, {"recipe": model.sampling.feature.steps})
        log_prob = statistics.log_mean_and_width(model.rows(exact[:EVENTS].numpy()).log_prob_draws())[0]
        return test, metrics | {"auc_ideal": toy.ideal_auc(log_prob, exact[:EVENTS], density, test)}

    def draw(self, test: "PosteriorTest", metrics: Metrics) -> None:
        """Write the figures of what `measure` gave."""
        toy.draw_common(self.run, test, test.marginals, metrics)
        score, density = (tuple(test.on_grid(field) for field in pair) for pair in (test.score, test.density))
        figure, axes = new_figure(2, 3, panel=(4.2, 3.3))
        densities.uncertainty_maps(axes, test.axis, test.axis, score, density)  # type: ignore[arg-type]
        names = ("score", "score_sigma", "density", "density_sigma")
        columns = dict(zip(names, (*test.score, *test.density), strict=True))
        save_figure(figure, self.run.figures, "uncertainties", test.columns | columns)
        found = test.intervals
        _draw_pulls(self.run, *found.pulls)
        curves = _draw_coverage(self.run, found.levels, found.coverage, {})
        figure, axes = new_figure(2, 2)
        regional = [[found.coverage[f"{name}_by_region", kind] for kind in KINDS] for name in LABELS]
        densities.region_map(axes[0, 0], test.axis, test.axis, test.on_grid(statistics.regions(test.grid_true)))
        densities.coverage_curves(axes[0, 1], found.levels, curves)
        for ax, kinds, text in zip(axes[1], regional, LABELS.values(), strict=True):
            densities.region_coverage(ax, found.levels, *kinds, text=text, legend=False)
        save_figure(figure, self.run.figures, "coverage-regions", _region_columns(found.levels, regional[0][0]))
        draw_training(self, training_curves, 3)

    def summary(self, metrics: Metrics) -> str:
        shares = [100 * metrics[name].value for name in self.own if name in metrics]
        regional = f" By region of log p the first cover {min(shares):.0f} to {max(shares):.0f} %." if shares else ""
        return super().summary(metrics) + (
            f" Its error bar of log p is {metrics['sigma_log_p'].value:.4f} where the error is "
            f"{metrics['error_log_p'].value:.4f} (root mean squares over the test set); the 68 and 95 % intervals hold "
            f"the truth for {100 * metrics['coverage_quantile_68'].value:.0f} and "
            f"{100 * metrics['coverage_quantile_95'].value:.0f} % of the test set.{regional} One training's coverage "
            "scatters, since its errors are correlated: `normae coverage` judges it over several."
        )

    def last(self, metrics: Metrics) -> Check:
        """Whether the error bars have the right size."""
        width = metrics["pull_width"].value
        said = f"The pulls of log p have the width {width:.2f} on the test set; one is right, more is too narrow a"
        remedy = "Judge it over several trainings with `normae coverage`; if it stays, use an ensemble."
        return good_if("error bars", 0.7 < width < 1.4, f"{said} posterior.", remedy)

    def captions(self, metrics: Metrics) -> Captions:
        others = super().captions(metrics)
        del others["density"]
        return {
            "uncertainties": ("Energy, density and their uncertainties",
                "Mean of E/T over weight draws, its uncertainty and its relative uncertainty; below the same of the "
                "density. σ(p)/⟨p⟩ and σ(E/T) behave alike: their ratio is "
                f"{metrics['relative_density_ratio']} on the test set."),
            "pulls": ("Pulls",
                "Deviation from the truth in units of the error bar, on the test set, beside the unit Gaussian."),
            "coverage": ("Coverage",
                "Share of the test set whose interval holds the truth, over the nominal level: above the diagonal the "
                "error bars are too large, below too small."),
            "coverage-regions": ("Coverage by region",
                "The regions, the coverage on the test set, and that of the grid points of each region for log p and "
                "p."),
            **others,
        }  # fmt: skip

    def uncertainty(self) -> str:
        """What the error bars are."""
        return (
            f"Error bars: {posterior_words(self.config)}. They hold on average over events, not in every\n"
            "region: see the coverage by region. That of one training scatters, since its errors are correlated over "
            "x;\n`normae coverage` judges it over several trainings."
        )


class Intervals(NamedTuple):
    """Error bars of one training against the truth."""

    levels: np.ndarray  # shape (L,)
    coverage: dict[Interval, np.ndarray]  # of log p and p at the test events, (L,), and "..._by_region", (R, L)
    pulls: tuple[np.ndarray, np.ndarray]  # of log p and of p, shapes (N,)
    kl: float  # of the mean density
    sigma: float  # root mean square of the posterior's width of log p
    error: float  # the same of its error

    def places(self) -> list[int]:
        """Where the usual levels are."""
        return [int(np.argmin(np.abs(self.levels - level))) for level in LEVELS]


def intervals(found: Rows, true: np.ndarray, on_grid: np.ndarray, grid_true: np.ndarray) -> Intervals:
    """Coverage at test events, (N,), and region by region for draws (n, M) of log p and the truth (M,) on a grid."""
    draws, bands = found.log_prob_draws(), statistics.regions(grid_true)
    levels = np.unique(np.concatenate([statistics.confidence_levels(len(draws)), LEVELS]))
    shares = {}
    for name, kind in product(LABELS, KINDS):
        how = (levels, kind, name == "density")
        shares[name, kind] = statistics.coverage(draws, true, *how)
        shares[f"{name}_by_region", kind] = statistics.coverage_by_region(on_grid, grid_true, bands, *how)
    pulls = statistics.pulls(draws, true), statistics.pulls(draws, true, density=True)
    widths = (statistics.mean_and_std(draws)[1], found.log_prob() - true)
    sigma, error = (float(np.sqrt(np.mean(np.square(values)))) for values in widths)
    kl = statistics.kl_divergence(true, statistics.log_mean_and_width(draws)[0]).value
    return Intervals(levels, shares, pulls, kl, sigma, error)


@dataclass(frozen=True)
class PosteriorTest(DensityTest):
    """Draws of the learned density beside the truth; `grid_model` and `test_model` are log of the mean density."""

    score: tuple[np.ndarray, np.ndarray]  # mean and standard deviation over draws of E/T on the grid, shapes (G * G,)
    density: tuple[np.ndarray, np.ndarray]  # the same of p
    marginals: list[tuple[np.ndarray, np.ndarray]]  # the same of the marginal density of each coordinate, shapes (G,)
    ratio: Estimate  # of sigma(p)/<p> and sigma(E/T)
    intervals: Intervals  # by region on every fifth line of the grid


def posterior_test(model: Model, config: Run, density: Density, events: Tensor) -> PosteriorTest:
    """All draws on the paper's grid and on the test set."""
    (axis, grid), size, test = toy.paper_grid(config), config.evaluation.grid, events[:EVENTS]
    on_grid, on_test = model.rows(grid.numpy()), model.rows(test.numpy())
    grid_draws, draws = on_grid.log_prob_draws(), on_test.log_prob_draws()
    grid_true, test_true = (density.log_prob(x.double()).numpy() for x in (grid, test))
    (log_mean, width), mean = statistics.log_mean_and_width(grid_draws), statistics.log_mean_and_width(draws)[0]
    marginals = np.array([toy.grid_marginals(row, axis.numpy()) for row in grid_draws])
    step = max(1, size // REGION_GRID)
    thin = np.arange(size * size).reshape(size, size)[::step, ::step].ravel()
    return PosteriorTest(
        *(axis.numpy(), grid_true, log_mean),
        *(test.numpy(), test_true, mean),
        score=statistics.mean_and_std(on_grid.scores),
        density=(np.exp(log_mean), np.exp(log_mean) * width),
        marginals=list(zip(marginals.mean(0), marginals.std(0, ddof=1), strict=True)),
        ratio=statistics.relative_density_ratio(on_test.scores, draws),
        intervals=intervals(on_test, test_true, grid_draws[:, thin], grid_true[thin]),
    )


def posterior_metrics(test: PosteriorTest) -> Metrics:
    """Pulls, coverage, by region too, and the paper's check of the widths."""
    found, pull = test.intervals, test.intervals.pulls[0]
    metrics = {"sigma_log_p": Estimate(found.sigma, 0.0), "error_log_p": Estimate(found.error, 0.0)}
    metrics |= {"relative_density_ratio": test.ratio, "pull_mean": Estimate(float(pull.mean()), 0.0)}
    metrics["pull_width"] = Estimate(float(pull.std()), 0.0)
    for level, share in zip(LEVELS, found.coverage["log_density", "quantile"][found.places()], strict=True):
        metrics[f"coverage_quantile_{100 * level:.0f}"] = Estimate(float(share), 0.0)
    return metrics | region_metrics(found)


def region_metrics(found: Intervals) -> Metrics:
    """Coverage of 68 % intervals of log p in each region that has points."""
    shares = found.coverage["log_density_by_region", "quantile"][:, found.places()[LEVELS.index(0.68)]]
    return {f"coverage_quantile_68_region_{k}": Estimate(float(s), 0.0) for k, s in enumerate(shares) if s == s}


def exact_draws(model: Model, n: int, generator: torch.Generator) -> Tensor:
    """`n` events with shape (n, 2), each weight draw giving its share: a cell by its probability, a point within it."""
    bounds = model.sampling.feature.bounds
    assert bounds is not None
    centres = grid_points(cell_centres(bounds, model.cells), 2)
    exponent = torch.from_numpy(-model.rows(centres.numpy()).scores).double()
    weight = torch.softmax(exponent, dim=1)
    index = torch.multinomial(weight, -(-n // len(weight)), replacement=True, generator=generator).flatten()
    index = index[torch.randperm(len(index), generator=generator)[:n]]
    width = (bounds[1] - bounds[0]) / model.cells
    return centres[index] + (torch.rand(n, 2, generator=generator) - 0.5) * width


def coverage_test(model: Model, config: Run, density: Density, events: Tensor) -> Intervals:
    """Coverage on the test set, and region by region on a grid over the paper's test grid."""
    limit = config.evaluation.grid_limit
    test, grid = events[:EVENTS], grid_points(torch.linspace(-limit, limit, REGION_GRID, dtype=torch.float64), 2)
    true, grid_true = (density.log_prob(x.double()).numpy() for x in (test, grid))
    return intervals(model.rows(test.numpy()), true, model.rows(grid.numpy()).log_prob_draws(), grid_true)


def coverage_of_group(path: str | Path, device: str = "auto") -> dict[str, Estimate]:
    """Write coverage.json and figures/ of a folder of seeds, and return the numbers.

    Means over trainings, with their standard errors; `spread` is that of one training.
    """
    group = RunFolder(path)
    members = group.members()
    refuse(len(members) < 2, f"{path}: expected a folder with at least 2 trainings of different seeds (--seeds 0-15)")
    with locked(group.path):
        tests = []
        for member in counted("trainings", members):
            config, model = read(member.config), load(member.path, device)
            events = load_events(config.data, config.seed)
            if not config.posteriors:
                raise InputError(f"{member.path}: deterministic, it has no error bars whose coverage could be judged")
            if events.density is None or model.event != (2,):
                raise InputError(f"{member.path}: coverage needs a known two-dimensional density, it has none")
            model.coordinates = Identity()  # as in `ToyStudy.judge`
            tests.append(coverage_test(model, config, events.density, events.test))
        numbers = summary(tests)
        write_json(group.path / "coverage.json", {name: one._asdict() for name, one in numbers.items()})
        _draw_group(group, tests)
    return numbers


def summary(tests: Sequence[Intervals]) -> dict[str, Estimate]:
    """Coverage at the usual levels, by region, pulls and accuracy, as means over trainings, where they have errors."""
    numbers: dict[str, Estimate] = {"trainings": Estimate(len(tests), 0.0)}
    places, bands = tests[0].places(), _over_trainings(tests)
    for kind in KINDS:
        band, regional = bands["log_density", kind], bands["log_density_by_region", kind]
        for level, k in zip(LEVELS, places, strict=True):
            name = f"coverage_{kind}_{100 * level:.0f}"
            numbers[name] = Estimate(float(band.mean[k]), float(band.error[k]))
            numbers[f"{name}_spread"] = Estimate(float(band.spread[k]), 0.0)
            for region, (mean, error) in enumerate(zip(regional.mean[:, k], regional.error[:, k], strict=True)):
                numbers[f"{name}_region_{region}"] = Estimate(float(mean), float(error))
        each = np.array([test.coverage["log_density", kind][places] for test in tests])
        numbers[f"farthest_training_{kind}"] = Estimate(float(np.abs(each - LEVELS).max()), 0.0)
    pulls = statistics.pulls_over_trainings([test.pulls[0] for test in tests])
    numbers |= {"pull_mean": pulls.mean, "pull_width": pulls.width, "pull_total_width": pulls.total_width}
    for name in ("kl", "sigma", "error"):
        numbers[name] = statistics.few_mean([getattr(test, name) for test in tests])
    return {name: value for name, value in numbers.items() if np.isfinite(value.error)}


def _over_trainings(tests: Sequence[Intervals]) -> dict[Interval, statistics.CoverageBand]:
    return {of: statistics.coverage_over_trainings([test.coverage[of] for test in tests]) for of in tests[0].coverage}


def _draw_group(group: RunFolder, tests: Sequence[Intervals]) -> None:
    levels, bands = tests[0].levels, _over_trainings(tests)
    mean, spread = ({of: getattr(band, what) for of, band in bands.items()} for what in ("mean", "spread"))
    with figure_style():
        _draw_coverage(group, levels, mean, spread)
        of = [("log_density_by_region", kind) for kind in KINDS]
        regional = (mean[of[0]], mean[of[1]], spread[of[0]])
        columns = _region_columns(levels, regional[0])
        draw_one(group, "coverage-regions", columns, densities.region_coverage, levels, *regional)
        pull, density_pull = (np.concatenate(of) for of in zip(*(test.pulls for test in tests), strict=True))
        _draw_pulls(group, pull, density_pull, every=max(1, len(tests) // 2))


def _draw_pulls(run: RunFolder, log_density: np.ndarray, density: np.ndarray, every: int = 1) -> None:
    """Of log p and p, with shape (N,); the CSV has one in `every`."""
    columns = {"log_density": log_density[::every], "density": density[::every]}
    shown = dict(zip(LABELS.values(), (log_density, density), strict=True))
    draw_one(run, "pulls", columns, densities.pull_histogram, shown)


def _draw_coverage(
    run: RunFolder, levels: np.ndarray, found: Mapping[Interval, np.ndarray], spread: Mapping[Interval, np.ndarray]
) -> list[densities.Curve]:
    """Coverage at each level, with its spread over trainings where there are several; shapes (L,)."""
    curves = [
        densities.Curve(label, found[name, "quantile"], found[name, "gaussian"], spread.get((name, "quantile")))
        for name, label in LABELS.items()
    ]
    columns = {"level": levels}
    for of in product(LABELS, KINDS):
        columns["_".join(of)] = found[of]
        columns |= {"_".join([*of, "spread"]): spread[of]} if of in spread else {}
    draw_one(run, "coverage", columns, densities.coverage_curves, levels, curves)
    return curves


def _region_columns(levels: np.ndarray, shown: np.ndarray) -> dict[str, np.ndarray]:
    return {"level": levels, **{f"region_{k}": row for k, row in enumerate(shown)}}
