"""The estimator against other detectors on a folder of public tables: AUC, ranks, time and memory.

    python bench/public_tables.py FOLDER [--seeds 0-4] [--tables A,B] [--detectors A,B] [--contaminated] [--jobs 2] \
-o results.json

FOLDER has .npz files with X (N, d) and y (N,), 0 for normal rows and 1 for anomalies. For each seed a random half of
the normal rows, at most 5,000, trains; the other half and the anomalies, at most 5,000 of each, are tested. With
--contaminated a random half of all rows, at most 5,000, trains, and the other half is tested. Every detector has the
same settings on every table (`bench/detectors.py`); `normae` is `NormalizedAutoencoder(log_z="never")`. PyOD and zuko
are left out where they are not installed. Each fit has a process and one thread to itself; its seconds are processor
time, its memory the peak above what the process held before (packages are imported before; PyOD, which compiles at its
first fit, has had a small one).

Printed are the mean AUC over seeds, its mean over tables with the standard error, and the mean rank (1 is the best, of
equals the mean). With k detectors on N tables two mean ranks differ at the level of 5 % if they are further apart than
Nemenyi's critical difference (J. Demšar, JMLR 7 (2006) 1)

    CD = q sqrt(k (k + 1) / 6 N),    q: the studentized range's upper 5 % point of k groups, over sqrt 2,

which results_ranks.png shows (the numbers are in .csv), and results_ranks_eight.png for the first eight alone. A fit
that fails counts as AUC 0.5. Results are written one by one: the same command continues where a run stopped.
"""

import argparse
import json
import multiprocessing
import os
import resource
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from scipy.stats import friedmanchisquare, rankdata, studentized_range
from sklearn.metrics import roc_auc_score

import detectors
from detectors import Fit, Nae, Pyod, Standardized, installed
from normae.errors import InputError
from normae.figures import figure_style, new_figure
from normae.files import write_json
from normae.report.page import save_figure

MOST = 5000
DETECTORS: dict[str, Fit] = {
    "normae": Nae({"log_z": "never"}),
    "knn": Standardized(detectors.neighbours),
    "gmm": Standardized(detectors.gaussians),
    "lof": Standardized(detectors.local_outliers),
    "iforest": Standardized(detectors.forest),
    "ocsvm": Standardized(detectors.support_vectors),
    "ecod": Standardized(detectors.empirical_tails),
    "pca": Standardized(detectors.residual),
    "kde": Standardized(detectors.kernels),
    "gmm-bic": Standardized(detectors.gaussians_by_bic),
    "flow": Standardized(detectors.flow),
    "pyod-ae": Pyod("auto_encoder", "AutoEncoder"),
    "pyod-vae": Pyod("vae", "VAE"),
    "pyod-svdd": Pyod("deep_svdd", "DeepSVDD"),
    "pyod-copod": Pyod("copod", "COPOD"),
    "pyod-hbos": Pyod("hbos", "HBOS"),
    "pyod-inne": Standardized(Pyod("inne", "INNE")),
}
EIGHT = list(DETECTORS)[:8]
NEEDS = {"flow": "zuko"} | {name: "pyod" for name in DETECTORS if name.startswith("pyod-")}
IMPORTED = [
    "normae.estimator", "normae.report.page", "scipy.stats", "sklearn.decomposition", "sklearn.ensemble",
    "sklearn.metrics", "sklearn.mixture", "sklearn.model_selection", "sklearn.neighbors", "sklearn.svm", "sympy",
    "torch._dynamo", "zuko", "pyod.models.auto_encoder", "pyod.models.deep_svdd", "pyod.models.inne",
]  # fmt: skip
"""Before any fit, so that its time and memory have no import in them; what is not installed is passed over."""


# --- one fit


class Split(NamedTuple):
    """Rows to train on, rows to test, and which of these are anomalies (1)."""

    train: np.ndarray
    test: np.ndarray
    labels: np.ndarray


