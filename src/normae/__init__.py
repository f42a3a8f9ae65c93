"""Normalized autoencoders: anomaly scores that are likelihoods.

Four ideas. Coordinates are the fitted map from what a user has to what the energy sees. An Energy is a callable from
events to numbers. A Kernel is one step of a Markov chain on it. A weight draw is one sample of a network's weights,
fixed for as long as it is in use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from normae.errors import InputError, LogZDisagreement, LogZUnknown, TrainingDiverged
from normae.version import __version__

if TYPE_CHECKING:
    from normae.estimator import NormalizedAutoencoder
    from normae.inference import BayesianModel, Model
    from normae.runs.classifier import Classifier, load_classifier
    from normae.runs.door import train
    from normae.runs.load import load
    from normae.sampling import langevin

__all__ = [
    "BayesianModel", "Classifier", "InputError", "LogZDisagreement", "LogZUnknown", "Model", "NormalizedAutoencoder",
    "TrainingDiverged", "__version__", "langevin", "load", "load_classifier", "train",
]  # fmt: skip

_PLACES = {
    "BayesianModel": "normae.inference", "Classifier": "normae.runs.classifier", "Model": "normae.inference",
    "NormalizedAutoencoder": "normae.estimator", "langevin": "normae.sampling", "load": "normae.runs.load",
    "load_classifier": "normae.runs.classifier", "train": "normae.runs.door",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import torch only when a name that needs it is asked for."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    if name == "jets":
        return import_module("normae.jets")
    raise AttributeError(f"module 'normae' has no attribute {name!r}")
