"""The presets of the paper against the paper's numbers, field by field, with the place where it states each.

What a preset has on purpose in another way is in `DEPARTURES`, with the paper's value beside ours.
"""

from functools import reduce
from typing import Any

import pytest
import torch
from torch import nn

from normae.config import Run, read
from normae.data import DENSITIES
from normae.networks.autoencoder import build_autoencoder

LMC, TOY, JETS = "tab. hyperparameters_lmc", "tab. hyperparameters_toy", "tab. hyperparameters_jets"
SAMPLING, TRAINING, DATA = "app. B, sampling", "app. B, architecture and training", "sec. 3.1"
BOTH = {
    "sampling.buffer": (10_000, SAMPLING),
    "sampling.replay": (0.95, SAMPLING),
    "sampling.buffer_space": ("latent", SAMPLING),
    "pretraining.learning_rate": (1e-3, f"{TOY}, {JETS}"),
    "pretraining.batch": (2048, f"{TOY}, {JETS}"),
    "pretraining.schedule": ("constant", f"{TOY}, {JETS}"),
    "training.learning_rate": (1e-5, f"{TOY}, {JETS}"),
    "training.epochs": (100, f"{TOY}, {JETS}"),
    "training.schedule": ("constant", f"{TOY}, {JETS}"),
    "training.average": (0.0, f"{TOY}, {JETS}: none is named"),
    "sampling.latent.metropolis": ("exact", LMC),
    "sampling.latent.bounds": (None, LMC),
    "sampling.latent.anneal": (False, LMC),
}
TOYS = BOTH | {
    "data.density": ("two-gaussians", DATA),
    "data.train": (500_000, DATA),
    "evaluation.classifier.points": (250_000, "sec. 3.1"),
    "evaluation.classifier.hidden": ((64, 64, 64), "sec. 3.1"),
    "evaluation.classifier.learning_rate": (1e-3, "sec. 3.1"),
    "evaluation.classifier.batch": (2048, "sec. 3.1"),
    "evaluation.classifier.max_epochs": (200, "sec. 3.1"),
    "evaluation.classifier.train": (300_000, "sec. 3.1"),
    "evaluation.classifier.validation": (50_000, "sec. 3.1"),
    "evaluation.classifier.test": (150_000, "sec. 3.1"),
    "evaluation.classifier.patience": (20, "sec. 3.1"),
    "network.latent": (3, TOY),
    "network.hidden": ((128, 128, 128), TRAINING),
    "network.activation": ("relu", TOY),
    "network.latent_space": ("euclidean", TOY),
    "network.output": ("linear", TOY),
    "network.spectral_norm": (False, TOY),
    "temperature.initial": (0.2, TOY),
    "temperature.trained": (True, TOY),
    "temperature.learning_rate": (1e-3, TOY),
    "pretraining.epochs": (100, TOY),
    "pretraining.latent_penalty": (7.069e-6, TOY),
    "training.batch": (2048, TOY),
    "training.latent_penalty": (7.069e-6, TOY),
    "training.l2_penalty": (0.0, TOY),
    "training.negative_penalty": (1.0, TOY),
    "training.loss_scale": ("temperature", "eq. training_ebm"),
    "sampling.latent.steps": (50, LMC),
    "sampling.latent.step_size": (5e-3, LMC),
    "sampling.latent.noise": (0.1, LMC),
    "sampling.latent.clip": (None, LMC),
    "sampling.feature.steps": (100, LMC),
    "sampling.feature.step_size": (5e-3, LMC),
    "sampling.feature.noise": (0.1, LMC),
    "sampling.feature.clip": (None, LMC),
    "sampling.feature.bounds": ((-4.5, 4.5), LMC),
    "sampling.feature.bounds_rule": ("reject", LMC),
    "sampling.feature.metropolis": ("exact", LMC),
    "sampling.feature.anneal": (False, LMC),
}
JETS_NAE = BOTH | {
    "evaluation.draws": (50, "sec. 4"),
    "data.train": (100_000, "sec. 4"),
    "network.kind": ("conv", "tab. architecture"),
    "network.latent": (6, JETS),
    "network.channels": (8, "tab. architecture"),
    "network.hidden": ((100,), "tab. architecture"),
    "network.activation": ("prelu", JETS),
    "network.latent_space": ("sphere", JETS),
    "network.output": ("sigmoid", JETS),
    "network.spectral_norm": (True, JETS),
    "temperature.initial": (6e-7, JETS),
    "temperature.trained": (False, JETS),
    "pretraining.epochs": (500, JETS),
    "pretraining.latent_penalty": (0.0, JETS),
    "training.batch": (128, JETS),
    "training.latent_penalty": (0.0, JETS),
    "training.l2_penalty": (1e-8, JETS),
    "training.negative_penalty": (2.5e4, JETS),
    "sampling.latent.steps": (30, LMC),
    "sampling.latent.step_size": (7.2e-5, LMC),
    "sampling.latent.noise": (1e-2, LMC),
    "sampling.latent.clip": (1e-2, LMC),
    "sampling.feature.steps": (30, LMC),
    "sampling.feature.step_size": (3.6e-5, LMC),
    "sampling.feature.noise": (1e-4, LMC),
    "sampling.feature.clip": (1e-2, LMC),
    "sampling.feature.bounds": ((0.0, 1.0), LMC),
    "sampling.feature.bounds_rule": ("clamp", LMC),
    "sampling.feature.anneal": (True, LMC),
}
PRIOR = {"bayesian.prior_width": (1.0, TRAINING), "bayesian.layers": ("last", TRAINING)}
LOCAL = {"bayesian.pretraining": ("local", TRAINING), "bayesian.training": ("local", TRAINING)}
JETS_BNAE = JETS_NAE | PRIOR | {
    "network.output": ("linear", JETS),
    "network.spectral_norm": (False, JETS),
    "training.l2_penalty": (0.0, JETS),
}  # fmt: skip
CLASSIFIER = {
    "data.train": (100_000, "sec. 4, of each class"),
    "network.kind": ("conv", "tab. architecture"),
    "network.activation": ("prelu", "sec. 4"),
    "classifier.epochs": (300, "sec. 4"),
    "classifier.batch": (2048, "sec. 4"),
    "classifier.learning_rate": (1e-3, "sec. 4"),
}
TABLE = {
    "toy-paper": TOYS,
    "toy-bayes-paper": TOYS | PRIOR | LOCAL,
    "jets-paper-qcd-nae": JETS_NAE | {"data.jets": ("qcd", "sec. 4")},
    "jets-paper-top-nae": JETS_NAE | {"data.jets": ("top", "sec. 4")},
    "jets-paper-qcd-bnae": JETS_BNAE | {"data.jets": ("qcd", "sec. 4")},
    "jets-paper-top-bnae": JETS_BNAE | {"data.jets": ("top", "sec. 4")},
    "jets-paper-classifier": CLASSIFIER | {"data.jets": ("both", "sec. 4.1")},
}
JET_DEPARTURES = {
    "data.validation": (50_000, 15_000, "sec. 4"),
    "data.test": (200_000, 20_000, "sec. 4"),
    "sampling.feature.metropolis": ("exact", "off", LMC),
    "sampling.latent.sphere": ("project", "geodesic", SAMPLING),
    "training.loss_scale": ("temperature", "plain", "eq. bnae_loss"),
}
SHARED = dict.fromkeys(("bayesian.pretraining", "bayesian.training"), ("local", "shared", TRAINING))
DEPARTURES = {
    "jets-paper-qcd-nae": JET_DEPARTURES,
    "jets-paper-top-nae": JET_DEPARTURES,
    "jets-paper-qcd-bnae": JET_DEPARTURES | SHARED,
    "jets-paper-top-bnae": JET_DEPARTURES | SHARED,
}


