"""Observables of jets and of jet images (appendix C.2 of the paper).

With p_i = pT_i and the constituents massless,

    eta, phi    sum(p_i eta_i) / sum(p_i), the same for phi, on the circle
    mass        m^2 = (sum E - sum p_x)(sum E + sum p_x) - (sum p_y)^2 - (sum p_z)^2, with the x axis along the jet,
                where sum E - sum p_x is a sum of positive terms
    tau_N       N-subjettiness with beta = 1, R_0 = 0.8 and the axes of exclusive kT (see `cluster`)

For an image the pixels above `THRESHOLD` are the constituents: the intensity is pT, the pixel's centre is (eta, phi);
the mass is then in units of the jet's pT. The Gaussian filter spreads a jet over some hundred pixels of tiny
intensity; the threshold keeps those that matter.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normae.errors import InputError
from normae.jets.container import BadJet, Float64, Jets, from_counts, map_blocks, wrap
from normae.jets.imaging import SIDE, centroid, pixel_to_plane, plane

RADIUS = 0.8
THRESHOLD = 1e-5
BLOCK = 512
NAMES = ("eta", "phi", "mass", "tau1", "tau2", "tau3")


def check_threshold(threshold: float) -> None:
    """Refuse a threshold that is not a finite number of 0 or more."""
    if not (math.isfinite(threshold) and threshold >= 0):
        raise InputError(f"expected a threshold that is finite and 0 or more, got {threshold}")


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
    if images.dtype.kind not in "biuf":
        raise InputError(f"expected images of real numbers, got {images.dtype}")
    flat = images.reshape(len(images), SIDE * SIDE)
    if not np.isfinite(flat).all():
        row = int(np.argmin(np.isfinite(flat).all(axis=1)))
        raise BadJet(row, "has a pixel that is not finite", "image")
    jet, pixel = np.nonzero(flat > threshold)
    counts = np.bincount(jet, minlength=len(images))
    if (empty := np.flatnonzero(counts == 0)).size:
        raise BadJet(int(empty[0]), f"has no pixel above {threshold}", "image")
    return from_counts(np.zeros(len(images)), counts, flat[jet, pixel], *pixel_to_plane(pixel))


def momenta(jets: Jets) -> tuple[Float64, Float64, Float64, Float64]:
    """px, py, pz and E of the constituents in double precision, each with shape (C,)."""
    pt, eta, phi = (a.astype(np.float64) for a in (jets.pt, jets.eta, jets.phi))
    px, py, pz, energy = np.cos(phi), np.sin(phi), np.sinh(eta), np.cosh(eta)
    for component in (px, py, pz, energy):
        component *= pt
    return px, py, pz, energy


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
        if (large := np.flatnonzero(block.counts > CAPACITY)).size:
            raise BadJet(int(large[0]), f"has more than {CAPACITY} constituents")
        eta, phi = centroid(points)
        out["eta"][rows], out["phi"][rows] = eta, wrap(phi)
        flat = (points.offsets, points.pt, points.x, block.phi.astype(np.float64))
        subjettiness(flat, momenta(block), (eta, phi), RADIUS, tau[rows], out["mass"][rows])

    map_blocks(work, jets, BLOCK)
    out["tau1"], out["tau2"], out["tau3"] = tau.T
    return out
