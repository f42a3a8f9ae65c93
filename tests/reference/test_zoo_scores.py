"""No model of the zoo changes its mind when the house is rebuilt."""

import json

import numpy as np
import pytest

from normae import zoo
from reference.zoo_scores import FILE, numbers

REFERENCE = json.loads(FILE.read_text())


def test_every_model_of_the_zoo_has_reference_scores():
    assert set(REFERENCE) == set(zoo.names())


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_scores_are_those_of_the_file(name):
    found = numbers(name)
    assert set(found) == set(REFERENCE[name])
    for what, values in REFERENCE[name].items():
        size = np.abs(values).max()  # float32 of another machine is that close, and no closer for small energies
        np.testing.assert_allclose(found[what], values, rtol=1e-6, atol=1e-6 * size)
