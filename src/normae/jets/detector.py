"""Energy flow with the parameters of the Delphes 3.3.2 ATLAS card, compiled, one event at a time.

1. Particles are carried to the surface of the solenoid. Charged ones follow a helix: with the signed radius
   r = pt / (0.2998 q B) in m and the centre (x + r sin phi_0, y - r cos phi_0), after a transverse path s the direction
   is phi = phi_0 - s / r and the place (x_c - r sin phi, y_c + r cos phi, z + s pz / pt).
2. Charged particles become tracks with the tracking efficiency; their pt is smeared, their direction kept.
3. Particles leave their energy in the tower that they hit, in the ECAL or the HCAL. A tower's energy is smeared
   log-normally with mean E and width sigma(E), and is zero below the threshold or below its own resolution.
4. Energy flow, tower by tower, ECAL with electron tracks and HCAL with hadron tracks. Tracks that are measured better
   than the calorimeter would are subtracted from the tower. If there are tracks that the calorimeter measures better,
   they share what is left in proportion and nothing neutral remains. Otherwise what is left, if above threshold, is a
   photon or a neutral hadron, placed flat within the tower.

All objects are massless. Lengths are in m (Pythia's mm are converted on entry), energies in GeV.
"""

import math

import numpy as np

from normae.jets.container import Float64, Int64, compiled

RADIUS, HALF_LENGTH, FIELD = 1.15, 3.51, 2.0
CURVATURE = 0.299792458 * FIELD  # GeV per m and unit charge
TWO_PI = 2 * math.pi
ECAL, HCAL = 0, 1
THRESHOLD = (0.5, 1.0)
TRACK_ETA, CALORIMETER_ETA = 2.5, 4.9
FINE_ETA, FINE, COARSE = 2.6, 0.1, 0.2
FINE_BINS, COARSE_BINS = 26, 12  # in eta, on one side
FINE_PHI, COARSE_PHI = 36, 18
FINE_TOWERS = 2 * FINE_BINS * FINE_PHI
TOWERS = FINE_TOWERS + 2 * COARSE_BINS * COARSE_PHI
ELECTRON, MUON, HADRON = 0, 1, 2


@compiled
def _helix(x: float, y: float, phi: float, r: float) -> float:
    """Transverse path to the cylinder's side on a circle of signed radius r; infinite where it stays inside."""
    xc, yc = x + r * math.sin(phi), y - r * math.cos(phi)
    distance = math.hypot(xc, yc)
    if distance == 0.0:
        return math.inf
    ratio = (RADIUS * RADIUS - distance * distance - r * r) / (2 * r * distance)
    if abs(ratio) > 1.0:
        return math.inf
    centre, swing = math.atan2(yc, xc), math.asin(ratio)
    sign = 1.0 if r > 0 else -1.0
    first = (sign * (phi - centre + swing)) % TWO_PI
    second = (sign * (phi - centre + math.pi - swing)) % TWO_PI
    return abs(r) * min(first, second)


@compiled
def propagate(p: Float64, vertex: Float64, charge: float) -> tuple[bool, float, float]:
    """Whether a particle with momentum p (4,) from `vertex` (3,) reaches the surface, and eta, phi of the place."""
    x, y, z = vertex[0], vertex[1], vertex[2]
    pt = math.hypot(p[0], p[1])
    if x * x + y * y >= RADIUS * RADIUS or abs(z) >= HALF_LENGTH or pt < 1e-5:
        return False, 0.0, 0.0
    phi = math.atan2(p[1], p[0])
    r = pt / (CURVATURE * charge) if charge != 0.0 else math.inf
    along = (x * p[0] + y * p[1]) / pt
    straight = -along + math.sqrt(along * along + RADIUS * RADIUS - x * x - y * y)
    side = straight if charge == 0.0 else _helix(x, y, phi, r)
    end = ((HALF_LENGTH if p[2] > 0 else -HALF_LENGTH) - z) * pt / p[2] if p[2] != 0.0 else math.inf
    s = min(side, end)
    if s == math.inf:
        return False, 0.0, 0.0
    if charge == 0.0:
        x, y = x + s * p[0] / pt, y + s * p[1] / pt
    else:
        turned = phi - s / r
        x, y = x + r * (math.sin(phi) - math.sin(turned)), y - r * (math.cos(phi) - math.cos(turned))
    rho = math.hypot(x, y)
    if rho == 0.0:
        return False, 0.0, 0.0
    return True, math.asinh((z + s * p[2] / pt) / rho), math.atan2(y, x)