def field(config: Run, name: str) -> Any:
    return reduce(getattr, name.split("."), config)


@pytest.mark.parametrize("preset", TABLE)
def test_every_number_is_the_paper_s(preset):
    config = read(preset)
    wrong = {
        name: f"{field(config, name)} for {value} of {place}"
        for name, (value, place) in TABLE[preset].items()
        if field(config, name) != value
    }
    assert not wrong


@pytest.mark.parametrize("preset", DEPARTURES)
def test_departures_are_those_that_are_said(preset):
    config = read(preset)
    for name, (theirs, ours, place) in DEPARTURES[preset].items():
        assert field(config, name) == ours, place
        assert theirs != ours


def test_the_densities():
    """Sec. 3.1 and 3.4: two Gaussians at +-(1.5, 1.5) with variance 0.5 and equal weight, and a standard normal."""
    two, one = (DENSITIES[name]() for name in ("two-gaussians", "one-gaussian"))
    assert two.means.tolist() == [[1.5, 1.5], [-1.5, -1.5]]
    assert torch.equal(two.covariances, 0.5 * torch.eye(2).expand(2, 2, 2))
    assert two.weights.tolist() == [0.5, 0.5]
    assert one.means.tolist() == [[0, 0]]
    assert torch.equal(one.covariances, torch.eye(2)[None])


def test_the_layers_of_the_jet_network():
    """Tab. architecture: channels in and out of every convolution, and the sizes of the dense layers."""
    network = build_autoencoder(read("jets-paper-qcd-nae").network, (1, 40, 40), torch.Generator())
    found = {}
    for part in ("encoder", "decoder"):
        modules = list(getattr(network, part).modules())
        convolutions = [m for m in modules if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)]
        assert all((m.kernel_size, m.stride, m.padding) == ((3, 3), (1, 1), (1, 1)) for m in convolutions)
        assert all(m.bias is not None for m in convolutions)
        dense = [m for m in modules if isinstance(m, nn.Linear)]
        found[part] = (
            [(m.in_channels, m.out_channels) for m in convolutions],
            [(m.in_features, m.out_features) for m in dense],
        )
    assert found["encoder"] == ([(1, 8), (8, 8), (8, 8), (8, 8), (8, 1)], [(400, 100), (100, 6)])
    assert found["decoder"] == ([(1, 8), (8, 8), (8, 8), (8, 1)], [(6, 100), (100, 400)])
