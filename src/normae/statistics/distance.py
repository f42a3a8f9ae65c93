"""How far apart two samples of one observable are: the Wasserstein distance, with its error and its scale.

    W = integral |F(u) - G(u)| du,

F and G the distribution functions of the samples: the mean distance over which probability has to be moved. It is given
in units of the standard deviation of the truth, so that observables can be compared. It is never zero for finite
samples; what two halves of the truth have is the scale of what cannot be told apart.
"""

import numpy as np
import torch
from numpy.typing import ArrayLike

from normae.statistics.arrays import Array, as_vector
from normae.statistics.estimate import Estimate, check_resamples


def wasserstein(sample: ArrayLike, truth: ArrayLike, n_bootstrap: int = 100, *, generator: torch.Generator) -> Estimate:
    """The distance of samples with shapes (N,) and (M,), in standard deviations of the truth.

    The error is that of `n_bootstrap` resamples of both, which `generator` gives.

    >>> import torch, normae.statistics
    >>> normae.statistics.wasserstein([1.0, 3.0], [0.0, 2.0], generator=torch.Generator().manual_seed(0)).value
    1.0
    """
    check_resamples(n_bootstrap)
    a, b = as_vector(sample, "sample", least=2), as_vector(truth, "truth", least=2)
    scale = _scale(b)
    drawn = [_distance(_resampled(a, generator), _resampled(b, generator)) for _ in range(n_bootstrap)]
    return Estimate(_distance(a, b) / scale, float(np.std(drawn, ddof=1)) / scale)


def wasserstein_halves(truth: ArrayLike, splits: int = 20, *, generator: torch.Generator) -> Estimate:
    """The distance of two random halves of the truth, mean and standard deviation over splits, in the same units."""
    check_resamples(splits)
    values = as_vector(truth, "truth", least=4)
    half, found = values.size // 2, []
    for _ in range(splits):
        order = torch.randperm(values.size, generator=generator, device=generator.device).cpu().numpy()
        found.append(_distance(values[order[:half]], values[order[half:]]) / _scale(values))
    return Estimate(float(np.mean(found)), float(np.std(found, ddof=1)))


def _distance(a: Array, b: Array) -> float:
    from scipy.stats import wasserstein_distance  # here, since scipy.stats takes a second to import

    return float(wasserstein_distance(a, b))


def _scale(truth: Array) -> float:
    return float(truth.std()) or 1.0


def _resampled(values: Array, generator: torch.Generator) -> Array:
    index = torch.randint(values.size, (values.size,), generator=generator, device=generator.device)
    return np.asarray(values[index.cpu().numpy()])
