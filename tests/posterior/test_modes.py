"""A posterior with several modes: whose draws it has, and what they say together."""

from collections import Counter

import numpy as np
import pytest
import torch

from normae.networks import NetworkConfig, build_autoencoder
from normae.posterior.draw import MeanField, Modes, together
from normae.tensors import stream

TEMPERATURES, CONSTANTS = (0.5, 0.4, 0.6), (-1.0, 0.0, -0.25)
X = torch.from_numpy(np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32))


def members(rho: float) -> list[MeanField]:
    found = []
    for seed, temperature in enumerate(TEMPERATURES):
        network = build_autoencoder(NetworkConfig(hidden=[8]), (2,), stream(seed, "init"))
        last = [name for name, _ in network.named_parameters()][-2:]
        widths = {name: torch.full_like(p, rho) for name, p in network.named_parameters() if name in last}
        found.append(MeanField(network, widths, temperature))
    return found


def modes(rho: float = -30.0) -> Modes:
    """With widths of 1e-13 unless given."""
    return Modes(members(rho), torch.tensor(CONSTANTS))


def test_a_draw_is_one_of_a_member_with_its_constant():
    draws = modes().draws(7, stream(1, "draws"))
    fields = zip(members(-30.0), TEMPERATURES, CONSTANTS, strict=True)
    expected = [field.draws(1, stream(0, "x")).energies(X)[0] - t * c for field, t, c in fields]
    whose = []
    for row, temperature in zip(draws.energies(X), draws.temperature, strict=True):
        near = [j for j in range(3) if torch.allclose(row, expected[j], atol=1e-5)]
        assert len(near) == 1
        assert temperature.item() == pytest.approx(TEMPERATURES[near[0]])
        whose += near
    assert sorted(Counter(whose).values()) == [2, 2, 3]


def test_alone_and_side_by_side_they_differ_by_the_constant():
    draws = modes(0.0).draws(5, stream(2, "draws"))
    rows = draws.energies(X)
    stacked = draws.stacked()(X.repeat(5, 1)).reshape(5, -1)
    for k in range(5):
        alone = draws.one(k)(X)
        assert torch.allclose(alone, stacked[k], atol=1e-5)
        assert (rows[k] - alone).std().item() < 1e-5


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_draws_than_members_are_of_any_of_them(n):
    first = {round(modes().draws(n, stream(seed, "draws")).temperature[0].item(), 3) for seed in range(30)}
    assert first == {round(t, 3) for t in TEMPERATURES}
    assert modes().draws(n, stream(0, "draws")).energies(X).shape == (n, 30)


def test_together_is_the_score_of_the_mean_density():
    scores = np.random.default_rng(1).normal(size=(4, 6)) * 300
    assert together(scores, False) == pytest.approx(scores.mean(0))
    low = scores.min(0)
    assert together(scores, True) == pytest.approx(low - np.log(np.exp(low - scores).mean(0)))
    assert torch.is_tensor(together(torch.from_numpy(scores), True))
