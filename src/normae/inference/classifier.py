"""A trained supervised classifier: log r = log p_top - log p_QCD of jets, corrected where its score was not calibrated.

The logit f of a network trained with n_1 events of class 1 and n_0 of class 0 tends to log r + log(n_1 / n_0),
Eq. (lr_clf) of the paper for n_1 = n_0.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor, nn

from normae.errors import InputError

Correction = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""log r with shape (N,) to a better log r with shape (N,)."""
PIECE = 4096


class Classifier:
    """log r of events, from a network.

    Args:
        network: maps events (N, *event) to logits (N, 1).
        scale: what events are multiplied with first.
        prior: log(n_1 / n_0) of the training sample.
        event: shape of one event.
        correction: of log r, from held-out events; None for a score that needs none.
        name: for messages.

    >>> from torch import nn
    >>> from normae.inference import Classifier
    >>> classifier = Classifier(nn.PReLU(), scale=2.0, prior=0.0, event=(1,))
    >>> classifier.log_ratio([[0.0], [1.0]]), classifier.probability([[0.0], [1.0]]).round(2)
    (array([0., 2.]), array([0.5 , 0.88]))
    """

    def __init__(
        self,
        network: nn.Module,
        scale: float,
        prior: float,
        event: tuple[int, ...],
        correction: Correction | None = None,
        name: str = "classifier",
    ) -> None:
        self.network = network.eval().requires_grad_(False)
        self.scale, self.prior, self.event = scale, prior, event
        self.correction, self.name = correction, name

    def log_ratio(self, x: Any, corrected: bool = True) -> NDArray[np.float64]:
        """log p_1 - log p_0 with shape (N,), for events with shape (N, *event), numpy or torch.

        Args:
            corrected: with the calibration that held-out events asked for.
        """
        events = x if isinstance(x, Tensor) else torch.from_numpy(np.asarray(x, dtype=np.float32))
        if tuple(events.shape[1:]) != self.event:
            raise InputError(f"{self.name}: expected events of shape {self.event}, got {tuple(events.shape[1:])}")
        device = next(self.network.parameters()).device
        with torch.no_grad():
            pieces = [self.network(piece.to(device).float() * self.scale) for piece in torch.split(events, PIECE)]
        logit = torch.cat(pieces).squeeze(1).double().cpu().numpy() if pieces else np.zeros(0)
        if not np.isfinite(logit).all():
            first = int(np.flatnonzero(~np.isfinite(logit))[0])
            raise InputError(f"{self.name}: expected finite events, row {first} gives none")
        ratio: NDArray[np.float64] = logit - self.prior
        return ratio if self.correction is None or not corrected else self.correction(ratio)

    def probability(self, x: Any, corrected: bool = True) -> NDArray[np.float64]:
        """The probability of class 1 in a sample of equal parts, with shape (N,)."""
        probability: NDArray[np.float64] = expit(self.log_ratio(x, corrected))
        return probability
