"""Kills at fsync, rename and link, in every command that writes: nothing lost, nothing half, the same bytes after.

A kill is simulated in this process: at the n-th of these calls, before or after it is done, everything stops, and from
then on nothing can be renamed, linked, flushed or removed, as if the process were gone. The soak (`make soak`) sends
real ones.
"""

import gc
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from command import command
from normae import jets, zoo
from normae.config import structure, to_toml
from normae.runs.folder import read_tensors
from normae.scoring.score import open_scorer
from tiny_run import tiny

CALLS, GONE = ("fsync", "replace", "rename", "link"), ("unlink", "rmdir", "remove", "truncate")


class Killed(BaseException):
    """What ends a process here; nothing catches it."""


@contextmanager
def killed(at: int, done: bool = False) -> Iterator[list[str]]:
    """Everything stops at call number `at`, after it where it is `done`; the calls so far."""
    calls: list[str] = []
    real = {name: getattr(os, name) for name in (*CALLS, *GONE)}

    def patched(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if len(calls) > at >= 0:
                raise Killed
            if name in CALLS:
                calls.append(name)
                if len(calls) > at >= 0 and not done:
                    raise Killed
            found = real[name](*arguments, **more)
            if len(calls) > at >= 0:
                raise Killed
            return found

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in real:
            patch.setattr(os, name, patched(name))
        with suppress(Killed):
            yield calls
    gc.collect()  # closes what the process had open, and so frees its locks


class Work(NamedTuple):
    """A command: its words, how it goes on after a kill, and the files that must come out, by name."""

    words: list[Any]
    again: list[Any]
    outputs: list[str]


def works(folder: Path) -> dict[str, Work]:
    """What is run in `folder`, which has x.npy, jets.h5, a toml, a run and two runs of seeds."""
    toy, quick = folder / "toy", ["-n", 20, "--latent-steps", 1, "--feature-steps", 1]
    resumed = ["train", folder / "tiny.toml", "-o", folder / "run", "--resume"]

    def plain(out: str, *words: Any, files: tuple[str, ...] = ()) -> Work:
        call = [*words, "-o", folder / out]
        return Work(call, call, [f"{out}/{name}" for name in files] or [out])

    judged = ("histogram.json", "workspace.json")
    return {
        "sample": plain("a.npz", "sample", toy, *quick),
        "score": plain("s.parquet", "score", toy, folder / "x.npy", "--device", "cpu"),
        "convert": plain("b.h5", "jets", "convert", folder / "jets.h5"),
        "spread": plain("e.json", "spread", folder / "seeds"),
        "train": Work(resumed[:-1], resumed, ["run/model.safetensors", "run/config.toml"]),
        "images": plain("i.h5", "jets", "images", folder / "jets.h5"),
        "observables": plain("o.csv", "jets", "observables", folder / "jets.h5"),
        "show": plain("f", "jets", "show", folder / "jets.h5", files=("images.csv", "observables.csv")),
        "onnx": plain("m.onnx", "export", toy, "--onnx"),
        "histogram": plain("h", "histogram", toy, folder / "x.npy", "--bins", 4, files=judged),
        "dual": plain("d", "dual", toy, "toy-2gauss-nae", "--events", 100, "--no-classifier", files=("dual.json",)),
        "report": Work(["report", folder / "seeds" / "seed-0"], ["report", folder / "seeds" / "seed-0"],
                       ["seeds/seed-0/report.html"]),
    }  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kills")
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(300, 2)))
    jets.write(folder / "jets.h5", jets.from_lists([[(500, 0, 0), (50, 0.1, 0.2), (20, -0.2, 0.1)]] * 5))
    content = tiny(pretraining__epochs=1, training__epochs=1, guard__checkpoint_every=10)
    (folder / "tiny.toml").write_text(to_toml(structure(content)))
    shutil.copytree(zoo.path("toy-1gauss-nae"), folder / "toy")
    open_scorer(folder / "toy", device="cpu")  # which keeps the scores of the background there
    for seed in range(2):
        run = folder / "seeds" / f"seed-{seed}"
        shutil.copytree(zoo.path("toy-1gauss-nae"), run)
        (run / "config.toml").write_text((run / "config.toml").read_text().replace("seed = 0", f"seed = {seed}"))
    return folder


def spoken(words: list[Any]) -> int:
    return command(*words)


def state(folder: Path, work: Work) -> list[bytes | None]:
    return [(folder / name).read_bytes() if (folder / name).is_file() else None for name in work.outputs]


def kill_everywhere(source: Path, tmp_path: Path, name: str, most: int | None = None) -> int:
    """Kill the command at all of its calls, or at some; how often."""
    whole = shutil.copytree(source, tmp_path / "whole")
    work = works(whole)[name]
    with killed(-1) as calls:
        assert spoken(work.words) == 0
    reference = state(whole, work)
    assert None not in reference
    points = [(at, done) for at in range(len(calls)) for done in (False, True)]
    if most is not None:
        points = random.Random(0).sample(points, min(most, len(points)))
    for at, done in points:
        shutil.rmtree(whole)  # the same names again, since results hold them
        shutil.copytree(source, whole)
        with killed(at, done):
            spoken(work.words)
        check_whole(whole, work, reference)
        published = None not in state(whole, work)
        begun = name == "train" and (whole / "run" / "config.toml").exists()
        code = spoken(work.again if begun else work.words)
        assert code == 0 or (published and code == 2), (name, at, done)
        assert state(whole, work) == reference, (name, at, done)
        if code == 0:
            assert not [p for p in whole.rglob("*") if "normae-part" in p.name or p.name.endswith((".lock", ".parts"))]
    return len(points)


def check_whole(folder: Path, work: Work, reference: list[bytes | None]) -> None:
    """What is there under a final name is whole."""
    for name, found, right in zip(work.outputs, state(folder, work), reference, strict=True):
        assert found in (None, right), name
    for path in (folder / "run").rglob("[!.]*.safetensors"):
        read_tensors(path)


@pytest.mark.parametrize("name", ["sample", "score", "convert", "spread", "train"])
def test_kills(source, tmp_path, name):
    assert kill_everywhere(source, tmp_path, name, 3 if name == "train" else 5) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", works(Path()))
def test_kills_everywhere(source, tmp_path, name):
    print(name, kill_everywhere(source, tmp_path, name))