def split(x: np.ndarray, y: np.ndarray, seed: int, contaminated: bool) -> Split:
    """The rows of a table (N, d) with labels (N,), by the protocol above."""
    random = np.random.default_rng(seed)
    if contaminated:
        order = random.permutation(len(x))
        half = len(x) // 2
        train, test = order[:half][:MOST], order[half:]
    else:
        normal, anomalies = random.permutation(np.flatnonzero(y == 0)), random.permutation(np.flatnonzero(y == 1))
        half = len(normal) // 2
        train, test = normal[:half][:MOST], np.concatenate([normal[half:][:MOST], anomalies[:MOST]])
    return Split(x[train].astype(np.float64), x[test].astype(np.float64), y[test])


class Job(NamedTuple):
    """One fit of a detector to a table."""

    file: Path
    seed: int
    detector: str
    contaminated: bool
    settings: dict[str, Any]

    @property
    def key(self) -> tuple[str, int, str]:
        return self.file.stem, self.seed, self.detector

    def fit(self) -> Fit:
        """With the settings of normae that are not the defaults."""
        fit = DETECTORS[self.detector]
        return Nae(fit.settings | self.settings) if isinstance(fit, Nae) else fit


def measure(job: Job, answer: Connection) -> None:
    """Fit and score in this process; what was found goes to `answer`."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        with np.load(job.file) as content:
            train, test, labels = split(content["X"], content["y"], job.seed, job.contaminated)
        if NEEDS.get(job.detector) == "pyod":  # it imports and compiles at its first fit
            job.fit()(np.random.default_rng(0).normal(size=(64, 3)), 0)
        before = _peak(reset=True)
        began = time.process_time()
        fitted = job.fit()(train, job.seed)
        fit_seconds, memory = time.process_time() - began, _peak() - before
        scores = fitted.score(test)
        seconds = time.process_time() - began - fit_seconds
        found = {"auc": float(roc_auc_score(labels, -scores)), "fit_seconds": round(fit_seconds, 3)}
        found |= {"score_seconds": round(seconds, 3), "memory_mib": round(memory, 1)}
        answer.send(found | {"train": len(train), "test": len(test), "columns": train.shape[1]})
    except Exception as error:
        answer.send({"auc": 0.5, "failed": f"{type(error).__name__}: {error}"})


def _peak(reset: bool = False) -> float:
    """Largest memory of this process in MiB: ever, or from now on where Linux can begin anew."""
    if reset and Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_process(job: Job) -> dict[str, Any]:
    """What `measure` finds in a fresh process that has imported the packages."""
    context = multiprocessing.get_context("forkserver")
    answer, other = context.Pipe(duplex=False)
    process = context.Process(target=measure, args=(job, other))
    process.start()
    other.close()
    try:
        found: dict[str, Any] = answer.recv()
    except EOFError:
        process.join()
        found = {"auc": 0.5, "failed": f"the process ended with {process.exitcode}"}
    process.join()
    return {"table": job.file.stem, "seed": job.seed, "detector": job.detector} | found


# --- statistics


def auc_matrix(results: Sequence[dict[str, Any]], tables: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Mean AUC over seeds, tables by detectors."""
    return np.array([[_mean(results, "auc", detector=d, table=t) for d in names] for t in tables])


def _mean(results: Sequence[dict[str, Any]], kind: str, **which: str) -> float:
    found = [r[kind] for r in results if kind in r and all(r[key] == value for key, value in which.items())]
    return float(np.mean(found)) if found else np.nan


def mean_ranks(auc: np.ndarray) -> np.ndarray:
    """Ranks of the detectors (1 for the largest AUC, of equals the mean), over tables (N, k), with shape (k,)."""
    ranks: np.ndarray = rankdata(-auc, axis=1).mean(axis=0)
    return ranks


def critical_difference(detectors: int, tables: int, alpha: float = 0.05) -> float:
    """Nemenyi's, see above."""
    q = studentized_range.ppf(1 - alpha, detectors, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(detectors * (detectors + 1) / (6 * tables)))


def level_groups(ranks: np.ndarray, difference: float) -> list[tuple[float, float]]:
    """First and last rank of every largest set of two or more detectors that do not differ."""
    ordered = np.sort(ranks)
    groups: list[tuple[float, float]] = []
    for first in ordered:
        last = ordered[ordered <= first + difference].max()
        if last > first and (not groups or last > groups[-1][1]):
            groups.append((float(first), float(last)))
    return groups


# --- output