@compiled
def _efficiency(kind: int, pt: float, eta: float) -> float:
    if eta > TRACK_ETA or pt < 0.1:
        return 0.0
    central = eta <= 1.5
    if kind == HADRON:
        soft, hard, highest = (0.70, 0.95, 0.95) if central else (0.60, 0.85, 0.85)
    elif kind == MUON:
        soft, hard, highest = (0.75, 0.99, 0.99) if central else (0.70, 0.98, 0.98)
    else:
        soft, hard, highest = (0.73, 0.95, 0.99) if central else (0.50, 0.83, 0.90)
    return soft if pt <= 1.0 else hard if pt <= 100.0 else highest


@compiled
def _track_resolution(kind: int, pt: float, eta: float) -> float:
    """Relative width of a track's pt."""
    if kind == MUON:
        a, b = (0.02, 2e-4) if eta <= 0.5 else (0.03, 3e-4) if eta <= 1.5 else (0.06, 6e-4)
    else:
        a, b = (0.06, 1.3e-3) if eta <= 0.5 else (0.10, 1.7e-3) if eta <= 1.5 else (0.25, 3.1e-3)
    return math.sqrt(a * a + b * b * pt * pt)


@compiled
def _sigma(layer: int, eta: float, energy: float) -> float:
    """Width of the energy measured in a tower whose centre is at abs(eta) = eta."""
    if layer == ECAL:
        a, b, c = (0.0017, 0.101, 0.0) if eta <= 3.2 else (0.035, 0.285, 0.0)
    else:
        a, b, c = (0.0302, 0.5205, 1.59) if eta <= 1.7 else (0.05, 0.706, 0.0) if eta <= 3.2 else (0.0942, 1.0, 0.0)
    return math.sqrt((a * energy) ** 2 + b * b * energy + c * c)


@compiled
def tower_of(eta: float, phi: float) -> int:
    """The number of the tower at (eta, phi), -1 outside the calorimeter."""
    if abs(eta) >= CALORIMETER_ETA:
        return -1
    turn = phi / TWO_PI + 0.5
    turn -= math.floor(turn)
    if abs(eta) < FINE_ETA:
        row = min(int((eta + FINE_ETA) / FINE), 2 * FINE_BINS - 1)
        return row * FINE_PHI + min(int(turn * FINE_PHI), FINE_PHI - 1)
    row = min(int((abs(eta) - FINE_ETA) / COARSE), COARSE_BINS - 1) + (COARSE_BINS if eta > 0 else 0)
    return FINE_TOWERS + row * COARSE_PHI + min(int(turn * COARSE_PHI), COARSE_PHI - 1)


@compiled
def tower_edges(tower: int) -> tuple[float, float, float, float]:
    """Lower and upper eta, lower and upper phi of a tower."""
    if tower < FINE_TOWERS:
        row, column = tower // FINE_PHI, tower % FINE_PHI
        low, width = -FINE_ETA + row * FINE, TWO_PI / FINE_PHI
        return low, low + FINE, -math.pi + column * width, -math.pi + (column + 1) * width
    row, column = (tower - FINE_TOWERS) // COARSE_PHI, (tower - FINE_TOWERS) % COARSE_PHI
    low, width = FINE_ETA + (row % COARSE_BINS) * COARSE, TWO_PI / COARSE_PHI
    high, left = min(low + COARSE, CALORIMETER_ETA), -math.pi + column * width
    return (low, high, left, left + width) if row >= COARSE_BINS else (-high, -low, left, left + width)


@compiled
def _kept(layer: int, eta: float, energy: float) -> float:
    """`energy` where it is above the threshold and above its own resolution, else 0."""
    return 0.0 if energy < THRESHOLD[layer] or energy < _sigma(layer, eta, energy) else energy


@compiled
def _fractions(pdg: int) -> tuple[float, float]:
    """Shares of a particle's energy left in ECAL and HCAL."""
    pdg = abs(pdg)
    if pdg in (11, 22, 111):
        return 1.0, 0.0
    if pdg in (310, 3122):
        return 0.3, 0.7
    return (0.0, 0.0) if pdg in (12, 13, 14, 16) else (0.0, 1.0)


