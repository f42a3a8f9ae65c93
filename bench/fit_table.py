"""A fit of a table of 5,000 rows and 20 columns by the estimator: of this tree against another, in turns.

    git worktree add OLD 72480eb
    python bench/fit_table.py --before OLD/src --rounds 3

Four tables: `gauss` is one Gaussian, `clusters` four groups with correlations of their own, `banana` is curved in ten
directions, `skewed` lognormal. A fit is `NormalizedAutoencoder(log_z="never")` with one thread in a process of its own,
with --log-z as a user has it, who gets log p. Its time is processor time, with what a first fit imports by the way and
without the import of the package.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from normae.bench.timing import median, ratio
from normae.files import write_json

ROWS, COLUMNS = 5000, 20
TABLES = ("gauss", "clusters", "banana", "skewed")
FIT = """
import sys, time, warnings, numpy, torch
from normae import NormalizedAutoencoder
torch.set_num_threads(1)
rows = numpy.load(sys.argv[1])
began = time.process_time()
warnings.simplefilter("ignore")
NormalizedAutoencoder(log_z=sys.argv[3], random_state=int(sys.argv[2])).fit(rows)
print(time.process_time() - began)
"""


def table(name: str, rows: int) -> np.ndarray:
    """Rows of one of the tables, with shape (rows, 20)."""
    random = np.random.default_rng(0)
    z, mix = random.standard_normal((rows, COLUMNS)), random.standard_normal((COLUMNS, COLUMNS))
    if name == "clusters":
        centres = 2 * random.standard_normal((4, COLUMNS))
        shapes = random.standard_normal((4, COLUMNS, COLUMNS)) / COLUMNS**0.5
        which = random.integers(4, size=rows)
        return np.asarray(centres[which] + np.einsum("nij,nj->ni", shapes[which], z))
    if name == "banana":
        z[:, 1::2] += 0.5 * (z[:, ::2] ** 2 - 1)
        return np.asarray(z @ np.linalg.qr(mix)[0])
    return np.exp(0.3 * z @ mix) if name == "skewed" else z @ mix


def seconds(tree: Path, rows: Path, seed: int, log_z: str) -> float:
    """Of one fit by the package in `tree`."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    call = [sys.executable, "-W", "ignore", "-c", FIT, str(rows), str(seed), log_z]
    surroundings = os.environ | threads | {"PYTHONPATH": str(tree)}
    done = subprocess.run(call, env=surroundings, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="the src of another commit")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--log-z", action="store_const", const="auto", default="never", help="find log Z too")
    parser.add_argument("-o", "--out", type=Path, help="JSON file")
    asked = parser.parse_args()
    trees = {"now": Path(__file__).parents[1] / "src", "before": asked.before.absolute()}
    found: dict[str, object] = {"rows": asked.rows, "columns": COLUMNS, "load before": round(os.getloadavg()[0], 2)}
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "rows.npy"
        for name in TABLES:
            np.save(kept, table(name, asked.rows))
            times: dict[str, list[float]] = {key: [] for key in trees}
            for seed in range(asked.rounds):
                for key, tree in trees.items():
                    times[key].append(seconds(tree, kept, seed, asked.log_z))
            numbers = {key: median(each) for key, each in times.items()}
            numbers["times as fast"] = ratio(times["before"], times["now"])
            print(name, *(f"{key} {value}" for key, value in numbers.items()))
            found[name] = {key: value._asdict() for key, value in numbers.items()}
    if asked.out is not None:
        write_json(asked.out, found)


if __name__ == "__main__":
    main()
