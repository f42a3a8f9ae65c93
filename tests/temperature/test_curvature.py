"""The configurational temperature where it is known: smooth and kinked energies, a subspace, a sphere, a network."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import normae
from normae.statistics import Estimate, configurational_temperature
from normae.temperature.estimates import curvature, curvature_along, denoising, estimate_temperatures


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def temperature(energy, x: Tensor, width: float, **options) -> Estimate:
    found = curvature(energy, x, width, draw(1), **options)
    return configurational_temperature(found.gradient_square[:, 0], found.laplacian[:, 0], generator=draw(2))


@pytest.mark.parametrize(("d", "true"), [(2, 0.2), (5, 1.7), (20, 6e-7)])
@pytest.mark.parametrize("share", [0.01, 1.0])
def test_gaussian_energies(d, true, share):
    """E = sum k_i x_i^2 / 2 with different k: any width of the difference serves, since the energy is quadratic."""
    k = torch.logspace(-1, 1, d, dtype=torch.float64)
    x = torch.randn(4000, d, generator=draw(), dtype=torch.float64) * (true / k).sqrt()

    def energy(y):
        return 0.5 * (k * y.square()).sum(1)

    found = temperature(energy, x, share * math.sqrt(true))
    assert found.value == pytest.approx(true, abs=4 * found.error)
    assert found.error < 0.1 * true


def test_kinks_count():
    """E = |x| sampled at T = 0.3, p = exp(-|x|/T): all of the curvature is in one kink, which autograd does not see."""
    true = 0.3
    u = torch.rand(40_000, 1, generator=draw(), dtype=torch.float64)
    sign = torch.where(torch.rand(40_000, 1, generator=draw(5)) < 0.5, -1.0, 1.0).double()
    x = -true * u.log() * sign

    def energy(y):
        return y.abs().sum(1)

    found = temperature(energy, x, 0.03, directions=16)
    assert found.value == pytest.approx(true, rel=0.1)
    leaf = x[:100].clone().requires_grad_(True)
    (grad,) = torch.autograd.grad(energy(leaf).sum(), leaf, create_graph=True)
    assert not grad.requires_grad or float(torch.autograd.grad(grad.sum(), leaf)[0].abs().sum()) == 0


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0])
def test_denoising_a_standard_gaussian(sigma):
    """1/T = 1 / (1 + sigma^2): the smeared events are a wider Gaussian. One sign of the noise would be less exact."""
    x = torch.randn(20_000, 3, generator=draw(), dtype=torch.float64)
    found = denoising(lambda y: 0.5 * y.square().sum(1), x, sigma, draw(1))
    one = configurational_temperature(found.gradient_square[:, 0], found.laplacian[:, 0], generator=draw(2))
    assert abs(one.value - (1 + sigma**2)) < 4 * one.error
    assert one.error < 0.01 * (1 + sigma**2)


def test_denoising_counts_kinks():
    true = 0.3
    x = -true * torch.rand(20_000, 1, generator=draw(), dtype=torch.float64).log()
    x *= torch.where(torch.rand(20_000, 1, generator=draw(5)) < 0.5, -1.0, 1.0).double()
    found = denoising(lambda y: y.abs().sum(1), x, 0.03, draw(1))
    one = configurational_temperature(found.gradient_square[:, 0], found.laplacian[:, 0], generator=draw(2))
    assert one.value == pytest.approx(true, rel=0.1)


def test_along_each_direction():
    """In every fixed direction by itself, also in rotated coordinates."""
    true, k = 0.5, torch.tensor([0.2, 1.0, 30.0], dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=draw(), dtype=torch.float64))[0]
    x = (torch.randn(5000, 3, generator=draw(1), dtype=torch.float64) * (true / k).sqrt()) @ rotation.T

    def energy(y):
        return 0.5 * (k * (y @ rotation).square()).sum(1)

    found = curvature_along(energy, x, rotation[:, :2], (true / k[:2]).sqrt())
    for i in range(2):
        each = configurational_temperature(found.gradient_square[:, i], found.laplacian[:, i], generator=draw(i))
        assert each.value == pytest.approx(true, abs=4 * each.error)


def test_on_the_sphere():
    """E = -cos(theta) on S^2 at temperature T: cos(theta) has the density exp(c/T)."""
    true, n = 0.7, 20_000
    u = torch.rand(n, generator=draw(), dtype=torch.float64)
    c = true * torch.log(math.exp(-1 / true) + u * (math.exp(1 / true) - math.exp(-1 / true)))
    phi = 2 * math.pi * torch.rand(n, generator=draw(1), dtype=torch.float64)
    s = (1 - c.square()).sqrt()
    x = torch.stack([s * phi.cos(), s * phi.sin(), c], dim=1)
    found = temperature(lambda y: -y[:, 2], x, 0.05, sphere=True)
    assert found.value == pytest.approx(true, abs=4 * found.error + 0.01)
    flat = temperature(lambda y: -y[:, 2], x, 0.05)
    assert math.isinf(flat.error), "in the space around it there is no curvature at all"


def test_the_toy_model_at_exact_samples_has_the_temperature_that_it_learned():
    """A trained network with kinks, at draws from its own density on a grid."""
    from normae.inference import grid_draws

    model = normae.load("toy-2gauss-nae-paper")
    x = grid_draws(model.energy_function, model.temperature, (-4.5, 4.5), 2, 6000, draw(3), 500)
    network = model.autoencoder.double()
    from normae.networks.reconstruction import ReconstructionEnergy

    found = temperature(ReconstructionEnergy(network), x.double(), 0.1, directions=16)
    assert found.value == pytest.approx(model.temperature, rel=0.1)


def test_the_estimates_of_a_run():
    found = estimate_temperatures("toy-2gauss-nae", events=1500, device="cpu")
    model = normae.load("toy-2gauss-nae")
    assert found.model == pytest.approx(model.temperature)
    assert found.estimates["configurational"].value == pytest.approx(model.temperature, rel=0.2)
    assert found.estimates["denoising"].value == pytest.approx(model.temperature, rel=0.2)
    assert {"configurational", "latent", "equipartition", "components"} <= set(found.estimates)
    assert len(found.by_component) == 2
    assert all(np.isfinite(e.value) for e in found.by_component)
