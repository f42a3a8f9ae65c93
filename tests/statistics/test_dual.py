"""The dual test passes the true ratio and finds out a wrong slope, a bend and a shifted region."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from normae.errors import InputError
from normae.statistics import (
    DualRule,
    balanced_pearson,
    binned_residuals,
    compare_ratios,
    fit_line,
    pearson,
    share_outside,
    verdict,
    within_classes,
)

Array = NDArray[np.float64]


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sample(n_a: int = 4000, n_b: int = 4000, seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
    """log r of N(1, 1) over N(-1, 1) at a sample of both."""
    labels = np.repeat([0, 1], (n_a, n_b))
    return 2 * (np.random.default_rng(seed).normal(size=n_a + n_b) + 2 * labels - 1), labels


def compare(reference: Array, model: Array, labels: NDArray[np.int64], **changes: object):
    return compare_ratios(reference, model, labels, n_bootstrap=40, generator=stream(), **changes)  # type: ignore[arg-type]


def test_the_line_is_that_of_polyfit_for_equal_classes() -> None:
    model, labels = sample()
    reference = 0.9 * model + 0.3 + np.random.default_rng(1).normal(size=model.size)
    line = fit_line(reference, model, labels, 40, generator=stream())
    assert (line.slope.value, line.constant.value) == pytest.approx(tuple(np.polyfit(model, reference, 1)))
    assert abs(line.slope.value - 0.9) < 4 * line.slope.error
    assert abs(line.constant.value - 0.3) < 4 * line.constant.error


@pytest.mark.parametrize(("n_a", "n_b", "noise"), [(300, 300, 0.5), (600, 60, 2.0)])
def test_the_bootstrap_error_is_the_scatter_over_samples(n_a: int, n_b: int, noise: float) -> None:
    """Also where the rarer class, which counts as much, is the noisier one."""
    lines = []
    for seed in range(60):
        model, labels = sample(n_a, n_b, seed)
        width = np.where(labels == 1, noise, 0.5) + 0.2 * np.abs(model)
        reference = model + width * np.random.default_rng(99 + seed).normal(size=model.size)
        lines.append(fit_line(reference, model, labels, 60, generator=stream(seed)))
    for estimates in zip(*lines, strict=True):
        scatter = np.std([estimate.value for estimate in estimates])
        assert np.mean([estimate.error for estimate in estimates]) == pytest.approx(scatter, rel=0.25)


def test_the_classes_weigh_the_same_whatever_their_numbers() -> None:
    """On a bent relation the line depends on the composition of the sample, unless that is balanced."""
    lines, plain, correlation = [], [], []
    for n_a in (40_000, 4000):
        model, labels = sample(n_a, 40_000, 2)
        reference = model + 0.05 * model**3
        lines.append(fit_line(reference, model, labels, 20, generator=stream()))
        plain.append(np.polyfit(model, reference, 1))
        correlation.append(balanced_pearson(reference, model, labels))
    assert abs(lines[0].constant.value - lines[1].constant.value) < 4 * lines[1].constant.error
    assert abs(plain[0][1] - plain[1][1]) > 4 * lines[1].constant.error
    assert abs(correlation[0].value - correlation[1].value) < 4 * correlation[1].error


def test_balanced_pearson_is_pearson_for_equal_classes() -> None:
    model, labels = sample()
    reference = model + np.random.default_rng(3).normal(size=model.size)
    assert balanced_pearson(reference, model, labels) == pytest.approx(pearson(reference, model))


def test_digits_are_kept_where_log_r_is_large() -> None:
    model, labels = sample()
    line = fit_line(model + 1e6, model - 1e6, labels, 2, generator=stream())
    assert line.slope.value == pytest.approx(1.0, abs=1e-9)
    assert line.constant.value == pytest.approx(2e6, abs=1e-3)


def test_the_truth_passes() -> None:
    reference, labels = sample()
    model = reference + 0.3 * np.random.default_rng(4).normal(size=reference.size) + 5
    result = compare(reference, model, labels)
    assert result.verdict.passes
    assert result.verdict.sentence.startswith("Passes: for all events m = 0.98")
    assert result.verdict.classes_pass == (True, True)
    assert "linear (largest mean residual" in result.verdict.sentence
    assert result.line.constant.value == pytest.approx(-5, abs=0.2)
    assert result.pearson.value > 0.99


@pytest.mark.parametrize(("factor", "word"), [(1.3, "overstate"), (0.7, "understate")])
def test_a_wrong_slope_fails_and_is_named(factor: float, word: str) -> None:
    reference, labels = sample()
    result = compare(reference, factor * reference, labels).verdict
    assert (result.passes, result.slope_passes, result.linear) == (False, False, True)
    assert f"outside of 1 ± 0.05: the models {word} log r; within A" in result.sentence


def test_two_gaussians_have_slope_one_in_each_class_and_a_doubled_log_r_has_not() -> None:
    reference, labels = sample()
    right, double = compare(reference, reference, labels), compare(reference, 2 * reference, labels)
    for one, twice in zip(right.within, double.within, strict=True):
        assert one.slope.value == pytest.approx(1, abs=1e-9)
        assert twice.slope.value == pytest.approx(0.5, abs=1e-9)
        assert twice.pearson.value == pytest.approx(1, abs=1e-9)
    assert right.verdict.passes
    assert double.verdict.classes_pass == (False, False)
    for side in "AB":
        assert f"within {side} m = 0.5" in double.verdict.sentence
    assert double.verdict.sentence.count("the models overstate log r") == 3


def test_a_log_r_that_only_tells_the_classes_apart_is_found_out_within_each() -> None:
    """Its slope and correlation over all events are good; what tells is the correlation within a class."""
    reference, labels = sample(seed=3)
    noise = np.random.default_rng(8).normal(size=labels.size)
    apart = 4.0 * labels - 2
    rule = DualRule(slope_tolerance=0.3, residual_tolerance=9)
    found = compare(reference, apart + 0.5 * noise, labels, rule=rule)
    assert found.pearson.value > 0.6
    assert found.verdict.slope_passes
    assert found.verdict.linear
    assert found.verdict.classes_pass == (False, False)
    assert all(abs(one.pearson.value) < 4 * one.pearson.error for one in found.within)
    assert found.verdict.sentence.count("hardly know it there") == 2
    constant = compare(reference, apart, labels, rule=rule)
    assert constant.verdict.sentence.count("log r is the same for all events") == 2
    assert [one.pearson.value for one in constant.within] == [0.0, 0.0]


def test_the_error_within_a_class_is_the_scatter_over_samples() -> None:
    found = []
    for seed in range(80):
        model, labels = sample(300, 300, seed)
        reference = model + (0.5 + 0.2 * np.abs(model)) * np.random.default_rng(99 + seed).normal(size=model.size)
        found.append(within_classes(reference, model, labels)[0].slope)
    scatter = np.std([one.value for one in found])
    assert np.mean([one.error for one in found]) == pytest.approx(scatter, rel=0.25)


def test_a_wrong_slope_within_the_spread_of_the_posterior_passes() -> None:
    reference, labels = sample()
    wide = compare(reference, 1.3 * reference, labels, slope_spread=0.1).verdict
    assert wide.passes
    assert "cannot tell more" in wide.sentence
    assert "cannot tell more" not in compare(reference, reference, labels).verdict.sentence


def test_a_tail_that_is_off_fails_and_is_found() -> None:
    reference, labels = sample()
    model = np.where(reference > 3, 3 + 0.2 * (reference - 3), reference)
    result = compare(reference, model, labels, rule=DualRule(slope_tolerance=0.5))
    assert (result.verdict.slope_passes, result.verdict.linear) == (True, False)
    assert "100 % of label 1" in result.verdict.sentence
    assert result.verdict.sentence.endswith("above it.")
    worst = int(np.argmax(np.abs(result.residuals.residual)))
    assert worst == result.residuals.residual.size - 1
    assert result.outside_b.value > 0.1 > 0.001 > result.outside_a.value


def test_noise_alone_is_not_called_a_bend() -> None:
    for seed in range(10):
        model, labels = sample(200, 200, seed)
        reference = model + 3 * np.random.default_rng(99 + seed).normal(size=model.size)
        line = fit_line(reference, model, labels, 40, generator=stream(seed))
        within = within_classes(reference, model, labels)
        assert verdict(line, within, binned_residuals(reference, model, labels, line)).linear


def test_both_failures_are_in_the_sentence() -> None:
    reference, labels = sample()
    sentence = compare(reference, np.sign(reference) * reference**2, labels).verdict.sentence
    assert sentence.startswith("Fails: for all events m = ")
    assert "; the relation is not linear" in sentence


def test_residual_bins_have_equal_weight_and_right_errors() -> None:
    model, labels = sample(1000, 9000, 5)
    reference = model + np.random.default_rng(6).normal(size=model.size)
    zero = fit_line(model, model, labels, 2, generator=stream())
    bins = binned_residuals(reference, model, labels, zero, 10)
    assert len(bins.residual) == 10
    assert np.std(bins.residual / bins.error) == pytest.approx(1.0, abs=0.6)
    assert bins.share[0] < 0.1
    assert bins.share[-1] > 0.9
    assert ((bins.edges[:-1] <= bins.centre) & (bins.centre < bins.edges[1:])).all()


def test_log_r_that_repeats_gives_fewer_bins() -> None:
    model = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    line = fit_line(model, model, [0, 0, 0, 1, 1, 1], 2, generator=stream())
    assert binned_residuals(model, model, [0, 0, 0, 1, 1, 1], line).centre.tolist() == [0.0, 1.0]


def test_share_outside() -> None:
    assert share_outside([0.0, 0.0, 0.0, 0.0], [0.5, -1.5, 1.0, 0.99]).value == 0.5


def test_bad_input() -> None:
    good, labels = sample(10, 10)
    with pytest.raises(InputError, match="got a sample without labels"):
        fit_line(good, good, None, generator=stream())
    with pytest.raises(InputError, match="only label 0 in 20 events"):
        fit_line(good, good, 0 * labels, generator=stream())
    with pytest.raises(InputError, match="each of 20 events, got 19"):
        fit_line(good, good[1:], labels, generator=stream())
    with pytest.raises(InputError, match="one label per event, 20, got 19"):
        fit_line(good, good, labels[1:], generator=stream())
    with pytest.raises(InputError, match="reference: expected finite values, got 20 infinite"):
        fit_line(good + math.inf, good, labels, generator=stream())
    with pytest.raises(InputError, match="got a constant"):
        fit_line(good, 0 * good, labels, generator=stream())
    with pytest.raises(InputError, match="at least 3 bins"):
        DualRule(bins=2)
