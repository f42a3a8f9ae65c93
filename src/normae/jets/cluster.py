"""Sequential recombination in the E scheme, compiled: exclusive kT with N-subjettiness, and inclusive anti-kT.

Generalized kT merges the pair with the smallest d_ij, or ends a jet where d_iB is smaller than all of them,

    d_ij = min(pt_i^{2p}, pt_j^{2p}) dR_ij^2 / R^2,    d_iB = pt_i^{2p},    dR^2 = dy^2 + dphi^2,

with p = 1 for kT and p = -1 for anti-kT. The smallest d_ij is the smallest pt_i^{2p} dR_ij^2 over particles i and their
nearest neighbours j in dR (Cacciari and Salam, hep-ph/0512210), so each step looks at one neighbour per particle:
O(n^2) per jet in all.

Momenta (p_x, p_y, p_z, E) add. Rapidity is the boost along the beam after which p_z vanishes. With the transverse mass
m_T, for which E = m_T cosh y and p_z = m_T sinh y,

    m_T^2 = (E + p_z) (E - p_z) >= pt^2,    y = asinh(p_z / m_T),    phi = atan2(p_y, p_x).

The axes of tau_N are the N jets of exclusive kT, and those of tau_{N-1} follow by one more merge: one clustering
gives tau_3, tau_2 and tau_1,

    tau_N = sum_i pt_i min_k dR_ik / (R_0 sum_i pt_i).

The table `t` has a row for each quantity below and a column for each particle. Particles are moved, never searched: one
that is merged or done is replaced by the last.

Constituents on a grid, as pixels are, have many distances that only rounding tells apart, and which pair merges first
then hangs on the last bit. Any choice is right, and ours is always the same: where the bits are equal too, the place in
the table decides. Constituents enter it by falling pt, then eta, then phi, so the order in which they come is of no
account. Other programs may choose another pair, and then find other axes.
"""

import math

import numpy as np

from normae.jets.container import Float64, Int64, compiled

Momenta = tuple[Float64, Float64, Float64, Float64]
TWO_PI = 2 * math.pi
KT, ANTI_KT = 1, -1
TINY, UNKNOWN = 1e-300, -1.0
CAPACITY = 8192  # particles in one jet or event
# momentum; direction; pt^{2p}; the nearest neighbour, dR^2 and d_ij to it; distances to one particle
PX, PY, PZ, E, Y, PHI, WEIGHT, NEAR, GAP, KEY, WORK, ROWS = range(12)


@compiled
def _direction(px: float, py: float, pz: float, energy: float) -> tuple[float, float]:
    """Rapidity and phi from -pi to pi; a particle without pt and mass is far away along the beam.

    Rounding can leave m_T below pt, which it cannot be.
    """
    squared = max((energy + pz) * (energy - pz), px * px + py * py, TINY)
    return math.asinh(pz / math.sqrt(squared)), math.atan2(py, px)


@compiled
def _place(t: Float64, i: int, momentum: tuple[float, float, float, float], power: int) -> None:
    """A particle with momentum (px, py, pz, E) at place i; it has no neighbour yet."""
    px, py, pz, energy = momentum
    t[PX, i], t[PY, i], t[PZ, i], t[E, i] = px, py, pz, energy
    t[Y, i], t[PHI, i] = _direction(px, py, pz, energy)
    pt2 = px * px + py * py
    t[WEIGHT, i] = pt2 if power == KT else 1 / max(pt2, TINY)


@compiled
def _distance(t: Float64, i: int, y: float, phi: float) -> float:
    """dR^2 of particle i to (y, phi)."""
    delta = abs(t[PHI, i] - phi)
    delta = min(delta, TWO_PI - delta)
    distance: float = (t[Y, i] - y) * (t[Y, i] - y) + delta * delta
    return distance


@compiled
def _lowest(values: Float64, n: int) -> int:
    """Where the smallest of n values is, none of them negative: the value first, then its place.

    The bits of a positive float rise with its value. Minima of integers become vector code, those of floats do not.
    """
    bits = values.view(np.int64)
    best = bits[0]
    for j in range(n):
        best = min(best, bits[j])
    where = 0
    while bits[where] != best:
        where += 1
    return where


