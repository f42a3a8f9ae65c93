"""Sequential recombination in the E scheme, compiled: exclusive kT with N-subjettiness, and inclusive anti-kT.

Generalized kT merges the pair with the smallest d_ij, or ends a jet where d_iB is smaller than all of them,

    d_ij = min(pt_i^{2p}, pt_j^{2p}) dR_ij^2 / R^2,    d_iB = pt_i^{2p},    dR^2 = dy^2 + dphi^2,

with p = 1 for kT and p = -1 for anti-kT. The smallest d_ij is the smallest pt_i^{2p} dR_ij^2 over particles i and their
nearest neighbours j in dR (Cacciari and Salam, hep-ph/0512210), so each step looks at one neighbour per particle:
O(n^2) per jet in all. A particle that loses its neighbour is not served at once: its old distance is a lower bound, and
only when it has the smallest key does it look for a new one.

The axes of tau_N are the N jets of exclusive kT, and those of tau_{N-1} follow by one more merge: one clustering
gives tau_3, tau_2 and tau_1,

    tau_N = sum_i pt_i min_k dR_ik / (R_0 sum_i pt_i).

The work table `t` has the columns below as its rows, shape (11, n), and `near` the nearest neighbours, shape (n,).
Particles are moved, never searched: one that is merged or done is replaced by the last.
"""

import math

import numpy as np

from normae.jets.compiled import compiled
from normae.jets.container import Float32, Float64, Int64

TWO_PI = 2 * math.pi
MAX_RAPIDITY = 1e5
KT, ANTI_KT = 1, -1
NOBODY, UNKNOWN = -1, -2
# momentum; direction; pt^{2p}; dR^2 and d_ij to the nearest neighbour; dR^2 to one particle, and to the last merged
PX, PY, PZ, ENERGY, Y, PHI, WEIGHT, GAP, KEY, WORK, MERGED = range(11)


@compiled
def _set_direction(t: Float64, i: int, power: int) -> None:
    """Rapidity, phi and weight of particle i from its momentum."""
    px, py, pz, energy = t[PX, i], t[PY, i], t[PZ, i], t[ENERGY, i]
    pt2 = px * px + py * py
    transverse2 = pt2 + max(0.0, (energy + pz) * (energy - pz) - pt2)
    forward = energy + abs(pz)
    rapidity = MAX_RAPIDITY if transverse2 == 0.0 else -0.5 * math.log(transverse2 / (forward * forward))
    t[Y, i] = rapidity if pz > 0 else -rapidity
    t[PHI, i] = math.atan2(py, px)
    t[WEIGHT, i] = pt2 if power == KT else 1 / pt2


@compiled
def _set_particle(t: Float64, i: int, pt: float, eta: float, phi: float, power: int) -> None:
    """Particle i, massless. Its direction comes from its momentum: rounding then breaks the ties of a pixel grid."""
    t[PX, i], t[PY, i] = pt * math.cos(phi), pt * math.sin(phi)
    t[PZ, i], t[ENERGY, i] = pt * math.sinh(eta), pt * math.cosh(eta)
    _set_direction(t, i, power)


@compiled
def _distances(t: Float64, column: int, n: int, y: float, phi: float) -> None:
    """dR^2 of the first n particles to the direction (y, phi), into a column."""
    for j in range(n):
        delta = abs(t[PHI, j] - phi)
        delta = min(delta, TWO_PI - delta)
        t[column, j] = (t[Y, j] - y) * (t[Y, j] - y) + delta * delta


@compiled
def _lowest(t: Float64, column: int, n: int) -> int:
    """Where the smallest of the first n values of a column is."""
    best, where = t[column, 0], 0
    for j in range(1, n):
        if t[column, j] < best:
            best, where = t[column, j], j
    return where


@compiled
def _link(t: Float64, near: Int64, i: int, j: int, gap: float) -> None:
    """j is the nearest neighbour of i."""
    near[i], t[GAP, i] = j, gap
    t[KEY, i] = gap * t[WEIGHT, i]


@compiled
def _find(t: Float64, near: Int64, n: int, i: int) -> None:
    """The nearest neighbour of particle i among n; itself at infinity where there is no other."""
    y, phi = t[Y, i], t[PHI, i]
    best, where = math.inf, i
    for j in range(n):
        delta = abs(t[PHI, j] - phi)
        delta = min(delta, TWO_PI - delta)
        distance = (t[Y, j] - y) * (t[Y, j] - y) + delta * delta
        if distance < best and j != i:
            best, where = distance, j
    _link(t, near, i, where, best)


@compiled
def _closest(t: Float64, near: Int64, n: int) -> int:
    """The particle with the smallest key among n, its neighbour known."""
    i = _lowest(t, KEY, n)
    while near[i] == UNKNOWN:
        _find(t, near, n, i)
        i = _lowest(t, KEY, n)
    return i


@compiled
def _drop(t: Float64, near: Int64, n: int, gone: int) -> None:
    """The last of n particles takes the place of `gone`."""
    for column in range(WORK):
        t[column, gone] = t[column, n - 1]
    near[gone] = near[n - 1]


