"""Has a chain converged, and what is it worth? Split R-hat and the effective sample size say so.

Both take draws with shape (steps, chains). With W the mean variance within the chains and B/n the variance of their
means, var+ = (n-1)/n W + B/n and R-hat = sqrt(var+/W), after each chain has been split in two halves. The effective
sample size is n m / tau with tau = -1 + 2 sum_k (rho_2k + rho_2k+1), where the autocorrelations rho are taken from the
chains' mean autocovariance, and the sum stops at the first negative pair and never grows (Geyer).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normae.errors import refuse

Array = NDArray[np.float64]


def _halves(draws: ArrayLike) -> Array:
    x = np.asarray(draws, dtype=np.float64)
    refuse(x.ndim != 2 or x.shape[0] < 4, f"expected draws of shape (steps >= 4, chains), got {x.shape}")
    half = len(x) // 2
    return np.concatenate([x[:half], x[-half:]], axis=1)


def _variances(x: Array) -> tuple[float, float]:
    """W and var+ of draws with shape (steps, chains)."""
    n, m = x.shape
    within = float(x.var(axis=0, ddof=1).mean())
    between = float(x.mean(axis=0).var(ddof=1)) if m > 1 else 0.0
    return within, (n - 1) / n * within + between


def split_r_hat(draws: ArrayLike) -> float:
    """R-hat of draws with shape (steps, chains); near 1 when all halves of all chains agree.

    >>> from normae.sampling import split_r_hat
    >>> split_r_hat([[0.0, 5.0], [1.0, 6.0], [0.0, 5.0], [1.0, 6.0]]) > 1.1  # two chains that never met
    True
    """
    within, total = _variances(_halves(draws))
    return float(np.sqrt(total / within)) if within > 0 else float("nan")


def effective_sample_size(draws: ArrayLike) -> float:
    """Number of independent draws that would estimate the mean as well as these, shape (steps, chains).

    >>> import numpy as np, normae.sampling
    >>> draws = np.random.default_rng(0).normal(size=(500, 4))
    >>> round(normae.sampling.effective_sample_size(np.repeat(draws, 2, axis=0)) / draws.size)  # each draw twice
    1
    """
    x = _halves(draws)
    n, m = x.shape
    within, total = _variances(x)
    if not total > 0:
        return float("nan")
    spectrum = np.fft.rfft(x - x.mean(axis=0), n=2 * n, axis=0)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, n=2 * n, axis=0)[:n].mean(axis=1) / (n - 1)
    rho = 1 - (within - covariance) / total
    pairs = rho[: n - n % 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs < 0)
    pairs = np.minimum.accumulate(pairs[: negative[0]] if len(negative) else pairs)
    tau = max(-1 + 2 * float(pairs.sum()), 1 / np.log10(n * m))
    return float(n * m / tau)
