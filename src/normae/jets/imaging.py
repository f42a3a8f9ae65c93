"""Jet images and observables: constituents in, filtered 40x40 pictures (appendix A of the paper) and six numbers out.

With weights p_i = pT_i and x = eta, y = phi, the steps are, each a function of its own::

    centre      x -> x - sum(p x) / sum(p), the same for y; phi differences are taken on the circle first
    rotate      theta = atan2(2 C_xy, C_xx - C_yy) / 2 is the major axis of C = sum(p (x, y)(x, y)^T);
                (x, y) -> (x sin theta - y cos theta, x cos theta + y sin theta) turns it to +y, 12 o'clock
    flip        x -> -x where sum(p, x < 0) > sum(p, x > 0), the same for y; ties stay
    pixelate    column floor(x / 0.029 + 20), row floor(y / 0.035 + 20): the origin is an edge; the rest is cropped
    normalize   divide by the sum of the image
    gaussian    convolve with a Gaussian of sigma 1 pixel, cut at 4 sigma, with zeros beyond the edge

An image has axes (phi row, eta column). Coordinates below 1e-9 are zero and relative differences below 1e-12 are
ties, so that rounding decides neither the pixel of two constituents on one line nor the flip of a symmetric jet.

On disk and in memory images are sparse: a normalized one has some 31 (QCD) or 41 (top) filled pixels of 1600. Stored
before the Gaussian filter as (pixel index 40 row + column uint16, value float16) a jet takes 150 bytes instead of 6400;
the filter is applied to a batch.

The observables (appendix C.2) are, with the constituents massless::

    eta, phi    sum(p_i eta_i) / sum(p_i), the same for phi, on the circle
    mass        m^2 = (sum E - sum p_x)(sum E + sum p_x) - (sum p_y)^2 - (sum p_z)^2, with the x axis along the jet,
                where sum E - sum p_x is a sum of positive terms
    tau_N       N-subjettiness with beta = 1, R_0 = 0.8 and the axes of exclusive kT (see `cluster`)

For an image the pixels above `THRESHOLD` are the constituents: the intensity is pT, the pixel's centre is (eta, phi);
the mass is then in units of the jet's pT. The Gaussian filter spreads a jet over some hundred pixels of tiny
intensity; the threshold keeps those that matter.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normae.errors import InputError, refuse, require_that
from normae.jets.container import BadJet, Float32, Float64, Int64, Jets, from_counts, map_blocks, offsets_of, wrap

SIDE, PIXEL_ETA, PIXEL_PHI, SIGMA = 40, 0.029, 0.035, 1.0
BLOCK, STORED_BLOCK = 512, 4096
RADIUS, THRESHOLD = 0.8, 1e-5
NAMES = ("eta", "phi", "mass", "tau1", "tau2", "tau3")
_ZERO, _TIE = 1e-9, 1e-12


class Plane(NamedTuple):
    """Constituents of N jets in the eta-phi plane: offsets with shape (N + 1,); pt, x, y float64 with shape (C,)."""

    offsets: Int64
    pt: Float64
    x: Float64
    y: Float64

    def sums(self, values: Float64) -> Float64:
        """Sum of values (C,) over each jet, with shape (N,)."""
        return np.add.reduceat(values, self.offsets[:-1])

    def spread(self, values: Float64) -> Float64:
        """One value per jet, repeated for its constituents, with shape (C,)."""
        return np.repeat(values, np.diff(self.offsets))


class Pixels(NamedTuple):
    """Sparse images: offsets with shape (N + 1,); flat pixel index and value with shape (P,)."""

    offsets: Int64
    pixel: Int64
    value: Float64

    def jet(self) -> Int64:
        """The image that each pixel belongs to, with shape (P,)."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


def plane(jets: Jets) -> Plane:
    """The constituents of `jets` with phi unwrapped around each jet's first constituent."""
    _refuse(jets.counts == 0, "has no constituents")
    if len(jets):
        both = (jets.pt, jets.eta + jets.phi)
        total, angles = (np.add.reduceat(a, jets.offsets[:-1], dtype=np.float64) for a in both)
        _refuse(~np.isfinite(total + angles), "has a momentum that is not finite")
        _refuse(total <= 0, "has no energy")
    phi = jets.phi.astype(np.float64)
    first = np.repeat(phi[jets.offsets[:-1]], jets.counts)
    delta = phi - first
    delta -= 2 * np.pi * np.round(delta / (2 * np.pi))
    return Plane(jets.offsets, jets.pt.astype(np.float64), jets.eta.astype(np.float64), first + delta)


