"""Sequential recombination in the E scheme, compiled: exclusive kT with N-subjettiness, and inclusive anti-kT.

Generalized kT merges the pair with the smallest d_ij, or ends a jet where d_iB is smaller than all of them,

    d_ij = min(pt_i^{2p}, pt_j^{2p}) dR_ij^2 / R^2,    d_iB = pt_i^{2p},    dR^2 = dy^2 + dphi^2,

with p = 1 for kT and p = -1 for anti-kT. The smallest d_ij is the smallest pt_i^{2p} dR_ij^2 over particles i and their
nearest neighbours j in dR (Cacciari and Salam, hep-ph/0512210), so each step looks at one neighbour per particle:
O(n^2) per jet in all. A particle that loses its neighbour is not served at once: its old distance is a lower bound, and
only when it has the smallest key does it look for a new one.

Momenta (p_x, p_y, p_z, E) add. Rapidity is the boost along the beam after which p_z vanishes. With the transverse mass
m_T, for which E = m_T cosh y and p_z = m_T sinh y,

    m_T^2 = (E + p_z) (E - p_z) >= pt^2,    y = asinh(p_z / m_T),    phi = atan2(p_y, p_x).

The axes of tau_N are the N jets of exclusive kT, and those of tau_{N-1} follow by one more merge: one clustering
gives tau_3, tau_2 and tau_1,

    tau_N = sum_i pt_i min_k dR_ik / (R_0 sum_i pt_i).

The work table `t` is one flat array with the columns below at fixed places: the compiler then sees that they do not
overlap and makes vector code of the loops, which run to the end of the last vector (places without a particle hide)
and have no branches. Particles are moved, never searched: one that is merged or done is replaced by the last.

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
NOBODY, UNKNOWN = -1.0, -2.0
TINY = 1e-300
VECTOR = 8
CAPACITY = 8192
# momentum; direction; pt^{2p}; the nearest neighbour, dR^2 and d_ij to it; dR^2 to one particle, and to another;
# pt and direction of the constituents. Columns do not start at multiples of 4096 bytes, which caches dislike.
SIZE = CAPACITY + 3 * VECTOR
PX, PY, PZ, E, Y, PHI, WEIGHT, NEAR, GAP, KEY, WORK, SPARE, PT, Y_0, PHI_0, END = range(0, 16 * SIZE, SIZE)


@compiled
def _direction(px: float, py: float, pz: float, energy: float) -> tuple[float, float]:
    """Rapidity and phi from -pi to pi; a particle without pt and mass is far away along the beam.

    Rounding can leave m_T below pt, which it cannot be.
    """
    squared = max((energy + pz) * (energy - pz), px * px + py * py, TINY)
    return math.asinh(pz / math.sqrt(squared)), math.atan2(py, px)


@compiled
def _check(n: int) -> None:
    """Refuse more particles than the table has places."""
    if n > CAPACITY:
        raise ValueError("more than 8192 particles in one jet or event")


@compiled
def _place(t: Float64, i: int, momentum: tuple[float, float, float, float], power: int) -> None:
    """A particle with momentum (px, py, pz, E) at place i; it has no neighbour yet."""
    px, py, pz, energy = momentum
    t[PX + i], t[PY + i], t[PZ + i], t[E + i] = px, py, pz, energy
    t[Y + i], t[PHI + i] = _direction(px, py, pz, energy)
    pt2 = px * px + py * py
    t[WEIGHT + i] = pt2 if power == KT else 1 / max(pt2, TINY)


@compiled
def _distances(out: Float64, ys: Float64, phis: Float64, n: int, y: float, phi: float) -> None:
    """dR^2 of the first n directions (ys, phis) to (y, phi), into `out`."""
    for j in range(n):
        delta = abs(phis[j] - phi)
        delta = min(delta, TWO_PI - delta)
        out[j] = (ys[j] - y) * (ys[j] - y) + delta * delta


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
    for j in range(n):
        here = j if bits[j] == best else 0
        where = max(where, here)
    return where


@compiled
def _padded(n: int) -> int:
    """n, rounded up to whole vectors."""
    return (n + VECTOR - 1) // VECTOR * VECTOR


@compiled
def _hide(t: Float64, i: int) -> None:
    """Place i is nobody's neighbour and never the lowest."""
    t[Y + i] = t[GAP + i] = t[KEY + i] = math.inf
    t[PHI + i], t[WEIGHT + i], t[NEAR + i] = 0.0, 1.0, NOBODY


