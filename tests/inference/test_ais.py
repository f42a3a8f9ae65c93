"""Annealed importance sampling: exact where log Z is known, and a named error where the bounds cannot be trusted."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import normae
from normae.config import read, structure, to_toml
from normae.data.toys import GaussianMixture, two_gaussians
from normae.errors import InputError, LogZDisagreement, LogZUnknown
from normae.inference import AISConfig, LogZ, ais_log_z, fit_base, grid_log_z
from normae.networks import Autoencoder, NetworkConfig, build_autoencoder
from normae.networks.reconstruction import ReconstructionEnergy
from normae.runs.folder import RunFolder, read_tensors
from normae.runs.session import train
from normae.tensors import stream
from tiny_run import tiny

LOG_C = 7.5
QUICK = AISConfig(chains=512, steps=150, burn_in=0)


def mixture(d: int, distance: float = 5.0) -> GaussianMixture:
    """Three Gaussians with different covariances, whose means are `distance` apart from the first one's."""
    g = torch.Generator().manual_seed(d)
    factors = 0.5 * torch.randn(3, d, d, generator=g) / math.sqrt(d)
    covariances = 0.5 * torch.eye(d) + factors @ factors.mT
    directions = torch.nn.functional.normalize(torch.randn(3, d, generator=g), dim=1)
    means = directions[0] + distance * directions * torch.tensor([[0.0], [1.0], [1.0]])
    return GaussianMixture(means, covariances, torch.tensor([0.5, 0.3, 0.2]))


def two_modes(d: int, distance: float) -> GaussianMixture:
    means = torch.zeros(2, d)
    means[:, 0] = torch.tensor([distance / 2, -distance / 2])
    return GaussianMixture(means, torch.eye(d).expand(2, d, d), torch.tensor([0.7, 0.3]))


def log_square_integral(m: GaussianMixture) -> float:
    """log int p(x)^2 dx = log sum_ij w_i w_j N(mu_i - mu_j; 0, C_i + C_j)."""
    weights = m.weights.double() / m.weights.sum()
    total = 0.0
    for wi, mi, ci in zip(weights, m.means.double(), m.covariances.double(), strict=True):
        for wj, mj, cj in zip(weights, m.means.double(), m.covariances.double(), strict=True):
            normal = torch.distributions.MultivariateNormal(torch.zeros(m.means.shape[1]).double(), ci + cj)
            total += float(wi * wj * normal.log_prob(mi - mj).exp())
    return math.log(total)


def energy_of(m: GaussianMixture, temperature: float = 1.0):
    """E with log Z = LOG_C at this temperature."""
    return lambda x: -temperature * (m.log_prob(x) + LOG_C)


@pytest.mark.parametrize(("d", "temperature"), [(2, 1.0), (5, 0.3), (10, 1.0), (20, 4.0)])
def test_log_z_of_mixtures_is_exact(d, temperature):
    m, g = mixture(d), torch.Generator().manual_seed(0)
    base = fit_base(m.sample(4000, g))
    found = ais_log_z(energy_of(m, temperature), temperature, base, m.sample(512, g), g, QUICK)
    assert abs(found.log_z.value - LOG_C) < 0.05
    assert abs(found.log_z.value - LOG_C) < 4 * found.log_z.error < 0.2
    assert abs(found.forward - LOG_C) < 0.1
    assert abs(found.reverse - LOG_C) < 0.1
    assert found.log_z.bounds == (-math.inf, math.inf)
    assert 0.4 < found.acceptance < 0.9
    assert found.gradients < 2 * 512 * 151 + 256 * 4 * 100, "one gradient for each step of a chain, and the pilot's"


def test_temperature_changes_the_density_and_chains_from_data_find_it():
    m, g = mixture(5, 3.0), torch.Generator().manual_seed(1)
    events = m.sample(4000, g)
    found = ais_log_z(
        lambda x: -m.log_prob(x), 0.5, fit_base(events), events, g, replace(QUICK, burn_in=300)
    )  # exp(-E/T) = p^2, from samples of p
    truth = log_square_integral(m)
    assert abs(found.log_z.value - truth) < min(0.05, 4 * found.log_z.error)


