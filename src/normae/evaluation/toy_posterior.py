"""The study of a Bayesian run on a known density: the error bars of section 3.3 and appendix C.1."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normae.config import Run
from normae.data import Density
from normae.evaluation.study import Captions, Draw, Metrics, draw_training, over, posterior_words
from normae.evaluation.toy import ToyStudy, agreement, classifier_metrics, ideal_auc, paper_grid
from normae.evaluation.toy_drawing import PosteriorTest, draw_common, draw_coverage, draw_uncertainties
from normae.figures import training_curves
from normae.inference import Model, cell_centres, grid_points
from normae.random import stream
from normae.report import Check
from normae.report.paper import BAYES
from normae.runs.load import load
from normae.sources import load_events
from normae.statistics import (
    Estimate,
    confidence_levels,
    coverage,
    coverage_by_region,
    density_mean_and_std,
    density_pulls,
    kl_divergence,
    log_mean_density,
    mean_and_std,
    pulls,
    regions,
    relative_density_check,
)

LEVELS = (0.5, 0.68, 0.9, 0.95)
"""At which coverage is a metric."""
KINDS: Any = ("quantile", "gaussian")
"""Of intervals."""
EVENTS = 50_000
"""Test events with all draws: a coverage is judged over trainings, not over more events of one."""
REGION_GRID = 100
"""Points along each axis of the grid on which coverage is taken region by region."""
CHAINS = 50_000
"""Side by side."""


class BayesianToyStudy(ToyStudy):
    """A Bayesian run on a known density."""

    needed = (*ToyStudy.needed[:-2], "pull_width", "coverage_quantile_68", "coverage_quantile_95", "sigma_log_p",
              "relative_density_ratio")  # fmt: skip
    paper = BAYES
    kind = "Bayesian normalized"

    def judge(self, device: str, generated: int | None) -> tuple[Metrics, Draw]:  # noqa: ARG002
        """Every number of section 3.3."""
        model, events = load(self.run.path, device), load_events(self.config.data, self.config.seed)
        assert events.density is not None
        test = posterior_test(model, self.config, events.density, events.test)
        metrics = {"temperature": Estimate(model.temperature, 0.0)} | posterior_metrics(test)
        metrics |= posterior_samples(model, self.config, events.density, test)
        return metrics, lambda: self._draw_posterior(test, metrics)

    def _draw_posterior(self, test: PosteriorTest, metrics: Metrics) -> None:
        draw_common(self.run, test, test.marginals, metrics)
        draw_uncertainties(self.run, test)
        draw_coverage(self.run, test)
        draw_training(self, training_curves, 3)

    def summary(self, metrics: Metrics) -> str:
        """How close the density is, and what the error bars are worth."""
        return super().summary(metrics) + (
            f" Its error bar of log p is {metrics['sigma_log_p'].value:.4f} where the error is "
            f"{metrics['error_log_p'].value:.4f} (root mean squares over the test set); the 68 and 95 % intervals hold "
            f"the truth for {100 * metrics['coverage_quantile_68'].value:.0f} and "
            f"{100 * metrics['coverage_quantile_95'].value:.0f} % of the test set. One training's coverage scatters, "
            "since its errors are correlated: `normae coverage` judges it over several."
        )

    def last(self, metrics: Metrics) -> Check:
        """Whether the error bars have the right size."""
        width = metrics["pull_width"].value
        return Check(
            "error bars",
            "good" if 0.7 < width < 1.4 else "warning",
            f"The pulls of log p have the width {width:.2f} on the test set; one is right, more is too narrow a "
            "posterior.",
            "Judge it over several trainings with `normae coverage`; if it stays, use an ensemble.",
        )

    def captions(self, metrics: Metrics) -> Captions:
        """Uncertainties and coverage in place of the density."""
        others = super().captions(metrics)
        del others["density"]
        return {
            "uncertainties": (
                "Energy, density and their uncertainties",
                "Mean of E/T over weight draws, its uncertainty and its relative uncertainty; below the same of the "
                "density. σ(p)/⟨p⟩ and σ(E/T) behave alike: their ratio is "
                f"{metrics['relative_density_ratio']} on the test set."),
            "pulls": (
                "Pulls",
                "Deviation from the truth in units of the error bar, on the test set, beside the unit Gaussian."),
            "coverage": (
                "Coverage",
                "Share of the test set whose interval holds the truth, over the nominal level: above the diagonal the "
                "error bars are too large, below too small."),
            "coverage-regions": (
                "Coverage by region",
                "The regions, the coverage on the test set, and that of the grid points of each region for log p and "
                "p."),
            **others,
        }  # fmt: skip

    def uncertainty(self) -> str:
        """What the error bars are."""
        return (
            f"Error bars: {posterior_words(self.config)}. The coverage of one training scatters, since its errors\n"
            "are correlated over x; `normae coverage` judges it over several trainings."
        )


# --- numbers


def posterior_test(model: Model, config: Run, density: Density, events: Tensor) -> PosteriorTest:
    """All draws on the paper's grid and on the test set."""
    (axis, grid), size, test = paper_grid(config), config.evaluation.grid, events[:EVENTS]
    on_grid, on_test = model.rows(grid.numpy()), model.rows(test.numpy())
    grid_draws, draws = on_grid.log_prob_draws(), on_test.log_prob_draws()
    grid_true = density.log_prob(grid.double()).numpy()
    step = max(1, size // REGION_GRID)
    thin = np.arange(size * size).reshape(size, size)[::step, ::step].ravel()
    return PosteriorTest(
        axis=axis.numpy(),
        grid_true=grid_true,
        grid_model=log_mean_density(grid_draws),
        test=test.numpy(),
        test_true=density.log_prob(test.double()).numpy(),
        test_model=log_mean_density(draws),
        score=mean_and_std(on_grid.scores),
        density=density_mean_and_std(grid_draws),
        marginals=_marginals(grid_draws, axis.numpy()),
        draws=draws,
        scores=on_test.scores,
        mean_log_p=on_test.log_prob(),
        log_z=model.log_z_draws(),
        region_true=grid_true[thin],
        region_draws=grid_draws[:, thin],
    )


def _marginals(log_draws: np.ndarray, axis: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Mean and standard deviation over draws of the marginal density in each coordinate."""
    size, width = len(axis), float(axis[1] - axis[0])
    sums = np.empty((2, len(log_draws), size))
    for k, row in enumerate(log_draws):
        density = np.exp(row.astype(np.float64)).reshape(size, size)
        sums[0, k], sums[1, k] = density.sum(1) * width, density.sum(0) * width
    return [(found.mean(0), found.std(0, ddof=1)) for found in sums]


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def posterior_metrics(test: PosteriorTest) -> Metrics:
    """Accuracy of the posterior's mean density, pulls, coverage, and the paper's check of the widths."""
    found = {"": pulls(test.draws, test.test_true), "density_": density_pulls(test.draws, test.test_true)}
    check = relative_density_check(test.scores, test.draws)
    metrics: Metrics = {
        "log_z": over(test.log_z),
        **agreement(test),
        "sigma_log_p": Estimate(_rms(mean_and_std(test.draws)[1]), 0.0),
        "error_log_p": Estimate(_rms(test.mean_log_p - test.test_true), 0.0),
        "relative_density_ratio": Estimate(check.ratio[1], 0.5 * (check.ratio[2] - check.ratio[0])),
        "relative_density_correlation": check.correlation,
    }
    for name, pull in found.items():
        metrics[f"{name}pull_mean"] = Estimate(float(pull.mean()), 0.0)
        metrics[f"{name}pull_width"] = Estimate(float(pull.std()), 0.0)
    for kind in KINDS:
        shares = coverage(test.draws, test.test_true, LEVELS, kind)
        named = zip(LEVELS, shares, strict=True)
        metrics |= {f"coverage_{kind}_{100 * level:.0f}": Estimate(float(share), 0.0) for level, share in named}
    return metrics


def posterior_samples(model: Model, config: Run, density: Density, test: PosteriorTest) -> Metrics:
    """The classifier test over the posterior: exact draws, and chains where a step is cheap; the ideal classifier."""
    n = config.evaluation.classifier.points
    exact = exact_draws(model, n, stream(config.seed, "evaluation/exact"))
    kinds, metrics = {"exact": exact}, {}
    if config.laplace is None or model.device.type == "cuda":
        generator, steps = stream(config.seed, "evaluation/chain", model.device), model.sampling.feature.steps
        chains = [
            model.sample_chain(min(CHAINS, n - start), generator, feature_steps=steps) for start in range(0, n, CHAINS)
        ]
        kinds["recipe"] = torch.cat([chain.position.cpu() for chain in chains])
        metrics["acceptance_recipe"] = Estimate(float(torch.cat([c.acceptance for c in chains]).mean()), 0.0)
    metrics |= classifier_metrics(model, config, density, kinds)
    few = exact[:EVENTS]
    log_prob = log_mean_density(model.rows(few.numpy()).log_prob_draws())
    return metrics | {"auc_ideal": ideal_auc(log_prob, few, density, test)}


def exact_draws(model: Model, n: int, generator: torch.Generator) -> Tensor:
    """`n` events with shape (n, 2), each weight draw giving its share: a cell by its probability, a point within it."""
    bounds = model.sampling.feature.bounds
    assert bounds is not None
    centres = grid_points(cell_centres(bounds, model.cells), 2)
    exponent = torch.from_numpy(-model.rows(centres.numpy()).scores).double()
    weight = torch.softmax(exponent, dim=1)
    each = -(-n // len(weight))
    index = torch.multinomial(weight, each, replacement=True, generator=generator).flatten()
    index = index[torch.randperm(len(index), generator=generator)[:n]]
    width = (bounds[1] - bounds[0]) / model.cells
    return centres[index] + (torch.rand(n, 2, generator=generator) - 0.5) * width


# --- coverage over trainings


@dataclass(frozen=True)
class CoverageTest:
    """Coverage of one training at all levels.

    Args:
        levels: with shape (L,).
        log_density, density: of intervals of log p and of p, by kind: "quantile" and "gaussian", shapes (L,).
        by_region: of log p on a grid by kind, shapes (R, L).
        pull, density_pull: with shape (N,).
        kl: of the mean density.
        sigma, error: root mean squares of the posterior's width and of the error of log p.
    """

    levels: np.ndarray
    log_density: dict[str, np.ndarray]
    density: dict[str, np.ndarray]
    by_region: dict[str, np.ndarray]
    pull: np.ndarray
    density_pull: np.ndarray
    kl: float
    sigma: float
    error: float


def coverage_test(model: Model, config: Run, density: Density, events: Tensor) -> CoverageTest:
    """Coverage on the test set, and region by region on a grid over the paper's test grid."""
    limit = config.evaluation.grid_limit
    test, grid = events[:EVENTS], grid_points(torch.linspace(-limit, limit, REGION_GRID, dtype=torch.float64), 2)
    found, on_grid = model.rows(test.numpy()), model.rows(grid.numpy()).log_prob_draws()
    draws = found.log_prob_draws()
    true, grid_true = (density.log_prob(x.double()).numpy() for x in (test, grid))
    levels = np.unique(np.concatenate([confidence_levels(len(draws)), LEVELS]))
    bands = regions(grid_true)
    return CoverageTest(
        levels=levels,
        log_density={kind: coverage(draws, true, levels, kind) for kind in KINDS},
        density={kind: coverage(draws, true, levels, kind, density=True) for kind in KINDS},
        by_region={kind: coverage_by_region(on_grid, grid_true, bands, levels, kind) for kind in KINDS},
        pull=pulls(draws, true),
        density_pull=density_pulls(draws, true),
        kl=kl_divergence(true, log_mean_density(draws)).value,
        sigma=_rms(mean_and_std(draws)[1]),
        error=_rms(found.log_prob() - true),
    )