@compiled
def _observe(
    pdg: Int64, charge: Float64, p: Float64, vertex: Float64, rng: np.random.Generator, tracks: Float64,
    towers: Float64, better: Float64, worse: Float64,
) -> int:  # fmt: skip
    """Fill `tracks` (n, 6) with pt, eta, phi, kind, tower, resolution, and `towers` (2, TOWERS) with deposits.

    The energies of tracks are summed by tower; a track that the calorimeter measures better gets resolution -1.
    """
    count = 0
    for i in range(len(pdg)):
        hit, eta, phi = propagate(p[i], vertex[i], charge[i])
        tower = tower_of(eta, phi) if hit else -1
        if tower < 0:
            continue
        first, second = _fractions(pdg[i])
        towers[ECAL, tower] += first * p[i, 3]
        towers[HCAL, tower] += second * p[i, 3]
        if charge[i] == 0.0:
            continue
        kind = ELECTRON if abs(pdg[i]) == 11 else MUON if abs(pdg[i]) == 13 else HADRON
        pt = math.hypot(p[i, 0], p[i, 1])
        if rng.random() >= _efficiency(kind, pt, abs(eta)):
            continue
        width = _track_resolution(kind, pt, abs(eta))
        smeared = pt * (1 + width * rng.standard_normal())
        if smeared > 0:
            row = tracks[count]
            row[0], row[1], row[2] = smeared, math.asinh(p[i, 2] / pt), math.atan2(p[i, 1], p[i, 0])
            row[3], row[4], row[5] = kind, tower, width
            count += 1
            if kind == MUON:
                continue
            layer = ECAL if kind == ELECTRON else HCAL
            low, high, _, _ = tower_edges(tower)
            energy = row[0] * math.cosh(row[1])
            if _sigma(layer, abs(low + high) / 2, energy) / energy < width:
                worse[layer, tower] += energy
                row[5] = -1.0
            else:
                better[layer, tower] += energy
    return count


@compiled
def _neutrals(towers: Float64, better: Float64, worse: Float64, rng: np.random.Generator, objects: Float64) -> int:
    """Energy flow in each tower: `worse` becomes the factor of its tracks, and neutrals are put into `objects`."""
    count = 0
    for layer in range(2):
        for tower in range(TOWERS):
            if towers[layer, tower] <= 0.0:
                continue
            low, high, left, right = tower_edges(tower)
            centre, energy = abs(low + high) / 2, towers[layer, tower]
            width = _sigma(layer, centre, energy) / energy
            b = math.sqrt(math.log(1 + width * width))
            energy *= math.exp(b * rng.standard_normal() - 0.5 * b * b)
            left_over = _kept(layer, centre, energy) - better[layer, tower]
            eta, phi = low + (high - low) * rng.random(), left + (right - left) * rng.random()
            if worse[layer, tower] > 0.0:
                worse[layer, tower] = left_over / worse[layer, tower]
                continue
            left_over = _kept(layer, centre, left_over)
            if left_over > 0.0:
                objects[count, 0], objects[count, 1], objects[count, 2] = left_over / math.cosh(eta), eta, phi
                count += 1
    return count


@compiled
def energy_flow(pdg: Int64, charge: Float64, p: Float64, vertex: Float64, rng: np.random.Generator) -> Float64:
    """What the detector sees of one event: pt, eta, phi of massless objects, with shape (m, 3).

    Args:
        pdg, charge: final particles without neutrinos, with shape (n,).
        p: px, py, pz, E in GeV, with shape (n, 4).
        vertex: where each was produced, in mm, with shape (n, 3).
        rng: the detector's own random stream.
    """
    towers, better, worse = np.zeros((2, TOWERS)), np.zeros((2, TOWERS)), np.zeros((2, TOWERS))
    tracks = np.empty((len(pdg), 6))
    found = _observe(pdg, charge, p, vertex / 1000.0, rng, tracks, towers, better, worse)
    objects = np.empty((found + 2 * len(pdg), 3))
    count = _neutrals(towers, better, worse, rng, objects)
    for k in range(found):
        layer = ECAL if int(tracks[k, 3]) == ELECTRON else HCAL
        factor = worse[layer, int(tracks[k, 4])] if tracks[k, 5] < 0.0 else 1.0
        if factor > 0.0:
            objects[count, 0], objects[count, 1], objects[count, 2] = tracks[k, 0] * factor, tracks[k, 1], tracks[k, 2]
            count += 1
    return objects[:count]
