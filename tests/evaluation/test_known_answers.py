"""Numbers whose value is known: turned round, each would lie on the other side of zero or of one half."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

import normae
from normae.config import structure
from normae.evaluation import toy_posterior
from normae.evaluation.jets import separation
from normae.evaluation.table import TableTest, table_metrics
from normae.evaluation.toy import DensityTest, agreement, ideal_auc
from normae.inference import Rows
from normae.statistics import Estimate
from normae.statistics.arrays import over
from tiny_run import tiny

N = 20_000
APART = norm.cdf(1 / math.sqrt(2))
"""AUC of two unit Gaussians whose means differ by one."""


class UnitGaussian:
    """The true density."""

    def log_prob(self, x: torch.Tensor) -> torch.Tensor:
        return -0.5 * x.square().sum(1) - math.log(2 * math.pi)


def compared(model) -> DensityTest:
    """Truth and model at events of the truth."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(N, 2)))
    true, learned = UnitGaussian().log_prob(x).numpy(), model(x).numpy()
    return DensityTest(np.zeros(1), true, learned, x.numpy(), true, learned)


def test_the_kl_is_that_of_the_truth_from_the_model():
    """A model twice as wide: KL(true, model) = 2 log 2 - 3/4, and KL(model, true) would be 3 - 2 log 2."""
    found = agreement(compared(lambda x: UnitGaussian().log_prob(x / 2) - 2 * math.log(2)))["kl"]
    assert found.value == pytest.approx(2 * math.log(2) - 0.75, abs=4 * found.error)


def test_the_ideal_classifier_is_above_one_half():
    """A model that is moved by one standard deviation."""
    away = torch.tensor([1.0, 0.0], dtype=torch.float64)
    sample = torch.from_numpy(np.random.default_rng(1).normal(size=(N, 2))) + away
    test = compared(lambda x: UnitGaussian().log_prob(x - away))
    found = ideal_auc(UnitGaussian().log_prob(sample - away).numpy(), sample, UnitGaussian(), test)
    assert found.value == pytest.approx(APART, abs=4 * found.error)


def test_overtraining_is_a_higher_score_of_rows_held_out():
    rng = np.random.default_rng(2)
    rows = [rng.normal(size=(200, 2)).astype(np.float32) for _ in range(2)]
    scores = {name: rng.normal(mean, 1, 5000) for name, mean in (("training", 3), ("held out", 4), ("sampled", 4))}
    none = [Estimate(0.0, 0.0)] * 2
    test = TableTest(("a", "b"), rows[0], rows[0], rows[1], scores, none, none)
    config = structure(tiny(data={"file": "nowhere.npy", "train": 1000, "test": 1000}))
    found = table_metrics(normae.load("toy-2gauss-nae"), config, test)["auc_overtraining"]
    assert found.value == pytest.approx(APART, abs=4 * found.error)


class Known:
    """A posterior with 99 draws, unit Gaussians whose means along x_1 have the mean `centre` and the width `away`."""

    def __init__(self, centre: float, away: float) -> None:
        places = centre + away * norm.ppf(np.arange(1, 100) / 100)
        self.means = [torch.tensor([place, 0.0], dtype=torch.float64) for place in places]

    def rows(self, x: np.ndarray) -> Rows:
        events = torch.from_numpy(np.asarray(x, dtype=np.float64))
        scores = np.stack([-UnitGaussian().log_prob(events - mean).numpy() for mean in self.means])
        return Rows(scores, np.zeros(len(scores)))


def test_coverage_and_kl_of_a_posterior():
    """Moved by 0.8 its KL is 0.32 and no interval holds the truth; where it is not moved, the truth is the median."""
    events, config = torch.from_numpy(np.random.default_rng(3).normal(size=(2000, 2))), structure(tiny())
    right, moved = (
        toy_posterior.coverage_test(Known(centre, 0.01), config, UnitGaussian(), events) for centre in (0.0, 0.8)
    )
    assert moved.kl == pytest.approx(0.32, abs=4 * 0.8 / math.sqrt(2000))
    assert moved.error == pytest.approx(math.hypot(0.8, 0.32), rel=0.05)
    assert right.kl == pytest.approx(0, abs=1e-3)
    assert right.sigma == pytest.approx(0.01, rel=0.05)
    assert right.coverage["log_density", "gaussian"][-1] > 0.95
    assert moved.coverage["log_density", "gaussian"][-1] < 0.05


def test_tagging_is_a_higher_score_of_the_signal():
    """Two unit Gaussians, and the rejections that they have."""
    rng = np.random.default_rng(4)
    signal, background = rng.normal(1, 1, N), rng.normal(0, 1, N)
    found = separation(signal, background)
    assert found["auc"].value == pytest.approx(APART, abs=4 * found["auc"].error)
    for name, share in (("rejection_20", 0.2), ("rejection_30", 0.3)):
        wanted = 1 / norm.sf(1 + norm.isf(share))
        assert found[name].value == pytest.approx(wanted, abs=4 * found[name].error)


def test_draws_of_three_trainings_scatter_as_three_do():
    """Their deviation has n - 1 and Student's factor; draws within a training add theirs in quadrature."""
    trainings, draws = np.array([1.0, 2.0, 4.0]), 30
    values = np.tile(trainings, draws // 3)
    scatter = 1.3213 * trainings.std(ddof=1)
    assert over(values, 3) == pytest.approx((7 / 3, scatter), rel=1e-4)
    noisy = values + np.repeat(np.tile([-0.5, 0.5], 5), 3)
    within = 0.5 * math.sqrt(10 / 9)
    assert over(noisy, 3) == pytest.approx((7 / 3, math.hypot(scatter, within)), rel=1e-4)
    assert over(values).error == pytest.approx(values.std(ddof=1))