@compiled
def _repair(t: Float64, near: Int64, n: int, kept: int, gone: int) -> None:
    """Neighbours of the n particles left after `gone` was dropped and, where it is somebody, `kept` changed.

    One whose neighbour is gone or changed takes the changed one if that is nearer; else it has to look around later.
    """
    best, where = math.inf, kept
    if kept != NOBODY:
        _distances(t, MERGED, n, t[Y, kept], t[PHI, kept])
        t[MERGED, kept] = t[GAP, kept] = math.inf
    else:
        t[MERGED, :n] = math.inf
    for i in range(n):
        distance, other = t[MERGED, i], near[i]
        if distance < best:
            best, where = distance, i
        if distance < t[GAP, i]:
            _link(t, near, i, kept, distance)
        elif other in (gone, kept):
            near[i] = UNKNOWN
        elif other == n:
            near[i] = gone
    if kept != NOBODY:
        _link(t, near, kept, where, best)


@compiled
def _merge(t: Float64, near: Int64, n: int, kept: int, gone: int, power: int) -> None:
    """Add particle `gone` to `kept`, of n."""
    for column in range(PX, ENERGY + 1):
        t[column, kept] += t[column, gone]
    _set_direction(t, kept, power)
    _drop(t, near, n, gone)
    _repair(t, near, n - 1, kept, gone)


@compiled
def _tau(t: Float64, axes: int, pt: Float64, y: Float64, phi: Float64, radius: float) -> float:
    """tau with the first particles of the table as axes."""
    total = weighted = 0.0
    for i in range(len(pt)):
        _distances(t, WORK, axes, y[i], phi[i])
        total += pt[i]
        weighted += pt[i] * math.sqrt(t[WORK, _lowest(t, WORK, axes)])
    return weighted / (radius * total)


@compiled
def _table(pt: Float64, eta: Float64, phi: Float64, power: int) -> tuple[Float64, Int64]:
    """The work table and the neighbours of n massless particles."""
    n = len(pt)
    t, near = np.empty((11, max(n, 3))), np.arange(n)
    for i in range(n):
        _set_particle(t, i, pt[i], eta[i], phi[i], power)
    t[GAP, :] = math.inf
    for i in range(n):
        _distances(t, WORK, i, t[Y, i], t[PHI, i])
        for j in range(i):
            closer = t[WORK, j] < t[GAP, j]
            t[GAP, j] = t[WORK, j] if closer else t[GAP, j]
            near[j] = i if closer else near[j]
        if i > 0:
            where = _lowest(t, WORK, i)
            near[i], t[GAP, i] = where, t[WORK, where]
    for i in range(n):
        _link(t, near, i, near[i], t[GAP, i])
    return t, near


@compiled
def _subjettiness(pt: Float64, eta: Float64, phi: Float64, radius: float, tau: Float64) -> None:
    """tau_1, tau_2, tau_3 of one jet with n constituents, into `tau` with shape (3,)."""
    n = len(pt)
    t, near = _table(pt, eta, phi, KT)
    y, angle = t[Y, :n].copy(), t[PHI, :n].copy()
    tau[:] = 0.0
    while n > 1:
        i = _closest(t, near, n)
        j = near[i]
        _merge(t, near, n, min(i, j), max(i, j), KT)
        n -= 1
        if n <= 3:
            tau[n - 1] = _tau(t, n, pt, y, angle, radius)


@compiled
def subjettiness(offsets: Int64, pt: Float32, eta: Float32, phi: Float32, radius: float, tau: Float64) -> None:
    """tau_1, tau_2, tau_3 of N jets into `tau` with shape (N, 3); each jet needs a constituent with pt > 0."""
    for jet in range(len(offsets) - 1):
        a, b = offsets[jet], offsets[jet + 1]
        one = (pt[a:b].astype(np.float64), eta[a:b].astype(np.float64), phi[a:b].astype(np.float64))
        _subjettiness(one[0], one[1], one[2], radius, tau[jet])


@compiled
def leading_jet(pt: Float64, eta: Float64, phi: Float64, radius: float, member: Int64) -> tuple[float, float, float]:
    """Anti-kT over n massless particles: pt, eta, phi of the hardest jet, pt = 0 where there is none.

    `member` with shape (n,) becomes 1 for the constituents of that jet and 0 for the others.
    """
    total = n = len(pt)
    t, near = _table(pt, eta, phi, ANTI_KT)
    owner, slot = np.arange(total), np.arange(total)  # the number of the jet that a particle is in, and of a place
    best_pt, best_eta, best_phi, chosen = 0.0, 0.0, 0.0, -1
    while n > 0:
        i, beam = _closest(t, near, n), _lowest(t, WEIGHT, n)
        if t[WEIGHT, beam] * radius * radius <= t[KEY, i]:
            transverse = math.hypot(t[PX, beam], t[PY, beam])
            if transverse > best_pt:
                best_pt, best_phi, chosen = transverse, t[PHI, beam], slot[beam]
                best_eta = math.asinh(t[PZ, beam] / transverse)
            slot[beam] = slot[n - 1]
            _drop(t, near, n, beam)
            _repair(t, near, n - 1, NOBODY, beam)
        else:
            kept, gone = min(i, near[i]), max(i, near[i])
            for k in range(total):
                if owner[k] == slot[gone]:
                    owner[k] = slot[kept]
            slot[gone] = slot[n - 1]
            _merge(t, near, n, kept, gone, ANTI_KT)
        n -= 1
    for k in range(total):
        member[k] = 1 if owner[k] == chosen else 0
    return best_pt, best_eta, best_phi