@compiled
def _find(t: Float64, n: int, i: int) -> None:
    """The nearest neighbour of particle i among n; itself at infinity where there is no other."""
    y, phi = t[Y + i], t[PHI + i]
    t[Y + i] = math.inf
    for j in range(_padded(n)):
        delta = abs(t[PHI + j] - phi)
        delta = min(delta, TWO_PI - delta)
        t[WORK + j] = (t[Y + j] - y) * (t[Y + j] - y) + delta * delta
    t[Y + i] = y
    where = _lowest(t[WORK:], _padded(n))
    gap = t[WORK + where]
    t[NEAR + i] = where
    t[GAP + i] = gap
    t[KEY + i] = gap * t[WEIGHT + i]


@compiled
def _closest(t: Float64, n: int) -> int:
    """The particle with the smallest key among n, its neighbour known."""
    i = _lowest(t[KEY:], _padded(n))
    while t[NEAR + i] == UNKNOWN:
        _find(t, n, i)
        i = _lowest(t[KEY:], _padded(n))
    return i


@compiled
def _drop(t: Float64, n: int, gone: int) -> None:
    """The last of n particles takes the place of `gone`."""
    for column in range(PX, WORK, SIZE):
        t[column + gone] = t[column + n - 1]
    _hide(t, n - 1)


@compiled
def _rename(t: Float64, n: int, gone: int, kept: int) -> None:
    """Who had `gone` or `kept` as neighbour has to look around later; the last of n is now at `gone`."""
    old, changed, last, new = float(gone), float(kept), float(n), float(gone)
    for i in range(_padded(n)):
        other = t[NEAR + i]
        other = UNKNOWN if other == old else other
        other = UNKNOWN if other == changed else other
        t[NEAR + i] = new if other == last else other


@compiled
def _offer(t: Float64, n: int, kept: int, y: float, phi: float) -> None:
    """To whom of n the hidden particle `kept` at (y, phi) is nearer takes it as neighbour."""
    name = float(kept)
    for i in range(_padded(n)):
        delta = abs(t[PHI + i] - phi)
        delta = min(delta, TWO_PI - delta)
        distance = (t[Y + i] - y) * (t[Y + i] - y) + delta * delta
        gap, other = t[GAP + i], t[NEAR + i]
        t[NEAR + i] = name if distance < gap else other
        gap = distance if distance < gap else gap
        t[WORK + i], t[GAP + i], t[KEY + i] = distance, gap, gap * t[WEIGHT + i]


@compiled
def _merge(t: Float64, n: int, kept: int, gone: int, power: int) -> None:
    """Add particle `gone` to `kept`, of n."""
    px, py = t[PX + kept] + t[PX + gone], t[PY + kept] + t[PY + gone]
    pz, energy = t[PZ + kept] + t[PZ + gone], t[E + kept] + t[E + gone]
    _hide(t, kept)
    _drop(t, n, gone)
    _rename(t, n - 1, gone, kept)
    _place(t, kept, (px, py, pz, energy), power)
    y, t[Y + kept] = t[Y + kept], math.inf
    _offer(t, n - 1, kept, y, t[PHI + kept])
    where = _lowest(t[WORK:], _padded(n - 1))
    gap = t[WORK + where]
    t[Y + kept], t[NEAR + kept], t[GAP + kept], t[KEY + kept] = y, where, gap, gap * t[WEIGHT + kept]


@compiled
def _start(t: Float64, n: int) -> None:
    """The nearest neighbours of all n particles: each is offered to all. The rest of the last vector is hidden."""
    for i in range(n):
        t[GAP + i], t[NEAR + i] = math.inf, NOBODY
    for i in range(n, _padded(n)):
        _hide(t, i)
    for i in range(n):
        y, t[Y + i] = t[Y + i], math.inf
        _offer(t, n, i, y, t[PHI + i])
        t[Y + i] = y


@compiled
def _tau(t: Float64, axes: int, n: int, radius: float) -> float:
    """tau of n constituents with the first particles of the table as axes."""
    _distances(t[WORK:], t[Y_0:], t[PHI_0:], n, t[Y], t[PHI])
    for k in range(1, axes):
        _distances(t[SPARE:], t[Y_0:], t[PHI_0:], n, t[Y + k], t[PHI + k])
        for i in range(n):
            t[WORK + i] = min(t[WORK + i], t[SPARE + i])
    total = weighted = 0.0
    for i in range(n):
        total += t[PT + i]
        weighted += t[PT + i] * math.sqrt(t[WORK + i])
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
def _before(a: int, b: int, pt: Float64, eta: Float64, phi: Float64) -> bool:
    """Whether constituent a comes before b: by falling pt, then by eta and phi."""
    first, second = (pt[b], eta[a], phi[a]), (pt[a], eta[b], phi[b])
    return first < second


