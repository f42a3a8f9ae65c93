"""Measurements behind the numbers in docs/jets.md: `python bench/jet_files.py NAME [ARGUMENTS]`.

    images [FILE]            constituents to filtered images, jets/s
    observables [FILE]       tau_1..3 and mass, jets/s, and fastjet-contrib in the same run
    generator qcd|top        time of the whole chain over the time of Pythia's own loop on the same events
    table TEMPLATE N OUT     write N jets in the TopTagging layout, pandas' attributes copied from a small file
    reading FILE             seconds and peak memory of reading FILE, and of pandas where it is installed
    compare A B              for each class a classifier between the jets of two files: AUC with error

Each function returns its numbers as a dictionary; without FILE the jets are synthetic, 40 constituents on average.
Rates are given by wall time and by CPU time, since a shared machine shows the first and a free one the second.
"""

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from normae.bench.jets import synthetic
from normae.errors import InputError
from normae.jets.container import Float64, Jets, concatenate
from normae.jets.imaging import RADIUS, centre, images, observables, plane
from normae.jets.reader import read

Numbers = dict[str, float]


def _timed(*works: Callable[[], Any], repeat: int = 5) -> list[tuple[float, float]]:
    """Best wall time and best CPU time of each work, after one call that warms up; they run in turns."""
    for work in works:
        work()
    times: list[list[tuple[float, float]]] = [[] for _ in works]
    for _ in range(repeat):
        for work, found in zip(works, times, strict=True):
            start, used = time.perf_counter(), time.process_time()
            work()
            found.append((time.perf_counter() - start, time.process_time() - used))
    return [(min(wall for wall, _ in found), min(cpu for _, cpu in found)) for found in times]


def bench_images(path: str | None = None, count: int = 50_000) -> Numbers:
    """Jets per second of wall time, and per second of CPU time and core."""
    jets = read(path) if path else synthetic(count)
    ((wall, cpu),) = _timed(lambda: images(jets))
    return {"jets": len(jets), "jets/s": len(jets) / wall, "jets/s per core": len(jets) / cpu}


def bench_observables(path: str | None = None, count: int = 20_000, oracle: int = 2000) -> Numbers:
    """Ours on all jets and fastjet-contrib on the first `oracle` of them, in turns."""
    jets = read(path) if path else synthetic(count)
    part = jets[:oracle]
    (wall, cpu), (slow, slow_cpu) = _timed(lambda: observables(jets), lambda: _fastjet(part))
    return {
        "mean constituents": float(jets.counts.mean()),
        "jets/s": len(jets) / wall,
        "jets/s per core": len(jets) / cpu,
        "fastjet jets/s": len(part) / slow,
        "times fastjet, wall": len(jets) / wall * slow / len(part),
        "times fastjet, one core": len(jets) / cpu * slow_cpu / len(part),
    }


def _fastjet(jets: Jets) -> Any:
    """N-subjettiness of fastjet-contrib with exclusive-kT axes, with shape (N, 3), and the masses, with shape (N,)."""
    ak, fastjet = importlib.import_module("awkward"), importlib.import_module("fastjet")
    pt, eta, phi = (a.astype(np.float64) for a in (jets.pt, jets.eta, jets.phi))
    momenta = {"px": pt * np.cos(phi), "py": pt * np.sin(phi), "pz": pt * np.sinh(eta), "E": pt * np.cosh(eta)}
    events = ak.unflatten(ak.zip(momenta, with_name="Momentum4D"), jets.counts)
    clusters = fastjet.ClusterSequence(events, fastjet.JetDefinition(fastjet.kt_algorithm, 1000.0))
    px, py, pz, energy = (np.add.reduceat(momenta[name], jets.offsets[:-1]) for name in ("px", "py", "pz", "E"))
    mass = np.sqrt(np.maximum(energy**2 - px**2 - py**2 - pz**2, 0.0))
    return clusters.njettiness("NormalizedMeasure", "KT_Axes", njets=[1, 2, 3], beta=1.0, R0=RADIUS), mass