def _refuse(bad: NDArray[np.bool_], problem: str, what: str = "jet") -> None:
    """Raise for the first bad one of N."""
    if bad.any():
        raise BadJet(int(np.argmax(bad)), problem, what)


def centroid(jets: Plane) -> tuple[Float64, Float64]:
    """pT-weighted mean of x and y, each with shape (N,)."""
    total = jets.sums(jets.pt)
    return jets.sums(jets.pt * jets.x) / total, jets.sums(jets.pt * jets.y) / total


def centre(jets: Plane) -> Plane:
    """Shift each jet so that its pT-weighted centroid is the origin."""
    x, y = centroid(jets)
    return jets._replace(x=jets.x - jets.spread(x), y=jets.y - jets.spread(y))


def rotate(jets: Plane) -> Plane:
    """Turn the major principal axis of each centred jet to +y; an isotropic jet stays."""
    px, py = jets.pt * jets.x, jets.pt * jets.y
    xx, yy, xy = (jets.sums(a * b) for a, b in ((px, jets.x), (py, jets.y), (px, jets.y)))
    isotropic = np.hypot(2 * xy, xx - yy) <= _TIE * (xx + yy)
    angle = np.arctan2(2 * xy, xx - yy) / 2  # of the major axis from +x
    sine = jets.spread(np.where(isotropic, 1.0, np.sin(angle)))
    cosine = jets.spread(np.where(isotropic, 0.0, np.cos(angle)))
    x, y = jets.x * sine - jets.y * cosine, jets.x * cosine + jets.y * sine
    for values in (x, y):
        values[np.abs(values) < _ZERO] = 0.0
    return jets._replace(x=x, y=y)


def flip(jets: Plane) -> Plane:
    """Mirror each axis so that the half with more pT is the positive one; ties stay."""
    limit = -_TIE * jets.sums(jets.pt)

    def mirrored(values: Float64) -> Float64:
        excess = jets.sums(jets.pt * np.sign(values))
        return values * jets.spread(np.where(excess < limit, -1.0, 1.0))

    return jets._replace(x=mirrored(jets.x), y=mirrored(jets.y))


