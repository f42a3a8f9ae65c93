"""Normalized autoencoders for tables, in scikit-learn's way."""

from normae.estimator.nae import NormalizedAutoencoder

__all__ = ["NormalizedAutoencoder"]
