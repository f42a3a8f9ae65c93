"""The chain's options, the public entry, the buffer, the on-manifold start and the diagnostics."""

import math

import numpy as np
import pytest
import torch

import normae
from normae.errors import InputError
from normae.networks import Layout, NetworkConfig, build_mlp_autoencoder
from normae.networks.reconstruction import ReconstructionEnergy
from normae.sampling import (
    ChainConfig,
    ReplayBuffer,
    SamplingConfig,
    adapted,
    effective_sample_size,
    negatives,
    run_chain,
    split_r_hat,
)
from normae.sampling.langevin import clip_gradient
from normae.tensors import stream


def quadratic(x):
    return 0.5 * x.square().flatten(1).sum(1)


COMMON = {"temperature": 1.0, "step_size": 0.3, "steps": 5}


def test_numpy_in_numpy_out():
    chain = normae.langevin(quadratic, np.zeros((4, 2)), generator=stream(0, "x"), trace=2, **COMMON)
    assert isinstance(chain.position, np.ndarray)
    assert chain.position.dtype == np.float64
    assert chain.acceptance.shape == (5,)
    assert chain.trace.shape == (2, 4, 2)
    tensor = normae.langevin(quadratic, torch.zeros(4, 2), generator=stream(0, "x"), **COMMON)
    assert isinstance(tensor.position, torch.Tensor)
    assert tensor.trace is None


def test_same_generator_same_chain():
    a, b = (normae.langevin(quadratic, torch.ones(9, 2), generator=stream(3, "x"), **COMMON) for _ in range(2))
    other = normae.langevin(quadratic, torch.ones(9, 2), generator=stream(4, "x"), **COMMON)
    assert torch.equal(a.position, b.position)
    assert not torch.equal(a.position, other.position)


def test_uses_the_energy_s_own_gradient():
    class Counting:
        calls = 0

        def __call__(self, _):
            raise AssertionError("the chain should use value_and_grad")

        def value_and_grad(self, x):
            self.calls += 1
            return quadratic(x), x

    energy = Counting()
    normae.langevin(energy, torch.ones(5, 2), generator=stream(0, "x"), **COMMON)
    assert energy.calls == 6, "one gradient a step, and one to start"


def test_events_of_any_shape():
    chain = normae.langevin(quadratic, torch.zeros(3, 1, 4, 4), generator=stream(0, "x"), **COMMON)
    assert chain.position.shape == (3, 1, 4, 4)


def test_clamped_bounds_and_projected_sphere_stay_inside():
    chain = normae.langevin(
        quadratic, torch.zeros(500, 3), generator=stream(0, "x"), bounds=(-0.1, 0.1), bounds_rule="clamp", **COMMON
    )
    assert chain.position.abs().max() <= 0.1
    start = torch.nn.functional.normalize(torch.ones(500, 3))
    chain = normae.langevin(quadratic, start, generator=stream(0, "x"), sphere="project", **COMMON)
    assert torch.allclose(chain.position.norm(dim=1), torch.ones(500), atol=1e-5)


def test_bounds_hold_without_a_metropolis_test():
    chain = normae.langevin(
        quadratic, torch.zeros(500, 3), generator=stream(0, "x"), bounds=(-0.5, 0.5), metropolis="off", **COMMON
    )
    assert chain.position.abs().max() <= 0.5
    assert 0 < float(chain.acceptance.mean()) < 1, "what would leave the bounds is refused, and counted so"


def test_which_chains_call_themselves_exact():
    assert ChainConfig().exact
    assert not ChainConfig(metropolis="off").exact
    assert not ChainConfig(bounds=(0, 1), bounds_rule="clamp").exact
    assert not ChainConfig(sphere="project").exact
    assert ChainConfig(sphere="geodesic", clip=0.1, anneal=True).exact
    assert "approximate" in ChainConfig(sphere="project").describe()
    assert "no Metropolis" in ChainConfig(metropolis="off").describe()


def test_a_region_of_nan_is_never_entered():
    def walled(x):
        return torch.where(x[:, 0] > 0.5, torch.nan, quadratic(x))

    chain = normae.langevin(walled, torch.zeros(500, 1), generator=stream(0, "x"), **{**COMMON, "steps": 30})
    assert chain.position.max() <= 0.5


