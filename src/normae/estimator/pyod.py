"""The estimator for PyOD: high scores are anomalous, labels are 1 for anomalies and 0 for the others.

Importable without PyOD, which only `NAE(...)` needs: `pip install normae[pyod]`.
"""

from typing import Any

import numpy as np

from normae.errors import refuse, require
from normae.estimator.nae import Floats, NormalizedAutoencoder

try:
    from pyod.models.base import BaseDetector
except ImportError:
    BaseDetector = object


class NAE(BaseDetector):  # type: ignore[misc]
    """A normalized autoencoder as a PyOD detector.

    Args:
        contamination: share of the training rows that `labels_` and `threshold_` call anomalous.
        random_state: seed of all randomness.
        settings: other parameters of `normae.NormalizedAutoencoder`.

    Attributes:
        decision_scores_: minus `score_samples` of the training rows.
        labels_, threshold_: PyOD's, from the scores and the contamination.
        detector_: the fitted `normae.NormalizedAutoencoder`.
    """

    def __init__(
        self, contamination: float = 0.1, random_state: int | None = None, settings: dict[str, Any] | None = None
    ) -> None:
        require("pyod", "pyod")
        super().__init__(contamination=contamination)
        self.random_state = random_state
        self.settings = settings

    def fit(self, X: Any, y: Any = None) -> "NAE":
        """Train on rows with shape (N, d)."""
        self._set_n_classes(y)
        self.detector_ = NormalizedAutoencoder(random_state=self.random_state, **(self.settings or {})).fit(X)
        self.decision_scores_ = self.decision_function(X)
        self._process_decision_scores()
        return self

    def decision_function(self, X: Any) -> Floats:
        """Minus `score_samples`, with shape (N,): high is anomalous."""
        refuse(not hasattr(self, "detector_"), "this NAE is not fitted yet; call fit first")
        return np.asarray(-self.detector_.score_samples(X))
