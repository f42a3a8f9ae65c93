"""The command line, run as a user runs it."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from command import command
from normae.cli.console import parse_seeds
from normae.config import read, structure, to_toml
from normae.errors import InputError
from normae.runs.folder import read_tensors
from tiny_run import tiny

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def normae(*arguments: object, **options: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "normae", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False, **options)


def start(*arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "normae", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


@pytest.fixture
def preset(tmp_path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(to_toml(structure(tiny())))
    return path


def test_the_user_s_path(preset, tmp_path, capsys):
    """The first command in a process of its own, the others in this one."""
    run = tmp_path / "run"
    done = normae("train", preset, "--out", run, "--set", "training.epochs=1")
    assert done.returncode == 0, done.stderr
    assert "training 10/10" in done.stdout
    said = []
    for words in (
        ["info", run], ["evaluate", run, "--device", "cpu"], ["report", run], ["info", run],
        ["sample", run, "-n", "50", "-o", tmp_path / "x.npz"],
    ):  # fmt: skip
        assert command(*words) == 0
        said.append(capsys.readouterr().out)
    before, judged, _, after, _ = said
    assert "trained, not evaluated" in before
    assert "pearson_grid" in judged
    assert "auc_ideal" in after
    page = (run / "report.html").read_text()
    (run / "report.html").write_text("mine")
    assert command("report", run) == 2
    assert "exists already; choose another name, or replace it with --force" in capsys.readouterr().err
    assert (run / "report.html").read_text() == "mine"
    assert command("report", run, "--force") == 0
    assert (run / "report.html").read_text() == page
    assert len(page) > 50_000
    assert np.load(tmp_path / "x.npz")["x"].shape == (50, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "none.toml", "--out", "run"], "none.toml: no such configuration file"),
        (["train", "folder/none.toml", "--out", "run"], "none.toml: no such configuration file"),
        (["train", "toy-qick", "-o", "run"], "toy-qick: no such preset; presets with names like it: toy-quick"),
        (["train", "toy-qick.toml", "-o", "run"], "presets with names like it: toy-quick"),
        (["train", "..", "-o", "run"], "..: a folder; expected a TOML file or the name of a preset"),
        (["train", "../rows.parquet", "-o", "run"], "damaged, or not a .parquet file"),
        (["train", "..", "-o", "run"], "or jets there in train.h5"),
        (["train", "../bg.csv.gz", "-o", "run"], "expected a name that ends in .npy, .npz, .csv, .parquet, .h5,"),
        (["train", "bg.txt", "-o", "run"], "bg.txt: no such file"),
        (["train", "a[/x]b", "-o", "run"], "a[/x]b: no such configuration file"),
        (["evaluate", "PRESET"], "a file, not a folder"),
        (["score", "PRESET", "a[/x]b.csv", "-o", "s.csv"], "neither a run folder nor a model of the zoo"),
        (["score", "toy-2gauss-nae", "..", "-o", "s.csv"], "a folder"),
        (["score", "toy-2gauss-nae", "a[/x]b.csv", "-o", "s.csv"], "a[/x]b.csv: no such file"),
        (["dual", "toy-2gauss-nae", "toy-1gauss-nae", "--data", ".."], "a folder"),
        (["temperature", "search", "PRESET", "-o", "s"], "expected two configurations and --out"),
        (["temperature", "PRESET", "PRESET"], "expected two configurations and --out FOLDER"),
        (["temperature", "estimate", "PRESET"], "neither a run folder nor a model of the zoo"),
        (["histogram", "toy-2gauss-nae", "..", "-o", "h"], "a folder"),
        (["export", "PRESET", "--onnx", "-o", "m.onnx"], "neither a run folder nor a model of the zoo"),
        (["jets", "info", ".."], "a folder"),
        (["jets", "convert", "a[/x]b.h5", "-o", "j.h5"], "a[/x]b.h5"),
        (["train", "PRESET", "--out", "run", "--set", "training.epoch=1"], "did you mean 'epochs'"),
        (["train", "PRESET", "--out", "run", "--seeds", "a-b"], "--seeds: expected a list"),
        (["train", "PRESET", "--out", "run", "--set", "device=gpu"], "device: expected auto, cpu or cuda"),
        (["evaluate", "none"], "no such run folder"),
        (["report", "."], "not a run folder"),
        (["info", "none"], "no such run folder"),
        (["sample", "none", "-o", "x.npz"], "neither a run folder nor a model of the zoo"),
        (["sample", "none", "-o", "x.txt"], "expected a name that ends in .npz"),
        (["reproduce", "world"], "reproduce: expected toy"),
        (["train", "PRESET", "--out", "PRESET"], "a file, not a folder"),
        (["train", "PRESET", "--out", "PRESET/sub"], "a file, not a folder"),
        (["train", "PRESET", "--out", "run", "--set", "device=meta"], "device: expected auto, cpu or cuda"),
        (["train", "PRESET", "--out", "run", "--set", "data.train=100000000000000"], "data.train: expected 1 to"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(preset, tmp_path, arguments, message, monkeypatch, capsys):
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    (tmp_path / "bg.csv.gz").write_bytes(b"no text")
    assert command(*[str(a).replace("PRESET", str(preset)) for a in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert list(folder.iterdir()) == [], "nothing is left behind"


def test_divergence_is_exit_code_1(preset, tmp_path, capsys):
    assert command("train", preset, "--out", tmp_path / "run", "--set", "training.learning_rate=3e38") == 1
    error = capsys.readouterr().err
    assert "the training diverged" in error
    assert "Traceback" not in error


def test_after_several_seeds_the_next_command_is_one_that_works(preset, tmp_path, capsys):
    out = tmp_path / "seeds"
    assert command("train", preset, "--out", out, "--seeds", "4,2") == 0
    following = capsys.readouterr().out.strip().splitlines()[-1].partition("Next: normae ")[2].split()
    assert following == ["evaluate", str(out / "seed-2")]
    assert command(*following, "--no-figures") == 0


def long_preset(folder: Path, epochs: int) -> Path:
    path = folder / "long.toml"
    content = tiny(training__epochs=epochs, pretraining__epochs=5, guard={"log_every": 5, "checkpoint_every": 25})
    path.write_text(to_toml(structure(content)))
    return path


def written(path: Path) -> int:
    """When, 0 for never."""
    return path.stat().st_mtime_ns if path.exists() else 0


def wait_for(path: Path, process: subprocess.Popen, since: int = 0, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while written(path) <= since and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    """A run that nothing stopped, beside its preset."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert command("train", long_preset(folder, epochs=30), "--out", folder / "whole") == 0
    return folder / "whole"


