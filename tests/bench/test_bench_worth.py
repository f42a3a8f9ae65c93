"""Effective samples: the smallest of several observables, its error, and the adapted step."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from normae.bench.toy import MODEL, _exact, adapt, smallest_size
from normae.networks import mlp
from normae.runs.load import load
from normae.sampling import langevin
from normae.tensors import stream


def autoregressive(n: int, chains: int, rho: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = np.empty((n, chains))
    x[0] = rng.normal(size=chains)
    for t in range(1, n):
        x[t] = rho * x[t - 1] + math.sqrt(1 - rho**2) * rng.normal(size=chains)
    return x


def test_the_slowest_observable_counts():
    """Autoregressions with known memory: n (1 - rho)/(1 + rho) effective samples, within four of the errors given."""
    draws = np.stack([autoregressive(3000, 32, rho, seed) for seed, rho in enumerate((0.2, 0.9, 0.5))], axis=-1)
    expected = 3000 * 32 * (1 - 0.9) / (1 + 0.9)
    found = smallest_size(draws)
    assert found.value == pytest.approx(expected, abs=4 * found.error)
    assert found.error < 0.1 * expected


def test_adapted_step_accepts_what_it_should():
    model = load(MODEL)
    start = _exact(model, 400, cells=100)
    step_size, acceptance = adapt(model, model.sampling.feature, start, target=0.57)
    assert acceptance == pytest.approx(0.57, abs=0.03)
    assert step_size > 20 * model.sampling.feature.step_size


def test_a_chain_on_a_model_s_energy_is_planned_once_and_calls_no_autograd(monkeypatch):
    model, calls = load(MODEL), Counter()

    def count(module, name):
        function = getattr(module, name)

        def counted(*args, **kwargs):
            calls[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    for module, name in ((torch.autograd, "grad"), (mlp.Pass, "forward"), (mlp, "one_dnn")):
        count(module, name)
    how = {"temperature": model.temperature, "step_size": 5e-3, "steps": 5, "generator": stream(0, "walk")}
    langevin(model.energy, torch.zeros(256, 2), **how)
    large = 8 * 6 if torch.backends.mkldnn.is_available() else 0  # of 16 products a gradient eight are large
    assert calls == Counter({"forward": 2, "one_dnn": large})
    langevin(lambda x: model.energy(x), torch.zeros(256, 2), **how)
    assert calls["grad"] == 6