def table_line(results: Sequence[dict[str, Any]], table: str, names: Sequence[str]) -> str:
    """Mean AUC over seeds of one table, the best in bold."""
    auc = auc_matrix(results, [table], names)[0].round(3)
    cells = [f"**{value:.3f}**" if value == auc.max() else f"{value:.3f}" for value in auc]
    return f"| {table} | {' | '.join(cells)} |"


def summary(results: Sequence[dict[str, Any]], tables: Sequence[str], names: Sequence[str]) -> str:
    """Mean AUC with its standard error over tables, mean ranks, seconds and memory."""
    auc = auc_matrix(results, tables, names)
    eight = [name for name in names if name in EIGHT]
    of_eight = dict(zip(eight, mean_ranks(auc[:, [names.index(n) for n in eight]]), strict=True)) if eight else {}
    errors = auc.std(axis=0, ddof=1) / np.sqrt(len(tables)) if len(tables) > 1 else np.full(len(names), np.nan)
    rows = {
        f"mean AUC of {len(tables)} tables": [f"{value:.4f}" for value in auc.mean(axis=0)],
        "standard error": [f"{value:.4f}" for value in errors],
        f"mean rank of {len(eight)}": [f"{of_eight[n]:.2f}" if n in of_eight else "" for n in names],
        f"mean rank of {len(names)}": [f"{value:.2f}" for value in mean_ranks(auc)],
        "fit, s": [f"{_mean(results, 'fit_seconds', detector=n):.2f}" for n in names],
        "scoring, s": [f"{_mean(results, 'score_seconds', detector=n):.2f}" for n in names],
        "memory of the fit, MiB": [f"{_mean(results, 'memory_mib', detector=n):.0f}" for n in names],
    }
    return "\n".join(f"| {title} | {' | '.join(cells)} |" for title, cells in rows.items())


def difference_words(auc: np.ndarray) -> str:
    """Friedman's test that all detectors are alike, and the critical difference; AUC are tables by detectors."""
    tables, count = auc.shape
    words = f"critical difference of {count} detectors on {tables} tables: {critical_difference(count, tables):.2f}"
    if count < 3 or tables < 2:
        return words
    found = friedmanchisquare(*auc.T)
    return f"{words}; Friedman {found.statistic:.1f}, p = {found.pvalue:.2g}"


def rank_axis(ax: Axes, names: Sequence[str], ranks: np.ndarray, difference: float) -> Axes:
    """Mean ranks on a line, the best on the left; bars join detectors that do not differ.

    Args:
        ranks: with shape (k,).
        difference: the critical difference, drawn above the line.
    """
    count, order = len(names), np.argsort(ranks, kind="stable")
    left, bars = (count + 1) // 2, level_groups(ranks, difference)
    first_label = 0.6 + 0.3 * len(bars)
    ax.set_xlim(1 - 0.3 * count, 1.3 * count)
    ax.set_ylim(first_label + 0.55 * left, -1.6)
    ax.axis("off")
    ax.plot([1, count], [0, 0], color="0.15", linewidth=1)
    for rank in range(1, count + 1):
        ax.plot([rank, rank], [0, -0.15], color="0.15", linewidth=1)
        ax.text(rank, -0.25, str(rank), ha="center", va="bottom")
    ax.plot([1, 1 + difference], [-1.15, -1.15], color="tab:red", linewidth=2, solid_capstyle="butt")
    ax.text(
        1 + difference / 2, -1.25, f"critical difference {difference:.2f}", ha="center", va="bottom", color="tab:red"
    )
    for number, (first, last) in enumerate(bars):
        height = 0.3 * (number + 1)
        ax.plot([first - 0.03, last + 0.03], [height, height], color="0.15", linewidth=3, solid_capstyle="butt")
    for place, which in enumerate(order):
        best = place < left
        height = first_label + 0.55 * (place if best else count - 1 - place)
        end, name = 0.7 if best else count + 0.3, names[which]
        colour = "tab:blue" if name == "normae" else "0.4"
        ax.plot([ranks[which], ranks[which], end], [0, height, height], color=colour, linewidth=0.9)
        words = f"{name}  {ranks[which]:.2f}" if best else f"{ranks[which]:.2f}  {name}"
        ax.text(end + (-0.1 if best else 0.1), height, words, ha="right" if best else "left", va="center", color=colour)
    return ax


