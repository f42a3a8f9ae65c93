"""How far apart two samples are: ROC curves and the area under them, and the Wasserstein distance.

**The area** has the error of DeLong, DeLong and Clarke-Pearson (1988). With m positive scores X and n negative scores Y
it is the mean over all pairs of psi = 1 if X > Y, 1/2 if X = Y, 0 otherwise, and its variance is that of the two row
means, V_i = mean_j psi(X_i, Y_j) and W_j = mean_i psi(X_i, Y_j):

    Var(AUC) = Var(V) / m + Var(W) / n.

If r is the midrank of a score among all and s among its own class, then V_i = (r_i - s_i) / n and W_j = 1 - (r_j - s_j)
/ m (Sun and Xu 2014), which costs three sorts.

**ROC curves.** A cut at t keeps the signal efficiency eps_S = P(s > t | signal) and the background efficiency eps_B =
P(s > t | background). The counting error of eps_B at a given eps_S has two parts: the background that passes
fluctuates, and so does the cut, a quantile of the signal,

    Var(eps_B) = eps_B (1 - eps_B) / n  +  (d eps_B / d eps_S)^2 eps_S (1 - eps_S) / m.

The slope of the curve is its difference quotient over two standard deviations of eps_S to each side.

**The Wasserstein distance** of two samples of one observable, W = integral |F(u) - G(u)| du, is given in standard
deviations of the truth. It is never zero for finite samples; two halves of the truth give the scale.
"""

import math

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from normae.errors import InputError, refuse
from normae.statistics.arrays import Array, Estimate, as_vector, resampled


def auc(positive_scores: ArrayLike, negative_scores: ArrayLike) -> Estimate:
    """The probability that a positive scores above a negative, from scores with shapes (M,) and (N,).

    Ties count one half and infinities are ordinary scores. The error is zero if the classes are perfectly separated.

    >>> from normae.statistics import auc
    >>> round(auc([2, 3, 4], [1, 2, 3]).value, 3)  # 6 of 9 pairs and two ties
    0.778
    """
    return _mean(*_row_means(positive_scores, negative_scores))


def auc_difference(
    positive_first: ArrayLike, negative_first: ArrayLike, positive_second: ArrayLike, negative_second: ArrayLike
) -> Estimate:
    """AUC of a first score minus that of a second of the same events, with DeLong's error of both.

    Args:
        positive_first, positive_second: both scores of the positive events, with shape (M,).
        negative_first, negative_second: of the negative events, with shape (N,).

    >>> from normae.statistics import auc_difference
    >>> round(auc_difference([2, 3, 4], [1, 2, 3], [1, 2, 3], [1, 2, 3]).value, 3)
    0.278
    """
    first, second = _row_means(positive_first, negative_first), _row_means(positive_second, negative_second)
    return _mean(first[0] - second[0], first[1] - second[1])


def _row_means(positive_scores: ArrayLike, negative_scores: ArrayLike) -> tuple[Array, Array]:
    """For each positive the share of negatives below it, (M,), and for each negative that of positives above, (N,)."""
    from scipy.stats import rankdata  # here, since scipy.stats takes a second to import

    positive = as_vector(positive_scores, "positive_scores", least=2)
    negative = as_vector(negative_scores, "negative_scores", least=2)
    places = np.unique(np.concatenate([positive, negative]), return_inverse=True)[1]  # older SciPy: inf - inf is NaN
    ranks, m, n = rankdata(places), positive.size, negative.size
    above = (ranks[:m] - rankdata(places[:m])) / n
    return above, 1.0 - (ranks[m:] - rankdata(places[m:])) / m


def _mean(above: Array, below: Array) -> Estimate:
    variance = np.var(above, ddof=1) / above.size + np.var(below, ddof=1) / below.size
    return Estimate(float(above.mean()), math.sqrt(float(variance)))


def background_efficiency(signal: ArrayLike, background: ArrayLike, efficiencies: ArrayLike) -> Array:
    """eps_B at signal efficiencies (K,), for scores (M,) and (N,): the cut keeps at least that share, ties are 1/2."""
    wanted = np.atleast_1d(np.asarray(efficiencies, dtype=np.float64))
    if not ((wanted >= 0) & (wanted <= 1)).all():
        raise InputError(f"expected signal efficiencies from 0 to 1, got {wanted.min():g} to {wanted.max():g}")
    rising = np.sort(as_vector(signal, "signal", least=2))
    below = np.sort(as_vector(background, "background", least=2))
    cuts = np.append(rising, np.inf)[rising.size - np.ceil(np.round(wanted * rising.size, 9)).astype(np.int64)]
    above = below.size - 0.5 * (np.searchsorted(below, cuts, "left") + np.searchsorted(below, cuts, "right"))
    return np.asarray(above / below.size, dtype=np.float64)


def rejection(signal: ArrayLike, background: ArrayLike, efficiency: float) -> Estimate:
    """1/eps_B at one signal efficiency, with its counting error; the number of events, +- as many, where none passes.

    >>> from normae.statistics import rejection
    >>> rejection(signal=[3, 4, 5, 6], background=[0, 1, 2, 4], efficiency=0.75).value  # 1/2 of 4 passes
    8.0
    """
    m, n = np.size(signal), np.size(background)
    refuse(not 0 < efficiency < 1, f"expected a signal efficiency between 0 and 1, got {efficiency}")
    width = max(2 * math.sqrt(efficiency * (1 - efficiency) / m), 1 / m)
    low, high = max(efficiency - width, 0.0), min(efficiency + width, 1.0)
    before, share, after = background_efficiency(signal, background, [low, efficiency, high])
    if share <= 0:
        return Estimate(float(n), float(n))
    slope = (after - before) / (high - low)
    variance = share * (1 - share) / n + slope**2 * efficiency * (1 - efficiency) / m
    return Estimate(float(1 / share), float(math.sqrt(variance) / share**2))


def wasserstein(sample: ArrayLike, truth: ArrayLike, n_bootstrap: int = 100, *, generator: torch.Generator) -> Estimate:
    """The distance of samples with shapes (N,) and (M,), in standard deviations of the truth.

    The error is that of `n_bootstrap` resamples of both, which `generator` gives.

    >>> import torch, normae.statistics
    >>> normae.statistics.wasserstein([1.0, 3.0], [0.0, 2.0], generator=torch.Generator().manual_seed(0)).value
    1.0
    """
    from scipy.stats import wasserstein_distance  # here, since scipy.stats takes a second to import

    a, b = as_vector(sample, "sample", least=2), as_vector(truth, "truth", least=2)
    of_sample, scale = np.arange(a.size + b.size) < a.size, float(b.std()) or 1.0

    def distance(counts: NDArray[np.int64]) -> float:
        return float(wasserstein_distance(a, b, counts[of_sample], counts[~of_sample]))

    drawn = resampled(distance, of_sample, n_bootstrap, generator)
    return Estimate(float(wasserstein_distance(a, b)) / scale, float(np.std(drawn, ddof=1)) / scale)


def wasserstein_halves(truth: ArrayLike, splits: int = 20, *, generator: torch.Generator) -> Estimate:
    """The distance of two random halves of the truth, mean and standard deviation over splits, in the same units."""
    from scipy.stats import wasserstein_distance

    values = as_vector(truth, "truth", least=4)
    half, scale, found = values.size // 2, float(values.std()) or 1.0, []
    for _ in range(splits):
        order = torch.randperm(values.size, generator=generator, device=generator.device).cpu().numpy()
        found.append(wasserstein_distance(values[order[:half]], values[order[half:]]) / scale)
    return Estimate(float(np.mean(found)), float(np.std(found, ddof=1)))
