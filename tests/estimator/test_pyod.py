"""The PyOD adapter: signs and labels of PyOD, or one sentence where PyOD is not installed."""

import importlib.util

import numpy as np
import pytest

from normae.errors import InputError
from normae.estimator.pyod import NAE

INSTALLED = importlib.util.find_spec("pyod") is not None


@pytest.mark.skipif(INSTALLED, reason="PyOD is installed")
def test_without_pyod_one_sentence_says_so():
    with pytest.raises(InputError, match=r"pyod is not installed; `pip install 'normae\[pyod\]'`"):
        NAE()


@pytest.mark.skipif(not INSTALLED, reason="PyOD is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_signs_and_labels_of_pyod():
    rows = np.random.RandomState(0).standard_normal((200, 3))
    settings = {"start_iterations": 40, "iterations": 5, "hidden": (8,)}
    detector = NAE(contamination=0.05, random_state=0, settings=settings)
    with pytest.raises(InputError, match="not fitted"):
        detector.decision_function(rows)
    detector.fit(rows)
    assert detector.labels_.sum() == 10
    assert np.array_equal(detector.labels_, (detector.decision_scores_ > detector.threshold_).astype(int))
    far = np.full((1, 3), 9.0)
    assert detector.predict(far)[0] == 1
    assert detector.decision_function(far)[0] > detector.threshold_
    assert detector.predict_proba(far).shape == (1, 2)
