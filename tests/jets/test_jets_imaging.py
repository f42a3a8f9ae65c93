"""Constituents to images: conventions, invariances, and jets with one, two and three constituents."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter

from normae import jets
from normae.errors import InputError
from normae.jets import imaging
from normae.jets.imaging import Plane

SETTINGS = settings(max_examples=60, deadline=None)


def cloud(seed: int, count: int = 12) -> np.ndarray:
    """A lopsided jet of `count` constituents well inside the frame: columns pt, eta, phi, float64."""
    rng = np.random.default_rng(seed)
    points = rng.normal(scale=(0.05, 0.12), size=(count, 2))
    points[0] += (0.1, 0.25)
    return np.column_stack([rng.exponential(10, count) + 0.5, points])


def plane_of(*tables: np.ndarray) -> Plane:
    """Float64 constituents, so that invariances can be tested beyond float32."""
    offsets = np.concatenate([[0], np.cumsum([len(t) for t in tables])])
    return Plane(offsets, *np.concatenate(tables).T)


def prepared(*tables: np.ndarray) -> Plane:
    return imaging.flip(imaging.rotate(imaging.centre(plane_of(*tables))))


def picture(table: np.ndarray) -> np.ndarray:
    return imaging.gaussian(imaging.dense(imaging.normalize(imaging.pixelate(prepared(table)))))[0]


def turned(table: np.ndarray, angle: float, mirror: int = 1, shift: tuple[float, float] = (0, 0)) -> np.ndarray:
    """`table` rotated by `angle` in the plane, mirrored in eta, and shifted."""
    c, s = np.cos(angle), np.sin(angle)
    x, y = table[:, 1], table[:, 2]
    return np.column_stack([table[:, 0], mirror * (c * x - s * y) + shift[0], s * x + c * y + shift[1]])


def away_from_edges(table: np.ndarray, margin: float = 1e-7) -> bool:
    """Whether no constituent is so near a pixel's edge, and no half so near a tie, that rounding decides."""
    p = prepared(table)
    for values, size in ((p.x, imaging.PIXEL_ETA), (p.y, imaging.PIXEL_PHI)):
        place = values[values != 0] / size
        halves = np.abs(np.sum(p.pt * np.sign(values))) / p.pt.sum()
        if (np.abs(place - np.round(place)) < margin).any() or halves < margin:
            return False
    return True


@SETTINGS
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(3, 30),
    angle=st.floats(-np.pi, np.pi),
    mirror=st.sampled_from([1, -1]),
    eta=st.floats(-2, 2),
    phi=st.floats(-3, 3),
)
def test_rotation_reflection_translation(
    seed: int, count: int, angle: float, mirror: int, eta: float, phi: float
) -> None:
    table = cloud(seed, count)
    if away_from_edges(table):
        moved = turned(table, angle, mirror, (eta, phi))
        np.testing.assert_allclose(picture(moved), picture(table), atol=1e-6)


@SETTINGS
@given(seed=st.integers(0, 10**6), count=st.integers(1, 30))
def test_permutation(seed: int, count: int) -> None:
    table = cloud(seed, count)
    shuffled = np.random.default_rng(seed).permutation(table)
    if away_from_edges(table):
        np.testing.assert_allclose(picture(shuffled), picture(table), atol=1e-6)


@SETTINGS
@given(seed=st.integers(0, 10**6), count=st.integers(1, 60), scale=st.floats(0.2, 4))
def test_momentum_in_the_frame_is_conserved(seed: int, count: int, scale: float) -> None:
    table = cloud(seed, count)
    table[:, 1:] *= scale
    p = prepared(table)
    inside = (np.abs(p.x) < 0.58) & (np.abs(p.y) < 0.70)
    image = imaging.dense(imaging.pixelate(p))
    assert image.sum() == pytest.approx(p.pt[inside].sum(), rel=1e-5)


@SETTINGS
@given(seed=st.integers(0, 10**6), count=st.integers(1, 60))
def test_scale_of_pt_does_not_matter(seed: int, count: int) -> None:
    table = cloud(seed, count)
    louder = table * (1000.0, 1, 1)
    if away_from_edges(table):
        np.testing.assert_allclose(picture(louder), picture(table), atol=1e-6)


