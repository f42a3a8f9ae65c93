"""Install a wheel into bare environments and use it: `python .ci/wheel.py dist/*.whl [extra ...]`.

The first environment has the wheel alone: import, a model of the zoo, a short training, the presets. Then each extra is
installed by itself into a new environment, and what it is for is imported. An extra that cannot be installed here is
said to be left out, and is no failure; one that is installed and does not work is.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
USES = {
    "jets": "import pythia8mc, fastjet, normae.jets as jets; jets.observables(jets.public())",
    "root": "import uproot; import normae.data.tables",
    "blosc": "import hdf5plugin, normae.jets.reader",
    "export": "import onnx, onnxruntime, normae.export.onnx",
    "search": "import normae.search.inference, yaml",
    "trigger": "import hls4ml; import normae.export.trigger",
    "pyod": "import normae.estimator.pyod",
    "cluster": "import normae.scoring.cluster, distributed, dask_jobqueue",
    "bench": "import torchebm, zuko; import normae.bench",
}
BARE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
TRAINING = ["--set", "training.epochs=1", "--set", "pretraining.epochs=1", "--set", "data.train=4000"]
FIRST = "import numpy as np, normae; m = normae.load('toy-2gauss-nae'); print(m.log_prob(np.zeros((2, 2))))"


def environment(folder: Path, wheel: Path, extra: str) -> Path | None:
    """A new environment with the wheel and an extra; its folder of programs, or None where it cannot be installed."""
    venv.create(folder, with_pip=True)
    what = f"normae[{extra}] @ {wheel.resolve().as_uri()}" if extra else str(wheel)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", what]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode and not extra:
        raise SystemExit(done.stderr)
    return None if done.returncode else folder / "bin"


def main(wheel: Path, extras: list[str]) -> None:
    """Use the wheel alone, then with each of the extras."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in ["", *(extras or [name for name in known if name in USES])]:
        with tempfile.TemporaryDirectory() as place:
            programs = environment(Path(place) / "venv", wheel, extra)
            if programs is None:
                print(f"{extra}: left out, it cannot be installed here", flush=True)
                continue
            python, normae = programs / "python", programs / "normae"
            commands = [[python, "-c", USES[extra]]] if extra else [
                [python, "-c", FIRST], [normae, "--version"], [normae, "presets"],
                [normae, "train", "toy-quick", "-o", "run", *TRAINING], [normae, "info", "run"],
            ]  # fmt: skip
            for command in commands:
                subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL, env=BARE)
            print(f"{extra or 'the wheel alone'}: works", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