@pytest.mark.parametrize("dimension", [2, 6])
def test_bounds_cut_both_the_base_and_the_model(dimension):
    """A standard normal within [-0.8, 1.5] in each feature."""
    low, high = -0.8, 1.5
    g = torch.Generator().manual_seed(2)
    x = torch.randn(200_000, dimension, generator=g, dtype=torch.float64)
    inside = x[((x > low) & (x < high)).all(1)]
    share = 0.5 * (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2)))
    truth = dimension * (math.log(share) + 0.5 * math.log(2 * math.pi))
    found = ais_log_z(
        lambda x: 0.5 * x.square().sum(1), 1.0, fit_base(inside[:4000]), inside[-512:], g, QUICK, (low, high)
    )
    assert abs(found.log_z.value - truth) < min(0.05, 4 * found.log_z.error)
    assert found.log_z.bounds == (low, high)


def test_the_grid_and_the_annealing_agree_on_a_network():
    network = NetworkConfig(hidden=(16,), latent=2, activation="tanh")
    energy = ReconstructionEnergy(build_autoencoder(network, (2,), stream(0, "test")))
    bounds, temperature = (-3.0, 3.0), 0.3
    g = torch.Generator().manual_seed(3)
    spread = torch.randn(500, 2, generator=g).clamp(-3, 3)
    found = ais_log_z(energy, temperature, fit_base(spread), spread, g, replace(QUICK, burn_in=200), bounds)
    grid = grid_log_z(energy, temperature, bounds, 2, 300)
    assert abs(found.log_z.value - grid.value) < min(0.05, 4 * found.log_z.error)


def test_the_grid_and_the_annealing_agree_on_a_trained_model():
    model = normae.load("toy-2gauss-nae")
    g = torch.Generator().manual_seed(0)
    x = two_gaussians().sample(2000, g).clamp(-4, 4)
    settings = AISConfig(chains=256, steps=80, burn_in=80)
    found = ais_log_z(model.energy_function, model.temperature, fit_base(x), x, g, settings, model.log_z.bounds)
    assert abs(found.log_z.value - model.log_z.value) < min(0.05, 4 * found.log_z.error)


def test_events_of_any_shape():
    g = torch.Generator().manual_seed(4)
    x = torch.randn(1000, 1, 2, 2, generator=g)
    found = ais_log_z(lambda x: x.square().flatten(1).sum(1), 2.0, fit_base(x), x, g, QUICK)
    assert abs(found.log_z.value - 2 * math.log(2 * math.pi)) < 0.05


def test_the_same_generator_gives_the_same_number():
    m = mixture(3)
    values = []
    for _ in range(2):
        g = torch.Generator().manual_seed(5)
        x = m.sample(300, g)
        values.append(ais_log_z(energy_of(m), 1.0, fit_base(x), x, g, replace(QUICK, steps=20, tolerance=1.0)))
    assert values[0] == values[1]


# --- the direction of failure


def test_a_base_that_misses_a_mode_is_found_out():
    m, g = two_modes(5, 20.0), torch.Generator().manual_seed(6)
    x = m.sample(2000, g)
    with pytest.raises(LogZDisagreement, match="bounds differ by more than 0.1") as caught:
        ais_log_z(energy_of(m), 1.0, fit_base(x[x[:, 0] > 0]), x, g, QUICK)
    found = caught.value.result
    assert found.forward == pytest.approx(LOG_C + math.log(0.7), abs=0.05), "the mode that it sees"
    assert found.reverse > LOG_C - 0.1


def test_too_few_steps_are_found_out():
    m, g = mixture(20), torch.Generator().manual_seed(7)
    x = m.sample(2000, g)
    with pytest.raises(LogZDisagreement) as caught:
        ais_log_z(energy_of(m), 1.0, fit_base(x, 3.0), x, g, replace(QUICK, steps=4))
    found = caught.value.result
    assert found.forward < LOG_C < found.reverse, "bounds from below and from above"


def test_few_effective_chains_are_found_out():
    m, g = mixture(20), torch.Generator().manual_seed(8)
    x = m.sample(2000, g)
    with pytest.raises(LogZDisagreement, match="effective number of chains is"):
        ais_log_z(energy_of(m), 1.0, fit_base(x, 2.0), x, g, replace(QUICK, steps=40, tolerance=5.0, least_ess=400))


def test_start_points_that_are_not_of_the_model_are_found_out():
    m, g = two_modes(5, 4.0), torch.Generator().manual_seed(9)
    x = m.sample(2000, g)
    with pytest.raises(LogZDisagreement):
        ais_log_z(energy_of(m), 1.0, fit_base(x), 3 * x[:512], g, replace(QUICK, steps=50))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, "temperature: expected a positive number"),
        ({"energy": lambda x: x}, "expected energies of shape"),
        ({"energy": lambda x: x.sum(1) * math.nan}, "expected finite energies"),
        ({"reverse_start": torch.zeros(10, 2)}, "reverse_start: expected events of shape"),
        ({"bounds": (-0.1, 0.1)}, "reverse_start: expected events within the bounds"),
    ],
)
def test_what_cannot_be_annealed_is_named(change, message):
    x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    arguments = {"energy": lambda x: x.square().sum(1), "temperature": 1.0, "base": fit_base(x), "reverse_start": x}
    with pytest.raises(InputError, match=message):
        ais_log_z(**(arguments | {"generator": torch.Generator()} | change))


