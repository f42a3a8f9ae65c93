"""The convolutional autoencoder against the layers that the paper's tables name, and its fast forward pass."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate

from normae.errors import InputError
from normae.networks import NetworkConfig, build_autoencoder
from normae.networks.autoencoder import Upsample, to_sphere
from normae.networks.scoring_energy import ScoringEnergy
from plain_conv import PlainConv


def conv_config(**changes: object) -> NetworkConfig:
    settings: dict = {"kind": "conv", "latent": 3, "hidden": (20,), "activation": "prelu", "latent_space": "sphere"}
    return NetworkConfig(**(settings | {"output": "sigmoid"} | changes))


def network(side: int = 8, seed: int = 0, **changes: object):
    model = build_autoencoder(conv_config(**changes), (1, side, side), torch.Generator().manual_seed(seed))
    with torch.no_grad():  # slopes that differ, and can be told apart
        for k, layer in enumerate(m for m in model.modules() if isinstance(m, nn.PReLU)):
            layer.weight.fill_(0.1 + 0.05 * k)
    return model


def images(n: int, side: int = 8, seed: int = 1) -> torch.Tensor:
    return torch.rand(n, 1, side, side, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("output", ["sigmoid", "linear"])
def test_it_is_the_network_of_the_tables(output):
    model, x = network(output=output), images(4)
    with torch.no_grad():
        ours = (x - model(x)).square().mean((1, 2, 3))
        torch.testing.assert_close(ours, PlainConv(model)(x), rtol=1e-5, atol=1e-7)


def test_sizes_of_the_paper():
    model = network(40, latent=6, hidden=(100,))
    encoder, decoder = (sum(p.numel() for p in part.parameters()) for part in (model.encoder, model.decoder))
    convolutions = 80 + 3 * 584 + 73
    assert encoder == convolutions + 5 + 400 * 100 + 100 + 1 + 100 * 6 + 6
    assert decoder == 6 * 100 + 100 + 1 + 100 * 400 + 400 + 1 + 80 + 584 + 584 + 73 + 3
    assert model(images(2, 40)).shape == (2, 1, 40, 40)
    assert model.encoder(images(2, 40)).shape == (2, 6)


@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_upsampling_is_torch_s(n):
    x = torch.randn(3, 2, n, n, generator=torch.Generator().manual_seed(n))
    expected = interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    torch.testing.assert_close(Upsample(n)(x), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(Upsample(n).matrix.sum(1), torch.ones(2 * n))


@pytest.mark.parametrize(("output", "start"), [("sigmoid", 6.25e-4), ("linear", 6.25e-4)])
def test_the_output_starts_at_the_mean_pixel(output, start):
    bias = dict(network(output=output, output_start=start).decoder.named_parameters())["12.bias"].item()
    assert bias == pytest.approx(math.log(start / (1 - start)) if output == "sigmoid" else start)


def test_initial_weights_are_those_of_the_tables_layers():
    """A transposed convolution's bound follows from its output channels."""
    model = network(40, latent=6, hidden=(100,))
    for name, fan in (("encoder.2", 72), ("decoder.5", 72), ("decoder.12", 9), ("encoder.12", 400)):
        for kind in ("weight", "bias"):
            p = model.get_parameter(f"{name}.{kind}")
            assert p.abs().max() <= 1 / math.sqrt(fan), name
        assert model.get_parameter(f"{name}.weight").abs().max() > 0.8 / math.sqrt(fan), name


def test_weights_follow_the_generator():
    a, b, c = (network(seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["encoder.0.weight"], c["encoder.0.weight"])


@pytest.mark.parametrize("side", [8, 10, 40])
def test_scoring_gives_the_layers_values(side):
    model, x = network(side, output="linear").requires_grad_(False), images(5, side)
    energy, z = ScoringEnergy(model), model.encoder(x)
    torch.testing.assert_close(energy.encode(x), to_sphere(z) if model.sphere else z, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(energy.decode(z), model.decoder(z), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "event", "message"),
    [
        ({"activation": "relu"}, (1, 8, 8), 'expected "prelu" for kind = "conv"'),
        ({"hidden": (8, 8)}, (1, 8, 8), "expected one width"),
        ({"hidden": (1 << 40,)}, (1, 8, 8), "a network takes .* GB of memory, this machine has"),
        ({"channels": 1 << 20}, (1, 8, 8), "channels = 1048576: a network takes .* GB of memory"),
        ({"channels": 0}, (1, 8, 8), "network.channels: expected at least 1"),
        ({"output_start": 1.5}, (1, 8, 8), "network.output_start: expected a number between 0 and 1"),
        ({"kind": "mlp"}, (2,), 'network.activation: expected kind = "conv"'),
        ({"kind": "mlp", "activation": "relu"}, (2,), 'network.output: expected kind = "conv"'),
        ({}, (1, 7, 7), r"images of shape \(1, side, side\), side even, got \(1, 7, 7\)"),
        ({}, (3, 8, 8), r"got \(3, 8, 8\)"),
        ({}, (2,), r"got \(2,\)"),
    ],
)
def test_what_does_not_fit_is_named(changes, event, message):
    with pytest.raises(InputError, match=message):
        build_autoencoder(conv_config(**changes), event, torch.Generator())
