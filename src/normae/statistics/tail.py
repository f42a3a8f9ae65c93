"""The p-value of a score under a sample of background.

Of n background events, k are at least as anomalous as the event. If the event is background, it is one more of the same
kind, so that its rank is uniform and

    p = (k + 1) / (n + 1)

is at most a with a probability of at most a: never 0, and valid for any n. The error is that of the share of a binomial
sample, sqrt(q (1 - q) / n) with q = (k + 1) / (n + 2), so that it does not vanish at either end.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def tail_probability(score: NDArray[Any], background: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """p-values and their errors, two arrays with shape (N,).

    Args:
        score: higher is more anomalous, with shape (N,).
        background: scores of background events in rising order, with shape (n,), at least one.

    >>> import numpy as np, normae.statistics.tail
    >>> normae.statistics.tail.tail_probability(np.array([0.5, 3.0]), background=np.array([0.0, 1.0, 2.0]))[0]
    array([0.75, 0.25])
    """
    n = len(background)
    above = n - np.searchsorted(background, score, side="left")
    share = (above + 1) / (n + 2)
    return (above + 1) / (n + 1), np.sqrt(share * (1 - share) / n)
