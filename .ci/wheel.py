"""Install a wheel into bare environments and use it: `python .ci/wheel.py dist/*.whl [extra ...]`.

The first environment has the wheel alone: import, a model of the zoo, a short training, the presets. Then each extra is
installed by itself into a new environment, which sees the first one and nothing else, and the commands that need it
run. An extra that cannot be installed here is said to be left out, and is no failure; one that is installed and does
not work is.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
EVENTS = (
    "import numpy as np; x = np.random.default_rng(0).normal(1.5, 0.7, (4000, 2));"
    "np.savez('events.npz', x=x); np.savez('signal.npz', x=x[:500] / 5)"
)
ROOT_FILE = (
    "import numpy as np, uproot; a, b = np.load('events.npz')['x'].T;"
    "uproot.recreate('a.root').mktree('t', {'a': 'f8', 'b': 'f8'}).extend({'a': a, 'b': b})"
)
BLOSC_FILE = (
    "import h5py, numpy as np, hdf5plugin; h5py.File('a.h5', 'w').create_dataset('x', "
    "data=np.load('events.npz')['x'], **hdf5plugin.Blosc())"
)
PYOD = (
    "import numpy as np; from normae.estimator.pyod import NAE; x = np.load('events.npz')['x'][:300];"
    "nae = NAE(random_state=0, settings={'start_iterations': 40, 'iterations': 5, 'hidden': (8,)}).fit(x);"
    "assert nae.labels_.sum() == 30"
)
MODEL = "toy-2gauss-nae"
SCORE = ["normae", "score", MODEL, "-o", "scores.parquet"]
TRIGGER = ["--trigger", "-o", "trigger", "--epochs", "1", "--events", "4000"]
USES = {
    "jets": [["normae", "jets", "generate", "qcd", "-n", "20", "-o", "jets.h5"],
             ["normae", "jets", "observables", "jets.h5", "-o", "observables.csv"]],
    "root": [["python", "-c", ROOT_FILE], [*SCORE, "a.root", "--columns", "a,b"]],
    "blosc": [["python", "-c", BLOSC_FILE], [*SCORE, "a.h5"]],
    "export": [["normae", "export", MODEL, "--onnx", "-o", "model.onnx"]],
    "search": [["normae", "histogram", MODEL, "events.npz", "--signal", "signal.npz", "--observed", "events.npz",
                "-o", "search"]],
    "trigger": [["normae", "export", MODEL, *TRIGGER]],
    "pyod": [["python", "-c", PYOD]],
    "cluster": [[*SCORE, "events.npz", "--cluster", "local", "--workers", "1"]],
    "bench": [["normae", "bench", "--quick", "--only", "sampling", "-o", "bench"]],
}  # fmt: skip
"""What each extra is for, as commands in an empty folder that has `events.npz` and `signal.npz`."""
BARE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
TRAINING = ["--set", "training.epochs=1", "--set", "pretraining.epochs=1", "--set", "data.train=4000"]
FIRST = "import numpy as np, normae; m = normae.load('toy-2gauss-nae'); print(m.log_prob(np.zeros((2, 2))))"
ALONE = [["python", "-c", FIRST], ["normae", "--version"], ["normae", "presets"],
         ["normae", "train", "toy-quick", "-o", "run", *TRAINING], ["normae", "info", "run"]]  # fmt: skip
"""What the wheel does without an extra."""


def environment(folder: Path, what: str, base: Path | None = None) -> str:
    """A new environment with `what` and with all that `base` has; what pip complained of, if it did."""
    venv.create(folder, with_pip=base is None)
    if base is not None:
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "base.pth").write_text(f"{next(base.glob('lib/python*/site-packages'))}\n")
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile", "-c", CONSTRAINTS, what]
    done = subprocess.run(pip, capture_output=True, text=True, env=BARE)
    return done.stderr if done.returncode else ""


def use(folder: Path, place: Path, commands: list[list[str]]) -> None:
    """Run commands of an environment in a new folder with some events; one of its base as a module of Python."""
    place.mkdir()
    for program, *rest in [["python", "-c", EVENTS], *commands]:
        own = folder / "bin" / program
        start = [own] if own.exists() else [folder / "bin" / "python", "-m", program]
        subprocess.run([*start, *rest], cwd=place, check=True, stdout=subprocess.DEVNULL, env=BARE)


def main(wheel: Path, extras: list[str]) -> None:
    """Use the wheel alone, then with each of the extras: those that are named, or all."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    with tempfile.TemporaryDirectory() as name:
        base, place = Path(name) / "venv", Path(name)
        if failed := environment(base, str(wheel)):
            raise SystemExit(failed)
        use(base, place / "alone", ALONE)
        print("the wheel alone: works", flush=True)
        for extra in extras or [one for one in known if one in USES]:
            folder = place / f"venv-{extra}"
            if failed := environment(folder, f"normae[{extra}] @ {wheel.resolve().as_uri()}", base):
                print(f"{extra}: left out, it cannot be installed here: {failed.strip().splitlines()[-1]}", flush=True)
                continue
            use(folder, place / extra, USES[extra])
            print(f"{extra}: works", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
