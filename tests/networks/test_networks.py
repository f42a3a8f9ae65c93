"""Networks, flat parameters, and the energy with its explicit gradient."""

import pytest
import torch
from torch import nn

from normae.energy import autograd_value_and_grad
from normae.errors import InputError
from normae.networks import ACTIVATIONS, MLP, Autoencoder, Layout, NetworkConfig, build_mlp_autoencoder, call
from normae.networks.mlp import by_one_dnn
from normae.networks.reconstruction import ExplicitEnergy, ReconstructionEnergy, fill
from normae.tensors import stream


def networks(n: int, **settings) -> list[Autoencoder]:
    config = NetworkConfig(**{"hidden": (16, 8), "latent": 3, **settings})
    return [build_mlp_autoencoder(config, (2,), stream(seed, "init")) for seed in range(n)]


def test_paper_network():
    model = build_mlp_autoencoder(NetworkConfig(), (2,), stream(0, "init"))
    assert model.encoder.sizes == (2, 128, 128, 128, 3)
    assert model.decoder.sizes == (3, 128, 128, 128, 2)
    bound = 1 / 128**0.5
    weight = model.encoder.layers[1].weight.detach()
    assert weight.abs().max() <= bound
    assert float(weight.std()) == pytest.approx(bound / 3**0.5, rel=0.05)


def test_same_seed_same_weights():
    a, b = networks(1)[0], networks(1)[0]
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("members", [1, 3])
def test_explicit_gradient_equals_autograd(activation, members):
    models = [m.double() for m in networks(members, activation=activation)]
    layout = Layout.of(models[0])
    views = layout.views(layout.flatten(models))
    explicit = ReconstructionEnergy(models[0], views)
    plain = ReconstructionEnergy(models[0], views, explicit=False)
    g = stream(7, "x")
    x = torch.randn(members * 6, 2, generator=g, dtype=torch.float64)
    z = torch.randn(members * 6, 3, generator=g, dtype=torch.float64)
    for ours, reference, at in ((explicit, plain, x), (explicit.latent(), plain.latent(), z)):
        value, grad = ours.value_and_grad(at)
        expected = autograd_value_and_grad(reference, at)
        assert torch.allclose(value, expected[0], rtol=1e-10)
        assert torch.allclose(grad, expected[1], rtol=1e-8, atol=1e-12)
        assert not grad.requires_grad


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_large_products_are_those_of_autograd(activation):
    (network,) = networks(1, hidden=(64, 64), activation=activation)
    x = torch.randn(300, 2, generator=stream(0, "x"))
    assert by_one_dnn(x.new_empty(300, 64), network.encoder.layers[1].weight) == torch.backends.mkldnn.is_available()
    value, grad = ReconstructionEnergy(network).value_and_grad(x)
    expected, slope = autograd_value_and_grad(ReconstructionEnergy(network, explicit=False), x)
    assert torch.allclose(value, expected, rtol=1e-5)
    assert torch.allclose(grad, slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_pullback_of_an_activation(activation):
    h = torch.randn(50, generator=stream(0, "h"), dtype=torch.float64).requires_grad_(True)
    v = torch.randn(50, generator=stream(0, "v"), dtype=torch.float64)
    found = ACTIVATIONS[activation]
    (expected,) = torch.autograd.grad(found.forward(h), h, v)
    before, out = v.clone(), torch.empty_like(v)
    found.write(h.detach(), out)
    assert torch.equal(out, found.forward(h.detach()))
    kept = out if found.keeps_output else h.detach().clone()
    found.pull(v, kept)
    assert torch.allclose(kept, expected)
    assert torch.equal(v, before)


@pytest.mark.parametrize("members", [1, 3])
def test_gradients_of_one_held_energy_do_not_share_memory(members):
    """A chain keeps the old state beside the proposal; both come from the same buffers."""
    models = networks(members)
    layout = Layout.of(models[0])
    energy = ReconstructionEnergy(models[0], layout.views(layout.flatten(models)))
    g = stream(3, "x")
    for of, d in ((energy, 2), (energy.latent(), 3)):
        held, points = of.held(), [torch.randn(members * n, d, generator=g) for n in (5, 7, 5)]
        results = [held.value_and_grad(x) for x in points]
        for x, (value, grad) in zip(points, results, strict=True):
            expected = of.value_and_grad(x)
            assert torch.equal(value, expected[0])
            assert torch.equal(grad, expected[1])


@pytest.mark.parametrize("members", [1, 3])
def test_large_batches_are_worked_on_in_pieces(members, monkeypatch):
    models = networks(members)
    layout = Layout.of(models[0])
    energy = ReconstructionEnergy(models[0], layout.views(layout.flatten(models)))
    x = torch.randn(members * 50, 2, generator=stream(3, "x"))
    whole = energy.value_and_grad(x)
    monkeypatch.setattr(ExplicitEnergy, "ROWS", 20 * members)
    pieces = energy.value_and_grad(x)
    assert torch.allclose(whole[0], pieces[0], atol=1e-6)
    assert torch.allclose(whole[1], pieces[1], atol=1e-6)


def test_stack_equals_single_models():
    models = networks(3)
    layout = Layout.of(models[0])
    views = layout.views(layout.flatten(models))
    x = torch.randn(12, 2, generator=stream(0, "x"))
    stacked = ReconstructionEnergy(models[0], views)(x)
    single = torch.cat([ReconstructionEnergy(m)(block) for m, block in zip(models, x.split(4), strict=True)])
    assert torch.allclose(stacked, single, atol=1e-6)


def test_layout_round_trip():
    models = networks(2)
    layout = Layout.of(models[0])
    flat = layout.flatten(models)
    fill(models[0], {name: view[1] for name, view in layout.views(flat).items()})
    assert all(torch.equal(p, q) for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True))


def test_energy_is_the_mean_square_and_differentiable():
    model = networks(1)[0]
    x = torch.randn(5, 2, generator=stream(0, "x")).requires_grad_(True)
    energy = ReconstructionEnergy(model)(x)
    assert torch.allclose(energy, (x - model(x)).square().mean(1))
    energy.sum().backward()
    assert x.grad is not None


def test_a_pair_of_modules_that_the_user_brings():
    """Images of shape (1, 4, 4) through a convolution and a linear layer, with a spherical latent space."""
    encoder = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    decoder = nn.Sequential(nn.Linear(3, 16), nn.Unflatten(1, (1, 4, 4)))
    model = Autoencoder(encoder, decoder, 3, sphere=True)
    energy = ReconstructionEnergy(model)
    x = torch.randn(5, 1, 4, 4, generator=stream(0, "x"))
    assert energy(x).shape == (5,)
    assert torch.allclose(energy.encode(x).norm(dim=1), torch.ones(5), atol=1e-6)
    value, grad = energy.value_and_grad(x)
    assert grad.shape == x.shape
    assert torch.allclose(value, energy(x).detach())


def test_call_of_one_model_uses_no_vmap():
    model = networks(1)[0]
    x = torch.randn(4, 2, generator=stream(0, "x"))
    named = {name: p[None] for name, p in model.encoder.named_parameters()}
    assert torch.equal(call(model.encoder, named, x), model.encoder(x))


def test_bad_settings():
    with pytest.raises(InputError, match="activation among"):
        MLP([2, 2], "cubic", stream(0, "init"))
    with pytest.raises(InputError, match="network.latent"):
        NetworkConfig(latent=0)
    with pytest.raises(InputError, match="vectors of shape"):
        build_mlp_autoencoder(NetworkConfig(), (1, 4, 4), stream(0, "init"))
