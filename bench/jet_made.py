"""Jets that are made of others alone: of any width, half of them with a second one beside."""

from pathlib import Path

import numpy as np

from normae.jets import Jets, from_counts, read, write
from normae.jets.container import wrap
from normae.sources import KINDS

PT, HELD = 600.0, 5000
"""GeV of a jet that is made anew, and how many of these are held out in each of two samples."""
SCALED, SHARE, DISTANCE, NEAR = 3.0, (0.1, 0.5), (0.1, 0.7), 0.5
"""Largest factor on angles; share of the momentum, and distance, of a second jet; what a picture holds for sure."""


def remade(jets: Jets, seed: int) -> Jets:
    """Jets of any width, half of them with a second one beside, of N jets of background; few are lost."""
    random, n = np.random.default_rng(seed), len(jets)
    jet, pt = np.repeat(np.arange(n), jets.counts), jets.pt.astype(np.float64)
    pt /= np.bincount(jet, pt)[jet]
    at = np.stack([jets.eta, wrap(jets.phi - jets.phi[jets.offsets[:-1]][jet])])
    at = at - np.stack([np.bincount(jet, pt * one)[jet] for one in at])
    at *= SCALED ** random.uniform(-1, 1, n)[jet]
    beside = random.permutation(n)[jet]  # the jet that each is put beside
    two = random.random(n) < 0.5
    share, distance = random.uniform(*SHARE, n), random.uniform(*DISTANCE, n)
    turn, angle = random.uniform(0, 2 * np.pi, (2, n))
    cos, sin = np.cos(turn[beside]), np.sin(turn[beside])
    moved = np.stack([cos * at[0] - sin * at[1], sin * at[0] + cos * at[1]])
    moved += distance[beside] * np.stack([np.cos(angle[beside]), np.sin(angle[beside])])
    kept = two[beside]
    jet, own = np.concatenate([jet, beside[kept]]), np.where(two, 1 - share, 1.0)[jet]
    pt = np.concatenate([pt * own, (pt * share[beside])[kept]])
    at = np.concatenate([at, moved[:, kept]], axis=1)
    order = np.lexsort((-pt, jet))
    made = from_counts(np.zeros(n), np.bincount(jet, minlength=n), PT * pt[order], *at[:, order])
    centre = np.stack([np.bincount(jet, pt * one)[jet] for one in at])
    near = np.bincount(jet, np.hypot(*(at - centre)) < NEAR)
    return made[near > 0]


def made_file(source: Path, kind: str, count: int, seed: int, out: Path) -> Path:
    """The file in `out` with jets made of the first `count` of a class in the file `source` of constituents."""
    file = out / f"remade-{kind}-{source.stem}-{count}-{seed}.h5"
    if not file.is_file():
        every = read(source)
        write(file, remade(every[np.flatnonzero(every.labels == KINDS.index(kind))[:count]], seed), {})
    return file
