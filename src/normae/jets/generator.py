"""Jets from Pythia and the detector, in blocks that do not depend on each other.

Block b of a run with seed s has its own Pythia seed and detector stream, both from SeedSequence([s, b]), and yields a
fixed number of jets. So a file depends on the seed alone: not on the number of workers, and the first jets not on how
many follow. Finished blocks stay in FILE.parts/ with checksums until the file is whole; a stopped run takes up there.

Hadronization is slow, and most events have no jet near 600 GeV. A hook clusters the partons of each event (anti-kT,
R = 0.8, Pythia's own) and vetoes it unless the hardest parton jet lies in a window around the wanted one, which
loses about 1 % of the accepted jets. Events come in batches as flat arrays, so that no Python loop runs over particles.
"""

import importlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normae.errors import InputError, refuse, require
from normae.files import check_new, clear, digest, output, write_json, write_text
from normae.jets.cluster import leading_jet
from normae.jets.container import Float64, Int64, Jets, compiled, from_lists, offsets_of
from normae.jets.detector import energy_flow
from normae.jets.pipeline import write, writing
from normae.jets.reader import read
from normae.progress import Tick, progress
from normae.version import __version__

JET_RADIUS, PT_RANGE = 0.8, (550.0, 650.0)
MAX_ETA = 2.0
BLOCK, MAX_BATCH, MAX_CONSTITUENTS = 500, 100, 200
HEAVY = {"qcd": 0, "top": 6, "w": 24}  # kinds of jets, and the number of the particle that must decay within one
_OWN = r"block-\d{5,}-\d+\.(h5|sha256)|\.block-\d{5,}-\d+\.h5\.lock"  # killed jobs leave locks


@dataclass(frozen=True)
class Process:
    """What is generated.

    Attributes:
        kind: "qcd" for dijets, "top" for top pairs with hadronic W, "w" for pairs of hadronic W.
        mpi: multi-parton interactions; off as the paper states, on as the public files look.
        top_mass: in GeV; 173 made the simulated files, 171 is nearer to the mass peak of the public ones.
    """

    kind: str
    mpi: bool = False
    top_mass: float = 173.0

    def __post_init__(self) -> None:
        refuse(self.kind not in HEAVY, f"expected {', '.join(HEAVY)}, got {self.kind!r}")
        refuse(not 100 <= self.top_mass <= 250, f"expected a top mass from 100 to 250 GeV, got {self.top_mass}")

    @property
    def label(self) -> int:
        """0 QCD, 1 what is not."""
        return int(self.kind != "qcd")

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
        heavy = top if self.kind == "top" else ["WeakDoubleBoson:ffbar2WW = on"]
        return [*common, *heavy, "24:onMode = off", "24:onIfAny = 1 2 3 4 5"]


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
            with nullcontext() if self.calls else _silent_output():
                self.jets.analyze(event)
            accepted = self.jets.sizeJet() > 0 and window[0] < self.jets.pT(0) < window[1]
            self.calls += 1
            self.seconds += time.process_time() - start
            return not accepted

    return Preselection()


class Events:
    """A stream of preselected, hadronized events, fixed by the seed."""

    def __init__(self, process: Process, seed: int) -> None:
        require("jets", "pythia8mc", "awkward")
        pythia8, self._awkward = (importlib.import_module(name) for name in ("pythia8mc", "awkward"))
        self.pythia = pythia8.Pythia("", False)
        self.hook = _preselection(pythia8, process.window)
        for command in process.commands(seed):
            refuse(not self.pythia.readString(command), f"Pythia refuses the setting {command!r}")
        self.pythia.setUserHooksPtr(self.hook)
        refuse(not self.pythia.init(), f"Pythia could not be initialized for {process}")

    def next(self, count: int) -> Batch:
        """The next `count` events."""
        events = self.pythia.nextBatch(count).prt
        offsets = offsets_of(np.asarray(self._awkward.num(events)))
        flat = self._awkward.flatten(events)
        pdg = np.asarray(flat.id).astype(np.int64)
        kinds, inverse = np.unique(pdg, return_inverse=True)
        charge = np.array([float(self.pythia.particleData.charge(kind)) for kind in kinds.tolist()])[inverse]
        p = np.stack([np.asarray(flat.p[c]) for c in ("px", "py", "pz", "e")], axis=1)
        fill = self._awkward.fill_none
        vertex = np.stack([np.asarray(fill(flat.vProd[c], 0.0), dtype=np.float64) for c in ("px", "py", "pz")], axis=1)
        daughters = np.stack([np.asarray(flat.daughter1), np.asarray(flat.daughter2)], axis=1).astype(np.int64)
        final = (np.asarray(flat.status) > 0) & ~np.isin(np.abs(pdg), (12, 14, 16))  # no neutrinos
        return Batch(offsets, pdg, charge, final, daughters, p, vertex)


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
def holds(heavy: int, pdg: Int64, daughters: Int64, p: Float64, eta: float, phi: float) -> bool:
    """Whether a hadronic top or W and all of its quarks lie within the jet radius of (eta, phi); of one event."""
    for i in range(len(pdg)):
        if abs(pdg[i]) != heavy or _decay(pdg, daughters, i) != i or not _inside(p[i], eta, phi):
            continue
        quarks = 0
        for k in daughters[i]:
            if abs(pdg[k]) == 24:
                for q in daughters[_decay(pdg, daughters, k)]:
                    quarks += 1 if abs(pdg[q]) <= 5 and _inside(p[q], eta, phi) else 0
            elif _inside(p[k], eta, phi):
                quarks += 1
        if quarks == (3 if heavy == 6 else 2):
            return True
    return False


