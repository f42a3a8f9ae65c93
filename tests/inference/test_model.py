"""log Z, exact draws and the model's public face."""

import math

import numpy as np
import pytest
import torch

from normae.coordinates import TableCoordinates
from normae.errors import InputError, LogZUnknown
from normae.inference import LogZ, Model, grid_draws, grid_log_z
from normae.lattice import IMPOSSIBLE
from normae.networks import NetworkConfig, build_mlp_autoencoder
from normae.networks.reconstruction import ExplicitEnergy
from normae.sampling import ChainConfig, SamplingConfig, langevin
from normae.tensors import stream


def quadratic(x):
    return 0.5 * x.square().sum(1)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_log_z_of_a_gaussian(dimension, temperature):
    got = grid_log_z(quadratic, temperature, (-6.0, 6.0), dimension, cells={1: 1000, 2: 400, 3: 80}[dimension])
    assert got.value == pytest.approx(0.5 * dimension * math.log(2 * math.pi * temperature), abs=1e-5)
    assert got.error < 1e-3


def test_log_z_error_covers_a_coarse_grid():
    exact = 0.5 * 2 * math.log(2 * math.pi * 0.05)
    coarse = grid_log_z(quadratic, 0.05, (-4.5, 4.5), 2, cells=24)
    assert abs(coarse.value - exact) <= coarse.error
    assert coarse.error > 1e-3


def test_log_z_refuses():
    with pytest.raises(InputError, match="one to three dimensions"):
        grid_log_z(quadratic, 1.0, (-1.0, 1.0), 4)
    with pytest.raises(InputError, match="even number"):
        grid_log_z(quadratic, 1.0, (-1.0, 1.0), 2, cells=11)


def test_grid_draws_follow_the_density():
    x = grid_draws(quadratic, 0.25, (-4.0, 4.0), 2, 50_000, stream(0, "draws"), cells=400)
    for k in range(2):
        assert abs(float(x[:, k].mean())) < 4 * 0.5 / math.sqrt(len(x))
        assert float(x[:, k].var()) == pytest.approx(0.25, abs=4 * 0.25 * math.sqrt(2 / len(x)))


@pytest.fixture
def model() -> Model:
    network = build_mlp_autoencoder(NetworkConfig(hidden=(8, 8), activation="silu"), (2,), stream(0, "init"))
    sampling = SamplingConfig(
        latent=ChainConfig(steps=3, step_size=0.01), feature=ChainConfig(steps=5, step_size=0.01, bounds=(-4.5, 4.5))
    )
    return Model(network, 0.2, (2,), sampling, LogZ(1.5, 0.01, (-4.5, 4.5)), "small")


def test_score_and_log_prob(model):
    x = np.array([[0.5, 1.0], [100.0, -3.0]])
    energy, beyond = model.energy(x), np.array([0.0, IMPOSSIBLE])
    assert energy.shape == (2,)
    assert isinstance(energy, np.ndarray)
    assert np.allclose(model.score(x), energy / 0.2 + beyond)
    assert np.allclose(model.log_prob(x), -energy / 0.2 - 1.5 - beyond)
    assert np.isfinite(model.log_prob(x)).all(), "finite outside the grid too, so that rows can be ordered"


def test_tensors_stay_tensors_and_differentiable(model):
    x = torch.zeros(3, 2, requires_grad=True)
    (grad,) = torch.autograd.grad(model.log_prob(x).sum(), x)
    value, ours = model.energy_function.value_and_grad(x)
    assert torch.allclose(grad, -ours / 0.2, atol=1e-6)
    assert torch.allclose(value, model.energy(x).detach())


def test_wrong_shape_is_one_sentence(model):
    with pytest.raises(
        InputError,
        match=r"small: expected events of shape \(2,\) in an array of shape \(N, 2\), got an array of shape \(4, 3\)",
    ):
        model.score(np.zeros((4, 3)))
    with pytest.raises(InputError, match=r"expected events of shape \(2,\)"):
        model.score(np.zeros(2))


def test_any_real_dtype_is_taken_and_nan_is_not(model):
    x = torch.ones(3, 2)
    for other in (x.double(), x.int(), x.half()):
        assert torch.allclose(model.energy(other), model.energy(x))
    with pytest.raises(InputError, match=r"NaN or infinity \(in float32\) in the events, the first at row 1"):
        model.score(np.array([[0.0, 1.0], [np.nan, 0.0]]))
    with pytest.raises(InputError, match=r"NaN or infinity \(in float32\)"):
        model.score(np.array([[0.0, 1e300]]))
    double = Model(model.autoencoder.double(), 0.2, (2,), model.sampling)
    assert double.energy(np.ones((3, 2))).dtype == np.float64


