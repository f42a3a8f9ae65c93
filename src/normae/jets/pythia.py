"""Pythia 8.3 events with a preselection on partons: what enters the detector.

Hadronization is slow, and most events have no jet near 600 GeV. A hook clusters the partons of each event (anti-kT,
R = 0.8, Pythia's own) and vetoes it unless the hardest parton jet lies in a window around the wanted one, which
loses about 1 % of the accepted jets. Events come in batches as flat arrays, so that no Python loop runs over particles.
"""

import importlib
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normae.errors import InputError
from normae.jets.container import Float64, Int64, offsets_of
from normae.jets.kernels import compiled, missing

NEUTRINOS = (12, 14, 16)
JET_RADIUS = 0.8
TOP_MASSES = (100.0, 250.0)


@dataclass(frozen=True)
class Process:
    """What is generated: QCD dijets or top pairs with hadronic W.

    Attributes:
        kind: "qcd" or "top".
        mpi: multi-parton interactions; off as the paper states, on as the public files look.
        top_mass: in GeV; 173 made the simulated files, 171 is nearer to the mass peak of the public ones.
    """

    kind: str
    mpi: bool = False
    top_mass: float = 173.0

    def __post_init__(self) -> None:
        if self.kind not in ("qcd", "top"):
            raise InputError(f"expected qcd or top, got {self.kind!r}")
        low, high = TOP_MASSES
        if not (math.isfinite(self.top_mass) and low <= self.top_mass <= high):
            raise InputError(f"expected a top mass from {low:g} to {high:g} GeV, got {self.top_mass}")

    @property
    def label(self) -> int:
        """0 QCD, 1 top."""
        return int(self.kind == "top")

    @property
    def window(self) -> tuple[float, float]:
        """pT of the hardest parton jet of an event that is hadronized, in GeV."""
        return (510.0, 735.0) if self.kind == "top" else (510.0, 725.0)

    def commands(self, seed: int) -> list[str]:
        """Pythia's settings."""
        common = ["Print:quiet = on", "Beams:eCM = 14000", "PhaseSpace:pTHatMin = 400", "PhaseSpace:pTHatMax = 1000"]
        common += [f"PartonLevel:MPI = {'on' if self.mpi else 'off'}", "Random:setSeed = on", f"Random:seed = {seed}"]
        if self.kind == "qcd":
            return [*common, "HardQCD:all = on"]
        top = ["Top:gg2ttbar = on", "Top:qqbar2ttbar = on", f"6:m0 = {self.top_mass}"]
        return [*common, *top, "24:onMode = off", "24:onIfAny = 1 2 3 4 5"]


class Batch(NamedTuple):
    """Event records, flat: offsets with shape (events + 1,); pdg, final, daughters, p, vertex (mm) of P particles."""

    offsets: Int64
    pdg: Int64
    charge: Float64
    final: NDArray[np.bool_]
    daughters: Int64
    p: Float64
    vertex: Float64


@contextmanager
def _silent_output() -> Iterator[None]:
    """Send what C++ writes to standard output nowhere: fjcore greets on its first use."""
    sys.stdout.flush()
    saved, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(nowhere)


def _preselection(pythia8: Any, window: tuple[float, float]) -> Any:
    """A hook of Pythia that vetoes events by their hardest parton jet; it counts its calls and its time."""

    class Preselection(pythia8.UserHooks):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.jets = pythia8.SlowJet(-1, JET_RADIUS, 100.0, 20.0, 1, 2, None, True)
            self.calls, self.seconds = 0, 0.0

        def canVetoPartonLevel(self) -> bool:
            return True

        def doVetoPartonLevel(self, event: Any) -> bool:
            start = time.process_time()
            if self.calls == 0:
                with _silent_output():
                    self.jets.analyze(event)
            else:
                self.jets.analyze(event)
            accepted = self.jets.sizeJet() > 0 and window[0] < self.jets.pT(0) < window[1]
            self.calls += 1
            self.seconds += time.process_time() - start
            return not accepted

    return Preselection()


class Events:
    """A stream of preselected, hadronized events, fixed by the seed."""

    def __init__(self, process: Process, seed: int) -> None:
        try:
            pythia8 = importlib.import_module("pythia8mc")
            self._awkward = importlib.import_module("awkward")
        except ImportError as error:
            raise missing(str(error.name)) from None
        self.pythia = pythia8.Pythia("", False)
        self.hook = _preselection(pythia8, process.window)
        for command in process.commands(seed):
            if not self.pythia.readString(command):
                raise InputError(f"Pythia refuses the setting {command!r}")
        self.pythia.setUserHooksPtr(self.hook)
        if not self.pythia.init():
            raise InputError(f"Pythia could not be initialized for {process}")
        self._charges: dict[int, float] = {}

    def next(self, count: int) -> Batch:
        """The next `count` events."""
        events = self.pythia.nextBatch(count).prt
        offsets = offsets_of(np.asarray(self._awkward.num(events)))
        flat = self._awkward.flatten(events)
        pdg = np.asarray(flat.id).astype(np.int64)
        p = np.stack([np.asarray(flat.p[c]) for c in ("px", "py", "pz", "e")], axis=1)
        fill = self._awkward.fill_none
        vertex = np.stack([np.asarray(fill(flat.vProd[c], 0.0), dtype=np.float64) for c in ("px", "py", "pz")], axis=1)
        daughters = np.stack([np.asarray(flat.daughter1), np.asarray(flat.daughter2)], axis=1).astype(np.int64)
        final = (np.asarray(flat.status) > 0) & ~np.isin(np.abs(pdg), NEUTRINOS)
        return Batch(offsets, pdg, self._charge(pdg), final, daughters, p, vertex)

    def _charge(self, pdg: Int64) -> Float64:
        kinds, inverse = np.unique(pdg, return_inverse=True)
        for kind in kinds.tolist():
            if kind not in self._charges:
                self._charges[kind] = float(self.pythia.particleData.charge(kind))
        return np.array([self._charges[k] for k in kinds.tolist()])[inverse]


@compiled
def _inside(p: Float64, eta: float, phi: float) -> bool:
    """Whether a momentum (4,) points within the jet radius of (eta, phi)."""
    delta = np.abs(np.arctan2(p[1], p[0]) - phi)
    delta = min(delta, 2 * np.pi - delta)
    distance = np.arcsinh(p[2] / np.hypot(p[0], p[1])) - eta
    return bool(distance * distance + delta * delta < JET_RADIUS * JET_RADIUS)


@compiled
def _decay(pdg: Int64, daughters: Int64, i: int) -> int:
    """The last copy of particle i: the one that decays."""
    while daughters[i, 0] > 0 and pdg[daughters[i, 0]] == pdg[i]:
        i = daughters[i, 0]
    return i


@compiled
def holds_top(pdg: Int64, daughters: Int64, p: Float64, eta: float, phi: float) -> bool:
    """Whether a hadronic top and its three quarks lie within the jet radius of (eta, phi); arrays of one event."""
    for i in range(len(pdg)):
        if abs(pdg[i]) != 6 or _decay(pdg, daughters, i) != i or not _inside(p[i], eta, phi):
            continue
        quarks = 0
        for k in (daughters[i, 0], daughters[i, 1]):
            if abs(pdg[k]) == 24:
                w = _decay(pdg, daughters, k)
                for q in (daughters[w, 0], daughters[w, 1]):
                    quarks += 1 if abs(pdg[q]) <= 5 and _inside(p[q], eta, phi) else 0
            elif _inside(p[k], eta, phi):
                quarks += 1
        if quarks == 3:
            return True
    return False