@compiled
def _sort(order: Int64, pt: Float64, eta: Float64, phi: Float64) -> None:
    """The order of the constituents into `order`, by Shell's method; jets from a file are in order but for equal pt."""
    n, ahead = len(pt), 1
    for i in range(n):
        order[i] = i
    while ahead < n and not _before(ahead, ahead - 1, pt, eta, phi):
        ahead += 1
    if ahead >= n:
        return
    for gap in (1750, 701, 301, 132, 57, 23, 10, 4, 1):
        for i in range(gap, n):
            item, j = order[i], i
            while j >= gap and _before(item, order[j - gap], pt, eta, phi):
                order[j] = order[j - gap]
                j -= gap
            order[j] = item


@compiled
def _subjettiness(t: Float64, count: int, radius: float, tau: Float64) -> None:
    """tau_1, tau_2, tau_3 of the jet in the table with `count` constituents, into `tau` with shape (3,)."""
    n = count
    _start(t, n)
    tau[:] = 0.0
    while n > 1:
        i = _closest(t, n)
        j = int(t[NEAR + i])
        _merge(t, n, min(i, j), max(i, j), KT)
        n -= 1
        if n <= 3:
            tau[n - 1] = _tau(t, n, count, radius)


@compiled
def subjettiness(
    points: tuple[Int64, Float64, Float64, Float64],
    momenta: Momenta,
    centroid: tuple[Float64, Float64],
    radius: float,
    tau: Float64,
    mass: Float64,
) -> None:
    """tau_1, tau_2, tau_3 of N jets into `tau` with shape (N, 3), and their masses into `mass` with shape (N,).

    Args:
        points: offsets, pt, eta and phi; each jet needs a constituent with pt > 0.
        momenta: px, py, pz and E of the constituents.
        centroid: eta and phi of each jet; its x axis.
    """
    offsets, pt, eta, phi = points
    px, py, pz, energy = momenta
    t, order = np.empty(END), np.empty(CAPACITY, np.int64)
    for jet in range(len(offsets) - 1):
        a, b = offsets[jet], offsets[jet + 1]
        _check(b - a)
        part = (px[a:b], py[a:b], pz[a:b], energy[a:b])
        mass[jet] = _mass(pt[a:b], part, (centroid[0][jet], centroid[1][jet]))
        _sort(order, pt[a:b], eta[a:b], phi[a:b])
        for i in range(b - a):
            k = a + order[i]
            _place(t, i, (px[k], py[k], pz[k], energy[k]), KT)
            t[PT + i], t[Y_0 + i], t[PHI_0 + i] = pt[k], t[Y + i], t[PHI + i]
        _subjettiness(t, b - a, radius, tau[jet])


@compiled
def leading_jet(pt: Float64, eta: Float64, phi: Float64, radius: float, member: Int64) -> tuple[float, float, float]:
    """Anti-kT over n massless particles: pt, eta, phi of the hardest jet, pt = 0 where there is none.

    `member` with shape (n,) becomes 1 for the constituents of that jet and 0 for the others.
    """
    total = n = len(pt)
    _check(n)
    t = np.empty(END)
    for i in range(n):
        px, py, pz = pt[i] * math.cos(phi[i]), pt[i] * math.sin(phi[i]), pt[i] * math.sinh(eta[i])
        _place(t, i, (px, py, pz, pt[i] * math.cosh(eta[i])), ANTI_KT)
    _start(t, n)
    owner, slot = np.arange(total), np.arange(total)  # the number of the jet that a particle is in, and of a place
    best_pt, best_eta, best_phi, chosen = 0.0, 0.0, 0.0, -1
    while n > 0:
        i, beam = _closest(t, n), _lowest(t[WEIGHT:], n)
        if t[WEIGHT + beam] * radius * radius <= t[KEY + i]:
            transverse = math.hypot(t[PX + beam], t[PY + beam])
            if transverse > best_pt:
                best_pt, best_phi, chosen = transverse, t[PHI + beam], slot[beam]
                best_eta = math.asinh(t[PZ + beam] / transverse)
            slot[beam] = slot[n - 1]
            _drop(t, n, beam)
            _rename(t, n - 1, beam, beam)
        else:
            j = int(t[NEAR + i])
            kept, gone = min(i, j), max(i, j)
            for k in range(total):
                if owner[k] == slot[gone]:
                    owner[k] = slot[kept]
            slot[gone] = slot[n - 1]
            _merge(t, n, kept, gone, ANTI_KT)
        n -= 1
    for k in range(total):
        member[k] = 1 if owner[k] == chosen else 0
    return best_pt, best_eta, best_phi