def test_interrupt_leaves_a_resumable_run(uninterrupted, tmp_path):
    preset = uninterrupted.parent / "long.toml"
    process = start("train", preset, "--out", tmp_path / "run")
    wait_for(tmp_path / "run" / "metrics.jsonl", process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "stopped; the run is safe. Go on with: normae train" in error
    assert len(error.strip().splitlines()) == 1
    assert "Traceback" not in error
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert command("train", preset, "--out", tmp_path / "run", "--resume") == 0
    assert same_result(tmp_path / "run", uninterrupted)


def same_result(a: Path, b: Path) -> bool:
    """Weights to the last bit, and the same lines of metrics but for the clock."""
    lines = [[json.loads(line) for line in (p / "metrics.jsonl").read_text().splitlines()] for p in (a, b)]
    for line in lines[0] + lines[1]:
        line.pop("seconds", None)
    return (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes() and lines[0] == lines[1]


def assert_whole(run: Path) -> None:
    """Every file under its final name can be read whole, whenever the job was killed."""
    for path in run.rglob("*"):
        if path.name.startswith(".") or not path.is_file():
            continue
        if path.suffix == ".safetensors":
            read_tensors(path)
        elif path.suffix == ".toml":
            read(path)
        elif path.suffix == ".jsonl":
            assert all(json.loads(line) for line in path.read_text().splitlines())
        else:
            json.loads(path.read_text())


def kill_and_resume(whole: Path, run: Path, kills: int, seconds: float, seed: int) -> None:
    """Kill the training of `whole` up to `seconds` after it began, then after new checkpoints; at last let it end."""
    preset = whole.parent / "long.toml"
    rng, state = random.Random(seed), run / "checkpoint" / "state.safetensors"
    for kill in range(kills):
        before = written(state)
        process = start("train", preset, "--out", run, *(["--resume"] if (run / "config.toml").exists() else []))
        wait_for(state if kill else run / ".lock", process, before)
        time.sleep(rng.uniform(0, seconds))
        process.kill()
        _, error = process.communicate(timeout=60)
        assert process.returncode == -9, f"the training ended before it could be killed: {error}"
        assert_whole(run)
    assert command("train", preset, "--out", run, "--resume") == 0
    assert same_result(run, whole)
    assert not list(run.rglob("*normae-part*")), "what a killed job had begun to write is cleared away"


def test_kill_9_and_resume(uninterrupted, tmp_path):
    """About when it begins, after its first checkpoint, and after one of the resumed training."""
    kill_and_resume(uninterrupted, tmp_path / "run", 3, 0.3, seed=1)


@pytest.mark.slow
def test_kill_9_at_twenty_moments(tmp_path):
    assert command("train", long_preset(tmp_path, epochs=800), "--out", tmp_path / "whole") == 0
    kill_and_resume(tmp_path / "whole", tmp_path / "run", 20, 0.8, seed=2)


def test_info_of_a_table_says_that_all_other_rows_were_used(tmp_path, capsys):
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32))
    data = {"file": str(tmp_path / "rows.npy"), "train": 0, "test": 100}
    (tmp_path / "my.toml").write_text(to_toml(structure(tiny(data=data, training__epochs=1))))
    assert command("train", tmp_path / "my.toml", "--out", tmp_path / "run") == 0
    assert command("info", tmp_path / "run") == 0
    assert "all events but those held out" in " ".join(capsys.readouterr().out.split())


def test_seeds():
    assert parse_seeds(None) is None
    assert parse_seeds("0-3") == [0, 1, 2, 3]
    assert parse_seeds("4,7,9-10") == [4, 7, 9, 10]
    for bad in ("", "a", "3-1", "1,,2"):
        with pytest.raises(InputError):
            parse_seeds(bad)
