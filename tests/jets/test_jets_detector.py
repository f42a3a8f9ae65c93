"""The detector: tracks through the solenoid, towers, resolutions, energy flow."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normae.jets.detector import (
    ECAL,
    ELECTRON,
    FIELD,
    HADRON,
    HALF_LENGTH,
    HCAL,
    MUON,
    RADIUS,
    TOWERS,
    _efficiency,
    _kept,
    _sigma,
    _track_resolution,
    energy_flow,
    propagate,
    tower_edges,
    tower_of,
)

SETTINGS = settings(max_examples=60, deadline=None)


def momentum(pt: float, eta: float, phi: float, mass: float = 0.0) -> np.ndarray:
    p = np.array([pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta), 0.0])
    p[3] = np.sqrt(p @ p + mass * mass)
    return p


def seen(pdg: int, charge: float, p: np.ndarray, seed: int = 0) -> np.ndarray:
    """What is seen of one particle from the origin: pt, eta, phi with shape (m, 3)."""
    rng = np.random.default_rng(seed)
    return energy_flow(np.array([pdg]), np.array([charge]), p[None], np.zeros((1, 3)), rng)


@SETTINGS
@given(pt=st.floats(0.1, 500), eta=st.floats(-4.5, 4.5), phi=st.floats(-3.1, 3.1))
def test_neutrals_fly_straight(pt: float, eta: float, phi: float) -> None:
    hit, at_eta, at_phi = propagate(momentum(pt, eta, phi), np.zeros(3), 0.0)
    assert hit
    assert at_eta == pytest.approx(eta, abs=1e-9)
    assert at_phi == pytest.approx(phi, abs=1e-9)


def stepped(p: np.ndarray, place: np.ndarray, charge: float, step: float = 2e-4) -> np.ndarray:
    """Where a charged particle leaves the cylinder, by small steps of dv/ds = 0.2998 q v x B / p."""
    direction, total = p[:3] / np.linalg.norm(p[:3]), np.linalg.norm(p[:3])
    turn = 0.299792458 * charge * FIELD / total * step
    place = place.copy()
    while np.hypot(place[0], place[1]) < RADIUS and abs(place[2]) < HALF_LENGTH:
        c, s = np.cos(turn / 2), np.sin(turn / 2)
        half = np.array([c * direction[0] + s * direction[1], c * direction[1] - s * direction[0], direction[2]])
        place += step * half
        direction = np.array([c * half[0] + s * half[1], c * half[1] - s * half[0], half[2]])
    return place


@pytest.mark.parametrize("charge", [1.0, -1.0])
@pytest.mark.parametrize("pt", [0.25, 0.5, 1.0, 20.0])
@pytest.mark.parametrize(("eta", "phi"), [(0.8, 0.3), (-1.7, 2.9), (2.2, -2.0)])
def test_helix(pt: float, charge: float, eta: float, phi: float) -> None:
    vertex, p = np.array([0.05, -0.12, 0.3]), momentum(pt, eta, phi, 0.14)
    end = stepped(p, vertex, charge)
    hit, at_eta, at_phi = propagate(p, vertex, charge)
    assert hit
    assert at_eta == pytest.approx(np.arcsinh(end[2] / np.hypot(end[0], end[1])), abs=5e-3)
    assert np.cos(at_phi - np.arctan2(end[1], end[0])) == pytest.approx(1, abs=1e-5)


def test_hard_tracks_are_straight_and_soft_ones_curl() -> None:
    _, eta, phi = propagate(momentum(1e5, 0.7, 1.0), np.zeros(3), 1.0)
    assert (eta, phi) == pytest.approx((0.7, 1.0), abs=1e-4)
    assert abs(propagate(momentum(0.2, 0.3, 1.0), np.zeros(3), 1.0)[1]) > 1.5
    assert not propagate(momentum(0.2, 0.0, 1.0), np.zeros(3), 1.0)[0]
    assert not propagate(momentum(5.0, 0.3, 1.0), np.array([1.2, 0, 0]), 0.0)[0]


@SETTINGS
@given(eta=st.floats(-4.899, 4.899), phi=st.floats(-3.1415, 3.1415))
def test_towers(eta: float, phi: float) -> None:
    tower = tower_of(eta, phi)
    assert 0 <= tower < TOWERS
    low, high, left, right = tower_edges(tower)
    assert low - 1e-9 <= eta <= high + 1e-9
    assert left - 1e-9 <= phi <= right + 1e-9
    fine = max(abs(low), abs(high)) < 2.61
    assert right - left == pytest.approx(np.radians(10 if fine else 20))


def test_towers_cover_all() -> None:
    found = set()
    for tower in range(TOWERS):
        low, high, left, right = tower_edges(tower)
        found.add(tower_of((low + high) / 2, (left + right) / 2))
    assert found == set(range(TOWERS))
    assert tower_of(4.91, 0.0) == -1


def test_photons() -> None:
    p = momentum(50, 0.33, 0.4)
    energies = np.array([(o[:, 0] * np.cosh(o[:, 1])).sum() for o in (seen(22, 0.0, p, k) for k in range(400))])
    width = np.sqrt((0.0017 * p[3]) ** 2 + 0.101**2 * p[3])
    assert energies.mean() == pytest.approx(p[3], abs=4 * width / 20)
    assert energies.std() == pytest.approx(width, rel=0.15)
    places = np.concatenate([seen(22, 0.0, p, k)[:, 1:] for k in range(400)])
    assert ((places[:, 0] >= 0.3) & (places[:, 0] <= 0.4)).all()
    assert places.std(axis=0) == pytest.approx([0.1 / np.sqrt(12), np.radians(10) / np.sqrt(12)], rel=0.1)


def test_neutral_hadrons_and_thresholds() -> None:
    p = momentum(100, 0.05, 0.1, 0.94)
    energies = [(o[:, 0] * np.cosh(o[:, 1])).sum() for o in (seen(2112, 0.0, p, k) for k in range(400))]
    width = np.sqrt((0.0302 * p[3]) ** 2 + 0.5205**2 * p[3] + 1.59**2)
    assert np.mean(energies) == pytest.approx(p[3], abs=4 * width / 20)
    assert np.std(energies) == pytest.approx(width, rel=0.15)


@pytest.mark.parametrize(
    ("pdg", "terms", "threshold"), [(22, (0.0017, 0.101, 0.0), 0.5), (130, (0.0302, 0.5205, 1.59), 1.0)]
)
def test_thresholds(pdg: int, terms: tuple[float, float, float], threshold: float) -> None:
    found = np.concatenate([seen(pdg, 0.0, momentum(0.9 if pdg == 130 else 0.5, 0.05, 0.1), k) for k in range(200)])
    energy = found[:, 0] * np.cosh(found[:, 1])
    width = np.sqrt((terms[0] * energy) ** 2 + terms[1] ** 2 * energy + terms[2] ** 2)
    assert 0 < len(found) < 200
    assert (energy >= np.maximum(width, threshold)).all()


def test_the_card_s_tracking_efficiencies() -> None:
    """At pt of 0.05, 0.5, 10 and 200 GeV, up to |eta| = 1.5, to 2.5 and beyond."""
    card = {
        HADRON: [(0, 0.70, 0.95, 0.95), (0, 0.60, 0.85, 0.85), (0, 0, 0, 0)],
        ELECTRON: [(0, 0.73, 0.95, 0.99), (0, 0.50, 0.83, 0.90), (0, 0, 0, 0)],
        MUON: [(0, 0.75, 0.99, 0.99), (0, 0.70, 0.98, 0.98), (0, 0, 0, 0)],
    }
    for kind, rows in card.items():
        found = [tuple(_efficiency(kind, pt, eta) for pt in (0.05, 0.5, 10.0, 200.0)) for eta in (1.0, 2.0, 2.6)]
        assert found == rows


def test_the_card_s_resolutions() -> None:
    """Tracks up to |eta| = 0.5, 1.5 and 2.5; towers up to 1.7, 3.2 and beyond."""
    tracks = {
        HADRON: [(0.06, 1.3e-3), (0.10, 1.7e-3), (0.25, 3.1e-3)],
        ELECTRON: [(0.06, 1.3e-3), (0.10, 1.7e-3), (0.25, 3.1e-3)],
        MUON: [(0.02, 2e-4), (0.03, 3e-4), (0.06, 6e-4)],
    }
    for kind, rows in tracks.items():
        for eta, (a, b) in zip((0.3, 1.0, 2.0), rows, strict=True):
            assert _track_resolution(kind, 40.0, eta) == pytest.approx(np.hypot(a, 40 * b))
    towers = {
        ECAL: [(0.0017, 0.101, 0.0), (0.0017, 0.101, 0.0), (0.035, 0.285, 0.0)],
        HCAL: [(0.0302, 0.5205, 1.59), (0.05, 0.706, 0.0), (0.0942, 1.0, 0.0)],
    }
    for layer, rows in towers.items():
        for eta, (a, b, c) in zip((1.0, 2.0, 4.0), rows, strict=True):
            assert _sigma(layer, eta, 30.0) == pytest.approx(np.sqrt((30 * a) ** 2 + 30 * b**2 + c**2))


@pytest.mark.parametrize(("layer", "threshold"), [(ECAL, 0.5), (HCAL, 1.0)])
def test_the_card_s_thresholds(layer: int, threshold: float) -> None:
    """At |eta| = 2, where the resolution lies below both."""
    assert _kept(layer, 2.0, threshold - 1e-6) == 0
    assert _kept(layer, 2.0, threshold + 1e-6) == threshold + 1e-6


def test_tracks_keep_their_direction() -> None:
    p = momentum(5.0, 0.4, 1.0, 0.14)
    found = [seen(211, 1.0, p, k) for k in range(600)]
    share = np.mean([np.isclose(o[:, 2], 1.0, atol=1e-9).any() for o in found])
    assert share == pytest.approx(0.95, abs=0.04)
    assert all(np.allclose(o[np.isclose(o[:, 2], 1.0), 1], 0.4) for o in found)


@pytest.mark.parametrize(
    ("pdg", "pt", "eta", "expected"), [(211, 0.6, 0.4, 0.70), (211, 5.0, 2.0, 0.85), (13, 5.0, 1.0, 0.99)]
)
def test_tracking_efficiency(pdg: int, pt: float, eta: float, expected: float) -> None:
    p = momentum(pt, eta, 1.0)
    found = np.mean([np.isclose(o[:, 2], 1.0).any() for o in (seen(pdg, 1.0, p, k) for k in range(1000))])
    assert found == pytest.approx(expected, abs=0.05)


def test_muons_are_tracks_only() -> None:
    found = [seen(13, -1.0, momentum(40, 0.2, 0.5, 0.106), k) for k in range(100)]
    assert max(len(o) for o in found) == 1
    widths = np.concatenate([o[:, 0] for o in found]) / 40 - 1
    assert np.std(widths) == pytest.approx(np.hypot(0.02, 2e-4 * 40), rel=0.3)


def test_energy_is_counted_once() -> None:
    """A charged hadron and a photon in one place: energy flow sees both once."""
    p = np.stack([momentum(60, 0.25, 0.3, 0.14), momentum(30, 0.25, 0.3)])
    totals = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        objects = energy_flow(np.array([211, 22]), np.array([1.0, 0.0]), p, np.zeros((2, 3)), rng)
        totals.append(np.sum(objects[:, 0] * np.cosh(objects[:, 1])))
    assert np.mean(totals) == pytest.approx(p[:, 3].sum(), rel=0.03)


def test_random_stream_decides() -> None:
    p = momentum(60, 0.25, 0.3, 0.14)
    np.testing.assert_array_equal(seen(211, 1.0, p, 3), seen(211, 1.0, p, 3))
    assert (
        len(
            energy_flow(
                np.zeros(0, np.int64), np.zeros(0), np.zeros((0, 4)), np.zeros((0, 3)), np.random.default_rng(0)
            )
        )
        == 0
    )