def test_phi_wraps() -> None:
    table = cloud(3)
    there = turned(table, 0, shift=(0.3, 3.1))
    wrapped = there.copy()
    wrapped[:, 2] = (wrapped[:, 2] + np.pi) % (2 * np.pi) - np.pi
    assert np.ptp(wrapped[:, 2]) > 6
    a, b = (jets.images(jets.from_lists([t])) for t in (there, wrapped))
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_origin_is_a_pixel_edge() -> None:
    x = np.array([0.0, -1e-6, 0.0, -1e-6, 0.0289, 0.0291, 0.579, 0.581, -0.579, -0.581])
    y = np.array([0.0, 0.0, -1e-6, -1e-6, 0.0, 0.0, 0.699, 0.0, -0.699, 0.0])
    expected = [20 * 40 + 20, 20 * 40 + 19, 19 * 40 + 20, 19 * 40 + 19, 820, 821, 1599, -1, 0, -1]
    np.testing.assert_array_equal(jets.pixel_index(x, y), expected)


def test_inverse_map() -> None:
    index = np.arange(1600)
    eta, phi = jets.pixel_to_plane(index)
    np.testing.assert_array_equal(jets.pixel_index(eta, phi), index)
    assert eta[820] == pytest.approx(0.029 / 2)
    assert phi[820] == pytest.approx(0.035 / 2)
    columns, rows = jets.pixel_centres()
    assert columns[0] == pytest.approx(-0.58 + 0.0145)
    assert rows[-1] == pytest.approx(0.70 - 0.0175)


def test_axes_and_halves() -> None:
    """The long axis is phi, the rows; more pT lies at larger row and column."""
    image = picture(cloud(1, 40))
    eta, phi = jets.pixel_centres()
    mean_phi, mean_eta = image.sum(axis=1) @ phi, image.sum(axis=0) @ eta
    assert image.sum(axis=1) @ (phi - mean_phi) ** 2 > image.sum(axis=0) @ (eta - mean_eta) ** 2
    assert image[20:].sum() > image[:20].sum()
    assert image[:, 20:].sum() > image[:, :20].sum()


def test_steps() -> None:
    tables = [cloud(k, n) for k, n in enumerate((5, 9, 30))]
    centred = imaging.centre(plane_of(*tables))
    assert np.abs(imaging.centroid(centred)).max() < 1e-12
    rotated = imaging.rotate(centred)
    for a, b in zip(rotated.offsets[:-1], rotated.offsets[1:], strict=True):
        pt, x, y = rotated.pt[a:b], rotated.x[a:b], rotated.y[a:b]
        assert abs(np.sum(pt * x * y)) < 1e-12
        assert np.sum(pt * y * y) > np.sum(pt * x * x)
        np.testing.assert_allclose(np.hypot(x, y), np.hypot(centred.x[a:b], centred.y[a:b]))
    flipped = imaging.flip(rotated)
    for values in (flipped.x, flipped.y):
        assert (np.add.reduceat(flipped.pt * np.sign(values), flipped.offsets[:-1]) >= 0).all()


def test_rotation_keeps_handedness() -> None:
    """Twelve o'clock by a rotation, not by a reflection: the flips alone decide the handedness."""
    before = imaging.centre(plane_of(cloud(5)))
    after = imaging.rotate(before)
    cross = before.x[0] * before.y[1] - before.y[0] * before.x[1]
    assert after.x[0] * after.y[1] - after.y[0] * after.x[1] == pytest.approx(cross)


def test_ties_stay() -> None:
    plane = Plane(np.array([0, 2]), np.array([1.0, 1.0]), np.array([0.1, -0.1]), np.array([-0.2, 0.2]))
    np.testing.assert_array_equal(imaging.flip(plane).x, plane.x)
    np.testing.assert_array_equal(imaging.flip(plane).y, plane.y)


@pytest.mark.parametrize("count", [1, 7])
@pytest.mark.parametrize("place", [(0.0, 0.0), (0.7, 1.3), (-1.9, 3.14)])
def test_all_on_one_point(count: int, place: tuple[float, float]) -> None:
    rng = np.random.default_rng(count)
    table = np.column_stack([rng.exponential(5, count), np.tile(place, (count, 1))])
    image = jets.images(jets.from_lists([table]), sigma=0)[0, 0]
    assert image[20, 20] == pytest.approx(1)
    assert np.count_nonzero(image) == 1


