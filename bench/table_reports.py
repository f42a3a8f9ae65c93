"""From a table to its report by commands, none of them with a setting: which checks of the report are good.

`python bench/table_reports.py FOLDER [--tables A,B] -o results.json`. FOLDER has .npz files with X (N, d) and y; the
rows with y = 0 are the background that is trained on.
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

from normae.evaluation.evaluate import study_of
from normae.runs.folder import RunFolder
from normae.statistics import Estimate


def report_of(table: Path, folder: Path) -> dict[str, Any]:
    """Train, evaluate and report; the grade of each check."""
    with np.load(table) as content:
        np.save(folder / "rows.npy", content["X"][content["y"] == 0])
    begun = time.monotonic()
    for words in (["train", "rows.npy", "-o", "run"], ["evaluate", "run"], ["report", "run"]):
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
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", help="a,b,c: names without .npz; all by default")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-o", "--out", type=Path)
    asked = parser.parse_args()
    names = asked.tables.split(",") if asked.tables else sorted(path.stem for path in asked.folder.glob("*.npz"))
    with TemporaryDirectory() as temporary, ThreadPoolExecutor(asked.jobs) as pool:
        for name in names:
            (Path(temporary) / name).mkdir()
        tasks = {n: pool.submit(report_of, asked.folder / f"{n}.npz", Path(temporary) / n) for n in names}
        found = {name: task.result() for name, task in tasks.items()}
    for name, result in found.items():
        print(name, json.dumps(result))
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