@pytest.mark.parametrize("rule", ["norm", "row", "value"])
def test_clipping_is_safe_at_zero_and_leaves_small_gradients(rule):
    config = ChainConfig(clip=0.5, clip_rule=rule)
    assert torch.equal(clip_gradient(torch.zeros(3, 2, 2), config), torch.zeros(3, 2, 2))
    small = torch.full((3, 2, 2), 0.1)
    assert torch.allclose(clip_gradient(small, config), small)
    large = clip_gradient(torch.full((3, 2, 2), 9.0), config)
    limits = {"norm": large.flatten(1).norm(dim=1), "row": large.norm(dim=-1), "value": large.abs()}
    assert torch.allclose(limits[rule], torch.tensor(0.5))


def test_annealing_shrinks_the_noise():
    """Without drift and test, the variance of the end is sigma^2 sum 1/(1+t)^2."""
    chain = normae.langevin(
        lambda x: 0 * quadratic(x), torch.zeros(50_000, 1), temperature=1.0, step_size=0.5, steps=4,
        generator=stream(0, "x"), metropolis="off", anneal=True,
    )  # fmt: skip
    expected = sum(1 / (1 + t) ** 2 for t in range(4))
    assert float(chain.position.var()) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, "temperature: expected a positive number, got 0.0"),
        ({"generator": 0}, "generator: expected a torch.Generator, got 0"),
        ({"temperature": math.nan}, "temperature"),
        ({"step_size": -1.0}, "step_size: expected a positive number"),
        ({"steps": -1}, "steps"),
        ({"noise": 0.0}, "noise: expected a positive number"),
        ({"bounds": (1.0, 0.0)}, "bounds"),
        ({"bounds": (0.5, 1.0)}, "within the bounds"),
        ({"clip": 0.0}, "clip"),
        ({"bounds": (-math.inf, 0.0)}, "finite number"),
        ({"bounds": (-2.0, 2.0), "sphere": "geodesic"}, "none on a sphere"),
        ({"metropolis": "yes"}, "metropolis: expected one of"),
        ({"sphere": "geodesic"}, "unit length"),
        ({"trace": 0}, "trace"),
    ],
)
def test_bad_arguments(change, message):
    arguments = {**COMMON, "generator": stream(0, "x"), **change}
    with pytest.raises(InputError, match=message):
        normae.langevin(quadratic, torch.zeros(3, 2), **arguments)


def test_bad_start_and_bad_energy():
    with pytest.raises(InputError, match="finite points"):
        normae.langevin(quadratic, torch.full((3, 2), torch.nan), generator=stream(0, "x"), **COMMON)
    with pytest.raises(InputError, match=r"shape \(N, \*event\)"):
        normae.langevin(quadratic, torch.zeros(3), generator=stream(0, "x"), **COMMON)
    with pytest.raises(InputError, match=r"energies of shape \(3,\), got \(3, 1\)"):
        normae.langevin(lambda x: x[:, :1], torch.zeros(3, 2), generator=stream(0, "x"), **COMMON)


# --- several models side by side


def stack(members: int) -> ReconstructionEnergy:
    config = NetworkConfig(hidden=(8, 8), activation="silu")
    models = [build_mlp_autoencoder(config, (2,), stream(seed, "init")) for seed in range(members)]
    layout = Layout.of(models[0])
    return ReconstructionEnergy(models[0], layout.views(layout.flatten(models)))


def test_a_model_in_a_stack_walks_as_if_alone():
    config = ChainConfig(steps=6, step_size=0.05, bounds=(-4.5, 4.5))
    start = torch.randn(20, 2, generator=stream(0, "start")).clamp(-4, 4)
    both = run_chain(stack(2), torch.cat([start, start]), config, 0.2, [stream(s, "chain") for s in (0, 1)], members=2)
    alone = run_chain(stack(1), start, config, 0.2, stream(0, "chain"))
    assert both.acceptance.shape == (6, 2)
    assert torch.allclose(both.position[:20], alone.position, atol=1e-5)
    assert not torch.allclose(both.position[20:], alone.position, atol=1e-2)


