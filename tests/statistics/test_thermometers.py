"""Temperatures of known targets, and the root of a slope that is only known with noise."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normae.errors import InputError
from normae.statistics import (
    Estimate,
    SlopePoint,
    configurational_temperature,
    equipartition,
    manifold_temperature,
    next_temperature,
    slope_line,
    thermal_mean,
    unit_slope_temperature,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_ratio_of_means_has_the_error_of_its_scatter():
    """200 samples of <a>/<b>: the bootstrap's error is their width."""
    numbers = np.random.default_rng(0)
    found = []
    for seed in range(60):
        a = numbers.normal(2, 1, 400)
        b = numbers.normal(4, 1, 400)
        found.append(configurational_temperature(a, b, 100, generator=generator(seed)))
    values, errors = np.array(found).T
    assert values.mean() == pytest.approx(0.5, abs=4 * 0.028 / math.sqrt(60))
    assert errors.mean() == pytest.approx(values.std(), rel=0.35)


def test_a_laplacian_without_a_sign_has_no_temperature():
    numbers = np.random.default_rng(1)
    found = configurational_temperature(np.ones(500), numbers.normal(0, 1, 500), generator=generator())
    assert math.isinf(found.error)


@pytest.mark.parametrize(("d", "temperature"), [(2, 0.2), (7, 3.0), (20, 0.05)])
def test_equipartition_of_equal_residuals(d, temperature):
    """E = mean of r^2 with r of variance T d / 2: then <E> = T d / 2, and d_eff = d."""
    residuals = np.random.default_rng(d).normal(0, math.sqrt(temperature * d / 2), (3000, d))
    found = equipartition(np.square(residuals).mean(1), residuals, generator=generator())
    assert found.temperature.value == pytest.approx(temperature, abs=4 * found.temperature.error)
    assert found.dimension.value == pytest.approx(d, abs=4 * found.dimension.error)
    assert found.temperature.error < 0.1 * temperature


def test_the_effective_dimension_is_the_participation_ratio():
    widths = np.array([3.0, 2.0, 1.0, 0.1])
    residuals = np.random.default_rng(0).normal(size=(4000, 4)) * widths
    expected = np.square(widths).sum() ** 2 / np.power(widths, 4).sum()
    found = equipartition(np.square(residuals).mean(1), residuals, generator=generator())
    assert found.dimension.value == pytest.approx(expected, abs=4 * found.dimension.error)
    assert found.dimension.error < 0.05


def test_few_events_in_many_features_do_not_bias_the_dimension():
    """With 100 events in 400 features the sample covariance itself would give about 80."""
    residuals = np.random.default_rng(3).normal(size=(100, 400))
    found = equipartition(np.square(residuals).mean(1), residuals, generator=generator())
    assert found.dimension.value == pytest.approx(400, rel=0.15)


def test_residuals_must_belong_to_the_energies():
    with pytest.raises(InputError, match=r"expected residuals of shape \(4, d\)"):
        equipartition(np.ones(4), np.ones((5, 2)), generator=generator())


def sphere(n: int, d: int, numbers: np.random.Generator) -> np.ndarray:
    points = numbers.normal(size=(n, d))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_temperature_on_a_sphere_is_that_of_its_events(temperature):
    """E = -z_1 on the sphere in three dimensions, where z_1 is uniform and exp(z_1/T) is drawn by inversion."""
    numbers = np.random.default_rng(7)
    u = numbers.uniform(size=3000)
    z = 1 + temperature * np.log(u + (1 - u) * math.exp(-2 / temperature))
    found = manifold_temperature(-sphere(20_000, 3, numbers)[:, 0], -z)
    assert found.value == pytest.approx(temperature, abs=4 * found.error)
    assert found.error < 0.35 * temperature


def test_the_error_on_a_sphere_is_the_scatter_of_both_samples():
    found = []
    for seed in range(80):
        numbers = np.random.default_rng(seed)
        u = numbers.uniform(size=400)
        z = 1 + 0.5 * np.log(u + (1 - u) * math.exp(-2 / 0.5))
        found.append(manifold_temperature(-sphere(500, 3, numbers)[:, 0], -z))
    values, errors = np.array(found).T
    assert values.mean() == pytest.approx(0.5, abs=0.02)
    assert errors.mean() == pytest.approx(values.std(), rel=0.35)


@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0])
def test_the_mean_at_a_temperature_on_a_sphere(temperature):
    """E = 3 - z_1 in three dimensions: the mean of z_1 is Langevin's function of 1/T."""
    expected = 3 - (1 / math.tanh(1 / temperature) - temperature)
    found = [thermal_mean(3 - sphere(2000, 3, np.random.default_rng(k))[:, 0], temperature) for k in range(80)]
    values, errors = np.array(found).T
    assert values.mean() == pytest.approx(expected, abs=4 * values.std() / 80**0.5)
    assert errors.mean() == pytest.approx(values.std(), rel=0.35)


def test_the_mean_at_a_temperature_where_no_point_is():
    found = thermal_mean(-sphere(1000, 3, np.random.default_rng(0))[:, 0], 1e-4)
    assert math.isinf(found.error), "a few points count"
    assert -1 <= found.value < -0.99


def test_the_mean_at_a_temperature_of_energies_at_the_edge():
    """One energy for all, infinite ones among others, which have no weight, and nothing but those."""
    assert thermal_mean(np.full(100, 2.0), 1e-9) == (2.0, 0.0)
    finite = np.random.default_rng(0).random(200)
    assert thermal_mean([*finite, math.inf, math.inf], 0.5) == thermal_mean(finite, 0.5)
    assert np.isfinite(thermal_mean(finite, 0.5)).all()
    for none in (math.inf, -math.inf):
        assert np.isnan(thermal_mean([none, none], 0.5).value)
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(InputError, match="temperature: expected a positive number"):
            thermal_mean(finite, temperature)


