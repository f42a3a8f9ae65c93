"""How many modules a reader opens to follow a command: files of the package in which a function runs, counted.

`python bench/walks.py [-v]` trains a small run, scores with it, and asks a Bayesian model for its draws. With `--jets`
it walks through `normae reproduce jets` too, on the public jets, which takes minutes.
"""

import argparse
import inspect
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import normae
from normae.cli import main

ROOT = str(Path(normae.__file__).parent) + "/"
RUN = """
device = "cpu"
[data]
density = "two-gaussians"
train = 2000
test = 2000
[network]
hidden = [16, 16]
[pretraining]
epochs = 2
batch = 200
[training]
epochs = 2
batch = 200
[sampling]
buffer = 500
[sampling.latent]
steps = 3
step_size = 0.02
[sampling.feature]
steps = 4
step_size = 0.1
bounds = [-4.5, 4.5]
[guard]
log_every = 5
checkpoint_every = 5
"""


class Walk:
    """Modules and functions that run within the context."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.functions: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        function = (
            code.co_flags & inspect.CO_OPTIMIZED
        )  # and not the body of a module or of a class, which an import runs
        if event == "call" and function and code.co_filename.startswith(ROOT):
            self.modules.add(code.co_filename.removeprefix(ROOT))
            self.functions.add((code.co_filename, code.co_qualname))

    def __enter__(self) -> "Walk":
        sys.setprofile(self)
        threading.setprofile(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def command(*words: object) -> None:
    """Run the command line in this process."""
    sys.argv = ["normae", *map(str, words)]
    try:
        main()
    except SystemExit as stop:
        if stop.code:
            raise


def walks(folder: Path, jets: bool) -> dict[str, Walk]:
    """Each walk after a first call that imports everything."""
    config, table = folder / "run.toml", folder / "x.npy"
    config.write_text(RUN)
    np.save(table, np.random.default_rng(0).normal(size=(500, 2)).astype(np.float32))
    found = {}
    for k in range(2):
        with Walk() as found["train"]:
            command("train", config, "-o", folder / f"run{k}")
    for k in range(2):
        with Walk() as found["score"]:
            command("score", folder / f"run{k}", table, "-o", folder / f"{k}.parquet")
    model = normae.load("toy-2gauss-bnae")
    with Walk() as found["log_prob_draws"]:
        model.log_prob_draws(np.zeros((50, 2)), n=5)
    if jets:
        with Walk() as found["reproduce jets"]:
            command("reproduce", "jets", "-o", folder / "jets")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jets", action="store_true")
    parser.add_argument("-v", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for name, walk in walks(Path(temporary), asked.jets).items():
            print(f"{name}: {len(walk.modules)} modules, {len(walk.functions)} functions")
            if asked.v:
                print("  " + " ".join(sorted(walk.modules)))
