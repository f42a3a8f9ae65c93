"""The compiled forward pass against the layers."""

import pytest
import torch

from normae.networks import Autoencoder, NetworkConfig, build_autoencoder, scoring_energy
from normae.networks.reconstruction import ReconstructionEnergy
from normae.networks.scoring_energy import WORTH, LanesForward, ScoringEnergy, lanes_serve
from normae.tensors import stream

pytest.importorskip("numba")


def network(output: str = "sigmoid", latent_space: str = "sphere", side: int = 40) -> Autoencoder:
    config = NetworkConfig(
        kind="conv", latent=6, hidden=(100,), activation="prelu", latent_space=latent_space, output=output
    )  # type: ignore[arg-type]
    built = build_autoencoder(config, (1, side, side), stream(0, "init")).requires_grad_(False)
    for k, parameter in enumerate(built.parameters()):  # slopes and biases of their own
        parameter += 0.05 * torch.randn(parameter.shape, generator=stream(k, "change"))
    return built


def images(n: int, side: int = 40) -> torch.Tensor:
    return torch.rand(n, 1, side, side, generator=stream(0, "images"))


@pytest.mark.parametrize(("output", "latent_space"), [("sigmoid", "sphere"), ("linear", "euclidean")])
@pytest.mark.parametrize("side", [20, 40])
def test_energies_are_the_layers_s(output, latent_space, side):
    model, x = network(output, latent_space, side), images(30, side)
    assert torch.allclose(LanesForward(model)(x), ReconstructionEnergy(model)(x), rtol=2e-6)


def test_threads_do_not_matter_and_what_is_not_a_number_stays_so():
    model, x = network(), images(31)
    x[7, 0, 3, 3] = torch.nan
    alone = LanesForward(model)(x)
    assert torch.isnan(alone).nonzero().flatten().tolist() == [7]
    torch.set_num_threads(2)
    try:
        assert torch.equal(LanesForward(model)(x), alone) or torch.allclose(
            LanesForward(model)(x), alone, rtol=1e-6, equal_nan=True
        )
    finally:
        torch.set_num_threads(1)


def test_many_images_take_it_and_few_do_not(monkeypatch):
    model = network()
    seen = []
    monkeypatch.setattr(LanesForward, "__call__", lambda self, x: seen.append(len(x)) or torch.zeros(len(x)))
    energy = ScoringEnergy(model)
    energy(images(20))
    assert seen == []
    energy(images(WORTH))
    assert seen == [WORTH]


def test_where_it_does_not_serve(monkeypatch):
    assert lanes_serve(40, 8)
    assert not lanes_serve(40, 16)
    assert not lanes_serve(32, 8)
    monkeypatch.setattr(scoring_energy.importlib.util, "find_spec", lambda _: None)
    assert not lanes_serve(40, 8)
    assert torch.isfinite(ScoringEnergy(network())(images(WORTH))).all()