@pytest.mark.parametrize("level", [0.0, 0.5, -2.0, math.inf])
def test_events_beyond_the_energies_of_even_points_have_no_temperature(level):
    """At the mean, above it, below the lowest point, and at infinity."""
    even = -sphere(1000, 3, np.random.default_rng(0))[:, 0]
    found = manifold_temperature(even, np.full(50, even.mean() + level))
    assert math.isnan(found.value)
    assert math.isinf(found.error)


def test_an_infinite_energy_of_an_even_point_gives_no_temperature():
    found = manifold_temperature([0.0, 1.0, math.inf], [0.2, 0.3])
    assert math.isnan(found.value)
    assert math.isinf(found.error)


def test_few_points_that_count_leave_the_error_open():
    """E = -z_1 at T = 0.001: of 20,000 even points some 20 lie where the events are."""
    numbers = np.random.default_rng(3)
    z = 1 + 0.001 * np.log(numbers.uniform(size=3000))
    found = manifold_temperature(-sphere(20_000, 3, numbers)[:, 0], -z)
    assert found.value == pytest.approx(0.001, rel=0.8)
    assert math.isinf(found.error)


# --- the root of m(T) = 1


def measured(temperature: float, numbers: np.random.Generator, scatter: float = 0.0) -> SlopePoint:
    """m falls with T, as in the paper, not linearly: m = (6e-7 / T)^0.7, and its error is 0.02."""
    m = (6e-7 / temperature) ** 0.7
    return SlopePoint(temperature, Estimate(m + numbers.normal(0, math.hypot(0.02, scatter)), 0.02))


def power_law(temperature: float, error: float = 0.01, bump: float = 0.0) -> SlopePoint:
    """m = (7 / T)^0.5."""
    return SlopePoint(temperature, Estimate((7 / temperature) ** 0.5 + bump, error))


def test_two_exact_points_give_the_root():
    found = unit_slope_temperature([power_law(2.0), power_law(10.0)], scatter=0.0)
    assert found.value == pytest.approx(7)
    x, errors = np.log([2.0, 10.0]), 0.01 / np.sqrt(7 / np.array([2.0, 10.0]))
    shares = np.array([x[1] - math.log(7), math.log(7) - x[0]]) / (x[1] - x[0])
    assert found.error == pytest.approx(7 * np.linalg.norm(shares * errors) / 0.5, rel=1e-6)


@pytest.mark.parametrize("start", [1e-7, 6e-7, 2e-6, 2e-5])
@pytest.mark.parametrize("scatter", [0.0, 0.05])
def test_a_few_noisy_trainings_find_it(start, scatter):
    """In 6 trainings from a start up to 30 times off, with errors that hold; scatter is not in the errors of m."""
    pulls = []
    for seed in range(30):
        numbers = np.random.default_rng(seed)
        points: list[SlopePoint] = []
        for _ in range(6):
            points.append(measured(next_temperature(points, start), numbers, scatter))
        found = unit_slope_temperature(points)
        assert found.value == pytest.approx(6e-7, rel=0.5)
        pulls.append((math.log(found.value / 6e-7)) / (found.error / found.value))
    assert 0.1 < np.median(np.abs(pulls)) < 1.2, "0.67 for Gaussian errors, less where there is no scatter"


def test_scatter_beyond_the_errors_widens_them():
    bumps = zip((2.0, 4.0, 8.0, 16.0), (0.1, -0.1, -0.1, 0.1), strict=True)
    straight, bumpy = [power_law(t) for t in (2.0, 4.0, 8.0, 16.0)], [power_law(t, 0.01, bump) for t, bump in bumps]
    assert slope_line(straight, 0.0).scatter == 0
    assert slope_line(bumpy, 0.0).scatter == pytest.approx(0.1, rel=0.5)
    assert unit_slope_temperature(bumpy, 0.0).error > 5 * unit_slope_temperature(straight, 0.0).error


def test_a_slope_that_does_not_depend_on_the_temperature_gives_no_root():
    points = [SlopePoint(t, Estimate(0.7 + 0.001 * t, 0.05)) for t in (1.0, 2.0, 3.0)]
    assert math.isinf(unit_slope_temperature(points).error)
    assert next_temperature(points, 1.0) not in (1.0, 2.0, 3.0)


def test_one_temperature_is_not_enough():
    points = [SlopePoint(1.0, Estimate(1.1, 0.1))] * 2
    assert slope_line(points) is None
    assert math.isnan(unit_slope_temperature(points).value)
    assert math.isinf(unit_slope_temperature(points).error)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(1e-9, 1e3), st.floats(-5, 5), st.floats(1e-4, 1.0)), min_size=1, max_size=8,
    )
)  # fmt: skip
def test_the_next_temperature_is_always_usable(rows):
    """Positive, finite, within a factor of what was tried, and inside a bracket where there is one."""
    points = [SlopePoint(t, Estimate(m, e)) for t, m, e in rows]
    if len(points) > 1 and len({p.temperature for p in points}) < 2:
        points = points[:1]
    found = next_temperature(points, 1.0)
    low, high = min(p.temperature for p in points), max(p.temperature for p in points)
    assert low / 4.001 <= found <= 4.001 * high
