"""Spectral normalization against the singular value decomposition and torch's own."""

import pytest
import torch
from torch import nn

from normae.networks import Layout, NetworkConfig, build_autoencoder
from normae.networks.spectral import SpectralNorm
from normae.tensors import stream


def setup(members: int = 2):
    config = NetworkConfig(kind="conv", latent=3, hidden=(20,), activation="prelu", latent_space="sphere")
    models = [build_autoencoder(config, (1, 8, 8), torch.Generator().manual_seed(k)) for k in range(members)]
    layout = Layout.of(models[0])
    weights = layout.flatten(models)
    return layout, weights, SpectralNorm(layout, weights, [stream(k, "spectral") for k in range(members)])


def largest_singular_values(layout, weights):
    """By name, with shape (S,)."""
    views = {n: v.flatten(2) if v.ndim > 3 else v for n, v in layout.views(weights).items() if v.ndim > 2}
    return {name: torch.linalg.svdvals(view)[:, 0] for name, view in views.items()}


def test_matrices_end_with_a_largest_singular_value_of_one():
    layout, weights, spectral = setup()
    for _ in range(200):
        spectral.iterate(weights)
    for name, values in largest_singular_values(layout, spectral.normalized(weights)).items():
        torch.testing.assert_close(values, torch.ones(2), rtol=1e-3, atol=0, msg=name)


def test_the_first_iterations_come_close():
    """A power iteration underestimates, so that the normalized value is above one, by little."""
    layout, weights, spectral = setup()
    values = torch.stack(list(largest_singular_values(layout, spectral.normalized(weights)).values()))
    assert (values > 1 - 1e-5).all()
    assert (values < 1.2).all()


def test_biases_and_slopes_stay():
    layout, weights, spectral = setup()
    before, after = layout.views(weights), layout.views(spectral.normalized(weights))
    vectors = [name for name, shape in zip(layout.names, layout.shapes, strict=True) if len(shape) == 1]
    assert any(name.endswith("bias") for name in vectors)
    assert all(torch.equal(before[name], after[name]) for name in vectors)


def test_values_and_gradients_are_torch_s():
    """With the same u and v: same weights, and the same gradient through the singular value."""
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 5, 3)
    layout = Layout.of(layer)
    weights = layout.flatten([layer])
    spectral = SpectralNorm(layout, weights, [stream(0, "spectral")])
    theirs = nn.utils.parametrizations.spectral_norm(layer).eval()  # without a power iteration of its own
    norm = theirs.parametrizations.weight[0]
    norm._u.copy_(spectral.vectors[0, :5])
    norm._v.copy_(spectral.vectors[0, 5:])
    probe = torch.randn(5, 3, 3, 3)
    expected = theirs.weight
    (expected_grad,) = torch.autograd.grad((expected * probe).sum(), theirs.parametrizations.weight.original)
    leaf = weights.clone().requires_grad_(True)
    ours = layout.views(spectral.normalized(leaf))["weight"][0]
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
    (grad,) = torch.autograd.grad((ours * probe).sum(), leaf)
    torch.testing.assert_close(layout.views(grad)["weight"][0], expected_grad, rtol=1e-4, atol=1e-5)


def test_models_side_by_side_do_not_mix():
    layout, weights, both = setup()
    alone = SpectralNorm(layout, weights[1:], [stream(1, "spectral")])
    torch.testing.assert_close(both.normalized(weights)[1:], alone.normalized(weights[1:]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 10.0])
def test_the_scale_of_the_weights_does_not_matter(scale):
    _, weights, spectral = setup(1)
    mask = spectral.member.sum(1)
    scaled = torch.where(mask > 0, weights * scale, weights)
    spectral.iterate(weights)
    expected = spectral.normalized(weights)
    torch.testing.assert_close(spectral.normalized(scaled), expected, rtol=1e-4, atol=1e-6)
