"""Encoders and decoders, and the autoencoder that pairs them."""

from normae.networks.autoencoder import Autoencoder, NetworkConfig, build_autoencoder, build_mlp_autoencoder
from normae.networks.bayesian import BayesianConfig
from normae.networks.mlp import ACTIVATIONS, MLP
from normae.networks.reconstruction import Layout, call

__all__ = [
    "ACTIVATIONS", "MLP", "Autoencoder", "BayesianConfig", "Layout", "NetworkConfig", "build_autoencoder",
    "build_mlp_autoencoder", "call",
]  # fmt: skip
