"""Calibrated scores pass; too sure, too timid or shifted ones are found out, and repaired on held-out data."""

import math

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from scipy.special import logit

from normae.errors import InputError
from normae.statistics.calibration import (
    Reliability,
    binned_odds,
    calibration,
    fit_isotonic,
    fit_platt,
    fit_temperature,
    logistic_slope,
    unit_slope_shift,
)

Array = NDArray[np.float64]


def gaussians(n_a: int, n_b: int, seed: int) -> tuple[Array, NDArray[np.int64]]:
    """The true log r of N(1, 1) (label 1) over N(-1, 1), 2 x, at a sample of both."""
    generator = np.random.default_rng(seed)
    labels = np.repeat([0, 1], (n_a, n_b))
    return 2 * (generator.normal(size=n_a + n_b) + 2 * labels - 1), labels


def error_of(log_ratio: Array, labels: NDArray[np.int64], seed: int = 0):
    return calibration(log_ratio, labels, seed, n_bootstrap=50).error


def reliability(probability: ArrayLike, labels: ArrayLike, bins: int) -> Reliability:
    """Of scores that are probabilities of label 1 in this sample."""
    share = np.mean(labels)
    return calibration(logit(probability) - logit(share), labels, 0, bins, 2).reliability


@pytest.mark.parametrize(("n_a", "n_b"), [(10_000, 10_000), (15_000, 3000)])
def test_the_true_ratio_is_calibrated(n_a: int, n_b: int) -> None:
    log_ratio, labels = gaussians(n_a, n_b, 1)
    diagram = calibration(log_ratio, labels, 0, n_bootstrap=2).reliability
    width = np.sqrt(diagram.predicted * (1 - diagram.predicted) / diagram.events)
    pull = (diagram.observed - diagram.predicted) / width
    assert np.nanstd(pull) == pytest.approx(1.0, abs=0.5)
    assert diagram.events.sum() == n_a + n_b
    assert error_of(log_ratio, labels).calibrated


@pytest.mark.parametrize(("factor", "shift"), [(1.4, 0.0), (0.7, 0.0), (1.0, 0.4)])
def test_wrong_scores_are_found_out_and_repaired(factor: float, shift: float) -> None:
    train, train_labels = gaussians(8000, 4000, 2)
    test, labels = gaussians(10_000, 10_000, 3)
    wrong, wrong_train = factor * test + shift, factor * train + shift
    assert not error_of(wrong, labels).calibrated
    platt = fit_platt(wrong_train, train_labels)
    assert platt.slope == pytest.approx(1 / factor, rel=0.06)
    assert platt.offset == pytest.approx(-shift / factor, abs=0.08)
    for repaired in (platt(wrong), fit_isotonic(wrong_train, train_labels)(wrong)):
        better = error_of(repaired, labels)
        assert better.measured.value < 0.5 * error_of(wrong, labels).measured.value
        assert calibration(repaired, labels, 0).cross_entropy.value < calibration(wrong, labels, 0).cross_entropy.value


def test_temperature_repairs_a_factor_and_not_a_shift() -> None:
    train, train_labels = gaussians(5000, 5000, 4)
    assert fit_temperature(1.5 * train, train_labels).slope == pytest.approx(1 / 1.5, rel=0.06)
    assert fit_temperature(train + 1, train_labels).offset == 0.0


def test_the_direction_in_the_diagram() -> None:
    log_ratio, labels = gaussians(10_000, 10_000, 5)
    sure = calibration(2 * log_ratio, labels, 0, n_bootstrap=2).reliability
    assert (sure.observed[1:5] > sure.predicted[1:5]).all()
    assert (sure.observed[-5:-1] < sure.predicted[-5:-1]).all()


def test_isotonic_bends_what_no_line_repairs() -> None:
    train, train_labels = gaussians(10_000, 10_000, 6)
    test, labels = gaussians(10_000, 10_000, 7)
    bent, bent_train = (np.sign(x) * np.abs(x) ** 2 for x in (test, train))
    corrected = fit_isotonic(bent_train, train_labels)
    assert np.isfinite(corrected([-1e9, 0.0, 1e9])).all()
    assert error_of(corrected(bent), labels).measured.value < 0.6 * error_of(bent, labels).measured.value
    assert np.corrcoef(corrected(bent), test)[0, 1] > 0.97


def test_a_perfect_classifier_has_the_error_that_is_foretold() -> None:
    generator = np.random.default_rng(8)
    values = []
    for seed in range(60):
        score = generator.uniform(0.02, 0.98, size=2000)
        labels = generator.uniform(size=2000) < score
        values.append(calibration(logit(score) - logit(labels.mean()), labels, seed, 10, 2).error)
    measured = [value.measured.value for value in values]
    assert np.mean(measured) == pytest.approx(values[0].perfect.value, rel=0.1)
    assert np.std(measured) == pytest.approx(values[0].perfect.error, rel=0.3)


