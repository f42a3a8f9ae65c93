"""Coordinates go there and back, know their Jacobian, and say what lies outside the training sample."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import normae
from normae.coordinates import (
    CoordinatesConfig,
    Identity,
    Range,
    TableCoordinates,
    fit_coordinates,
    harden,
    read_coordinates,
    soften,
)
from normae.errors import InputError
from normae.runs.automatic import choose_curves
from normae.tensors import stream


def table(rows: int = 400, columns: int = 3, seed: int = 0) -> torch.Tensor:
    """Correlated columns in units of their own, with some far rows."""
    random = np.random.RandomState(seed)
    x = random.standard_t(3, size=(rows, columns)) @ random.normal(size=(columns, columns))
    return torch.from_numpy(x * 10.0 ** random.randint(-3, 4, size=columns) + random.normal(size=columns))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 6))
def test_there_and_back(seed, columns):
    x = table(200, columns, seed)
    map_ = TableCoordinates.of(x)
    torch.testing.assert_close(map_.inverse(map_.forward(x)), x, rtol=1e-8, atol=1e-8 * float(x.abs().max()))


def test_the_slope_is_the_determinant_of_the_jacobian():
    x = table()
    x[0] *= 30  # beyond the limit, where the tails are softened
    map_ = TableCoordinates.of(x)
    for row in x[:5]:
        jacobian = torch.autograd.functional.jacobian(lambda r: map_.forward(r[None])[0], row)
        expected = torch.linalg.slogdet(jacobian).logabsdet
        torch.testing.assert_close(map_.log_slope(row[None])[0], expected, rtol=1e-9, atol=1e-9)


def test_rows_with_their_noise_have_unit_covariance():
    x = table(20_000)
    map_ = TableCoordinates.of(x, noise=0.1)
    y = map_.noisy(map_.forward(x), 3, stream(0, "noise"))
    assert y.shape == (60_000, 3)
    torch.testing.assert_close(torch.cov(y.T), torch.eye(3, dtype=torch.float64), rtol=0, atol=0.03)


def test_density_integrates_to_one_in_the_units_of_the_table():
    """A standard Gaussian in y, carried back with the slope, is a density in x."""
    x = torch.from_numpy(np.random.RandomState(0).gamma(3.0, 50.0, size=(1000, 1)))
    map_ = TableCoordinates.of(x)
    grid = torch.linspace(-2000, 3000, 400_001, dtype=torch.float64)[:, None]
    y = map_.forward(grid)
    log_p = -0.5 * y[:, 0] ** 2 - 0.5 * np.log(2 * np.pi) + map_.log_slope(grid)
    assert float(log_p.exp().sum()) * 5000 / 400_000 == pytest.approx(1, abs=2e-3)


def test_constant_columns_and_huge_ones():
    x = torch.stack([torch.full((50,), 7.0), torch.linspace(1e12, 1e12 + 1, 50)], dim=1).double()
    map_ = TableCoordinates.of(x)
    assert bool(torch.isfinite(map_.forward(x)).all())


@pytest.mark.parametrize("map_", [Identity(Range.of(table())), TableCoordinates.of(table())])
def test_stored_and_read_again(map_):
    found = read_coordinates(map_.kind, map_.tensors(), (3,), "model")
    x = table()
    assert torch.equal(found.forward(x), map_.forward(x))
    assert torch.equal(found.range.low, x.amin(0))
    with pytest.raises(InputError, match="coordinates do not belong"):
        read_coordinates(map_.kind, map_.tensors(), (4,), "model")


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError, match="'sideways'"):
        read_coordinates("sideways", {}, (2,), "model")
    with pytest.raises(InputError, match="expected a table"):
        fit_coordinates(CoordinatesConfig("table"), None)


def test_values_far_outside_the_training_sample():
    seen = Range.of(torch.tensor([[0.0, -1.0], [10.0, 1.0]]))
    rows = torch.tensor([[10.9, 0.0], [11.1, 0.0], [5.0, -1.3]])
    assert seen.outside(rows).tolist() == [[False, False], [True, False], [False, True]]


def test_one_outlier_does_not_move_the_map():
    x = table()
    spoiled = torch.cat([x, 1e9 * torch.ones(1, 3, dtype=torch.float64)])
    torch.testing.assert_close(TableCoordinates.of(spoiled).width, TableCoordinates.of(x).width, rtol=0.05, atol=0)


def test_constant_and_collinear_columns_have_unit_covariance_with_their_noise():
    x = table(2000)
    wide = torch.cat([x, torch.full((2000, 1), 7.0), 2 * x[:, :1]], dim=1).double()
    map_ = TableCoordinates.of(wide)
    rows = map_.noisy(map_.forward(wide), 10, stream(0, "noise"))
    assert float((torch.cov(rows.T) - torch.eye(5)).abs().max()) < 0.05


@pytest.mark.parametrize("unit", [1e-300, 1e-200, 1e-12, 1e12, 1e200, 1e300])
def test_other_units_differ_by_the_jacobian(unit):
    random = np.random.RandomState(0)
    x = torch.from_numpy(random.standard_normal((300, 4)) @ random.standard_normal((4, 4)) + 3)
    map_, other = TableCoordinates.of(x), TableCoordinates.of(unit * x)
    torch.testing.assert_close(other.forward(unit * x), map_.forward(x), rtol=0, atol=1e-6)
    slopes = other.log_slope(unit * x) - map_.log_slope(x)
    torch.testing.assert_close(slopes, torch.full_like(slopes, -4 * np.log(unit)), rtol=1e-6, atol=0)


def test_soft_and_hard():
    x = torch.linspace(-1e6, 1e6, 101, dtype=torch.float64)
    torch.testing.assert_close(harden(soften(x)), x)


def odd_columns(n: int) -> torch.Tensor:
    """A lognormal column, a uniform one, a Gaussian, one of whole numbers, and one with two groups."""
    random = np.random.default_rng(0)
    groups = np.where(random.random(n) < 0.5, -3, 3) + 0.3 * random.standard_normal(n)
    columns = [np.exp(2 * random.standard_normal(n)), random.random(n), random.standard_normal(n)]
    return torch.from_numpy(np.column_stack([*columns, random.integers(0, 5, n), groups]))


def test_columns_get_curves_where_gaussians_do_not_describe_them():
    rows = odd_columns(4000)
    assert TableCoordinates.of(rows).bent.tolist() == [False] * 5
    assert TableCoordinates.of(rows, curves="few").bent.tolist() == [True, True, False, False, False]
    assert TableCoordinates.of(rows, curves="many").bent.tolist() == [True, True, False, False, True]
    assert not TableCoordinates.of(rows[:100], curves="many").bent.any()  # too few to know


@pytest.mark.parametrize("sigma", [4, 6])
def test_a_column_that_spans_many_powers_of_ten_gets_its_curve(sigma):
    """Whatever lies far beyond the rows that a curve was tried with, it lies there in the softened column too."""
    for seed in range(4):
        rows = torch.from_numpy(np.exp(sigma * np.random.default_rng(seed).standard_normal((1500, 2))))
        assert TableCoordinates.of(rows, curves=choose_curves(rows, None)).bent.all()


def test_a_rare_value_among_equal_ones_does_not_make_a_column_narrow():
    """One row in a hundred, where the outermost percent of a column begins: its width was 0.001 with 15 of 1,500."""
    for rare in (5, 15, 16):
        column = torch.zeros(1500, 1, dtype=torch.float64)
        column[:rare] = 1
        assert TableCoordinates.of(column).width == pytest.approx((rare / 1500) ** 0.5, rel=0.02)


def test_the_slope_of_a_curve_without_a_row():
    random = np.random.default_rng(1)
    rows = torch.from_numpy(np.column_stack([random.uniform(size=500), random.standard_normal(500)]))
    to = TableCoordinates.of(rows, curves="many")
    assert to.bent.tolist() == [True, False]
    without = [TableCoordinates.of(rows[torch.arange(500) != i], curves="many") for i in range(0, 500, 10)]
    found = torch.cat([other.log_slope(rows[10 * i : 10 * i + 1]) for i, other in enumerate(without)])
    gain = to.log_slope(rows)[::10] - found
    assert float(gain.mean()) > 0.02  # what a row gains by having been seen
    assert float(-to.unseen(rows)[::10].mean()) == pytest.approx(float(gain.mean()), rel=0.4)


def test_a_curve_there_and_back_and_its_slope():
    rows = odd_columns(2000)
    map_ = TableCoordinates.of(rows, curves="many")
    far = torch.tensor([[1e6, 2.0, -30.0, 9.0, -70.0], [-50.0, -1.0, 30.0, -9.0, 99.0]], dtype=torch.float64)
    for x in (rows, far):
        assert torch.allclose(map_.inverse(map_.forward(x)), x, rtol=1e-9, atol=1e-9)
    x = torch.cat([rows[:50], far])
    jacobian = torch.stack([torch.autograd.functional.jacobian(lambda v: map_.forward(v[None])[0], one) for one in x])
    assert torch.allclose(torch.linalg.slogdet(jacobian).logabsdet, map_.log_slope(x))


def test_a_bent_column_is_gaussian():
    x = torch.from_numpy(np.exp(2 * np.random.default_rng(1).standard_normal((20_000, 1))))
    map_ = TableCoordinates.of(x, noise=1e-3, curves="few")
    y = map_.forward(x)
    log_p = -0.5 * y[:, 0].square() - 0.5 * np.log(2 * np.pi) + map_.log_slope(x)
    truth = -0.5 * (x.log() / 2).square() - 0.5 * np.log(2 * np.pi) - np.log(2) - x.log()
    assert float((log_p - truth[:, 0]).abs().mean()) < 0.05
    straight = TableCoordinates.of(x, noise=1e-3)
    y = straight.forward(x)
    assert float((straight.log_slope(x) - 0.5 * y[:, 0].square() - truth[:, 0]).abs().mean()) > 0.5


@pytest.mark.parametrize("seed", [7, 15])
def test_rows_of_a_skewed_column_train_whichever_of_them_decide_on_its_curve(seed):
    random = np.random.default_rng(seed)
    rows = np.stack([random.normal(size=1000), np.exp(1.5 * random.normal(size=1000))], axis=1)
    nae = normae.NormalizedAutoencoder(random_state=seed, start_iterations=20).fit(rows)
    assert np.isfinite(nae.score_samples(rows)).all()