def test_bad_settings_and_bases_are_named():
    for change in (
        {"chains": 1},
        {"steps": 0},
        {"widen": 0.0},
        {"burn_in": -1},
        {"tolerance": 0.0},
        {"least_ess": 2e9},
    ):
        with pytest.raises(InputError, match=f"log_z.{next(iter(change))}: expected"):
            AISConfig(**change)
    for events in (torch.zeros(10, 2), torch.ones(1, 2), torch.full((10, 2), math.nan)):
        with pytest.raises(InputError, match="base: expected"):
            fit_base(events)


@pytest.mark.slow
@pytest.mark.parametrize("d", [2, 5, 10, 20])
def test_the_error_of_log_z_covers_over_seeds(d):
    m, pulls = mixture(d), []
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        found = ais_log_z(energy_of(m), 1.0, fit_base(m.sample(4000, g)), m.sample(512, g), g, QUICK)
        assert abs(found.log_z.value - LOG_C) < 0.05
        pulls.append((found.log_z.value - LOG_C) / found.log_z.error)
    assert abs(np.mean(pulls)) < 4 / math.sqrt(20)
    assert np.std(pulls) < 1.5
    assert sum(abs(pull) < 2 for pull in pulls) >= 18, "19 of 20 in the mean"


# --- in a model and in a run


def test_a_model_takes_log_z_from_it():
    network = NetworkConfig(hidden=(8,), latent=2, activation="tanh")
    autoencoder: Autoencoder = build_autoencoder(network, (4,), stream(0, "test"))
    model = normae.Model(autoencoder, 0.5, (4,), structure(tiny()).sampling)
    x = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(LogZUnknown):
        model.log_prob(x)
    g = torch.Generator().manual_seed(1)
    settings = replace(QUICK, burn_in=200)
    found = ais_log_z(model.energy_function, model.temperature, fit_base(x), x.clamp(-4, 4), g, settings, (-4.5, 4.5))
    model.log_z = found.log_z
    assert isinstance(model.log_z, LogZ)
    assert torch.allclose(model.log_prob(x), -model.score(x) - found.log_z.value)


def vector_run(path, **changes):
    """A tiny run on events of five features."""
    events = path / "events.npy"
    if not events.exists():
        np.save(events, mixture(5, 3.0).sample(3000, torch.Generator().manual_seed(0)).clamp(-6, 6).numpy())
    content = tiny(data={"file": str(events), "train": 2000, "test": 500}, sampling__feature__bounds=[-7.0, 7.0])
    content["log_z"] = {"chains": 256, "steps": 150, "burn_in": 100, "least_ess": 50.0} | changes
    return structure(content)


def test_a_run_writes_log_z_into_its_header(tmp_path):
    run = vector_run(tmp_path)
    (tmp_path / "config.toml").write_text(to_toml(run))
    assert read(tmp_path / "config.toml") == run
    assert train(run, tmp_path / "run")
    model = normae.load(tmp_path / "run")
    assert model.log_z.bounds == (-7.0, 7.0)
    assert 0 < model.log_z.error < 0.1
    facts = json.loads(RunFolder(tmp_path / "run").provenance.read_text())["log_z"]
    assert facts["forward"] - 0.1 < model.log_z.value < facts["reverse"] + 0.1
    assert np.isfinite(model.log_prob(np.zeros((3, 5)))).all()


def test_a_run_without_agreement_keeps_its_model_and_says_so(tmp_path):
    run = vector_run(tmp_path, steps=1, burn_in=0, tolerance=1e-6)
    with pytest.raises(LogZDisagreement, match="The model is written without log Z"):
        train(run, tmp_path / "run")
    _, header = read_tensors(RunFolder(tmp_path / "run").model)
    assert header["log_z"] is None
    with pytest.raises(LogZUnknown):
        normae.load(tmp_path / "run").log_prob(np.zeros((3, 5)))
    assert train(run, tmp_path / "run", resume=True), "the training itself is finished"


def test_log_z_of_draws_is_refused():
    with pytest.raises(InputError, match=r"log_z: expected no \[bayesian\] table with it"):
        structure(tiny(log_z={}, bayesian={}))