def save_ranks(auc: np.ndarray, names: Sequence[str], out: Path) -> None:
    """The picture of the ranks as PNG, SVG and PDF, and its numbers as CSV; `out` has no suffix."""
    ranks, difference = mean_ranks(auc), critical_difference(len(names), len(auc))
    with figure_style():
        groups = len(level_groups(ranks, difference))
        figure, axes = new_figure(panel=(7.0, 1.3 + 0.13 * len(names) + 0.14 * groups))
        rank_axis(axes[0, 0], names, ranks, difference)
        columns = {"detector": np.array(names), "mean_rank": ranks, "mean_auc": auc.mean(axis=0)}
        save_figure(figure, out.parent, out.name, columns | {"critical_difference": np.full(len(names), difference)})
        figure.savefig(out.with_name(f"{out.name}.png"), dpi=160)


# --- the command


def known_results(path: Path, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Results that an earlier run wrote with the same protocol and settings; none where there is no file."""
    if not path.exists():
        return []
    content = json.loads(path.read_text(encoding="utf-8"))
    found = {key: content[key] for key in facts}
    if found != facts:
        raise InputError(f"{path} was made with {found}, not {facts}; give another -o")
    results: list[dict[str, Any]] = content["results"]
    return results


def compare(jobs: Sequence[Job], out: Path, workers: int) -> list[dict[str, Any]]:
    """All results; what `out` has already is not done again. A table's line is printed when it is complete."""
    facts = {"contaminated": jobs[0].contaminated, "settings": jobs[0].settings}
    results = known_results(out, facts)
    done = {(r["table"], r["seed"], r["detector"]) for r in results}
    missing = [job for job in jobs if job.key not in done]
    names, last = list(dict.fromkeys(job.detector for job in jobs)), {job.file.stem: job for job in missing}
    print(f"| table | {' | '.join(names)} |\n| --- |{' --- |' * len(names)}", flush=True)
    for table in dict.fromkeys(job.file.stem for job in jobs if job.file.stem not in last):
        print(table_line(results, table, names), flush=True)
    multiprocessing.get_context("forkserver").set_forkserver_preload(IMPORTED)
    pool = ThreadPoolExecutor(workers)
    try:
        for job, result in zip(missing, pool.map(in_process, missing), strict=True):
            results.append(result)
            write_json(out, facts | {"results": results})
            if "failed" in result:
                print(*job.key, "failed:", result["failed"], flush=True)
            if job is last[job.file.stem]:
                print(table_line(results, job.file.stem, names), flush=True)
    finally:
        pool.shutdown(cancel_futures=True)
    wanted = {job.key for job in jobs}
    return [r for r in results if (r["table"], r["seed"], r["detector"]) in wanted]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="0-4", help="first-last, or one")
    parser.add_argument("--tables", help="a,b,c: names without .npz; all by default")
    parser.add_argument("--detectors", default=",".join(DETECTORS))
    parser.add_argument("--contaminated", action="store_true", help="anomalies are left in the training rows")
    parser.add_argument("--settings", type=json.loads, default={}, help="of normae, as JSON; none by default")
    parser.add_argument("--jobs", type=int, default=1, help="fits at the same time")
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file; pictures are put beside it")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    tables = asked.tables.split(",") if asked.tables else sorted(path.stem for path in asked.folder.glob("*.npz"))
    if not tables:
        raise InputError(f"{asked.folder} has no .npz file")
    names = list(installed({name: DETECTORS[name] for name in asked.detectors.split(",")}, NEEDS))
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # for the processes of the fits, which read it when they import
    jobs = [
        Job(asked.folder / f"{table}.npz", seed, name, asked.contaminated, asked.settings)
        for table in tables for seed in range(int(first), int(last or first) + 1) for name in names
    ]  # fmt: skip
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    results = compare(jobs, asked.out, asked.jobs)
    print(summary(results, tables, names))
    eight = [name for name in names if name in EIGHT]
    for title, shown in {"ranks": names, "ranks_eight": eight}.items():
        if len(shown) > 1 and (shown != names or title == "ranks"):
            auc = auc_matrix(results, tables, shown)
            print(difference_words(auc))
            save_ranks(auc, shown, asked.out.with_name(f"{asked.out.stem}_{title}"))


if __name__ == "__main__":
    main()
