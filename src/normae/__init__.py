"""Normalized autoencoders: anomaly scores that are likelihoods.

Three ideas: an Energy is a callable from events to numbers; a Kernel is one step of a Markov chain on it; a weight draw
is one sample of a Bayesian network's weights, fixed for as long as it is in use.
"""

from normae.errors import InputError, LogZUnknown, TrainingDiverged
from normae.inference import BayesianModel, Model
from normae.sampling import langevin
from normae.workflow.loading import load

__version__ = "0.1.0"

__all__ = ["BayesianModel", "InputError", "LogZUnknown", "Model", "TrainingDiverged", "__version__", "langevin", "load"]