@compiled
def _look(t: Float64, n: int, i: int) -> None:
    """The nearest neighbour of particle i among n; itself, at infinity, where there is no other."""
    y, phi = t[Y, i], t[PHI, i]
    for j in range(n):
        t[WORK, j] = _distance(t, j, y, phi)
    t[WORK, i] = math.inf
    near = _lowest(t[WORK], n)
    t[NEAR, i], t[GAP, i], t[KEY, i] = near, t[WORK, near], t[WORK, near] * t[WEIGHT, i]


@compiled
def _closest(t: Float64, n: int) -> int:
    """The particle among n with the smallest d_ij to its neighbour."""
    i = _lowest(t[KEY], n)
    while t[NEAR, i] == UNKNOWN:
        _look(t, n, i)
        i = _lowest(t[KEY], n)
    return i


@compiled
def _drop(t: Float64, n: int, gone: int, changed: int) -> None:
    """The last of n particles takes the place of `gone`; all know of that, and of `changed`, which is elsewhere now.

    Who lost its neighbour looks around when it has the smallest d_ij: the old one is a lower bound.
    """
    last = n - 1
    for row in range(ROWS):
        t[row, gone] = t[row, last]
    y, phi = t[Y, changed], t[PHI, changed]
    for i in range(last):
        near, gap, distance = t[NEAR, i], t[GAP, i], _distance(t, i, y, phi)
        near = UNKNOWN if near in (gone, changed) else float(gone) if near == last else near
        t[NEAR, i] = changed if distance < gap else near
        gap = min(gap, distance)
        t[GAP, i], t[KEY, i] = gap, gap * t[WEIGHT, i]
    _look(t, last, changed)


@compiled
def _merge(t: Float64, n: int, i: int, power: int) -> tuple[int, int]:
    """Join particle i of n and its neighbour at the lower of their places; this place, and the one that is free."""
    j = int(t[NEAR, i])
    kept, gone = min(i, j), max(i, j)
    px, py = t[PX, kept] + t[PX, gone], t[PY, kept] + t[PY, gone]
    _place(t, kept, (px, py, t[PZ, kept] + t[PZ, gone], t[E, kept] + t[E, gone]), power)
    _drop(t, n, gone, kept)
    return kept, gone


@compiled
def _tau(t: Float64, axes: int, points: Float64, radius: float) -> float:
    """tau of constituents (3, n), pt, y and phi, with the first particles of the table as axes."""
    total = weighted = 0.0
    for i in range(points.shape[1]):
        nearest = math.inf
        for k in range(axes):
            nearest = min(nearest, _distance(t, k, points[1, i], points[2, i]))
        total += points[0, i]
        weighted += points[0, i] * math.sqrt(nearest)
    return weighted / (radius * total)


@compiled
def _mass(pt: Float64, momenta: Momenta, centre: tuple[float, float]) -> float:
    """Invariant mass of massless particles, after a boost and a turn that bring the jet's `centre` to the x axis.

    The smaller of E + p_z and E - p_z is pt^2 over the larger, and E - p_x = (p_y^2 + p_z^2) / (E + p_x): nothing
    cancels, so neither does m^2 of a narrow jet, at any eta.
    """
    px, py, pz, energy = momenta
    growth, cosine, sine = math.exp(centre[0]), math.cos(centre[1]), math.sin(centre[1])
    minus = along = across = beam = 0.0
    for i in range(len(pt)):
        large = energy[i] + abs(pz[i])
        small = pt[i] * (pt[i] / large) if large > 0 else 0.0
        forward, backward = (large, small) if pz[i] > 0 else (small, large)
        forward, backward = forward / growth, backward * growth
        x, y, z = px[i] * cosine + py[i] * sine, py[i] * cosine - px[i] * sine, 0.5 * (forward - backward)
        e = 0.5 * (forward + backward)
        minus += e - x if x <= 0 else (y * y + z * z) / (e + x)
        along, across, beam = along + x, across + y, beam + z
    return math.sqrt(max(minus * (minus + 2 * along) - across * across - beam * beam, 0.0))


