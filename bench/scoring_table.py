"""Scoring a table from file to file: memory, time a row against PyOD's AutoEncoder, and two workers against one.

    OMP_NUM_THREADS=1 python bench/scoring_table.py --rows 10000000 --rounds 3
    OMP_NUM_THREADS=1 python bench/scoring_table.py --rows 4000000 --rounds 5 --only workers

The table has 20 columns of float32 in one Parquet file; the model is a normalized autoencoder 20-64-32-6-32-64-20,
trained for a moment, since its weights do not change the time.

- memory: peak resident memory of `normae.scoring.score.score` in a process of its own, above that with the package
  imported; the model counts.
- pyod: ours from file to file (read, check, score, p-values, write parts, join) against PyOD's AutoEncoder
  (20-64-32-64-20, its default batch) `decision_function` of an array that is in memory already, in turns; PyOD scores
  a slice of the rows, whose time is taken per row. CPU seconds with one thread, wall seconds otherwise.
- workers: the command's work with two workers against one, each with one thread, on the same file, in turns. Counted is
  wall time from the opened cluster to the joined file; the start of the workers and the load of the model are not.
- before (only with `--before FOLDER`, the `src` of another commit): the command `normae score` of this tree against
  that of the other, in turns, each with a run that it trained itself. Processor seconds of the command, less those that
  it takes for a table of a thousand rows.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch

from normae.bench.timing import busy_elsewhere, interleaved, median, ratio
from normae.config import read
from normae.runs.session import train
from normae.scoring.cluster import open_workers
from normae.scoring.score import open_scorer, score

COLUMNS = 20
CPU = torch.device("cpu")
RUN = """
device = "cpu"
data = {{ file = "{}", train = 10_000, test = 10_000 }}
network = {{ hidden = [64, 32], latent = 6 }}
pretraining = {{ epochs = 1, batch = 500 }}
training = {{ epochs = 1, batch = 500 }}
sampling.latent = {{ steps = 2, step_size = 0.01 }}
sampling.feature = {{ steps = 2, step_size = 0.01 }}
"""


def write_table(path: Path, rows: int, piece: int = 1_000_000) -> None:
    """Correlated columns, a piece at a time."""
    random = np.random.default_rng(0)
    mix = random.normal(size=(COLUMNS, COLUMNS)).astype(np.float32) / COLUMNS**0.5
    schema = pa.schema([(f"c{j}", pa.float32()) for j in range(COLUMNS)])
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for first in range(0, rows, piece):
            x = random.standard_normal((min(piece, rows - first), COLUMNS), dtype=np.float32) @ mix
            writer.write_table(pa.table({f"c{j}": x[:, j] for j in range(COLUMNS)}), row_group_size=1 << 17)


def make_run(folder: Path) -> Path:
    """A run with held-out background on a small table of the same kind."""
    write_table(folder / "train.parquet", 20_000)
    (folder / "run.toml").write_text(RUN.format(folder / "train.parquet"))
    train(read(folder / "run.toml"), folder / "run")
    return folder / "run"


MEMORY = """
import sys
from normae.scoring.score import open_scorer, score
def peak():  # not ru_maxrss, which begins with the peak of the parent
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
before = peak()
score(open_scorer(sys.argv[1], device="cpu"), [sys.argv[2]], sys.argv[3])
print(peak() - before)
"""


def memory(run: Path, table: Path, folder: Path) -> float:
    """MiB above the imported package."""
    call = [sys.executable, "-c", MEMORY, str(run), str(table), str(folder / "memory.parquet")]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    (folder / "memory.parquet").unlink()
    return float(done.stdout)


def file_to_file(run: Path, table: Path, out: Path, **options: object) -> Callable[[], None]:
    """The work of `normae score`, with the model loaded."""
    scorer = open_scorer(run, device="cpu")

    def work() -> None:
        score(scorer, [table], out, **options)  # type: ignore[arg-type]
        out.unlink()

    return work


def against_pyod(run: Path, table: Path, folder: Path, rows: int, slice_rows: int, rounds: int) -> dict[str, object]:
    """Seconds a row, and how many times as fast ours is."""
    try:
        from pyod.models.auto_encoder import AutoEncoder
    except ImportError:
        return {"pyod": "left out: install the extra normae[pyod]"}
    x = _slice(table, slice_rows)
    theirs = AutoEncoder(epoch_num=1, verbose=0, device=CPU, hidden_neuron_list=[64, 32])
    with warnings.catch_warnings(action="ignore"):
        theirs.fit(x[:5000])
        ours = file_to_file(run, table, folder / "pyod.parquet")
        times = interleaved({"ours": ours, "pyod": lambda: theirs.decision_function(x)}, rounds, CPU)
    a, b = times["ours"] / rows, times["pyod"] / len(x)
    return {
        "ours, microseconds a row": median(1e6 * a),
        f"PyOD, microseconds a row ({len(x)} rows)": median(1e6 * b),
        "ours against PyOD, times as fast": ratio(b, a),
    }


def _slice(table: Path, rows: int) -> np.ndarray:
    content = next(pyarrow.parquet.ParquetFile(table).iter_batches(rows))
    return np.stack([column.to_numpy() for column in content.columns], axis=1)


def workers(run: Path, table: Path, folder: Path, rounds: int) -> dict[str, object]:
    """How many times as fast two workers are as one, with what others used of the machine meanwhile."""
    with open_workers("local", 1) as one, open_workers("local", 2) as two:
        works = {n: file_to_file(run, table, folder / f"{n}.parquet", do=do) for n, do in ((1, one), (2, two))}
        for work in works.values():  # the model is loaded by this
            work()
        seconds: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(rounds):
            for n, work in works.items():
                start = time.perf_counter()
                work()
                seconds[n].append(time.perf_counter() - start)
    return {
        "one worker, s": median(seconds[1]),
        "two workers, s": median(seconds[2]),
        "two workers against one, times as fast": ratio(seconds[1], seconds[2]),
        "seconds of the rounds": seconds,
    }


def against_before(table: Path, folder: Path, before: Path, rounds: int) -> dict[str, object]:
    """How much longer the command takes than that of another tree."""
    write_table(folder / "few.parquet", 1000)
    trees = {"now": Path(__file__).parents[1] / "src", "before": before.absolute()}

    def command(tree: str, *words: object) -> float:
        call = [sys.executable, "-m", "normae", *map(str, words)]
        start = os.times()
        subprocess.run(call, env=os.environ | {"PYTHONPATH": str(trees[tree])}, check=True, capture_output=True)
        end = os.times()
        return end.children_user + end.children_system - start.children_user - start.children_system

    def scoring(tree: str, name: Path) -> float:
        out = folder / f"{tree}.parquet"
        seconds = command(tree, "score", folder / tree, name, "-o", out, "--device", "cpu")
        out.unlink()
        return seconds

    for tree in trees:
        command(tree, "train", folder / "run.toml", "--out", folder / tree)
        scoring(tree, folder / "few.parquet")
    seconds: dict[str, list[float]] = {tree: [] for tree in trees}
    for _ in range(rounds):
        for tree, found in seconds.items():
            found.append(scoring(tree, table) - scoring(tree, folder / "few.parquet"))
    return {
        "now, processor s": median(seconds["now"]),
        "before, processor s": median(seconds["before"]),
        "now over before": ratio(seconds["now"], seconds["before"]),
        "processor seconds of the rounds": seconds,
    }


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--pyod-rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--only", choices=["memory", "pyod", "workers", "before"])
    given = parser.parse_args()
    found: dict[str, object] = {
        "rows": given.rows, "columns": COLUMNS, "threads": torch.get_num_threads(), "cores": os.cpu_count(),
        "load before": round(os.getloadavg()[0], 2),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, table = make_run(folder), folder / "table.parquet"
        write_table(table, given.rows)
        busy, start = busy_elsewhere(), time.perf_counter()
        if given.only in (None, "memory"):
            found["memory above the imported package, MiB"] = round(memory(run, table, folder), 1)
        if given.only in (None, "pyod"):
            found |= against_pyod(run, table, folder, given.rows, min(given.pyod_rows, given.rows), given.rounds)
        if given.only in (None, "workers"):
            found |= workers(run, table, folder, given.rounds)
        if given.before is not None:
            found |= against_before(table, folder, given.before, given.rounds)
        found["cores busy on average, but for this process"] = round(
            (busy_elsewhere() - busy) / (time.perf_counter() - start), 2
        )
    found["load after"] = round(os.getloadavg()[0], 2)
    print(json.dumps({key: str(value) if hasattr(value, "error") else value for key, value in found.items()}, indent=2))


if __name__ == "__main__":
    main()