def pixel_index(x: NDArray[Any], y: NDArray[Any]) -> Int64:
    """Flat pixel index 40 row + column of points in the plane, -1 outside the frame; the shape of x and y."""
    column = np.floor(x / PIXEL_ETA + SIDE // 2)
    row = np.floor(y / PIXEL_PHI + SIDE // 2)
    inside = (column >= 0) & (column < SIDE) & (row >= 0) & (row < SIDE)
    return np.where(inside, SIDE * row + column, -1).astype(np.int64)


def pixelate(jets: Plane) -> Pixels:
    """The pixel of each constituent, cropped to the frame; constituents of one pixel are not merged yet."""
    index = pixel_index(jets.x, jets.y)
    inside = index >= 0
    return Pixels(np.append(0, np.cumsum(inside))[jets.offsets], index[inside], jets.pt[inside])


def normalize(pixels: Pixels) -> Pixels:
    """Divide by each image's sum; an image without any pT in the frame raises."""
    jet = pixels.jet()
    total = np.bincount(jet, weights=pixels.value, minlength=len(pixels.offsets) - 1)
    _refuse(total <= 0, "has no pT inside the image's frame")
    return pixels._replace(value=pixels.value / total[jet])


def dense(pixels: Pixels, out: Float32 | None = None) -> Float32:
    """Images with shape (N, 40, 40): the values of each pixel, summed; `out` has to be contiguous."""
    image = np.empty((len(pixels.offsets) - 1, SIDE, SIDE), dtype=np.float32) if out is None else out
    image[...] = 0
    np.add.at(image.reshape(-1), pixels.jet() * (SIDE * SIDE) + pixels.pixel, pixels.value.astype(np.float32))
    return image


@lru_cache(maxsize=8)
def filter_matrix(sigma: float) -> Float32:
    """The Gaussian convolution along one axis as a banded matrix with shape (40, 40)."""
    from scipy.ndimage import gaussian_filter  # here, since few who import jets filter images

    return np.asarray(gaussian_filter(np.eye(SIDE), (sigma, 0), mode="constant"), dtype=np.float32)


def gaussian(images: NDArray[Any], sigma: float = SIGMA, out: Float32 | None = None) -> Float32:
    """Filter images with shape (..., 40, 40); float32. sigma = 0 leaves them as they are."""
    images = np.asarray(images, dtype=np.float32)
    matrix = filter_matrix(float(sigma))
    return np.asarray(np.matmul(matrix, images @ matrix, out=out))


def preprocess(jets: Jets) -> Plane:
    """Centre, rotate and flip."""
    return flip(rotate(centre(plane(jets))))


def images(jets: Jets, sigma: float = SIGMA) -> Float32:
    """Filtered images of `jets`, float32 with shape (N, 1, 40, 40), axes (phi row, eta column).

    >>> from normae.jets import from_lists, images
    >>> image = images(from_lists([[[20.0, 0.1, 0.0], [10.0, 0.0, 0.2]]]), sigma=0)
    >>> image.shape, image[image > 0].round(2)
    ((1, 1, 40, 40), array([0.33, 0.67], dtype=float32))
    """
    out = np.empty((len(jets), 1, SIDE, SIDE), dtype=np.float32)

    def work(start: int, block: Jets) -> None:
        part = out[start : start + len(block), 0]
        gaussian(dense(normalize(pixelate(preprocess(block))), part), sigma, out=part)

    map_blocks(work, jets, BLOCK)
    return out


def pixel_centres() -> tuple[Float64, Float64]:
    """eta of the columns and phi of the rows, at the pixels' centres, each with shape (40,)."""
    centres = np.arange(SIDE, dtype=np.float64) - SIDE // 2 + 0.5
    return centres * PIXEL_ETA, centres * PIXEL_PHI


def pixel_to_plane(index: NDArray[Any]) -> tuple[Float64, Float64]:
    """The inverse map: (eta, phi) of the centres of the pixels with flat index 40 row + column."""
    eta, phi = pixel_centres()
    return eta[np.asarray(index) % SIDE], phi[np.asarray(index) // SIDE]


@dataclass(frozen=True, eq=False)
class SparseImages:
    """N images with P filled pixels in all: labels with shape (N,), offsets (N + 1,), pixel and value (P,).

    `skipped` is the number of bad images that a reader dropped on the way.
    """

    labels: NDArray[np.int8]
    offsets: Int64
    pixel: NDArray[np.uint16]
    value: NDArray[Any]
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def dense(self, rows: slice | None = None, sigma: float = SIGMA) -> Float32:
        """Filtered images of a run of rows, float32 with shape (n, 1, 40, 40)."""
        start, stop, _ = (rows or slice(None)).indices(len(self))
        first, last = self.offsets[start], self.offsets[max(start, stop)]
        offsets = self.offsets[start : max(start, stop) + 1] - first
        index, value = self.pixel[first:last].astype(np.int64), self.value[first:last].astype(np.float64)
        return gaussian(dense(Pixels(offsets, index, value)), sigma)[:, None]


def sparse_images(jets: Jets, dtype: Any = np.float16) -> SparseImages:
    """The normalized, unfiltered images of `jets`, values stored as `dtype`."""

    def work(_: int, block: Jets) -> SparseImages:
        pixels = normalize(pixelate(preprocess(block)))
        filled, inverse = np.unique(pixels.jet() * (SIDE * SIDE) + pixels.pixel, return_inverse=True)
        value = np.asarray(np.bincount(inverse, weights=pixels.value, minlength=len(filled)), dtype=dtype)
        offsets = offsets_of(np.bincount(filled // (SIDE * SIDE), minlength=len(block)))
        return SparseImages(block.labels, offsets, (filled % (SIDE * SIDE)).astype(np.uint16), value)

    return join_images(map_blocks(work, jets, STORED_BLOCK))


def join_images(parts: list[SparseImages]) -> SparseImages:
    """All images of `parts`, in order."""
    if not parts:
        empty = np.zeros(0, dtype=np.int8)
        return SparseImages(empty, np.zeros(1, dtype=np.int64), empty.astype(np.uint16), empty.astype(np.float16))
    labels, pixel, value = (np.concatenate([getattr(p, n) for p in parts]) for n in ("labels", "pixel", "value"))
    return SparseImages(labels, offsets_of(np.concatenate([np.diff(p.offsets) for p in parts])), pixel, value)


def check_threshold(threshold: float) -> None:
    """Refuse a threshold that is not a finite number of 0 or more."""
    require_that(0 <= threshold < math.inf, "threshold", "a threshold that is finite and 0 or more", threshold)


def usable(part: Jets | NDArray[Any], threshold: float = THRESHOLD) -> NDArray[np.bool_]:
    """Whether observables can be made of each jet, or of each image with shape (N, 1, 40, 40); shape (N,)."""
    from normae.jets.cluster import CAPACITY

    if isinstance(part, Jets):
        return np.asarray(part.counts <= CAPACITY)
    flat = part.reshape(len(part), SIDE * SIDE)
    return np.asarray(np.isfinite(flat).all(axis=1) & (flat > threshold).any(axis=1))


def jets_of_images(images: NDArray[Any], threshold: float = THRESHOLD) -> Jets:
    """The pixels above `threshold` of images with shape (N, 1, 40, 40) or (N, 40, 40), as constituents."""
    check_threshold(threshold)
    images = np.asarray(images)
    if images.shape[1:] not in ((1, SIDE, SIDE), (SIDE, SIDE)):
        raise InputError(f"expected images of shape (N, 1, {SIDE}, {SIDE}), got {images.shape}")
    refuse(images.dtype.kind not in "biuf", f"expected images of real numbers, got {images.dtype}")
    flat = images.reshape(len(images), SIDE * SIDE)
    _refuse(~np.isfinite(flat).all(axis=1), "has a pixel that is not finite", "image")
    jet, pixel = np.nonzero(flat > threshold)
    counts = np.bincount(jet, minlength=len(images))
    _refuse(counts == 0, f"has no pixel above {threshold}", "image")
    return from_counts(np.zeros(len(images)), counts, flat[jet, pixel], *pixel_to_plane(pixel))


def momenta(jets: Jets) -> tuple[Float64, Float64, Float64, Float64]:
    """px, py, pz and E of the constituents in double precision, each with shape (C,)."""
    pt, eta, phi = (a.astype(np.float64) for a in (jets.pt, jets.eta, jets.phi))
    return pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta), pt * np.cosh(eta)


def observables(jets_or_images: Jets | NDArray[Any], threshold: float = THRESHOLD) -> dict[str, Float64]:
    """eta, phi, mass, tau1, tau2, tau3 of each jet, float64 with shape (N,).

    Args:
        jets_or_images: Jets, or images with shape (N, 1, 40, 40).
        threshold: images only; pixels at or below it are left out.

    >>> from normae.jets import from_lists, observables
    >>> found = observables(from_lists([[[100.0, 0.0, 0.0], [100.0, 0.3, 0.4]]]))
    >>> found["eta"].round(2), found["mass"].round(1)  # two of pT 100 at a distance of 0.5
    (array([0.15]), array([49.9]))
    """
    from normae.jets.cluster import CAPACITY, subjettiness

    jets = jets_or_images if isinstance(jets_or_images, Jets) else jets_of_images(jets_or_images, threshold)
    out, tau = {name: np.empty(len(jets)) for name in NAMES}, np.empty((len(jets), 3))

    def work(start: int, block: Jets) -> None:
        rows = slice(start, start + len(block))
        points = plane(block)
        _refuse(block.counts > CAPACITY, f"has more than {CAPACITY} constituents")
        eta, phi = centroid(points)
        out["eta"][rows], out["phi"][rows] = eta, wrap(phi)
        flat = (points.offsets, points.pt, points.x, block.phi.astype(np.float64))
        subjettiness(flat, momenta(block), (eta, phi), RADIUS, tau[rows], out["mass"][rows])

    map_blocks(work, jets, BLOCK)
    out["tau1"], out["tau2"], out["tau3"] = tau.T
    return out
