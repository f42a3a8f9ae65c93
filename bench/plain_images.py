"""Jet images as they are commonly made: jet by jet, a two-dimensional histogram, a Gaussian filter.

What `normae bench` compares the package's images with. In our own words.
"""

from itertools import pairwise

import numpy as np
from scipy.ndimage import gaussian_filter


def image(pt, eta, phi, side=40, pixel_eta=0.029, pixel_phi=0.035):
    """One filtered image with shape (side, side) from constituents with shape (C,)."""
    phi = phi[0] + np.mod(phi - phi[0] + np.pi, 2 * np.pi) - np.pi
    x, y = eta - np.average(eta, weights=pt), phi - np.average(phi, weights=pt)
    angle = 0.5 * np.arctan2(2 * np.sum(pt * x * y), np.sum(pt * (x * x - y * y)))
    x, y = x * np.sin(angle) - y * np.cos(angle), x * np.cos(angle) + y * np.sin(angle)
    if pt[x < 0].sum() > pt[x > 0].sum():
        x = -x
    if pt[y < 0].sum() > pt[y > 0].sum():
        y = -y
    width, height = side * pixel_eta / 2, side * pixel_phi / 2
    picture, _, _ = np.histogram2d(y, x, bins=side, range=[[-height, height], [-width, width]], weights=pt)
    return gaussian_filter(picture / picture.sum(), 1.0, mode="constant")


def images(pt, eta, phi, offsets):
    """Images with shape (N, side, side) of jets whose constituents are pt[offsets[n]:offsets[n + 1]]."""
    return np.stack([image(pt[a:b], eta[a:b], phi[a:b]) for a, b in pairwise(offsets)])
