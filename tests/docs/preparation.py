"""What a page's Python blocks take for granted: files in the current folder, and names.

Each function is run in an empty current folder before the page's first block, and what it returns are the names that
the blocks find. Sizes are small: the blocks show how something is called, not how well it does.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import normae
from normae.config import read, structure
from normae.runs.session import train
from tiny_run import tiny

SAMPLE = Path(__file__).parents[1] / "jets" / "data" / "sample.npz"
Names = dict[str, Any]


def small_run(path: str, **changes: object) -> None:
    """A run that trains in a moment; `changes` as for `tiny`."""
    known = {"data__train": 400, "data__test": 100} if "data" not in changes else {}
    assert train(structure(tiny(training__epochs=1, **known, **changes)), path)


def table(path: str, *columns: str, seed: int = 0) -> None:
    """A Parquet file with these columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(seed)
    pq.write_table(pa.table({name: random.normal(size=300) for name in columns}), path)


def readme() -> Names:
    small_run("runs/bayes", bayesian={"layers": "last"})
    table("background.parquet", "pt", "tau")

    def energy(x: torch.Tensor) -> torch.Tensor:
        return x.square().sum(1)

    start = np.zeros((4, 2), dtype=np.float32)
    rows = np.random.default_rng(0).normal(size=(300, 2))
    return {"X": rows, "x": start, "energy": energy, "start": start, "g": torch.Generator().manual_seed(0)}


def own_table() -> Names:
    table("background.parquet", "pt", "tau", "d0")
    table("data.parquet", "pt", "tau", "d0", seed=1)
    return {}


def estimator() -> Names:
    random = np.random.default_rng(0)
    mass = pd.DataFrame(random.normal(3.5, 0.3, size=(100, 2)), columns=["mjj", "x"])
    own = {"background": random.normal(size=(300, 2)), "x": random.normal(size=(5, 2))}
    return own | {"sidebands": mass, "events": mass[:5]}


def scoring() -> Names:
    table("data.parquet", "mass", "tau1", "tau2")
    columns = ["mass", "tau1", "tau2"]
    small_run("runs/mine", data={"file": "data.parquet", "columns": columns, "train": 0, "test": 100})
    return {}


def jets() -> Names:
    from normae import jets as package

    package.write("test.h5", package.concatenate([package.read(SAMPLE)] * 5))
    return {}


def dual() -> Names:
    small_run("runs/one", data__density="one-gaussian")
    return {}


def export() -> Names:
    from normae.export.onnx import export_onnx

    small_run("runs/mine")
    export_onnx("runs/mine", "model.onnx")
    rows = np.random.default_rng(0).normal(size=(100, 2))
    fitted = normae.NormalizedAutoencoder(random_state=0, start_iterations=20, iterations=5, hidden=(16,)).fit(rows)
    return {"x": np.zeros((3, 2), dtype=np.float32), "estimator": fitted, "table": rows}


def searches() -> Names:
    columns = ["mass", "tau1"]
    for seed, name in enumerate(("background", "signal")):
        table(f"{name}.parquet", *columns, seed=seed)
    data = {"file": "background.parquet", "columns": columns, "train": 0, "test": 200}
    small_run("runs/mine", data=data)
    return {"counts": None}


def classifier() -> Names:
    from normae import jets as package

    settings = ["device=cpu", f"data.path={SAMPLE}", "data.train=60", "data.test=10", "data.validation=30",
                "network.channels=2", "network.hidden=[8]", "classifier.epochs=1", "classifier.batch=20"]  # fmt: skip
    assert train(read("jets-paper-classifier", settings), "runs/classifier")
    return {"normae": normae, "x": package.images(package.read(SAMPLE, 3))}


PREPARATIONS: dict[str, Callable[[], Names]] = {
    "README.md": readme,
    "docs/own-table.md": own_table,
    "docs/estimator.md": estimator,
    "docs/scoring.md": scoring,
    "docs/jets.md": jets,
    "docs/dual.md": dual,
    "docs/export.md": export,
    "docs/searches.md": searches,
    "docs/jets-tagging.md": classifier,
}

SMALL = "start_iterations=20, iterations=5, hidden=(16,)"
QUICK_FIT = ("NormalizedAutoencoder(random_state=0)", f"NormalizedAutoencoder(random_state=0, {SMALL})")
QUICK = 'settings=["contrast.iterations=20", "training.iterations=5", "network.hidden=[16]"]'
SMALLER: dict[str, list[tuple[str, str]]] = {
    "README.md": [("sample(10_000, seed=0)", "sample(10, seed=0, latent_steps=2, feature_steps=2)"), ("n=100", "n=3"),
                  ('out="runs/python"', f'out="runs/python", {QUICK}'),
                  ("NormalizedAutoencoder()", f"NormalizedAutoencoder({SMALL})")],
    "docs/first-steps.md": [("sample(50, seed=0)", "sample(50, seed=0, latent_steps=2, feature_steps=2)")],
    "docs/estimator.md": [QUICK_FIT, ("sample(1000)", "sample(10)"),
                          ('["mjj"], random_state=0', '["mjj"], start_iterations=20, hidden=(16,)')],
    "docs/own-networks.md": [
        (f"{folder}, ", f'{folder}, settings=["contrast.iterations=20", "training.iterations=2"], ')
        for folder in ('x, "runs/mine"', 'x, "runs/energy"')
    ]
    + [("iterations=200", "iterations=2"), ("iterations=100", "iterations=2"), ("sample(100)", "sample(5)")],
    "docs/own-table.md": [QUICK_FIT, ('out="runs/mine"', f'out="runs/mine", {QUICK}'),
                          ("sample(1000, seed=0)", "sample(10, seed=0)")],
    "docs/scoring.md": [('on_cluster("slurm", 40)', 'on_cluster("local", 1)')],
    "docs/searches.md": [("pseudo_experiments(templates, 500)", "pseudo_experiments(templates, 5)")],
    "docs/dual.md": [("DualSettings(events=50_000)", "DualSettings(events=200, n_bootstrap=20)")],
}  # fmt: skip
"""Text of a page and what is run instead of it: the same call, smaller."""