@pytest.mark.parametrize("angle", np.linspace(0, 2 * np.pi, 9))
def test_two_constituents(angle: float) -> None:
    """They lie on the phi axis, in the column right of the origin; the harder one is nearer, at positive phi."""
    table = np.array([(30.0, 0, 0), (10.0, 0.2 * np.cos(angle), 0.2 * np.sin(angle))])
    image = jets.images(jets.from_lists([table + np.array([0, 0.4, 1.0])]), sigma=0)[0, 0]
    filled = np.argwhere(image > 0)
    np.testing.assert_array_equal(filled, [[20 + int(np.floor(-0.15 / 0.035)), 20], [20 + int(0.05 / 0.035), 20]])
    np.testing.assert_allclose(image[image > 0], [0.25, 0.75], rtol=1e-5)


def test_two_equal_constituents() -> None:
    places = ((0.2, 0), (0, 0.2), (-0.2, 0))
    images = [jets.images(jets.from_lists([[(5, 0, 0), (5, *place)]]))[0] for place in places]
    for image in images[1:]:
        np.testing.assert_allclose(image, images[0], atol=1e-6)


def test_three_constituents() -> None:
    table = np.array([(50.0, 0, 0), (30.0, 0.1, 0.3), (25.0, 0.25, 0.1)])
    reference = picture(table)
    for angle in (0.3, 1.0, 2.0, 4.0):
        np.testing.assert_allclose(picture(turned(table, angle, -1)), reference, atol=1e-6)


@SETTINGS
@given(seed=st.integers(0, 10**6), sigma=st.sampled_from([0.5, 1.0, 2.0]))
def test_filter_is_scipys(seed: int, sigma: float) -> None:
    image = np.random.default_rng(seed).exponential(size=(2, 40, 40)).astype(np.float32)
    expected = gaussian_filter(image.astype(float), (0, sigma, sigma), mode="constant")
    np.testing.assert_allclose(imaging.gaussian(image, sigma), expected, rtol=1e-4, atol=1e-6)


def test_images_of_the_sample(sample: jets.Jets) -> None:
    images = jets.images(sample)
    assert images.shape == (200, 1, 40, 40)
    assert images.dtype == np.float32
    assert images.min() >= 0
    total = images.sum(axis=(1, 2, 3))
    assert ((total > 0.9) & (total < 1 + 1e-5)).all()
    one_by_one = np.concatenate([jets.images(sample[k : k + 1]) for k in range(0, 200, 20)])
    np.testing.assert_allclose(images[::20], one_by_one, atol=1e-7)
    sharp = jets.images(sample, sigma=0)
    assert sharp.sum(axis=(1, 2, 3)) == pytest.approx(1, abs=1e-5)
    assert 20 < np.count_nonzero(sharp) / 200 < 50


def test_blocks_and_threads_do_not_matter(sample: jets.Jets, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = jets.images(sample)
    monkeypatch.setattr(imaging, "BLOCK", 7)
    np.testing.assert_allclose(jets.images(sample), whole, atol=1e-7)
    monkeypatch.setattr("normae.jets.container.cores", lambda: 1)
    np.testing.assert_allclose(jets.images(sample), whole, atol=1e-7)


def test_no_jets() -> None:
    assert jets.images(jets.from_lists([])).shape == (0, 1, 40, 40)


def test_jets_that_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imaging, "BLOCK", 2)
    wide = [(1.0, 0, -0.75), (1.0, 0, 0.75)]
    with pytest.raises(InputError, match="jet 3 has no pT inside"):
        jets.images(jets.from_lists([cloud(0), cloud(1), cloud(2), wide]))
    bad = {"no constituents": [], "no energy": [(0.0, 1, 1)], "a momentum that is not finite": [(1.0, np.nan, 0)]}
    for problem, table in bad.items():
        for function in (jets.images, jets.observables):
            with pytest.raises(InputError, match=f"jet 2 has {problem}"):
                function(jets.from_lists([cloud(0), cloud(1), table]))
