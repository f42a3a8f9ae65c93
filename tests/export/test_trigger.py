"""Distillation and the trigger's folder; the compiled emulation is in test_fixed.py."""

import json
import shutil

import numpy as np
import pytest
import torch

import normae
from normae.config import structure
from normae.coordinates import Identity
from normae.data import DENSITIES
from normae.errors import InputError
from normae.export.fixed import type_for
from normae.export.trigger import TriggerSettings, _through, distill, export_trigger, noise_around, target
from normae.runs.session import train
from tiny_run import tiny
from tiny_table import rows

SMALL = TriggerSettings(hidden=(8,), bits=12, epochs=3, events=2000, test=1000)


def background(count: int, seed: int) -> np.ndarray:
    return DENSITIES["two-gaussians"]().sample(count, torch.Generator().manual_seed(seed)).numpy()


@pytest.fixture(scope="module")
def students():
    model = normae.load("toy-2gauss-nae")
    model.coordinates = Identity()  # as `export_trigger` has it
    x = background(2000, 0)
    return {bits: distill(model.score, x, TriggerSettings((16, 8), bits, epochs=10), batch=64) for bits in (16, 6)}


def test_the_student_has_the_teacher_s_score(students):
    model, x = normae.load("toy-2gauss-nae"), background(2000, 1)
    x = np.concatenate([x, noise_around(x, np.random.default_rng(1))])
    model.coordinates = Identity()
    wanted = target(model.score(x))
    found = students[16].rounded(x)
    assert np.corrcoef(found, wanted)[0, 1] > 0.9
    off = np.abs(found - students[16].real(x))
    assert np.quantile(off, 0.99) < 20 * students[16].fixed.layers[-1].result.step
    assert students[16].fixed.input.width == 16


def test_few_bits_are_seen(students):
    """Six bits lose more than sixteen, and the outputs are whole steps of their type."""
    x = background(2000, 1)
    losses = {bits: np.sqrt(np.square(s.rounded(x) - s.real(x)).mean()) for bits, s in students.items()}
    assert losses[6] > 10 * losses[16]
    steps = students[6].rounded(x) / students[6].fixed.layers[-1].result.step
    assert np.array_equal(steps, np.round(steps))
    assert len(np.unique(steps)) <= 2**6


def test_training_rounds_as_the_arithmetic_does():
    values = torch.from_numpy(np.random.default_rng(0).normal(0, 3, size=500)).float().requires_grad_()
    for kind in (type_for(2.0, 6), type_for(0.01, 16), type_for(100.0, 8)):
        rounded = _through(values, kind)
        assert np.allclose(rounded.detach().numpy(), kind.values(kind.of(values.detach().numpy())), rtol=1e-6, atol=0)
        (slope,) = torch.autograd.grad(rounded.sum(), values)
        assert (slope == 1).all()


def test_scales_are_powers_of_two(students):
    assert np.array_equal(np.log2(students[16].scale), np.round(np.log2(students[16].scale)))


@pytest.mark.filterwarnings("ignore")  # hls4ml's own
def test_the_folder(tmp_path, monkeypatch):
    """Written without a compiler, which takes half a minute."""
    pytest.importorskip("hls4ml")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    train(structure(tiny(data__train=3000)), tmp_path / "run")
    np.savez(tmp_path / "signal.npz", x=np.random.default_rng(0).uniform(-4, 4, size=(500, 2)).astype(np.float32))
    report = export_trigger(tmp_path / "run", tmp_path / "out", SMALL, [tmp_path / "signal.npz"])
    assert report["emulation"]["outputs_that_differ"] is None
    assert report["events"] == {"background": 1000, "noise": 1000, "signal": 500}
    for name in ("noise", "signal"):
        areas = report[f"auc_{name}"]
        assert areas["loss"]["value"] == pytest.approx(areas["original"]["value"] - areas["fixed"]["value"], abs=1e-9)
        assert 0 <= report[f"efficiency_{name}"]["0.01"]["fixed"]["value"] <= 1
    kept = json.loads((tmp_path / "out" / "trigger.json").read_text())
    assert kept["network"]["weights"][0].startswith("fixed<12,")
    defines = (tmp_path / "out" / "hls4ml" / "firmware" / "defines.h").read_text()
    assert f"ap_{kept['network']['input'].split(',RND')[0]},AP_RND,AP_SAT,0> input_t" in defines
    settings = (tmp_path / "out" / "hls4ml" / "hls4ml_config.yml").read_text()
    assert "!!python" not in settings
    assert str(tmp_path) not in settings
    assert (tmp_path / "out" / "figures" / "trigger.svg").is_file()
    assert not list(tmp_path.glob(".*.part"))


def test_refused(tmp_path, monkeypatch):
    pytest.importorskip("hls4ml")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(InputError, match="exists already"):
        export_trigger("toy-2gauss-nae", tmp_path / "taken", SMALL)
    for changes, words in (({"bits": 3}, "--bits"), ({"hidden": ()}, "--hidden"), ({"events": 1}, "100 events")):
        with pytest.raises(InputError, match=words):
            TriggerSettings(**changes)
    from normae.export import trigger as workflow

    with pytest.raises(InputError, match="differs from our arithmetic in 1 of 2"):
        workflow._refuse_other_bits(np.array([0.0, 1.0]), np.array([0.0, 2.0]))
    scorer = workflow.open_scorer("toy-2gauss-nae", device="cpu")
    scorer.model.event = (1, 40, 40)
    monkeypatch.setattr(workflow, "open_scorer", lambda *a, **k: scorer)
    with pytest.raises(InputError, match="vectors"):
        export_trigger("toy-2gauss-nae", tmp_path / "out", SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_whole_with_a_compiler(tmp_path):
    pytest.importorskip("hls4ml")
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    settings = TriggerSettings(events=30_000, test=5000)
    report = export_trigger("toy-2gauss-nae", tmp_path / "out", settings)
    assert report["emulation"]["outputs_that_differ"] == 0
    assert report["pearson"]["background"]["value"] > 0.99
    assert abs(report["auc_noise"]["loss"]["value"]) < 0.01


@pytest.mark.filterwarnings("ignore")  # hls4ml's own
def test_a_run_on_a_table(table_run, tmp_path, monkeypatch):
    """The student takes rows as they are, and its scores are above an offset that is none below."""
    pytest.importorskip("hls4ml")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    report = export_trigger(table_run.path, tmp_path / "out", TriggerSettings(hidden=(16,), epochs=150))
    model, x = normae.load(table_run.path), rows(500, seed=1)
    network = json.loads((tmp_path / "out" / "trigger.json").read_text())["network"]
    offset = network["offset"]
    assert offset < -10  # in MeV
    assert (model.score(x) + offset).min() > 0
    assert report["pearson"]["background"]["value"] > 0.6
    assert np.allclose(network["centre"], x.mean(0), rtol=0.2, atol=0.2)