def test_the_bootstrap_error_is_the_scatter_of_a_miscalibrated_score() -> None:
    values = [
        error_of(2 * ratio, labels, seed) for seed in range(40) for ratio, labels in [gaussians(1500, 1500, seed)]
    ]
    scatter = np.std([value.measured.value for value in values])
    assert np.mean([value.measured.error for value in values]) == pytest.approx(scatter, rel=0.3)


def test_known_bins() -> None:
    diagram = reliability([0.1, 0.2, 0.6, 0.7, 0.8, 0.9], [0, 1, 1, 1, 1, 1], 2)
    assert diagram.edges == pytest.approx([0, 0.65, 1])
    assert diagram.predicted == pytest.approx([0.3, 0.8])
    assert diagram.observed == pytest.approx([2 / 3, 1.0])
    assert diagram.error == pytest.approx([math.sqrt(2 / 3 + 0.25) / 4, 0.5 / 4])
    assert diagram.events.tolist() == [3, 3]


def test_equal_count_bins() -> None:
    counts = calibration(*gaussians(5000, 5000, 9), 0, 10, 2).reliability.events
    assert counts.tolist() == [1000] * 10
    repeated = reliability([0.5, 0.5, 0.5, 0.5], [0, 1, 0, 1], 20)
    assert repeated.edges.tolist() == [0.0, 0.5, 1.0]
    assert np.isnan(repeated.observed[0]), "a bin without events"


def test_separated_classes_give_a_finite_slope() -> None:
    labels = np.repeat([0, 1], 50)
    assert math.isfinite(fit_platt(labels - 0.5, labels).slope)


def test_the_same_generator_gives_the_same_error() -> None:
    log_ratio, labels = gaussians(500, 500, 10)
    assert error_of(log_ratio, labels, 1) == error_of(log_ratio, labels, 1)
    assert error_of(log_ratio, labels, 1).measured.error != error_of(log_ratio, labels, 2).measured.error


def test_bad_input() -> None:
    with pytest.raises(InputError, match="without labels"):
        calibration([0.5], None, 0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="only label 1 in 2 events"):
        calibration([0.5, 0.6], [1, 1], 0)
    with pytest.raises(InputError, match="got 1 infinite"):
        calibration([0.5, math.inf], [0, 1], 0)
    with pytest.raises(InputError, match="at least 2 resamples, got 1"):
        calibration([0.5, 0.6], [0, 1], 0, n_bootstrap=1)
    with pytest.raises(InputError, match="labels 0 and 1, got 2"):
        fit_platt([0.5, 0.6], [0, 2])


def test_labels_alone_find_the_scale_of_log_r() -> None:
    """log r of N(1, 1) over N(-1, 1) is 2 x: b is 1 for it, 1/2 where it is doubled, whatever the composition."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], (30_000, 10_000))
    ratio = 2 * (rng.normal(size=labels.size) + 2 * labels - 1)
    for factor in (1.0, 2.0):
        found = logistic_slope(factor * ratio + 3, labels)
        assert abs(found.value - 1 / factor) < 4 * found.error
        assert found.error < 0.02
    assert unit_slope_shift(ratio + 3, labels) == pytest.approx(-3, abs=0.1)
    spread = [logistic_slope(*_few(seed)) for seed in range(100)]
    assert np.mean([one.error for one in spread]) == pytest.approx(np.std([one.value for one in spread]), rel=0.25)


def _few(seed: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.repeat([0, 1], 500)
    return 2 * (np.random.default_rng(seed).normal(size=1000) + 2 * labels - 1), labels


def test_labels_in_bins_of_log_r() -> None:
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1], (40_000, 80_000))
    ratio = 2 * (rng.normal(size=labels.size) + 2 * labels - 1)
    right = binned_odds(ratio, labels)
    pulls = (right.observed - right.claimed) / right.error
    assert np.abs(pulls).max() < 4
    assert np.std(pulls) == pytest.approx(1, abs=0.35)
    assert right.agrees(0.25) == (0, len(right.error))
    assert binned_odds(ratio[::400], labels[::400]).agrees(0.25) == (0, 0), "too few labels to say so"
    assert (right.share_a.sum(), right.share_b.sum()) == pytest.approx((1, 1))
    bent = np.where(ratio > 3, 3 + 2 * (ratio - 3), ratio)
    first, last = binned_odds(bent, labels).agrees(0.25)
    odds = binned_odds(bent, labels)
    assert first == 0
    assert 2 < odds.edges[last] < 6, "log r is overstated from 3 on"
    doubled = binned_odds(2 * ratio, labels)
    low, high = doubled.agrees(0.25)
    assert high - low < 8
