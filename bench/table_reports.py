"""From a table to its report by commands, none of them with a setting: which checks of the report are good.

`python bench/table_reports.py [FOLDER] [--tables A,B] [--seed N] -o results.json`. FOLDER has .npz files with X (N, d)
and y; the rows with y = 0 are the background that is trained on. Without a folder the tables are five of scikit-learn's
that no setting was chosen on: iris (150 x 4), diabetes (442 x 10), a Swiss roll (4,000 x 3), Friedman's first
regression (3,000 x 11) and a sparse uncorrelated one (2,000 x 6).
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sklearn import datasets

from normae.evaluation.evaluate import study_of
from normae.runs.folder import RunFolder
from normae.statistics import Estimate


def own_tables(folder: Path) -> None:
    """Tables of scikit-learn as .npz files."""
    swiss = datasets.make_swiss_roll(4000, noise=0.3, random_state=0)[0]
    friedman, sparse = (
        datasets.make_friedman1(3000, random_state=0),
        datasets.make_sparse_uncorrelated(2000, 5, random_state=0),
    )
    tables = {"iris": datasets.load_iris().data, "diabetes": datasets.load_diabetes().data, "swiss": swiss}
    tables |= {name: np.column_stack(both) for name, both in {"friedman": friedman, "sparse": sparse}.items()}
    for name, rows in tables.items():
        np.savez(folder / f"{name}.npz", X=rows, y=np.zeros(len(rows)))


def report_of(table: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Train, evaluate and report; the grade of each check."""
    with np.load(table) as content:
        np.save(folder / "rows.npy", content["X"][content["y"] == 0])
    begun = time.monotonic()
    other = ["--set", f"seed={seed}"] if seed else []
    for words in (["train", "rows.npy", "-o", "run", *other], ["evaluate", "run"], ["report", "run"]):
        done = subprocess.run([sys.executable, "-m", "normae", *words], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            return {"failed": done.stderr.strip().splitlines()[-1:]}
    run = RunFolder.existing(folder / "run")
    metrics = {name: Estimate(m["value"], m["error"]) for name, m in run.read_metrics().items()}
    checks = study_of(run).checks(metrics)
    return {
        "seconds": round(time.monotonic() - begun, 1),
        "shape": list(np.load(folder / "rows.npy").shape),
        "checks": {check.name: check.status for check in checks},
        "words": {check.name: check.sentence for check in checks if check.status != "good"},
    }


def main() -> None:
    """Every table in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--tables", help="a,b,c: names without .npz; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of the training, and of which rows are held out")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-o", "--out", type=Path)
    asked = parser.parse_args()
    with TemporaryDirectory() as temporary, ThreadPoolExecutor(asked.jobs) as pool:
        tables = asked.folder or Path(temporary)
        if asked.folder is None:
            own_tables(tables)
        names = asked.tables.split(",") if asked.tables else sorted(path.stem for path in tables.glob("*.npz"))
        for name in names:
            (Path(temporary) / name).mkdir()
        tasks = {n: pool.submit(report_of, tables / f"{n}.npz", Path(temporary) / n, asked.seed) for n in names}
        found = {name: task.result() for name, task in tasks.items()}
    for name, result in found.items():
        print(name, json.dumps(result))
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