def bench_generator(kind: str, count: int = 600, seed: int = 1, batch: int = 50) -> Numbers:
    """CPU seconds of Pythia's loop alone, and of the whole chain, on the same hadronized events.

    The two run batch by batch in turns, so that a load that changes on the machine falls on both.
    """
    from normae.jets.generator import Events, Process, find_jet

    def chain(events: Events) -> int:
        record = events.next(batch)
        rng = np.random.default_rng(seed)
        return sum(find_jet(record, e, kind, rng) is not None for e in range(len(record.offsets) - 1))

    chain(Events(Process(kind), seed + 1))
    alone, whole = Events(Process(kind), seed), Events(Process(kind), seed)
    loop = total = 0.0
    found = 0
    for _ in range(max(1, count // batch)):
        start = time.process_time()
        for _ in range(batch):
            alone.pythia.next()
        middle = time.process_time()
        found += chain(whole)
        loop, total = loop + middle - start, total + time.process_time() - middle
    own = loop - alone.hook.seconds
    return {
        "jets/s": found / total,
        "events tried": alone.hook.calls,
        "Pythia (s)": own,
        "preselection (s)": alone.hook.seconds,
        "whole chain (s)": total,
        "whole / Pythia": total / own,
    }


def write_table(template: str, count: int, out: str, chunk: int = 20_000) -> Numbers:
    """Write synthetic jets as 800 momentum and 4 truth columns; the attributes come from a file of pandas."""
    kind = [("index", "<i8"), ("values_block_0", "<f4", (804,)), ("values_block_1", "<i8", (2,))]
    with h5py.File(template, "r") as small, h5py.File(out, "w") as large:
        group = large.create_group("table")
        data = group.create_dataset("table", shape=(count,), dtype=kind, chunks=(20,))
        for old, new in ((small["table"], group), (small["table/table"], data)):
            for name, value in old.attrs.items():
                new.attrs.create(name, value, dtype=old.attrs.get_id(name).dtype)
        data.attrs["NROWS"] = count
        for start in range(0, count, chunk):
            stop = min(start + chunk, count)
            data[start:stop] = _rows(synthetic(stop - start, 49.0, start), kind, start)
    return {"jets": count, "bytes": Path(out).stat().st_size}


def _rows(jets: Jets, kind: Any, start: int) -> NDArray[Any]:
    """Rows of the table, with shape (N,)."""
    rows = np.zeros(len(jets), dtype=kind)
    rows["index"] = np.arange(start, start + len(jets))
    rows["values_block_1"][:, 1] = jets.labels
    jet = np.repeat(np.arange(len(jets)), jets.counts)
    place = np.arange(len(jet)) - jets.offsets[jet]
    momenta = (jets.pt * np.cosh(jets.eta), jets.pt * np.cos(jets.phi), jets.pt * np.sin(jets.phi))
    for column, values in enumerate((*momenta, jets.pt * np.sinh(jets.eta))):
        rows["values_block_0"][jet, 4 * place + column] = values
    return rows


_READERS = {
    "ours": "from normae import jets; setup(); n = len(jets.read(path))",
    "pandas": "import pandas; setup(); n = len(pandas.read_hdf(path, 'table'))",
}
_PROBE = """
import json, resource, sys, time
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def setup(): global start, base; base, start = peak(), time.perf_counter()
path = sys.argv[1]
{code}
print(json.dumps({{"jets": n, "seconds": time.perf_counter() - start, "peak": peak() - base}}))
"""


def _read_once(code: str, path: str) -> dict[str, float] | None:
    """Seconds and peak memory of one reader in a process of its own; None where it fails."""
    run = subprocess.run([sys.executable, "-c", _PROBE.format(code=code), path], capture_output=True, text=True)
    if run.returncode:
        print(run.stderr.strip().splitlines()[-1], file=sys.stderr)
        return None
    found: dict[str, float] = json.loads(run.stdout)
    return found


def bench_reading(path: str, repeat: int = 3) -> Numbers:
    """Seconds and peak memory in GiB above the imported packages: the readers in turns, the best of each."""
    runs = [(name, _read_once(code, path)) for _ in range(repeat) for name, code in _READERS.items()]
    result: Numbers = {}
    for name in _READERS:
        found = [r for n, r in runs if n == name and r is not None]
        if found:
            result |= {f"{name} (s)": min(r["seconds"] for r in found), "jets": found[0]["jets"]}
            result[f"{name} peak (GiB)"] = max(r["peak"] for r in found) / 2**30
    return result


def features(jets: Jets) -> Float64:
    """Fifteen observables that a classifier can use to tell two samples apart, with shape (N, 15)."""
    values = observables(jets)
    points = centre(plane(jets))
    starts, pt = jets.offsets[:-1], points.pt
    total = np.add.reduceat(pt, starts)
    distance = np.hypot(points.x, points.y)

    def share(weight: Any) -> Float64:
        return np.asarray(np.add.reduceat(pt * weight, starts) / total)

    columns = [jets.counts, total, values["mass"], *(values[f"tau{k}"] for k in (1, 2, 3))]
    columns += [values["tau2"] / np.maximum(values["tau1"], 1e-9), values["tau3"] / np.maximum(values["tau2"], 1e-9)]
    columns += [np.maximum.reduceat(pt, starts) / total, np.sqrt(share(pt / np.repeat(total, jets.counts)))]
    columns += [share(distance), share(distance < 0.1), share(distance > 0.4)]
    columns += [np.add.reduceat((pt < 1.0).astype(float), starts), np.add.reduceat((pt > 20.0).astype(float), starts)]
    return np.stack(columns, axis=1).astype(np.float64)


def auc_between(first: Jets, second: Jets, folds: int = 5, seed: int = 0) -> tuple[float, float]:
    """AUC of a boosted-tree classifier between two samples, out of fold, and its bootstrap error."""
    ensemble, metrics = (importlib.import_module(f"sklearn.{n}") for n in ("ensemble", "metrics"))
    selection = importlib.import_module("sklearn.model_selection")
    x = np.concatenate([features(first), features(second)])
    y = np.repeat([0, 1], [len(first), len(second)])
    model = ensemble.HistGradientBoostingClassifier(
        max_iter=150, learning_rate=0.05, max_leaf_nodes=15, l2_regularization=1.0, random_state=seed
    )
    split = selection.StratifiedKFold(folds, shuffle=True, random_state=seed)
    score = selection.cross_val_predict(model, x, y, cv=split, method="predict_proba")[:, 1]
    rng = np.random.default_rng(seed)
    draws = (rng.integers(0, len(y), len(y)) for _ in range(100))
    return float(metrics.roc_auc_score(y, score)), float(np.std([metrics.roc_auc_score(y[d], score[d]) for d in draws]))


def compare(first: list[str], second: str, count: int = 10_000) -> Numbers:
    """For each class, at most `count` jets of each side: AUC and error, and the same between halves of `second`."""
    ours, theirs = concatenate([read(path) for path in first]), read(second)
    result: Numbers = {}
    for label, name in enumerate(("qcd", "top")):
        a, b = (j[np.flatnonzero(j.labels == label)] for j in (ours, theirs))
        if not len(a) or not len(b):
            continue
        auc, error = auc_between(a[:count], b[:count])
        null, null_error = auc_between(b[: len(b) // 2][:count], b[len(b) // 2 :][:count])
        result |= {f"{name} jets": min(len(a), count), f"{name} AUC": auc, f"{name} AUC error": error}
        result |= {f"{name} AUC between halves of {Path(second).name}": null, f"{name} its error": null_error}
    return result


COMMANDS: dict[str, Callable[..., Numbers]] = {
    "images": bench_images,
    "observables": bench_observables,
    "generator": bench_generator,
    "table": lambda template, count, out: write_table(template, int(count), out),
    "reading": bench_reading,
    "compare": lambda *paths: compare(list(paths[:-1]), paths[-1]),
}


def main(arguments: list[str]) -> None:
    """Run one measurement and print its numbers."""
    if not arguments or arguments[0] not in COMMANDS:
        raise InputError(f"expected one of {', '.join(COMMANDS)}")
    for name, value in COMMANDS[arguments[0]](*arguments[1:]).items():
        print(f"{name:<44}{value:.6g}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        sys.exit(f"error: {error}")
