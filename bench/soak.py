"""Commands that are killed, and files that are damaged: nothing may be lost, nothing half, nothing wrong.

    python bench/soak.py --kills 200
    python bench/soak.py --minutes 30 --seed 0

Commands run in children of this process, which has imported everything and does nothing itself, so that a command
starts at once.

`--kills N` ends every command that writes, N times in all, by a SIGKILL of its own at one of its calls of fsync,
rename, replace or link, before or after the call is done (the flush itself is left out: a kill loses no pages). What
has a final name then is whole. The same command again gives the bytes of one that was not disturbed, and nothing
unfinished is left.

`--minutes M` does random things to one tree. A command is killed at such a call, or gets SIGKILL, SIGTERM, SIGHUP or
SIGUSR1 after a random time, or lives. Between commands bits are flipped in models, checkpoints, configurations, kept
backgrounds and parts, files are cut, and two or three commands write one output at once. After every step:

- what has a final name has the bytes that an undisturbed command gives;
- files of others, put among the outputs and the parts, are as they were;
- a command that says it is done has its output, and one that refuses has a reason: something was damaged, the output
  is there, or another command is at work.

What was damaged and refused is put back, and at the end every command is run once more to its end.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import publish
from normae import jets
from normae.cli import main as normae_main
from normae.cli.console import run
from normae.config import structure, to_toml
from normae.dual import test  # noqa: F401  # imported here once, not in every child
from normae.evaluation import evaluate, spread, toy_posterior  # noqa: F401
from normae.export import onnx  # noqa: F401
from normae.runs import ensemble, session  # noqa: F401
from normae.runs.folder import read_tensors
from normae.scoring import score, scorer  # noqa: F401
from normae.search import histogram  # noqa: F401
from normae.temperature import estimates, search  # noqa: F401

ROWS = 30_000
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "data": {"density": "two-gaussians", "train": 2000, "test": 500, "validation": 200},
    "network": {"hidden": [16, 16]},
    "pretraining": {"epochs": 2, "batch": 200},
    "training": {"epochs": 2, "batch": 200},
    "guard": {"log_every": 5, "checkpoint_every": 5},
    "sampling": {
        "buffer": 500,
        "latent": {"steps": 3, "step_size": 0.02},
        "feature": {"steps": 4, "step_size": 0.1, "bounds": [-4.5, 4.5]},
    },
    "evaluation": {
        "grid": 20, "log_z_cells": 30, "long_factor": 2,
        "classifier": {
            "points": 300, "train": 200, "validation": 100, "test": 200, "hidden": [4], "max_epochs": 1,
        },
    },
}  # fmt: skip
FOREIGN = ("notes.txt", ".movie.part", "s.parquet.parts/mine.parquet")
INSIDE = "run/.cache/.x.part"
"""Put into a run that has begun: a folder with a file of others is not begun in."""
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
CALLS = ("fsync", "replace", "rename", "link")
FREE = ("*/provenance.json", "*/metrics.jsonl", "*/checkpoint/*", "*/hls4ml_config.yml", "*/build_lib.sh")
"""Files that hold times or a random stamp, or grow with a training."""
GROWING = ("found/temperature.json", "found/figures/slope.*")
"""Written anew, whole, after every point of a search: their bytes count when the command is done."""
UNFINISHED = ("*normae-part*", "*normae-old*", "*.lock", "*.parts")


class Wrong(Exception):
    """Something was lost, or is wrong."""


class Work(NamedTuple):
    """A command that writes.

    Args:
        output: a file, or a folder.
        base: a folder that the output begins as a copy of.
        before: words of a command that comes before it, where it needs one.
    """

    words: list[str]
    output: str
    base: str | None = None
    before: list[str] | None = None

    def there(self) -> dict[str, bytes]:
        """The files of the output by name, but those that are free."""
        out = Path(self.output)
        paths = [path for path in out.rglob("*") if path.is_file()] if out.is_dir() else [out]
        names = [str(path) for path in paths if path.is_file()]
        shown = [name for name in names if not any(part.startswith(".") for part in Path(name).parts)]
        return {name: Path(name).read_bytes() for name in shown if not any(fnmatch(name, free) for free in FREE)}


def plain(output: str, words: str, base: str | None = None, before: str | None = None) -> Work:
    """A command whose output is named by -o, or is `base` with more files."""
    call = words.split() + ([] if base else ["-o", output])
    return Work(call, output, base, None if before is None else before.split())


SCORE = "score model x.npy --device cpu"
WORKS = {
    "train": plain("run", "train tiny.toml"),
    "seeds": plain("several", "train tiny.toml --seeds 0-1"),
    "table": plain("rows", "train x.csv --set contrast.iterations=4 --set network.hidden=[4] --set device=cpu"),
    "ensemble": plain("e", "ensemble seeds/seed-0 seeds/seed-1 seeds/seed-2 seeds/seed-3"),
    "evaluate": plain("judged", "evaluate judged --no-figures --device cpu", "model"),
    "figures": plain("drawn", "evaluate drawn --device cpu", "model"),
    "report": plain("reported", "report reported", "drawn-seed"),
    "coverage": plain("covered", "coverage covered --device cpu", "bayesian"),
    "estimate": plain("warm", "temperature estimate warm --events 100 --device cpu", "model"),
    "search": plain("found", "temperature search tiny.toml one.toml --trainings 2 --events 200 --device cpu"),
    "dual": plain("d", "dual model toy-1gauss-nae --events 100 --no-classifier --device cpu"),
    "spread": plain("e.json", "spread judged-seeds"),
    "score": plain("s.parquet", SCORE),
    "shard": Work(f"{SCORE} -o s.parquet --shard".split(), "s.parquet"),
    "join": plain("j.parquet", SCORE, before=f"{SCORE} -o j.parquet --shard 0/2"),
    "csv": plain("s.csv", SCORE),
    "npz": plain("s.npz", SCORE),
    "sample": plain("a.npz", "sample model -n 200 --device cpu"),
    "histogram": plain("h", "histogram model x.csv --bins 4 --device cpu"),
    "onnx": plain("m.onnx", "export model --onnx"),
    "trigger": plain("t", "export model --trigger --hidden 4 --epochs 1 --events 500"),
    "publish": plain("zoo", "publish judged-seeds zoo", base="nothing"),
    "generate": plain("g.h5", "jets generate qcd -n 3"),
    "convert": plain("b.h5", "jets convert jets.h5"),
    "images": plain("i.h5", "jets images jets.h5"),
    "observables": plain("o.csv", "jets observables jets.h5"),
    "show": plain("shown", "jets show jets.h5"),
}
LEAST, QUICK_SECONDS = 3, 1.0
"""Kills of every command; more come where it takes less processor time than this."""
QUICK = ("train", "score", "shard", "sample", "convert", "ensemble", "onnx", "images", "spread", "report", "publish")
"""What the soak does; the others would take most of its time."""


# --- children


def mined(at: int, done: bool, note: Path) -> Callable[[], None]:
    """From now on call number `at` ends this process, after it where it is `done`; gives what notes their number."""
    number = 0

    def patched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            nonlocal number
            number += 1
            if number == at and not done:
                os.kill(os.getpid(), signal.SIGKILL)
            found = None if name == "fsync" else real(*arguments, **more)
            if number == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return call

    for name in CALLS:
        setattr(os, name, patched(name, getattr(os, name)))
    return lambda: print(number, file=note.open("w"))


def start(words: Sequence[str], log: Path, at: int | None = None, done: bool = False) -> int:
    """A child that runs a command; its id. With `at` it is mined, and 0 lets it live and notes its calls."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        with log.open("w") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
            scorer.TABLE_BLOCK = 128  # small parts, so that a small file has several
            note = None if at is None else mined(at, done, log.with_suffix(".calls"))
            sys.argv = ["normae", *words]
            try:
                if words[0] == "publish":
                    run(partial(publish.main, words[1:]))
                else:
                    normae_main()
                code = 0
            finally:
                if note is not None:
                    note()
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