def test_unknown_log_z_is_a_named_error(model):
    unknown = Model(model.autoencoder, 0.2, (2,), model.sampling)
    with pytest.raises(LogZUnknown, match="use score"):
        unknown.log_prob(np.zeros((1, 2)))
    assert np.isfinite(unknown.score(np.zeros((1, 2)))).all()


def test_deterministic_model_has_no_draws(model):
    with pytest.raises(InputError, match="deterministic"):
        model.draw(stream(0, "draw"))
    with pytest.raises(InputError, match="deterministic"):
        model.log_prob_draws(np.zeros((1, 2)))


def test_sample(model):
    x = model.sample(70, seed=1, chunk=30)
    assert x.shape == (70, 2)
    assert isinstance(x, np.ndarray)
    assert np.abs(x).max() <= 4.5
    assert np.array_equal(x, model.sample(70, seed=1, chunk=30))
    assert not np.array_equal(x, model.sample(70, seed=2, chunk=30))
    chain = model.sample_chain(10, stream(0, "x"), feature_steps=7)
    assert chain.acceptance.shape == (7, 1)
    for n in (0, 10**20):
        with pytest.raises(InputError, match="expected 1 to 100000000 events"):
            model.sample(n)


def test_sample_runs_the_latent_chain_eight_times_as_long(model, monkeypatch):
    import normae.inference.model as module

    lengths = []
    real = module.run_chain
    monkeypatch.setattr(module, "run_chain", lambda e, s, c, *a, **k: lengths.append(c.steps) or real(e, s, c, *a, **k))
    model.sample(5)
    assert lengths == [8 * 3, 5]
    model.sample(5, latent_steps=2, feature_steps=4)
    assert lengths[2:] == [2, 4]


@pytest.fixture
def table(model) -> Model:
    rows = np.random.default_rng(1).lognormal(3.0, 0.7, size=(500, 2)) * np.array([1e3, 1e-4])
    coordinates = TableCoordinates.of(torch.from_numpy(rows))
    return Model(
        model.autoencoder, 0.2, (2,), model.sampling, LogZ(1.5, 0.0, (-4.5, 4.5)), "table", coordinates=coordinates
    )


def test_scores_are_in_the_user_s_units(table, model):
    x = np.random.default_rng(2).lognormal(3.0, 0.7, size=(7, 2)) * np.array([1e3, 1e-4])
    y = table.coordinates.forward(torch.from_numpy(x))
    slope = table.coordinates.log_slope(torch.from_numpy(x)).numpy()
    assert np.allclose(table.energy(x), model.energy(y.numpy()), rtol=1e-5)
    assert table.score(x).dtype == np.float64
    assert np.allclose(table.score(x), model.score(y.numpy()) - slope, rtol=1e-6)
    assert np.allclose(table.log_prob(x), model.log_prob(y.numpy()) + slope, rtol=1e-6)
    assert np.allclose(table.rows(x, 5).log_prob(), table.log_prob(x))
    assert torch.allclose(table.score(torch.from_numpy(x)), torch.from_numpy(table.score(x)))
    sample = table.sample(20)
    assert sample.dtype == np.float64
    assert np.allclose(table.coordinates.forward(torch.from_numpy(sample)), model.sample(20), atol=1e-5)


def test_a_deterministic_model_has_one_row(model):
    x = np.zeros((3, 2))
    rows = model.rows(x, n=50)
    assert rows.scores.shape == (1, 3)
    assert rows.spread() is None
    assert np.array_equal(rows.score(), model.score(x))
    assert np.array_equal(rows.log_prob(), model.log_prob(x))
    assert rows.log_z_error == 0.01


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_chain_on_the_model_s_energy_is_that_on_its_energy_function(model, dtype):
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(dtype)

    def walk(energy):
        return langevin(energy, x, temperature=0.2, step_size=0.01, steps=20, generator=stream(0, "walk"))

    fast, plain = walk(model.energy), walk(lambda x: model.energy(x))
    assert np.allclose(fast.position, plain.position, atol=1e-4)
    with pytest.raises(InputError, match=r"expected events of shape \(2,\)"):
        langevin(model.energy, x.repeat(2, 1), temperature=0.2, step_size=0.01, steps=2, generator=stream(0, "walk"))


def test_a_chain_sees_the_model_s_own_gradient(model, table, monkeypatch):
    counted = []
    monkeypatch.setattr(ExplicitEnergy, "value_and_grad", _counting(ExplicitEnergy.value_and_grad, counted))
    for own, calls in ((model, 11), (table, 0)):
        counted.clear()
        start = own.sample(5)
        counted.clear()
        langevin(own.energy, start, temperature=0.2, step_size=1e-8, steps=10, generator=stream(0, "walk"))
        assert len(counted) == calls


def _counting(function, calls):
    def counted(*args):
        calls.append(1)
        return function(*args)

    return counted
