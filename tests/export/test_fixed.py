"""Fixed-point arithmetic against exact fractions, and a network of it against hls4ml's C++."""

import math
import shutil
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normae.errors import InputError
from normae.export.fixed import Fixed, fixed_network, type_for

types = st.builds(Fixed, st.integers(2, 20), st.integers(-4, 12), st.booleans(), st.booleans())


def exact(kind: Fixed, value: Fraction) -> Fraction:
    """What ap_fixed makes of a number, by its definition."""
    scaled = value * Fraction(2) ** kind.fraction
    raw = math.floor(scaled + Fraction(1, 2)) if kind.rounding else math.floor(scaled)
    half = 1 << (kind.width - 1)
    if kind.saturating:
        raw = min(max(raw, -half), half - 1)
    else:
        raw = (raw + half) % (1 << kind.width) - half
    return Fraction(raw) / Fraction(2) ** kind.fraction


@given(types, st.floats(-5000, 5000, allow_nan=False))
def test_numbers_become_fixed(kind, value):
    assert Fraction(float(kind.values(kind.of([value]))[0])) == exact(kind, Fraction(value))


@given(types, st.integers(-(2**30), 2**30), st.integers(-4, 24))
def test_narrowing(kind, raw, fraction):
    found = kind.values(kind.narrowed(np.array([raw]), fraction))
    assert Fraction(float(found[0])) == exact(kind, Fraction(raw) / Fraction(2) ** fraction)


@given(st.floats(1e-6, 1e6), st.integers(4, 24))
def test_a_type_holds_what_it_is_for(largest, width):
    kind = type_for(largest, width)
    assert abs(kind.values(kind.of([largest]))[0] - largest) <= kind.step
    assert abs(kind.values(kind.of([-largest]))[0] + largest) <= kind.step
    narrower = Fixed(width, kind.integer - 1, rounding=True, saturating=True)
    assert narrower.values(np.array([2 ** (width - 1) - 1]))[0] <= largest


def weights(seed: int, sizes: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(seed)
    pairs = pairwise(sizes)
    return [(random.normal(size=(b, a)) / math.sqrt(a), random.normal(size=b)) for a, b in pairs]


def by_fractions(network, z: np.ndarray) -> float:
    """One event, one output, in exact arithmetic."""
    values = [exact(network.input, Fraction(float(v))) for v in z]
    for k, layer in enumerate(network.layers):
        w, b = layer.weight_type.values(layer.weight), layer.bias_type.values(layer.bias)
        sums = [
            sum((Fraction(float(a)) * v for a, v in zip(row, values, strict=True)), Fraction(float(bias)))
            for row, bias in zip(w, b, strict=True)
        ]
        if k < len(network.layers) - 1:
            sums = [max(s, Fraction(0)) for s in sums]
        values = [exact(layer.result, s) for s in sums]
    return float(values[0])


@pytest.mark.parametrize("width", [4, 8, 16])
def test_a_network_adds_without_loss(width):
    results = [type_for(3.0, width), type_for(2.0, width)]
    network = fixed_network(weights(0, (3, 5, 1)), type_for(2.0, width), results, width)
    z = 3 * np.random.default_rng(1).normal(size=(50, 3))  # some beyond the range
    assert np.array_equal(network(z)[:, 0], [by_fractions(network, row) for row in z])


def test_too_many_bits():
    with pytest.raises(InputError, match="an accumulator would need"):
        fixed_network(weights(0, (3, 1)), type_for(1.0, 40), [type_for(1.0, 40)], 40)


@pytest.mark.slow
@pytest.mark.parametrize("width", [6, 16])
@pytest.mark.filterwarnings("ignore")
def test_hls4ml_has_the_same_bits(width, tmp_path):
    """A compiled emulation with inputs within and beyond the range."""
    pytest.importorskip("hls4ml")
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    from normae.export.fixed import write_project

    results = [type_for(3.0, width), type_for(2.0, width), type_for(2.0, width)]
    network = fixed_network(weights(2, (3, 6, 4, 1)), type_for(2.0, width), results, width)
    z = 3 * np.random.default_rng(1).normal(size=(2000, 3))
    assert np.array_equal(write_project(network, tmp_path / "project", z), network(z)[:, 0])
