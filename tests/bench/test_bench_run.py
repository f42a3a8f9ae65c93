"""The command as a user runs it, on tiny sizes, and what it compares with."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import command as here
from normae.bench import GROUPS, bench
from normae.bench.jets import synthetic
from normae.bench.timing import Missing, plain
from normae.bench.toy import torchebm
from normae.errors import InputError
from normae.jets.imaging import images
from normae.tensors import stream

CPU = torch.device("cpu")


def command(*arguments: object) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    line = [sys.executable, "-W", "error", "-m", "normae", "bench", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, env=environment, check=False)


def test_the_user_s_path(tmp_path):
    done = command("--quick", "-o", tmp_path / "out", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    for text in (
        "toy iteration: explicit over matrix products",
        "sampling: adapted step",
        "jet images: ours",
        "jet iteration, batch 4: reference against plain",
    ):
        assert text in done.stdout
    content = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert content["machine"]["quick"] is True
    assert content["machine"]["threads"] == 1
    value = content["numbers"]["toy iteration: explicit over matrix products"]
    assert value["value"] > 0
    assert value["unit"] == "floors"
    assert len(content["rounds_seconds"]["toy iteration: explicit"]) == content["machine"]["rounds"]
    for suffix in ("svg", "pdf", "csv"):
        assert (tmp_path / "out" / f"bench.{suffix}").stat().st_size > 0
    header = (tmp_path / "out" / "bench.csv").read_text().splitlines()[0]
    assert header == "comparison,times_as_fast,error"


def test_unknown_name_is_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert here.command("bench", "--only", "world", "-o", tmp_path / "out") == 2
    assert capsys.readouterr().err.strip() == f"normae: --only: expected one of {', '.join(GROUPS)}, got 'world'"
    assert not (tmp_path / "out").exists()


def test_earlier_numbers_are_replaced_only_where_that_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(GROUPS, "toy", lambda *_: None)
    bench(tmp_path / "out", only="toy", quick=True, device="cpu")
    before = (tmp_path / "out" / "bench.json").stat().st_ino
    with pytest.raises(InputError, match="exists already"):
        bench(tmp_path / "out", only="toy", quick=True, device="cpu")
    assert (tmp_path / "out" / "bench.json").stat().st_ino == before
    bench(tmp_path / "out", only="toy", quick=True, device="cpu", force=True)
    assert (tmp_path / "out" / "bench.json").stat().st_ino != before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_library_call_without_a_folder():
    result = bench(only="scoring", quick=True, device="cpu")
    assert {row.unit for row in result.rows} == {"1/s", "times"}
    assert result.value(result.rows[0].name) == result.rows[0].value
    with pytest.raises(InputError, match="at least 2"):
        bench(rounds=1)


def test_what_is_not_installed_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchebm.core", None)
    result = bench(only="toy", quick=True, device="cpu", rounds=2)
    assert result.skipped == ["torchebm is not installed; install the extra normae[bench] to compare with it"]
    assert not any("torchebm" in row.name for row in result.rows)
    with pytest.raises(Missing, match="run from a clone"):
        plain("nothing")


def test_torchebm_takes_our_steps():
    """Its chain on E = x^2/2 at T = 0.3 settles at the same variance: the settings mean the same."""
    pytest.importorskip("torchebm")
    sampler = torchebm(lambda x: 0.5 * x.square().sum(1), 0.3, 0.01, None, CPU)
    end = sampler.sample(torch.zeros(4000, 2), n_steps=300, generator=stream(0, "x"))
    assert float(end.var()) == pytest.approx(0.3, abs=0.02)
    clamped = torchebm(lambda x: 0.5 * x.square().sum(1), 0.3, 0.01, (-0.1, 0.1), CPU)
    assert clamped.sample(torch.zeros(50, 2), n_steps=20, generator=stream(0, "x")).abs().max() <= 0.1


@pytest.mark.parametrize("metropolis", [False, True])
def test_the_plain_chain_samples_what_ours_does(metropolis):
    """A yardstick must do the same work: variance T on a parabola, and an iteration that moves the weights."""
    model = plain("plain_nae").PlainNAE(2, 3, [16, 16], 2, 3, 0.02, 0.3, (-4.0, 4.0), metropolis, buffer=100)
    end = model.chain(lambda x: 0.5 * x.square().sum(1), torch.zeros(4000, 2), 300, (-4.0, 4.0))
    assert float(end.var()) == pytest.approx(0.3, abs=0.03)
    before = [p.detach().clone() for p in model.encoder.parameters()]
    for _ in range(3):
        model.iteration(torch.randn(64, 2, generator=stream(0, "x")))
    assert len(model.buffer) == 100
    assert all(not torch.equal(a, b) for a, b in zip(before, model.encoder.parameters(), strict=True))


def test_the_plain_images_are_ours():
    jets = synthetic(50)
    theirs = plain("plain_images").images(jets.pt, jets.eta, jets.phi, jets.offsets)
    same = np.isclose(images(jets)[:, 0], theirs, atol=1e-4).all(axis=(1, 2))
    assert same.mean() > 0.9, "but for constituents on the edge of a pixel"