@compiled
def _order(pt: Float64, eta: Float64, phi: Float64) -> Int64:
    """The order of constituents by falling pt, then by eta and phi; jets from a file have it but for equal pt."""
    order = np.argsort(-pt, kind="mergesort")
    for i in range(1, len(order)):
        item, j = order[i], i
        while j > 0 and (pt[order[j - 1]], eta[item], phi[item]) < (pt[item], eta[order[j - 1]], phi[order[j - 1]]):
            order[j] = order[j - 1]
            j -= 1
        order[j] = item
    return order


@compiled
def subjettiness(
    points: tuple[Int64, Float64, Float64, Float64], momenta: Momenta, centroid: tuple[Float64, Float64],
    radius: float, tau: Float64, mass: Float64,
) -> None:  # fmt: skip
    """tau_1, tau_2, tau_3 of N jets into `tau` with shape (N, 3), and their masses into `mass` with shape (N,).

    Args:
        points: offsets, pt, eta and phi; each jet needs a constituent with pt > 0, and has CAPACITY of them at most.
        momenta: px, py, pz and E of the constituents.
        centroid: eta and phi of each jet; its x axis.
    """
    offsets, pt, eta, phi = points
    px, py, pz, energy = momenta
    t, constituents = np.empty((ROWS, CAPACITY)), np.empty((3, CAPACITY))
    for jet in range(len(offsets) - 1):
        a, n = offsets[jet], offsets[jet + 1] - offsets[jet]
        own = slice(a, a + n)
        mass[jet] = _mass(pt[own], (px[own], py[own], pz[own], energy[own]), (centroid[0][jet], centroid[1][jet]))
        for i, place in enumerate(_order(pt[own], eta[own], phi[own])):
            k = a + place
            _place(t, i, (px[k], py[k], pz[k], energy[k]), KT)
            constituents[0, i], constituents[1, i], constituents[2, i] = pt[k], t[Y, i], t[PHI, i]
        for i in range(n):
            _look(t, n, i)
        tau[jet] = 0.0
        for left in range(n - 1, 0, -1):
            _merge(t, left + 1, _closest(t, left + 1), KT)
            if left <= 3:
                tau[jet, left - 1] = _tau(t, left, constituents[:, :n], radius)


@compiled
def leading_jet(pt: Float64, eta: Float64, phi: Float64, radius: float, member: Int64) -> tuple[float, float, float]:
    """Anti-kT over n massless particles: pt, eta, phi of the hardest jet, pt = 0 where there is none.

    `member` with shape (n,) becomes 1 for the constituents of that jet and 0 for the others.
    """
    total = n = len(pt)
    t = np.empty((ROWS, total))
    for i in range(n):
        px, py, pz = pt[i] * math.cos(phi[i]), pt[i] * math.sin(phi[i]), pt[i] * math.sinh(eta[i])
        _place(t, i, (px, py, pz, pt[i] * math.cosh(eta[i])), ANTI_KT)
    for i in range(n):
        _look(t, n, i)
    owner, slot = np.arange(total), np.arange(total)  # the number of the jet that a particle is in, and of a place
    best_pt, best_eta, best_phi, chosen = 0.0, 0.0, 0.0, -1
    while n > 0:
        i, beam = _closest(t, n), _lowest(t[WEIGHT], n)
        if t[WEIGHT, beam] * radius * radius <= t[KEY, i]:
            transverse = math.hypot(t[PX, beam], t[PY, beam])
            if transverse > best_pt:
                best_pt, best_phi, chosen = transverse, t[PHI, beam], slot[beam]
                best_eta = math.asinh(t[PZ, beam] / transverse)
            _drop(t, n, beam, beam)
            slot[beam] = slot[n - 1]
        else:
            kept, gone = _merge(t, n, i, ANTI_KT)
            owner[owner == slot[gone]] = slot[kept]
            slot[gone] = slot[n - 1]
        n -= 1
    member[:] = owner == chosen
    return best_pt, best_eta, best_phi