# --- the replay buffer


def test_buffer_keeps_the_newest():
    buffer = ReplayBuffer(1, 5, (1,), torch.device("cpu"))
    for first in (0, 3, 6):
        buffer.push(torch.arange(first, first + 3.0)[:, None])
    assert sorted(buffer.storage.flatten().tolist()) == [4, 5, 6, 7, 8]
    buffer.push(torch.arange(20.0, 30.0)[:, None])
    assert sorted(buffer.storage.flatten().tolist()) == [25, 26, 27, 28, 29]


def test_buffer_draws_from_what_was_written_and_from_its_own_model():
    buffer = ReplayBuffer(2, 100, (1,), torch.device("cpu"))
    generators = [stream(0, "a"), stream(1, "a")]
    noise = torch.full((2000, 1), -1.0)
    assert torch.equal(buffer.draw(noise, 0.95, generators), noise), "an empty buffer gives noise"
    buffer.push(torch.cat([torch.full((10, 1), 5.0), torch.full((10, 1), 7.0)]))
    drawn = buffer.draw(noise, 0.95, generators).flatten()
    assert set(drawn[:1000].tolist()) == {-1.0, 5.0}
    assert set(drawn[1000:].tolist()) == {-1.0, 7.0}
    share = float((drawn != -1).double().mean())
    assert abs(share - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 2000)


@pytest.mark.parametrize("space", ["latent", "feature"])
@pytest.mark.parametrize("members", [1, 2])
def test_negatives(space, members):
    energy = stack(members)
    config = SamplingConfig(
        buffer=50,
        replay=0.8,
        buffer_space=space,
        latent=ChainConfig(steps=2, step_size=0.01),
        feature=ChainConfig(steps=3, step_size=0.01, bounds=(-0.2, 0.2)),
    )
    buffer = ReplayBuffer(members, 50, (3,) if space == "latent" else (2,), torch.device("cpu"))
    sizes = torch.full((2, members), 0.01)
    generators = [stream(seed, "chain") for seed in range(members)]
    made = negatives(energy, config, buffer, torch.full((members,), 0.2), sizes, 20, generators)
    assert made.position.shape == (20 * members, 2)
    assert made.position.abs().max() <= 0.2, "the start is clipped into the bounds, and the chain stays"
    assert made.latent_acceptance.shape == made.feature_acceptance.shape == (members,)
    assert int(buffer.written) == 20
    if space == "feature":
        assert torch.equal(buffer.storage[:, :20].flatten(0, 1), made.position)


def test_adaptation_moves_towards_the_target():
    log_size = torch.zeros(2)
    moved = adapted(log_size, torch.tensor([0.9, 0.3], dtype=torch.float64), 0.6)
    assert moved[0] > 0 > moved[1]
    assert torch.equal(adapted(log_size, torch.tensor([0.9, 0.3]), None), log_size)


# --- diagnostics


def autoregressive(n: int, chains: int, rho: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = np.empty((n, chains))
    x[0] = rng.normal(size=chains)
    for t in range(1, n):
        x[t] = rho * x[t - 1] + math.sqrt(1 - rho**2) * rng.normal(size=chains)
    return x


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_effective_sample_size_of_an_autoregression(rho):
    draws = autoregressive(4000, 8, rho)
    expected = draws.size * (1 - rho) / (1 + rho)
    assert effective_sample_size(draws) == pytest.approx(expected, rel=0.15)


def test_r_hat_sees_chains_that_disagree():
    draws = autoregressive(1000, 4, 0.3)
    assert split_r_hat(draws) == pytest.approx(1.0, abs=0.01)
    assert split_r_hat(draws + np.array([0, 0, 0, 3.0])) > 1.3
    drift = np.linspace(0, 3, 1000)[:, None]  # halves 1.5 apart: sqrt((1.19 + 0.64) / 1.19) = 1.24
    assert split_r_hat(draws + drift) == pytest.approx(1.24, abs=0.03), "a drift is seen by the split"
    with pytest.raises(InputError, match="draws of shape"):
        split_r_hat(np.zeros(10))
