"""Jets from Pythia and the detector, in blocks that do not depend on each other.

Block b of a run with seed s has its own Pythia seed and detector stream, both from SeedSequence([s, b]), and yields a
fixed number of jets. So a file depends on the seed alone: not on the number of workers, and the first jets not on how
many follow. A finished block is kept in FILE.parts/ until the file is whole; a run that was stopped takes up there.
"""

import json
import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from normae.errors import InputError
from normae.files import atomic_path, write_json
from normae.jets.cluster import leading_jet
from normae.jets.container import Float64, Jets, from_lists
from normae.jets.detector import energy_flow
from normae.jets.formats import Writer, write
from normae.jets.pythia import JET_RADIUS, Batch, Events, Process, holds_top
from normae.jets.reader import read
from normae.progress import Tick, progress

BLOCK = 500
PT_RANGE = (550.0, 650.0)
MAX_ETA = 2.0
MAX_CONSTITUENTS = 200
MAX_BATCH = 100
_OWN = re.compile(r"\.?block-\d{5,}-\d+(\.[0-9a-f]{8}\.part)?\.h5|recipe\.json|\.recipe\.[0-9a-f]{8}\.part\.json")


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
        if self.seed < 0:
            raise InputError(f"expected a seed of 0 or more, got {self.seed}")

    def blocks(self) -> list[int]:
        """Jets in each block."""
        whole, rest = divmod(self.count, self.block)
        return [self.block] * whole + ([rest] if rest else [])

    def attributes(self) -> dict[str, Any]:
        """What the file says of its origin."""
        return {
            **asdict(self.process),
            "seed": self.seed,
            "block": self.block,
            "generator": "Pythia 8.317, energy flow",
        }


def find_jet(batch: Batch, event: int, top: bool, rng: np.random.Generator) -> Float64 | None:
    """The leading jet of one event after the detector: pt, eta, phi by falling pt, shape (m, 3); None if not wanted."""
    record = slice(batch.offsets[event], batch.offsets[event + 1])
    final = batch.final[record]
    pdg, p = batch.pdg[record], batch.p[record]
    objects = energy_flow(pdg[final], batch.charge[record][final], p[final], batch.vertex[record][final], rng)
    member = np.zeros(len(objects), dtype=np.int64)
    pt, eta, phi = leading_jet(objects[:, 0].copy(), objects[:, 1].copy(), objects[:, 2].copy(), JET_RADIUS, member)
    if not PT_RANGE[0] < pt < PT_RANGE[1] or abs(eta) >= MAX_ETA:
        return None
    if top and not holds_top(pdg, batch.daughters[record], p, eta, phi):
        return None
    constituents = objects[member == 1]
    order = np.argsort(-constituents[:, 0], kind="stable")
    return np.asarray(constituents[order[:MAX_CONSTITUENTS]])


def generate_block(job: Job, block: int, size: int) -> Jets:
    """The jets of one block."""
    seeds = np.random.SeedSequence([job.seed, block])
    events = Events(job.process, int(seeds.generate_state(1)[0]) % 900_000_000 + 1)
    rng = np.random.default_rng(seeds.spawn(1)[0])
    found: list[Float64] = []
    while len(found) < size:
        count = min(MAX_BATCH, 8 + 3 * (size - len(found)))
        batch = events.next(count)
        jets = (find_jet(batch, e, job.process.kind == "top", rng) for e in range(len(batch.offsets) - 1))
        found += [jet for jet in jets if jet is not None]
    return from_lists(found[:size], [job.process.label] * size)


def _write_block(job: Job, folder: Path, block: int, size: int) -> int:
    """Generate one block into its part file; runs in a worker."""
    write(_part(folder, block, size), generate_block(job, block, size), job.attributes())
    return size


def _part(folder: Path, block: int, size: int) -> Path:
    return folder / f"block-{block:05d}-{size}.h5"


def _parts(path: Path) -> Path:
    return path.with_name(path.name + ".parts")


def check_run(job: Job, path: str | Path, workers: int = 1) -> None:
    """Refuse a run that cannot be done, before anything is written; parts that are there must belong to this run."""
    path = Path(path)
    if workers < 1:
        raise InputError(f"expected at least one worker, got {workers}")
    if path.exists():
        raise InputError(f"{path} is there already: remove it first")
    folder = _parts(path)
    recipe = folder / "recipe.json"
    if not recipe.exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} is there, but is no folder of a stopped run: move it away first")
        return
    try:
        there = json.loads(recipe.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"{recipe} is damaged ({error}): remove {folder} first") from error
    if not isinstance(there, dict):
        raise InputError(f"{recipe} is damaged (no table of settings): remove {folder} first")
    if there != job.attributes():
        changed = [k for k, v in job.attributes().items() if there.get(k) != v] or sorted(there)
        raise InputError(f"{folder} holds blocks of another run ({', '.join(changed)} differ): remove it first")


def _clean(folder: Path) -> None:
    """Remove the blocks and the recipe, and the folder if nothing else is in it."""
    for file in list(folder.iterdir()):
        if _OWN.fullmatch(file.name) and file.is_file():
            file.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def generate(job: Job, path: str | Path, workers: int = 1) -> None:
    """Generate the jets of `job` into `path`, in `workers` processes; blocks of an earlier run are taken up."""
    path = Path(path)
    check_run(job, path, workers)
    folder = _parts(path)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "recipe.json").exists():
        write_json(folder / "recipe.json", job.attributes())
    sizes = dict(enumerate(job.blocks()))
    done = {b: n for b, n in sizes.items() if _part(folder, b, n).exists()}
    with progress(f"{job.process.kind} jets", sum(sizes.values())) as tick:
        tick(sum(done.values()))
        _run(job, folder, {b: n for b, n in sizes.items() if b not in done}, workers, tick)
    with atomic_path(path) as temporary, Writer(temporary, job.attributes()) as out:
        for block, size in sizes.items():
            out.append(read(_part(folder, block, size)))
    _clean(folder)


def _run(job: Job, folder: Path, todo: dict[int, int], workers: int, tick: Tick) -> None:
    """Generate the blocks that are left."""
    if workers == 1 or len(todo) <= 1:
        for block, size in todo.items():
            tick(_write_block(job, folder, block, size))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(todo)), mp_context=context) as pool:
        futures = [pool.submit(_write_block, job, folder, block, size) for block, size in todo.items()]
        try:
            for future in as_completed(futures):
                tick(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
