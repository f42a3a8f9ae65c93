"""fastjet and fastjet-contrib, the reference for clustering and N-subjettiness."""

import awkward as ak
import fastjet
import numpy as np

from normae import jets


def columns(part: jets.Jets) -> dict[str, np.ndarray]:
    """px, py, pz, E of massless constituents in double precision, each with shape (C,)."""
    pt, eta, phi = (v.astype(np.float64) for v in (part.pt, part.eta, part.phi))
    return {"px": pt * np.cos(phi), "py": pt * np.sin(phi), "pz": pt * np.sinh(eta), "E": pt * np.cosh(eta)}


def subjettiness(part: jets.Jets) -> np.ndarray:
    """tau_1, tau_2, tau_3 of fastjet-contrib with exclusive-kT axes, with shape (N, 3)."""
    events = ak.unflatten(ak.zip(columns(part), with_name="Momentum4D"), part.counts)
    cluster = fastjet.ClusterSequence(events, fastjet.JetDefinition(fastjet.kt_algorithm, 1000.0))
    taus = cluster.njettiness("NormalizedMeasure", "KT_Axes", njets=[1, 2, 3], beta=1.0, R0=0.8)
    return np.asarray(ak.to_numpy(taus))


def mass(part: jets.Jets) -> np.ndarray:
    """Invariant mass of each jet, with shape (N,)."""
    sums = [np.add.reduceat(values, part.offsets[:-1]) for values in columns(part).values()]
    return np.array([fastjet.PseudoJet(*map(float, row)).m() for row in zip(*sums, strict=True)])


def leading_jet(
    pt: np.ndarray, eta: np.ndarray, phi: np.ndarray, radius: float
) -> tuple[float, float, float, list[int]]:
    """pt, eta, phi and the constituents' indices of the hardest anti-kT jet of massless particles."""
    particles = []
    for i, (a, b, c) in enumerate(zip(pt, eta, phi, strict=True)):
        particle = fastjet.PseudoJet(a * np.cos(c), a * np.sin(c), a * np.sinh(b), a * np.cosh(b))
        particle.set_user_index(i)
        particles.append(particle)
    cluster = fastjet.ClusterSequence(particles, fastjet.JetDefinition(fastjet.antikt_algorithm, radius))
    jet = fastjet.sorted_by_pt(cluster.inclusive_jets())[0]
    return jet.pt(), jet.eta(), jet.phi_std(), sorted(p.user_index() for p in jet.constituents())
