"""Random commands, kills and corruptions on one tree: nothing may be lost, and nothing may be wrong.

    python bench/soak.py --minutes 30 --seed 0

Commands run in children of this process, which has imported everything and does nothing itself, so that a command
starts at once. A child is killed (SIGKILL, SIGTERM, SIGHUP, SIGUSR1) after a random time, or lives. Between commands
bits are flipped in models, checkpoints, configurations, kept backgrounds and parts, files are cut, and two or three
commands write one output at once. After every step:

- what has a final name has the bytes that an undisturbed command gives;
- files of others, put among the outputs and the parts, are as they were;
- a command that says it is done has its output, and one that refuses has a reason: something was damaged, the output
  is there, or another command is at work.

What was damaged and refused is put back, and at the end every command is run once more to its end.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normae import jets
from normae.cli import main as normae_main
from normae.config import structure, to_toml
from normae.export import onnx  # noqa: F401  # imported here once, not in every child
from normae.runs import ensemble, session  # noqa: F401
from normae.scoring import score, scorer  # noqa: F401

ROWS = 60_000
scorer.TABLE_BLOCK = 256  # small parts, so that a small file has several
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "data": {"density": "two-gaussians", "train": 2000, "test": 500},
    "network": {"hidden": [16, 16]},
    "pretraining": {"epochs": 2, "batch": 200},
    "training": {"epochs": 4, "batch": 200},
    "guard": {"log_every": 5, "checkpoint_every": 5},
    "sampling": {
        "buffer": 500,
        "latent": {"steps": 3, "step_size": 0.02},
        "feature": {"steps": 4, "step_size": 0.1, "bounds": [-4.5, 4.5]},
    },
}
FOREIGN = ("notes.txt", ".movie.part", "s.parquet.parts/mine.parquet", "run/.cache/.x.part")
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class Wrong(Exception):
    """Something was lost, or is wrong."""


class Work(NamedTuple):
    """A command and its output."""

    words: list[str]
    output: str


WORKS = {
    "train": Work(["train", "tiny.toml", "-o", "run"], "run/model.safetensors"),
    "score": Work(["score", "model", "x.npy", "-o", "s.parquet", "--device", "cpu"], "s.parquet"),
    "shard": Work(["score", "model", "x.npy", "-o", "s.parquet", "--device", "cpu", "--shard"], "s.parquet"),
    "sample": Work(["sample", "model", "-n", "500", "-o", "a.npz", "--device", "cpu"], "a.npz"),
    "convert": Work(["jets", "convert", "jets.h5", "-o", "b.h5"], "b.h5"),
    "ensemble": Work(["ensemble", *(f"seeds/seed-{k}" for k in range(4)), "-o", "e"], "e/model.safetensors"),
    "onnx": Work(["export", "model", "--onnx", "-o", "m.onnx"], "m.onnx"),
}


def start(words: Sequence[str], log: Path) -> int:
    """A child that runs a command; its id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        with log.open("w") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
            sys.argv = ["normae", *words]
            normae_main()
            code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        os._exit(code)


def wait(child: int, seconds: float | None = None, number: int = signal.SIGKILL) -> int:
    """The exit code of a child, minus the signal where one ended it; after some seconds it gets a signal."""
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, 0 if end is None else os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if end is not None and time.monotonic() > end:
            os.kill(child, number)
            end = None
        time.sleep(0.001)