@dataclass(frozen=True)
class Job:
    """A run: the process, how many jets, from which seed, and how many jets a block has."""

    process: Process
    count: int
    seed: int = 0
    block: int = BLOCK

    def __post_init__(self) -> None:
        if self.count < 1 or self.block < 1:
            raise InputError(f"expected a positive number of jets, got {min(self.count, self.block)}")
        refuse(self.seed < 0, f"expected a seed of 0 or more, got {self.seed}")

    def attributes(self) -> dict[str, Any]:
        """What the file says of its origin."""
        made = {"seed": self.seed, "block": self.block, "generator": "Pythia 8.317, energy flow"}
        return asdict(self.process) | made | {"normae": __version__}


def find_jet(batch: Batch, event: int, kind: str, rng: np.random.Generator) -> Float64 | None:
    """The leading jet of one event after the detector: pt, eta, phi by falling pt, shape (m, 3); None if not wanted."""
    part: list[Any] = [values[batch.offsets[event] : batch.offsets[event + 1]] for values in batch[1:]]
    pdg, charge, final, daughters, p, vertex = part
    objects = energy_flow(pdg[final], charge[final], p[final], vertex[final], rng)
    member = np.zeros(len(objects), dtype=np.int64)
    pt, eta, phi = leading_jet(objects[:, 0].copy(), objects[:, 1].copy(), objects[:, 2].copy(), JET_RADIUS, member)
    wanted = PT_RANGE[0] < pt < PT_RANGE[1] and abs(eta) < MAX_ETA
    if not wanted or (HEAVY[kind] and not holds(HEAVY[kind], pdg, daughters, p, eta, phi)):
        return None
    constituents = objects[member == 1]
    return np.asarray(constituents[np.argsort(-constituents[:, 0], kind="stable")[:MAX_CONSTITUENTS]])


def generate_block(job: Job, block: int, size: int) -> Jets:
    """The jets of one block."""
    seeds = np.random.SeedSequence([job.seed, block])
    events = Events(job.process, int(seeds.generate_state(1)[0]) % 900_000_000 + 1)
    rng = np.random.default_rng(seeds.spawn(1)[0])
    found: list[Float64] = []
    while len(found) < size:
        batch = events.next(min(MAX_BATCH, 8 + 3 * (size - len(found))))
        jets = (find_jet(batch, e, job.process.kind, rng) for e in range(len(batch.offsets) - 1))
        found += [jet for jet in jets if jet is not None]
    return from_lists(found[:size], [job.process.label] * size)


def _write_block(job: Job, part: Path, block: int, size: int) -> int:
    """Generate one block into its part file, which is done when its checksum is beside it; runs in a worker."""
    write(part, generate_block(job, block, size), job.attributes(), force=True)
    write_text(part.with_suffix(".sha256"), str(digest(part)))
    return size


def _done(part: Path) -> bool:
    """Whether a block is there as it was written."""
    said = part.with_suffix(".sha256")
    return said.is_file() and said.read_bytes() == str(digest(part)).encode()


def check_run(job: Job, path: str | Path, workers: int = 1, force: bool = False) -> None:
    """Refuse what `generate` cannot do, before anything is written; parts that are there must belong to this job."""
    path = Path(path)
    refuse(workers < 1, f"expected at least one worker, got {workers}")
    check_new(path, force)
    folder = path.with_name(path.name + ".parts")
    recipe = folder / "recipe.json"
    if not recipe.exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} is there, but is no folder of a stopped run: move it away first")
        return
    there: Any = None
    with suppress(ValueError, OSError):
        there = json.loads(recipe.read_text(encoding="utf-8"))
    refuse(not isinstance(there, dict), f"{recipe} is damaged: remove {folder} first")
    own = job.attributes()
    changed = [name for name in own | there if name not in there or own.get(name) != there[name]]
    refuse(changed, f"{folder} holds blocks of another run ({', '.join(changed)} differ): remove it first")


def generate(job: Job, path: str | Path, workers: int = 1, force: bool = False) -> None:
    """Generate the jets of `job` into the HDF5 file `path`; blocks of an earlier run are taken up.

    Args:
        workers: processes; the jets do not depend on how many.
        force: replace what is there.
    """
    path = Path(path)
    folder = path.with_name(path.name + ".parts")
    with output(path, force) as temporary:
        clear(folder)
        check_run(job, path, workers, force)
        write_json(folder / "recipe.json", job.attributes())
        sizes = [min(job.block, job.count - first) for first in range(0, job.count, job.block)]
        blocks = [(folder / f"block-{block:05d}-{size}.h5", block, size) for block, size in enumerate(sizes)]
        todo = [block for block in blocks if not _done(block[0])]
        with progress(f"{job.process.kind} jets", job.count) as tick:
            tick(job.count - sum(size for *_, size in todo))
            _run(job, todo, workers, tick)
        with writing(temporary, job.attributes(), force=True) as append:
            for part, *_ in blocks:
                refuse(not _done(part), f"{part}: damaged after it was written; the same command makes it again")
                append(read(part))
    clear(folder, pattern=_OWN)
    clear(folder, pattern=r"recipe\.json")  # last, since it says whose they are
    if not any(folder.iterdir()):
        folder.rmdir()


def _run(job: Job, todo: list[tuple[Path, int, int]], workers: int, tick: Tick) -> None:
    """Generate the blocks that are left: part file, number and size."""
    if workers == 1 or len(todo) <= 1:
        for block in todo:
            tick(_write_block(job, *block))
        return
    with ProcessPoolExecutor(min(workers, len(todo)), mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(_write_block, job, *block) for block in todo]
        try:
            for future in as_completed(futures):
                tick(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
