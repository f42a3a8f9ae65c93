"""Observables: known answers, invariances, and fastjet-contrib to 1e-10.

`fastjet.npz` holds the oracle's numbers for the sample, so that the comparison runs where fastjet is not installed.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normae import jets
from normae.errors import InputError
from normae.jets.cluster import _direction, leading_jet
from normae.jets.container import compiled

SETTINGS = settings(max_examples=40, deadline=None)
TAUS = ("tau1", "tau2", "tau3")


def random_jets(seed: int, sizes: list[int], phi: float = 0.0) -> jets.Jets:
    rng = np.random.default_rng(seed)
    tables = []
    for size in sizes:
        angles = (rng.normal(scale=0.25, size=(size, 2)) + np.array([0.5, phi]) + np.pi) % (2 * np.pi) - np.pi
        tables.append(np.column_stack([rng.exponential(10, size) + 0.01, angles]))
    return jets.from_lists(tables)


def shuffled(part: jets.Jets, seed: int) -> jets.Jets:
    """The same jets with their constituents in another order."""
    jet = np.repeat(np.arange(len(part)), part.counts)
    order = np.lexsort((np.random.default_rng(seed).random(len(jet)), jet))
    return jets.from_counts(part.labels, part.counts, part.pt[order], part.eta[order], part.phi[order])


def test_stored_oracle(sample: jets.Jets, data: Path) -> None:
    values = jets.observables(sample)
    with np.load(data / "fastjet.npz") as stored:
        taus, mass = stored["tau"], stored["mass"]
    for k, name in enumerate(TAUS):
        np.testing.assert_allclose(values[name], taus[:, k], rtol=0, atol=1e-10)
    np.testing.assert_allclose(values["mass"], mass, rtol=1e-10)


@SETTINGS
@given(seed=st.integers(0, 10**6), sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4), phi=st.floats(-4, 4))
def test_oracle(seed: int, sizes: list[int], phi: float) -> None:
    oracle = pytest.importorskip("oracle")
    part = random_jets(seed, sizes, phi)
    values, expected = jets.observables(part), oracle.subjettiness(part)
    for k, name in enumerate(TAUS):
        np.testing.assert_allclose(values[name], expected[:, k], rtol=0, atol=1e-10)
    np.testing.assert_allclose(values["mass"], oracle.mass(part), rtol=1e-8, atol=1e-4)


@SETTINGS
@given(seed=st.integers(0, 10**6), size=st.integers(1, 150), spread=st.floats(0.3, 3.0))
def test_anti_kt_oracle(seed: int, size: int, spread: float) -> None:
    oracle = pytest.importorskip("oracle")
    rng = np.random.default_rng(seed)
    pt, eta = rng.exponential(10, size) + 0.01, rng.normal(scale=spread, size=size)
    phi, member = rng.uniform(-np.pi, np.pi, size), np.zeros(size, dtype=np.int64)
    found = leading_jet(pt, eta, phi, 0.8, member)
    *expected, constituents = oracle.leading_jet(pt, eta, phi, 0.8)
    np.testing.assert_allclose(found[:2], expected[:2], rtol=1e-10, atol=1e-10)
    assert np.cos(found[2] - expected[2]) == pytest.approx(1)
    assert np.flatnonzero(member).tolist() == constituents


def test_anti_kt_of_nothing() -> None:
    nothing = np.zeros(0)
    assert leading_jet(nothing, nothing, nothing, 0.8, np.zeros(0, dtype=np.int64))[0] == 0


def test_one_two_three_constituents() -> None:
    one, two = [(10, 0.3, 0.1)], [(30, 0.0, 0.0), (10, 0.0, 0.4)]
    three = [(30, 0.0, 0.0), (10, 0.0, 0.4), (5, 0.3, 0.2)]
    values = jets.observables(jets.from_lists([one, two, three, one * 4]))
    assert values["mass"][0] == 0
    np.testing.assert_allclose(values["mass"][1], np.sqrt(2 * 30 * 10 * (1 - np.cos(0.4))), rtol=1e-6)
    for name in TAUS:
        assert values[name][0] == pytest.approx(0, abs=1e-9)
        assert values[name][3] == pytest.approx(0, abs=1e-7)
    assert values["tau2"][1] == values["tau3"][1] == values["tau3"][2] == 0
    assert values["tau1"][1] > 0
    assert values["tau1"][2] > values["tau2"][2] > 0
    np.testing.assert_allclose(values["eta"][:2], [0.3, 0.0], atol=1e-7)
    np.testing.assert_allclose(values["phi"][:2], [0.1, 0.1], atol=1e-7)


@SETTINGS
@given(seed=st.integers(0, 10**6), size=st.integers(1, 50))
def test_permutation_and_scale(seed: int, size: int) -> None:
    part = random_jets(seed, [size])
    order = np.random.default_rng(seed).permutation(size)
    other = jets.from_counts(part.labels, part.counts, 4 * part.pt[order], part.eta[order], part.phi[order])
    a, b = jets.observables(part), jets.observables(other)
    for name in (*TAUS, "eta", "phi"):
        np.testing.assert_allclose(a[name], b[name], atol=1e-9)
    np.testing.assert_allclose(4 * a["mass"], b["mass"], rtol=1e-6, atol=1e-6)


@SETTINGS
@given(seed=st.integers(0, 10**6), size=st.integers(2, 50))
def test_order_of_taus(seed: int, size: int) -> None:
    """More axes never lie farther away than fewer by much; exclusive-kT axes are not a strict minimum."""
    values = jets.observables(random_jets(seed, [size]))
    assert (values["tau3"] >= 0).all()
    assert (values["tau2"] <= values["tau1"] * 1.5 + 1e-12).all()
    assert (values["tau3"] <= values["tau2"] * 1.5 + 1e-12).all()


def test_prongs() -> None:
    rng = np.random.default_rng(0)
    for prongs in (1, 2, 3):
        axes = 0.3 * np.array([(0, 0), (1, 0), (0, 1)])[:prongs]
        points = np.repeat(axes, 10, axis=0) + rng.normal(scale=0.01, size=(10 * prongs, 2))
        table = np.column_stack([np.ones(10 * prongs), points])
        values = jets.observables(jets.from_lists([table]))
        taus = [values[name][0] for name in TAUS]
        assert taus[prongs - 1] < 0.03
        assert all(tau > 0.1 for tau in taus[: prongs - 1])


def test_wrapping() -> None:
    a, b = random_jets(3, [40], 0.0), random_jets(3, [40], np.pi)
    x, y = jets.observables(a), jets.observables(b)
    for name in (*TAUS, "mass"):
        np.testing.assert_allclose(x[name], y[name], rtol=1e-4)
    assert np.ptp(b.phi) > 5
    assert np.cos(x["phi"] + np.pi - y["phi"]) == pytest.approx(1)
    assert (np.abs(y["phi"]) <= np.pi).all()


def test_images(sample: jets.Jets) -> None:
    """Pixels of the unfiltered image carry the jet: mass and taus agree within the pixel size."""
    total = np.add.reduceat(sample.pt, sample.offsets[:-1])
    truth, seen = jets.observables(sample), jets.observables(jets.images(sample, sigma=0), threshold=0.0)
    assert np.corrcoef(truth["mass"] / total, seen["mass"])[0, 1] > 0.98
    for name in TAUS:
        assert np.corrcoef(truth[name], seen[name])[0, 1] > 0.9
    assert np.abs(seen["eta"]).max() < 0.1
    assert np.abs(seen["phi"]).max() < 0.1


def moved(part: jets.Jets, size: float, seed: int = 0) -> jets.Jets:
    """Jets whose constituents are at random a little elsewhere: no two distances are equal any more."""
    eta, phi = (part.eta.astype(float), part.phi.astype(float)) + size * np.random.default_rng(seed).normal(
        size=(2, len(part.pt))
    )
    return jets.from_counts(part.labels, part.counts, part.pt, eta, phi)


def taus(part: jets.Jets) -> np.ndarray:
    values = jets.observables(part)
    return np.stack([values[name] for name in TAUS], axis=1)


@pytest.mark.parametrize(("threshold", "sigma"), [(1e-5, 1), (1e-3, 1), (0.0, 0)])
def test_images_oracle(threshold: float, sigma: float, sample: jets.Jets) -> None:
    """Pixels moved by 1e-6 have no ties, and all jets agree.

    As they are, pixels are at equal distances, and which pair is joined first hangs on the last bit: a shift by 1e-9
    changes fastjet's own answer in some jets, and there ours may be another. The axis of tau_1 knows no ties.
    """
    oracle = pytest.importorskip("oracle")
    part = jets.jets_of_images(jets.images(sample[:80], sigma=sigma), threshold)
    apart = moved(part, 1e-6)
    np.testing.assert_allclose(taus(apart), oracle.subjettiness(apart), rtol=0, atol=1e-10)
    expected = oracle.subjettiness(part)
    ours, itself = (np.abs(found - expected) for found in (taus(part), oracle.subjettiness(moved(part, 1e-9))))
    assert ours[:, 0].max() < 1e-10
    assert ours.mean() < 1e-3
    assert (itself[:, 1:] > 1e-6).any()


@pytest.mark.parametrize("threshold", [1e-5, 1e-3])
def test_images_do_not_depend_on_the_order_of_pixels(threshold: float, sample: jets.Jets) -> None:
    part = jets.jets_of_images(jets.images(sample), threshold)
    a, b = jets.observables(part), jets.observables(shuffled(part, 0))
    for name in TAUS:
        np.testing.assert_array_equal(a[name], b[name])


@SETTINGS
@given(seed=st.integers(0, 10**6), size=st.integers(1, 80), side=st.integers(1, 6), kinds=st.integers(1, 4))
def test_ties_do_not_depend_on_the_order(seed: int, size: int, side: int, kinds: int) -> None:
    """Constituents on a coarse grid, across phi = pi, many with equal pt and some in one place."""
    rng = np.random.default_rng(seed)
    eta, phi = 0.125 * rng.integers(0, side, (2, size))
    phi = (phi + 2 * np.pi) % (2 * np.pi) - np.pi
    part = jets.from_lists([np.column_stack([1.0 + rng.integers(0, kinds, size), eta, phi])])
    a, b = jets.observables(part), jets.observables(shuffled(part, seed))
    for name in TAUS:
        np.testing.assert_array_equal(a[name], b[name])
    np.testing.assert_allclose(a["mass"], b["mass"], rtol=1e-12, atol=1e-9)


@SETTINGS
@given(
    pt=st.floats(1e-5, 1e4), eta=st.floats(-6, 6), phi=st.floats(-7, 7), mass=st.sampled_from([0.0, 1e-6, 0.3, 200.0])
)
def test_directions_are_those_of_fastjet(pt: float, eta: float, phi: float, mass: float) -> None:
    """To 1e-10, up to what rounding of E and p_z leaves of the difference of the two far forward."""
    fastjet = pytest.importorskip("fastjet")
    px, py, pz = pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)
    energy = np.sqrt((pt * np.cosh(eta)) ** 2 + mass**2) if mass else pt * np.cosh(eta)
    expected = fastjet.PseudoJet(float(px), float(py), float(pz), float(energy))
    y, angle = _direction(px, py, pz, energy)
    assert y == pytest.approx(expected.rap(), abs=1e-10 + 1e-15 * np.cosh(eta) ** 2)
    assert np.exp(1j * angle) == pytest.approx(np.exp(1j * expected.phi()), abs=1e-10)


def test_directions_of_what_is_known() -> None:
    """A particle boosted from rest: y is the rapidity of the boost; massless, it is eta."""
    for rapidity in (-3.0, 0.0, 0.7, 5.0):
        for px, mass in ((0.0, 2.0), (3.0, 2.0), (3.0, 0.0)):
            transverse = np.hypot(px, mass)
            y, phi = _direction(px, 0.0, transverse * np.sinh(rapidity), transverse * np.cosh(rapidity))
            assert y == pytest.approx(rapidity, abs=1e-11)
            assert phi == 0
    assert abs(_direction(0.0, 0.0, -5.0, 5.0)[0]) > 300
    assert _direction(0.0, -1.0, 0.0, 1.0)[1] == pytest.approx(-np.pi / 2)


def test_mass_far_forward() -> None:
    """The shift is exact in float32; E and p_z would cancel to 1e-16 cosh(10)^2 of pt."""
    table = np.array([(30, 0.0, 0.0), (10, 1 / 64, 0.0), (5, 1 / 128, 1 / 64)])
    centre, *others = (
        jets.observables(jets.from_lists([table + np.array([0, eta, 0])]))["mass"][0] for eta in (0, -10, 10)
    )
    np.testing.assert_allclose(others, centre, rtol=1e-9)


def test_images_are_their_pixels(sample: jets.Jets) -> None:
    images = jets.images(sample[:5])
    part = jets.jets_of_images(images, 1e-3)
    assert part.pt.min() > 1e-3
    assert len(part.pt) == np.count_nonzero(images > 1e-3)
    for a, b in zip(jets.observables(part).values(), jets.observables(images, 1e-3).values(), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(jets.observables(images[:, 0], 1e-3)["tau2"], jets.observables(part)["tau2"])


def test_default_threshold_keeps_the_jet(sample: jets.Jets) -> None:
    images = jets.images(sample)
    kept = np.where(images > jets.THRESHOLD, images, 0)
    assert kept.sum() / images.sum() > 0.999


def test_threads_do_not_matter(sample: jets.Jets, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = jets.observables(sample)
    monkeypatch.setattr("normae.jets.imaging.BLOCK", 11)
    for name, values in jets.observables(sample).items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-12)


def test_bad_images() -> None:
    with pytest.raises(InputError, match=r"expected images of shape \(N, 1, 40, 40\), got \(3, 20, 20\)"):
        jets.observables(np.zeros((3, 20, 20)))
    images = np.ones((3, 1, 40, 40))
    images[1] = 0
    with pytest.raises(InputError, match="image 1 has no pixel above"):
        jets.observables(images)
    images[2, 0, 3, 3] = np.nan
    with pytest.raises(InputError, match="image 2 has a pixel that is not finite"):
        jets.observables(images)


def test_without_pt_and_narrow() -> None:
    """Constituents without pt change nothing; the mass of a narrow jet does not cancel."""
    three = [(30, 0.0, 0.0), (10, 0.0, 0.4), (5, 0.3, 0.2)]
    a, b = (jets.observables(jets.from_lists([t])) for t in (three, [*three, (0, 1.0, 1.0), (0, 1.1, 1.0)]))
    for name in ("mass", *TAUS):
        np.testing.assert_allclose(a[name], b[name], atol=1e-12)
    narrow = jets.observables(jets.from_lists([[(30, 0.0, 0.0), (10, 0.0, 1e-6)]]))
    np.testing.assert_allclose(narrow["mass"], np.sqrt(300) * 1e-6, rtol=1e-6)


def test_too_many_constituents() -> None:
    with pytest.raises(InputError, match="jet 1 has more than 8192 constituents"):
        jets.observables(jets.from_lists([[(1, 0, 0)], [(1, 0, 0)] * 8193]))


def test_no_jets() -> None:
    assert all(len(v) == 0 for v in jets.observables(jets.from_lists([])).values())


def test_numba_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "numba", None)
    with pytest.raises(InputError, match=r"numba.*pip install 'normae\[jets\]'"):
        compiled(lambda: None)


def test_no_images_and_bad_thresholds() -> None:
    found = jets.observables(np.zeros((0, 1, 40, 40)))
    assert {values.shape for values in found.values()} == {(0,)}
    for threshold in (-1.0, np.nan, np.inf):
        with pytest.raises(InputError, match="expected a threshold"):
            jets.observables(np.ones((1, 1, 40, 40)), threshold)