class Soak:
    """One tree and what must be true of it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random, self.counts = folder, random.Random(seed), Counter[str]()
        os.chdir(folder)
        self.log = folder / "log.txt"
        np.save("x.npy", np.random.default_rng(0).normal(size=(ROWS, 2)).astype(np.float32))
        jets.write("jets.h5", jets.from_lists([[(500, 0, 0), (50, 0.1, 0.2)]] * 2000))
        Path("tiny.toml").write_text(to_toml(structure(SETTINGS)), encoding="utf-8")
        self.seconds: dict[str, float] = {}
        self.run(["train", "tiny.toml", "-o", "seeds", "--seeds", "0-3"])
        shutil.copytree("seeds/seed-0", "model")
        self.reference = {}
        for name, work in WORKS.items():
            if name != "shard":
                begun = time.monotonic()
                self.run(work.words)
                self.seconds[name] = time.monotonic() - begun
                self.reference[work.output] = Path(work.output).read_bytes()
                self.clean(work)
        self.seconds["shard"] = self.seconds["score"]
        self.pristine = {p: p.read_bytes() for p in sorted(Path("model").rglob("*")) if p.is_file()}
        self.damaged: set[str] = set()
        for name in FOREIGN:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text("mine")

    def run(self, words: Sequence[str]) -> None:
        if code := wait(start(words, self.log)):
            raise Wrong(f"{' '.join(words)} ended with {code}: {self.log.read_text()}")

    def clean(self, work: Work) -> None:
        """Remove an output that is whole, but none of the files of others."""
        if work.output.startswith("run/"):
            for path in sorted(Path("run").rglob("*"), reverse=True):
                if str(path) not in FOREIGN:
                    path.unlink() if path.is_file() else (any(path.iterdir()) or path.rmdir())
        elif "/" in work.output:
            shutil.rmtree(Path(work.output).parent)
        else:
            Path(work.output).unlink()

    # --- steps

    def step(self) -> None:
        """One random thing."""
        what = self.random.random()
        if what < 0.25:
            self.corrupt()
        elif what < 0.35:
            self.together()
        else:
            self.command(self.random.choice(list(WORKS)), alive=self.random.random() < 0.3)
        self.check()

    def words(self, name: str) -> list[str]:
        words = [*WORKS[name].words]
        if name == "shard":
            words.append(f"{self.random.randrange(2)}/2")
        if name == "train" and Path("run/config.toml").exists():
            words.append("--resume")
        return words

    def command(self, name: str, alive: bool) -> None:
        """A command, which is killed on its way unless it stays alive."""
        there = Path(WORKS[name].output).exists()
        number = self.random.choice(SIGNALS)
        limit = None if alive else self.random.uniform(0, 1.1 * self.seconds[name])
        code = wait(start(self.words(name), self.log), limit, number)
        self.counts["commands"] += 1
        self.counts["killed"] += code < 0 or code == 130
        self.judge(name, code, there)

    def judge(self, name: str, code: int, there: bool, others: bool = False) -> None:
        """Whether the exit code of a command has a reason."""
        said, work = self.log.read_text(), WORKS[name]
        if "Traceback" in said or code in (1, 3, 4, 70):
            raise Wrong(f"{name} ended with {code}: {said}")
        if code == 0 and name != "shard" and not Path(work.output).exists():
            raise Wrong(f"{name} says that it is done, and {work.output} is not there")
        if code == 2:
            used = "in use by a running job" in said or "exists already" in said or "holds this run already" in said
            if not (self.damaged or (there and used) or (others and used)):
                raise Wrong(f"{name} refuses without a reason: {said}")
            self.counts["refused"] += 1
            if self.damaged and not used:
                self.restore()
        if code == 0 and self.random.random() < 0.7 and Path(work.output).exists():
            self.check()
            self.clean(work)

    def together(self) -> None:
        """Several commands on one output at once."""
        name = self.random.choice([name for name in WORKS if name != "shard"])
        there, words = Path(WORKS[name].output).exists(), self.words(name)
        logs = [Path(f"log{k}.txt") for k in range(self.random.randrange(2, 4))]
        codes = [wait(child) for child in [start(words, log) for log in logs]]
        self.counts["together"] += 1
        if codes.count(0) > 1 and name != "train":
            raise Wrong(f"{name}: {codes.count(0)} of {len(codes)} say that they are done")
        for log, code in zip(logs, codes, strict=True):
            log.replace(self.log)
            if code:
                self.judge(name, code, there, others=True)

    def corrupt(self) -> None:
        """Flip a bit of a file, or cut it."""
        files = [Path("model/model.safetensors"), Path("model/config.toml"), Path("model/background.npz")]
        files += sorted(Path("run").glob("checkpoint/[!.]*")) + sorted(
            Path("s.parquet.parts").glob("[0-9a-f]*.parquet")
        )
        path = self.random.choice(sorted(file for file in files if file.exists()))
        content = bytearray(path.read_bytes())
        if not content:
            return
        if self.random.random() < 0.2:
            content = content[: self.random.randrange(len(content))]
        else:
            content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
        path.write_bytes(content)
        self.counts["corrupted"] += 1
        if path.parts[0] == "model" or path.parts[0] == "run":
            self.damaged.add(str(path))

    def restore(self) -> None:
        """Put back what was damaged and refused; a training whose checkpoints are both gone begins again."""
        for path, content in self.pristine.items():
            path.write_bytes(content)
        if any(name.startswith("run/") for name in self.damaged):
            self.clean(WORKS["train"])
        self.damaged.clear()

    def check(self) -> None:
        """What must be true at any time."""
        for name, content in self.reference.items():
            if Path(name).exists() and Path(name).read_bytes() != content:
                raise Wrong(f"{name} has other bytes than an undisturbed command gives")
        for name in FOREIGN:
            if not Path(name).is_file() or Path(name).read_text() != "mine":
                raise Wrong(f"{name} is not as it was")

    def settle(self) -> None:
        """Every command once more, to its end; then nothing unfinished is left."""
        self.restore()
        for name, work in WORKS.items():
            if name != "shard" and not Path(work.output).exists():
                self.run(self.words(name))
            if name != "shard" and not Path(work.output).exists():
                raise Wrong(f"{work.output} did not come")
        self.check()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Random commands, kills and corruptions on one tree.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), given.seed)
        end, steps = time.monotonic() + 60 * given.minutes, 0
        try:
            while time.monotonic() < end:
                soak.step()
                steps += 1
            soak.settle()
        except Wrong as error:
            sys.exit(f"seed {given.seed}, step {steps}: {error}")
        print(f"seed {given.seed}: {steps} steps, nothing lost, nothing wrong; {dict(soak.counts)}")


if __name__ == "__main__":
    main()
