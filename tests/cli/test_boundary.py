"""Whatever goes wrong is one sentence with its exit code; the environment decides nothing in silence."""

import errno
import io
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from safetensors import SafetensorError

import normae
from command import command
from normae import errors, zoo
from normae.cli import console
from normae.config import structure, to_toml
from normae.data import split
from normae.errors import InputError
from normae.runs.folder import RunFolder, read_tensors, write_tensors
from normae.tensors import stream
from normae.training.backends import processes
from tiny_run import tiny


def sentence(capsys) -> str:
    """The one line on standard error."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert len(lines) == 1, lines
    assert lines[0].startswith("normae: ")
    return lines[0]


def preset(folder: Path, **changes: object) -> Path:
    (folder / "tiny.toml").write_text(to_toml(structure(tiny(**changes))))
    return folder / "tiny.toml"


def arrow_error() -> None:
    pyarrow.parquet.read_table(pa.BufferReader(b"no parquet at all"))


def full_disk() -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def hdf5_error() -> None:
    with h5py.File("x.h5", "w", driver="core", backing_store=False) as file:
        file["a"] = 1.0
        file["a"] = 2.0


ERRORS = {
    "torch": (lambda: torch.zeros(2) @ torch.zeros(3), 4, "RuntimeError"),
    "Arrow": (arrow_error, 4, "pyarrow.lib.ArrowInvalid"),
    "HDF5": (hdf5_error, 2, "name already exists"),
    "memory of torch": (lambda: torch.empty(1 << 60), 3, "out of memory"),
    "memory of numpy": (lambda: np.empty(1 << 56), 3, "out of memory"),
    "full disk": (full_disk, 3, "the disk is full or broken"),
    "broken disk": (lambda: os.write(os.open("/dev/full", os.O_WRONLY), b"x"), 3, "No space left"),
    "one's own": (lambda: {}["key"], 4, "KeyError: 'key' (NORMAE_TRACEBACK=1 shows where)"),
}


@pytest.mark.parametrize("name", list(ERRORS))
def test_errors_of_libraries(name, monkeypatch, capsys):
    """Raised by the real libraries within a command; never a traceback, and one on demand."""
    fail, code, words = ERRORS[name]
    monkeypatch.setattr(sys.modules["normae.cli.train"], "describe", lambda path: fail())
    assert command("presets") == code
    assert words in sentence(capsys)
    monkeypatch.setenv("NORMAE_TRACEBACK", "1")
    with pytest.raises((RuntimeError, ValueError, OSError, MemoryError, KeyError, SafetensorError)):
        command("presets")


def test_every_failure_of_a_disk():
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        for error in (OSError(number, "writing failed", "f"), RuntimeError(f"I/O error: {os.strerror(number)}")):
            assert console.judged(error)[1] == 3
    assert console.judged(PermissionError(errno.EACCES, "Permission denied", "f"))[1] == 2


@pytest.mark.parametrize("kind", [errors.LogZDisagreement, errors.TrainingDiverged, errors.ClusterFailed])
def test_what_failed_though_the_input_was_good(kind):
    sentence, code = console.judged(kind("why"))
    assert "why" in sentence
    assert code == 1


def test_nohup_has_a_terminal_that_closes_ignored():
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        with console.signals_heard():
            assert {signal.getsignal(number) for number in before} == {signal.SIG_IGN}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_during_a_training(number, tmp_path, monkeypatch, capsys):
    """At the fourth file: a sentence, exit code 3, and the training goes on to the same bytes when there is room."""
    config = preset(tmp_path, device="cpu", pretraining__epochs=1, training__epochs=1)
    assert command("train", config, "-o", tmp_path / "whole") == 0
    real, calls = os.fsync, []

    def fails(*arguments, **more):
        calls.append(arguments)
        if len(calls) >= 4:
            raise OSError(number, os.strerror(number))
        return real(*arguments, **more)

    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        assert command("train", config, "-o", tmp_path / "run") == 3
    assert os.strerror(number) in sentence(capsys)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert command("train", config, "-o", tmp_path / "run", "--resume") == 0
    models = [tmp_path / name / "model.safetensors" for name in ("whole", "run")]
    assert models[0].read_bytes() == models[1].read_bytes()


# --- what cannot be


def test_toml_and_json_nested_deeply(tmp_path, capsys):
    (tmp_path / "deep.toml").write_text("a = " + "[" * 5000 + "]" * 5000)
    assert command("train", tmp_path / "deep.toml", "-o", tmp_path / "run") == 2
    assert "deep.toml: not a TOML file" in sentence(capsys)
    deep = "name=" + "[" * 5000 + "]" * 5000
    assert command("train", "toy-quick", "-o", tmp_path / "run", "--set", deep, "--set", "x=1") == 2
    assert "'x'" in sentence(capsys)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="deep.json: cannot be read as JSON"):
        normae.runs.folder.read_json(tmp_path / "deep.json")


@pytest.mark.parametrize("changes", [{"hidden": [1_000_000, 1_000_000]}, {"hidden": [1 << 40]}])
def test_a_network_that_no_machine_holds(changes, tmp_path, capsys):
    config = preset(tmp_path, network=changes)
    assert command("train", config, "-o", tmp_path / "run") == 2
    assert "GB of memory, this machine has" in sentence(capsys)


def test_a_training_that_no_machine_holds(tmp_path, monkeypatch, capsys):
    """The network itself would fit: its training holds the weights many times, and rows at the widest layer."""
    monkeypatch.setattr(errors, "LIMIT", tmp_path / "memory.max")
    errors.LIMIT.write_text("2000000000\n")
    config = preset(tmp_path, network={"latent": 500_000})
    assert command("train", config, "-o", tmp_path / "run") == 2
    assert "network: its training takes" in sentence(capsys)
    np.savetxt(tmp_path / "t.csv", np.random.default_rng(0).normal(size=(1000, 3)), delimiter=",", header="a,b,c")
    assert command("train", tmp_path / "t.csv", "-o", tmp_path / "run", "--set", "network.latent=300000") == 2
    assert "network: its training takes" in sentence(capsys)


def test_memory_of_a_job(tmp_path, monkeypatch):
    """The limit of a container counts where it is lower than what the machine has."""
    monkeypatch.setattr(errors, "LIMIT", tmp_path / "memory.max")
    whole = errors.memory()
    (tmp_path / "memory.max").write_text("max\n")
    assert errors.memory() == whole > 1 << 28
    (tmp_path / "memory.max").write_text("1000000\n")
    assert errors.memory() == 1_000_000
    errors.check_memory(1_000_000, "a table")
    with pytest.raises(InputError, match=r"a table takes 2.5 GB of memory, this machine has 0.0"):
        errors.check_memory(2_500_000_000, "a table")


WRONG = {
    "event": [[-4], [0], [], ["x"], 2], "temperature": [-1, 0, float("nan"), float("inf"), None, 10**400],
    "step_sizes": [[0.1, -1], [0.1, float("nan")], [1]], "log_z": [[float("nan"), 0, [-1, 1]], [1, -1, [-1, 1]], [1]],
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_headers_that_no_training_writes(key, value, tmp_path):
    source = Path(zoo.path("toy-2gauss-nae"))
    tensors, header = read_tensors(source / "model.safetensors")
    (tmp_path / "config.toml").write_bytes((source / "config.toml").read_bytes())
    write_tensors(tmp_path / "model.safetensors", tensors, header)
    normae.load(tmp_path)
    write_tensors(tmp_path / "model.safetensors", tensors, header | {key: value})
    with pytest.raises(InputError, match="the header of model.safetensors lacks or garbles"):
        normae.load(tmp_path)


def test_a_history_of_many_lines(tmp_path):
    """Every k-th is held, with all rollbacks and the last; a line that is none of metrics is refused still."""
    line = '{"phase": "training", "iteration": %d, "positive_energy": 0.1, "temperature": 1.0}\n'
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for k in range(1, 40_001):
            file.write(line % k if k != 777 else '{"phase": "training", "iteration": 777, "rollback": "why"}\n')
    folder = RunFolder(tmp_path)
    tracemalloc.start()
    try:
        found = folder.read_history(4000)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert [one["iteration"] for one in found[:2]] == [10, 20]
    assert [one["iteration"] for one in found if "rollback" in one] == [777]
    assert found[-1]["iteration"] == 40_000
    assert len(found) == 4001
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write("x\n")
    with pytest.raises(InputError, match="line 40001 is not a line of metrics"):
        folder.read_history()
    (tmp_path / "metrics.jsonl").write_text("[" * 100_000 + "\n")
    with pytest.raises(InputError, match="line 1 is not a line of metrics"):
        folder.read_history()


@pytest.mark.parametrize("outside", [1, 540])
def test_rows_outside_the_bounds(outside, tmp_path, capsys):
    """Where the density is zero by definition no row of a table may be, not even one."""
    x = np.random.default_rng(0).uniform(-1, 1, size=(1000, 2))
    np.save(tmp_path / "t.npy", x)
    config = preset(tmp_path, data={"file": str(tmp_path / "t.npy"), "train": 0, "test": 0}, pretraining__epochs=1,
                    training__epochs=0, sampling__feature__bounds=[-1.5, 1.5])  # fmt: skip
    assert command("train", config, "-o", tmp_path / "fits") == 0
    x[:outside, 1] = 1.6
    np.save(tmp_path / "t.npy", x)
    capsys.readouterr()
    assert command("train", config, "-o", tmp_path / "run") == 2
    assert f"{outside} of 1000 rows lie outside the bounds of the chain, -1.5 to 1.5" in sentence(capsys)


@pytest.mark.parametrize("part", ["validation", "test"])
def test_rows_held_out_that_lie_outside_the_bounds(part, tmp_path, capsys):
    """They cannot occur, and p-values would count them as background."""
    x = np.random.default_rng(0).uniform(-1, 1, size=(1000, 2))
    _, test, validation = split(1000, [700, 200, 100], stream(0, "data/split"))
    x[(validation if part == "validation" else test)[0], 1] = 1.6
    np.save(tmp_path / "t.npy", x)
    data = {"file": str(tmp_path / "t.npy"), "train": 700, "test": 200, "validation": 100}
    config = preset(tmp_path, data=data, sampling__feature__bounds=[-1.5, 1.5])
    assert command("train", config, "-o", tmp_path / "run") == 2
    rows = 100 if part == "validation" else 200
    assert f"1 of {rows} rows lie outside the bounds of the chain, -1.5 to 1.5" in sentence(capsys)


# --- the environment


@pytest.mark.parametrize("rank", ["abc", "1", "-1", ""])
def test_ranks_count_under_torchrun_only(rank, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert errors.team() == (0, 1)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert errors.team() == ((1, 2) if rank == "1" else (0, 1))


def test_a_rank_in_the_environment_silences_nothing():
    """The console reads it as it is imported."""
    line = [sys.executable, "-m", "normae", "--version"]
    for rank in ("1", "abc"):
        done = subprocess.run(line, env=os.environ | {"RANK": rank}, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == normae.__version__


def test_what_the_environment_decides_is_said(monkeypatch, caplog, tmp_path):
    errors.decided.cache_clear()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for _ in range(2):
        with processes() as team:
            assert team.size == 1
    assert [record.message for record in caplog.records] == [
        "RANK and WORLD_SIZE are set, but not by torchrun: this process trains alone"
    ]


# --- names


def test_a_run_whose_name_is_no_text(tmp_path, monkeypatch):
    """What a folder is called is printed as it can be, on standard output too, and is never read as markup."""
    config = preset(tmp_path, pretraining__epochs=1, training__epochs=0)
    name, shown = os.fsdecode(b"run\xff[/red]"), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="utf-8", write_through=True))
    assert command("train", config, "-o", tmp_path / name) == 0
    assert rb"run\udcff[/red]. Next" in shown.getvalue()
    assert (tmp_path / name / "model.safetensors").is_file()


IN_A_CALLBACK = """
import signal, sys, time, typer, weakref
from normae.cli.console import run
class Lock: pass
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may have started the tests
app = typer.Typer()
@app.command()
def wait():
    lock = Lock()
    reference = weakref.ref(lock, lambda _: signal.raise_signal(signal.{name}))
    del lock
    for _ in range(500):
        time.sleep(0.01)
sys.argv = ["normae"]
run(app)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_in_a_callback_is_not_lost(name):
    done = subprocess.run([sys.executable, "-c", IN_A_CALLBACK.format(name=name)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "normae: interrupted\n")


IN_A_CLASS = """
import signal, sys, typer
from normae.cli.console import run
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
class Late:
    def __set_name__(self, owner, name):
        signal.raise_signal(signal.{name})
app = typer.Typer()
@app.command()
def make():
    class Made:
        late = Late()
sys.argv = ["normae"]
run(app)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_while_a_class_is_made_is_not_an_error(name):
    done = subprocess.run([sys.executable, "-c", IN_A_CLASS.format(name=name)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "normae: interrupted\n")


def test_an_error_that_is_its_own_cause_is_no_interrupt():
    error = ValueError("a")
    error.__cause__ = error
    assert not console.interrupted(error)
    error.__cause__ = KeyboardInterrupt()
    assert console.interrupted(error)
