"""One training on two processes, started as a user starts it: with torchrun, on the CPU through gloo."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from command import command
from normae.config import structure, to_toml
from normae.data import two_gaussians
from normae.errors import InputError
from normae.networks import build_mlp_autoencoder
from normae.runs.folder import read_tensors
from normae.tensors import stream
from normae.training import Schedules, Trainer
from normae.training.backends import Group, processes
from tiny_run import tiny

TOGETHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
SEEDS = 16
CPU = torch.device("cpu")


def launch(*arguments: object) -> subprocess.Popen:
    line = [sys.executable, *TOGETHER, "normae", "train", *map(str, arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def train(*arguments: object) -> str:
    process = launch(*arguments)
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    return out


def preset(folder: Path, **changes: object) -> Path:
    path = folder / "preset.toml"
    path.write_text(to_toml(structure(tiny(**changes))))
    return path


def curves(run: Path, name: str) -> np.ndarray:
    """A metric of all seeds with shape (seeds, lines)."""
    files = [run / f"seed-{seed}" / "metrics.jsonl" for seed in range(SEEDS)]
    return np.array([[json.loads(line).get(name, 0.0) for line in f.read_text().splitlines()] for f in files])


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """The same sixteen seeds on two processes and on one."""
    folder = tmp_path_factory.mktemp("torchrun")
    config = preset(folder, training__epochs=4, guard={"log_every": 5, "checkpoint_every": 10})
    out = train(config, "--out", folder / "two", "--seeds", f"0-{SEEDS - 1}")
    assert out.count("Trained:") == 1, "one process speaks"
    assert command("train", config, "--out", folder / "one", "--seeds", f"0-{SEEDS - 1}") == 0
    return folder


@pytest.mark.parametrize("name", ["positive_energy", "negative_energy", "temperature", "feature_acceptance"])
def test_same_curves_as_one_process_of_the_same_batch(runs, name):
    """Mean over seeds of the differences at each line of metrics: within five errors, of 15 degrees of freedom."""
    difference = curves(runs / "two", name) - curves(runs / "one", name)
    assert difference.shape == (SEEDS, 12)
    error = difference.std(axis=0, ddof=1) / SEEDS**0.5
    assert (np.abs(difference.mean(axis=0)) <= 5 * error + 1e-6).all()
    if name == "positive_energy":
        assert (error > 0).all(), "the processes saw other batches and drew other numbers"


def test_a_whole_batch_is_the_same_update(tmp_path):
    """With all events in each batch both see the same ones: equal weights. Clipping would tell a sum from a mean."""
    changes = {"pretraining__batch": 2000, "pretraining__epochs": 8, "pretraining__gradient_clip": 0.05}
    config = preset(tmp_path, training__epochs=0, **changes)
    train(config, "--out", tmp_path / "two")
    assert command("train", config, "--out", tmp_path / "one") == 0
    two, one = (read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("two", "one"))
    assert all(torch.allclose(two[name], one[name], atol=1e-5) for name in one)
    provenance = json.loads((tmp_path / "two" / "provenance.json").read_text())
    assert provenance["processes"] == 2


def test_interrupt_and_resume(runs, tmp_path, capsys):
    """Stopped in the middle and resumed: the same numbers to the last bit, also of the second process's chains."""
    arguments = (runs / "preset.toml", "--out", tmp_path / "run", "--seeds", f"0-{SEEDS - 1}")
    process = launch(*arguments)
    begun = tmp_path / "run" / "seed-0" / "metrics.jsonl"
    end = time.monotonic() + 120
    while not begun.exists() and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "Go on with: normae train" in error
    state, header = read_tensors(tmp_path / "run" / "checkpoint" / "state.safetensors")
    assert header["processes"] == 2
    assert {"process.1.buffer", "process.1.generator.0"} <= set(state)
    assert command("train", *arguments, "--resume") == 2
    assert "was begun with 2 processes, got 1" in capsys.readouterr().err
    train(*arguments, "--resume")
    for seed in range(SEEDS):
        a, b = (r / f"seed-{seed}" / "model.safetensors" for r in (tmp_path / "run", runs / "two"))
        assert a.read_bytes() == b.read_bytes()


def test_one_process_is_a_group_of_its_own():
    with processes() as group:
        assert (group.rank, group.size) == (0, 1)
        x = torch.ones(3)
        assert group.mean(x) is x
        assert group.gather(x) == [x]
        assert group.any(True)


@pytest.mark.parametrize(
    ("n", "batch", "message"), [(900, 200, "a multiple of the 3 processes"), (2, 300, "at least one event for each")]
)
def test_what_cannot_be_shared_is_refused(make_run, n, batch, message):
    run = make_run(pretraining__batch=batch, training__batch=batch)
    network = build_mlp_autoencoder(run.network, (2,), stream(0, "init"))
    events = two_gaussians().sample(n, stream(0, "x"))
    with pytest.raises(InputError, match=message):
        Trainer([network], [events], Schedules(run.pretraining, run.training), run.sampling, [0], CPU, Group(size=3))
