"""The estimator against others on small tables: AUC of anomalies, and log-likelihood of rows held out.

    python bench/tables.py --seeds 3-7 -o results.json

Every method has its default settings on every table: `normae.NormalizedAutoencoder`, scikit-learn's IsolationForest,
KernelDensity (standardized columns, the bandwidth by cross-validation), PyOD's AutoEncoder, and a neural spline flow of
zuko (standardized columns, stopped on a fifth of the rows). PyOD and zuko are left out where they are not installed.
"""

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, make_moons
from sklearn.metrics import roc_auc_score

from detectors import Fit, Nae, Pyod, Standardized, flow, forest, installed, kernels
from normae.files import write_json


class Table(NamedTuple):
    """Rows to train on, background held out, and anomalies."""

    train: np.ndarray
    test: np.ndarray
    anomalies: np.ndarray


def mixed(rows: np.ndarray, share: float, random: np.random.RandomState) -> np.ndarray:
    """Rows in which a share of the entries comes from other rows: right in every column, wrong together."""
    other = np.column_stack([random.permutation(column) for column in rows.T])
    return np.where(random.random_sample(rows.shape) < share, other, rows)


def breast_cancer(random: np.random.RandomState) -> Table:
    """30 columns: benign tumours against malignant ones."""
    data = load_breast_cancer()
    benign = random.permutation(data.data[data.target == 1])
    return Table(benign[:250], benign[250:], data.data[data.target == 0])


def digits(random: np.random.RandomState) -> Table:
    """64 columns: handwritten digits, a tenth of the pixels of an anomaly taken from other digits."""
    rows = random.permutation(load_digits().data)
    return Table(rows[:1000], rows[1000:], mixed(rows[1000:], 0.1, random))


def mixture(random: np.random.RandomState) -> Table:
    """10 columns: four correlated Gaussians, every entry of an anomaly taken from another row."""
    factors, centres = 0.35 * random.randn(4, 10, 10), 1.5 * random.randn(4, 10)
    which = random.randint(4, size=5000)
    rows = centres[which] + np.einsum("nij,nj->ni", factors[which], random.randn(5000, 10))
    return Table(rows[:3000], rows[3000:], mixed(rows[3000:], 1.0, random))


def moons(random: np.random.RandomState) -> Table:
    """2 columns: two half circles, for the log-likelihood; both entries of an anomaly taken from other rows."""
    rows, _ = make_moons(4000, noise=0.1, random_state=random)
    return Table(rows[:2000], rows[2000:], mixed(rows[2000:], 1.0, random))


TABLES: dict[str, Callable[[np.random.RandomState], Table]] = {
    "breast cancer": breast_cancer, "digits": digits, "mixture": mixture, "moons": moons,
}  # fmt: skip
METHODS: dict[str, Fit] = {
    "NormalizedAutoencoder": Nae({}), "IsolationForest": forest, "KernelDensity": Standardized(kernels),
    "PyOD AutoEncoder": Pyod("auto_encoder", "AutoEncoder"), "zuko NSF": Standardized(flow),
}  # fmt: skip
NEEDS = {"PyOD AutoEncoder": "pyod", "zuko NSF": "zuko"}


class Result(NamedTuple):
    """One method on one table with one seed; `log_p` is the mean over rows held out, None where there is no density."""

    seed: int
    table: str
    method: str
    auc: float
    log_p: float | None
    cpu_seconds: float


def run(seed: int, title: str, name: str) -> Result:
    table = TABLES[title](np.random.RandomState(seed))
    began = time.process_time()
    score, density = METHODS[name](table.train, seed)
    test, anomalies = score(table.test), score(table.anomalies)
    seconds = time.process_time() - began
    labels = np.repeat([0, 1], [len(test), len(anomalies)])
    auc = float(roc_auc_score(labels, -np.concatenate([test, anomalies])))
    return Result(seed, title, name, auc, float(test.mean()) if density else None, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("-o", type=Path, help="JSON file of all results; what it holds already is not done again")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    tables = options.tables.split(",")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    results = read(options.o)
    names = installed({name: METHODS[name] for name in options.methods.split(",")}, NEEDS)
    wanted = itertools.product(range(int(first), int(last or first) + 1), tables, names)
    for seed, title, name in wanted:
        if any(known[:3] == (seed, title, name) for known in results):
            continue
        results.append(run(seed, title, name))
        print(*results[-1], flush=True)
        if options.o is not None:
            write_json(options.o, [result._asdict() for result in results])
    for kind, places in (("auc", 3), ("log_p", 2), ("cpu_seconds", 1)):
        print(f"\n{markdown(results, kind, places)}")


def read(path: Path | None) -> list[Result]:
    """The results of a file that an earlier run wrote; none where there is no file."""
    return [Result(**one) for one in json.loads(path.read_text())] if path is not None and path.exists() else []


def markdown(results: list[Result], kind: str, places: int) -> str:
    """Mean and standard error over seeds of one kind of number, methods by tables."""
    tables, methods = (list(dict.fromkeys(getattr(r, key) for r in results)) for key in ("table", "method"))
    lines = [f"| {kind} | {' | '.join(tables)} |", f"| --- |{' --- |' * len(tables)}"]
    for method in methods:
        found = [[getattr(r, kind) for r in results if r[1:3] == (title, method)] for title in tables]
        cells = [cell([value for value in values if value is not None], places) for values in found]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(values: list[float], places: int) -> str:
    """Mean, its standard error over seeds, and the number of seeds."""
    if not values:
        return ""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{np.mean(values):.{places}f} ± {error:.{places}f} ({len(values)})"


if __name__ == "__main__":
    main()