# --- the tree


class Tree:
    """A folder with what commands need, and what they must give."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        os.chdir(folder)
        self.log, self.names = folder / "log.txt", list(names)
        self.reference: dict[str, dict[str, bytes]] = {}
        self.calls: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.quick: dict[str, bool] = {}
        self._fill()
        for name in self.names:
            if name != "shard":
                self._undisturbed(name)

    def _fill(self) -> None:
        """Files and runs that commands read."""
        x = np.random.default_rng(0).normal(size=(ROWS, 2)).astype(np.float32)
        np.save("x.npy", x)
        np.savetxt("x.csv", x[:200], delimiter=",", header="a,b", comments="")
        jets.write("jets.h5", jets.from_lists([[(500, 0, 0), (50, 0.1, 0.2), (20, -0.2, 0.1)]] * 200))
        Path("tiny.toml").write_text(to_toml(structure(SETTINGS)), encoding="utf-8")
        one = SETTINGS | {"data": SETTINGS["data"] | {"density": "one-gaussian"}}
        Path("one.toml").write_text(to_toml(structure(one)), encoding="utf-8")
        self.run(["train", "tiny.toml", "-o", "seeds", "--seeds", "0-3"])
        shutil.copytree("seeds/seed-0", "model")
        Path("nothing").mkdir()
        if {"spread", "publish"} & set(self.names):
            shutil.copytree("seeds", "judged-seeds")
            for seed in range(4):
                self.run(["evaluate", f"judged-seeds/seed-{seed}", "--no-figures", "--device", "cpu"])
        if "report" in self.names:
            shutil.copytree("model", "drawn-seed")
            self.run(["evaluate", "drawn-seed", "--device", "cpu"])
        if "coverage" in self.names:
            self.run(["train", "tiny.toml", "-o", "bayesian", "--seeds", "0-1", "--set", "bayesian.layers=last"])
        self.run(["score", "model", "x.csv", "-o", "first.csv", "--device", "cpu"])  # which keeps the background

    def run(self, words: Sequence[str], at: int | None = None) -> None:
        """A command to its end."""
        if code := wait(start(words, self.log, at)):
            raise Wrong(f"{' '.join(words)} ended with {code}: {self.log.read_text()}")

    def _undisturbed(self, name: str) -> None:
        self.clean(name)
        self.before(name)
        begun = time.monotonic(), sum(os.times()[2:4])
        self.run(WORKS[name].words, 0)
        self.seconds[name] = time.monotonic() - begun[0]
        self.quick[name] = sum(os.times()[2:4]) - begun[1] < QUICK_SECONDS
        self.calls[name] = int(self.log.with_suffix(".calls").read_text())
        self.reference[name] = WORKS[name].there()
        if not self.reference[name] or not self.calls[name]:
            raise Wrong(f"{name} has written nothing")
        self.clean(name)

    def before(self, name: str) -> None:
        """What the command goes on from."""
        if WORKS[name].before is not None:
            self.run(WORKS[name].before or [])

    def clean(self, name: str) -> None:
        """Remove an output that is whole, but none of the files of others."""
        work = WORKS[name]
        out = Path(work.output)
        if out.is_dir():
            for path in sorted(out.rglob("*"), reverse=True):
                if str(path) not in FOREIGN:
                    path.unlink() if path.is_file() else (any(path.iterdir()) or path.rmdir())
            if not any(out.iterdir()):
                out.rmdir()
        else:
            out.unlink(missing_ok=True)
        if work.base is not None:
            shutil.copytree(work.base, out)

    def words(self, name: str) -> list[str]:
        """Of the command as it goes on."""
        begun = list(Path(WORKS[name].output).glob("**/config.toml"))
        return [*WORKS[name].words, *(["--resume"] if name in ("train", "seeds", "table") and begun else [])]

    def check(self, name: str) -> None:
        """What has a final name is whole: as the command gives it, or as it was before."""
        work, right = WORKS[name], self.reference.get(name, {})
        for path, content in work.there().items():
            if any(fnmatch(path, name) for name in GROWING):
                if path.endswith(".json"):
                    json.loads(content)
                continue
            old = work.base and Path(work.base, Path(path).relative_to(work.output))
            if content != right.get(path) and not (old and old.is_file() and content == old.read_bytes()):
                raise Wrong(f"{name}: {path} has other bytes than an undisturbed command gives")

    def whole(self, name: str) -> bool:
        """Whether all of the output is there."""
        return WORKS[name].there() == self.reference[name]

    def unfinished(self) -> list[str]:
        """What no command that is done may leave."""
        return [str(p) for p in Path().rglob("*") if any(fnmatch(p.name, name) for name in UNFINISHED)]


def kill(tree: Tree, name: str, at: int, done: bool) -> bool:
    """One kill, and the command again; False where it had fewer calls this time: something was kept in a cache."""
    tree.clean(name)
    tree.before(name)
    code = wait(start(WORKS[name].words, tree.log, at, done))
    if code == 0 and tree.whole(name):
        return False
    if code != -signal.SIGKILL:
        raise Wrong(f"ended with {code}, expected a kill: {tree.log.read_text()}")
    tree.check(name)
    for path in Path(WORKS[name].output).rglob("[!.]*.safetensors"):
        read_tensors(path)
    published = tree.whole(name)
    code = wait(start(tree.words(name), tree.log))
    if code and not (published and code == 2):
        raise Wrong(f"again it ended with {code}: {tree.log.read_text()}")
    if not tree.whole(name):
        raise Wrong(f"again it gave {sorted(WORKS[name].there())}, other names or bytes than one undisturbed")
    if left := [] if code else tree.unfinished():
        raise Wrong(f"left {left}")
    tree.clean(name)
    for path in map(Path, tree.unfinished()):
        path.unlink() if path.is_file() else shutil.rmtree(path)
    return True


def kills(folder: Path, names: Sequence[str], count: int, seed: int) -> None:
    """Kill every command, quick ones more often, `count` times in all."""
    tree = Tree(folder, [name for name in names if name != "shard"])
    chosen = random.Random(seed)
    points = {
        name: [(at, done) for at in range(1, tree.calls[name] + 1) for done in (False, True)] for name in tree.names
    }
    todo: list[tuple[str, int, bool]] = []
    for name in points:
        chosen.shuffle(points[name])
    for turn in range(max(map(len, points.values()))):
        these = [name for name in tree.names if points[name] and (turn < LEAST or tree.quick[name])]
        todo += [(name, *points[name].pop()) for name in these]
    done: Counter[str] = Counter()
    for name, at, after in todo:
        try:
            done[name] += kill(tree, name, at, after)
        except Wrong as error:
            sys.exit(f"{name}, {'after' if after else 'before'} call {at} of {tree.calls[name]}: {error}")
        if sum(done.values()) == count:
            break
    print(f"{sum(done.values())} kills, nothing lost, nothing half, the same bytes after: {dict(done)}")


# --- random things


class Soak:
    """One tree and what must be true of it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.tree, self.random, self.counts = Tree(folder, QUICK), random.Random(seed), Counter[str]()
        self.tree.seconds["shard"], self.tree.calls["shard"] = self.tree.seconds["score"], self.tree.calls["score"]
        self.pristine = {p: p.read_bytes() for p in sorted(Path("model").rglob("*")) if p.is_file()}
        self.damaged: set[str] = set()
        for name in FOREIGN:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text("mine")

    def step(self) -> None:
        """One random thing."""
        what = self.random.random()
        if what < 0.1:
            self.corrupt()
        elif what < 0.15:
            self.together()
        else:
            self.command(self.random.choice(QUICK))
        self.check()

    def words(self, name: str) -> list[str]:
        return [*self.tree.words(name), *([f"{self.random.randrange(2)}/2"] if name == "shard" else [])]

    def done(self, name: str) -> bool:
        """Whether the output is there."""
        there = WORKS[name].there()
        return all(path in there for path in self.tree.reference.get(name, [WORKS[name].output]))

    def command(self, name: str) -> None:
        """A command, which is killed on its way unless it stays alive."""
        there, how, at, limit = self.done(name), self.random.random(), None, None
        if how < 0.5:
            at = self.random.randrange(self.tree.calls[name]) + 1
        elif how < 0.8:
            limit = self.random.uniform(0, 1.1 * self.tree.seconds[name])
        if mine := name == "train" and Path("run/config.toml").exists():
            Path(INSIDE).parent.mkdir(exist_ok=True)
            Path(INSIDE).write_text("mine")
        child = start(self.words(name), self.tree.log, at, self.random.random() < 0.5)
        code = wait(child, limit, self.random.choice(SIGNALS))
        if mine and Path(INSIDE).read_text() != "mine":
            raise Wrong(f"{INSIDE} is not as it was")
        self.counts["commands"] += 1
        self.counts["killed"] += code < 0 or code == 130
        self.judge(name, code, there)

    def judge(self, name: str, code: int, there: bool, others: bool = False, damaged: bool = False) -> None:
        """Whether the exit code of a command has a reason."""
        said = self.tree.log.read_text()
        if "Traceback" in said or code in (1, 3, 4, 70):
            raise Wrong(f"{name} ended with {code}: {said}")
        if code == 0 and name != "shard" and not self.done(name):
            raise Wrong(f"{name} says that it is done, and {WORKS[name].output} is not there")
        if code == 2:
            used = "in use by a running job" in said or "exists already" in said or "holds this run already" in said
            if not (self.damaged or damaged or (there and used) or (others and used)):
                raise Wrong(f"{name} refuses without a reason: {said}")
            self.counts["refused"] += 1
            if self.damaged and not used:
                self.restore()
        if self.done(name) and name != "shard" and (code or self.random.random() < 0.7):
            self.check()
            self.tree.clean(name)

    def together(self) -> None:
        """Several commands on one output at once."""
        name = self.random.choice([name for name in QUICK if name != "shard"])
        there, words, damaged = self.done(name), self.words(name), bool(self.damaged)
        logs = [Path(f"log{k}.txt") for k in range(self.random.randrange(2, 4))]
        codes = [wait(child) for child in [start(words, log) for log in logs]]
        self.counts["together"] += 1
        if codes.count(0) > 1 and name not in ("train", "publish"):  # which take up, or replace, what is there
            raise Wrong(f"{name}: {codes.count(0)} of {len(codes)} say that they are done")
        for log, code in zip(logs, codes, strict=True):
            log.replace(self.tree.log)
            if code:
                self.judge(name, code, there, True, damaged)  # what the first one refused is put back by then

    def corrupt(self) -> None:
        """Flip a bit of a file, or cut it."""
        files = [Path("model/model.safetensors"), Path("model/config.toml"), Path("model/background.npz")]
        files += sorted(Path("run").glob("checkpoint/[!.]*"))
        files += sorted(Path("s.parquet.parts").glob("[0-9a-f]*.safetensors"))
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
            self.tree.clean("train")
        self.damaged.clear()

    def check(self) -> None:
        """What must be true at any time."""
        for name in QUICK:
            if name != "shard":
                self.tree.check(name)
        for name in FOREIGN:
            if not Path(name).is_file() or Path(name).read_text() != "mine":
                raise Wrong(f"{name} is not as it was")

    def settle(self) -> None:
        """Every command once more, to its end."""
        self.restore()
        for name in QUICK:
            if name != "shard" and not self.done(name):
                self.tree.run(self.words(name))
            if name != "shard" and not self.done(name):
                raise Wrong(f"{WORKS[name].output} did not come")
        self.check()


def soak(folder: Path, minutes: float, seed: int) -> None:
    """Random things for some minutes."""
    one = Soak(folder, seed)
    end, steps = time.monotonic() + 60 * minutes, 0
    try:
        while time.monotonic() < end:
            one.step()
            steps += 1
        one.settle()
    except Wrong as error:
        sys.exit(f"seed {seed}, step {steps}: {error}")
    print(f"seed {seed}: {steps} steps, nothing lost, nothing wrong; {dict(one.counts)}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Commands that are killed, and files that are damaged.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.kills:
            kills(folder, given.only, given.kills, given.seed)
        else:
            soak(folder, given.minutes, given.seed)


if __name__ == "__main__":
    main()
