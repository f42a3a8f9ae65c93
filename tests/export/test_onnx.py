"""Exported graphs against the models that they came from: every posterior, images, tables; and what is refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import normae
from normae.cli import app
from normae.config import read, structure
from normae.errors import InputError
from normae.networks.autoencoder import conv_decoder
from normae.networks.mlp import ACTIVATIONS
from normae.runs.session import train
from tiny_run import tiny
from tiny_table import rows

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from normae.export import onnx as workflow  # noqa: E402
from normae.export.graph import Graph, Node, onnx_model  # noqa: E402
from normae.export.onnx import (  # noqa: E402
    compare,
    export_onnx,
    run_onnx,
)

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "tests" / "jets" / "data" / "sample.npz"
POSTERIORS = {
    "plain": {},
    "sphere": {
        "network__latent_space": "sphere",
        "network__activation": "relu",
        "sampling__latent__sphere": "geodesic",
    },
    "spectral": {"network__spectral_norm": True, "network__activation": "tanh"},
    "last": {"bayesian": {"layers": "last"}},
    "all": {"bayesian": {"layers": "all", "pretraining": "shared"}, "network__activation": "gelu"},
    "ensemble": {"ensemble": {"members": 4}},
}
JETS = [
    "device=cpu", "data.train=40", "data.test=20", "data.validation=0", "network.channels=2", "network.hidden=[8]",
    "pretraining.epochs=1",
    "pretraining.batch=20", "training.epochs=1", "training.batch=20", "sampling.buffer=20", "sampling.latent.steps=1",
    "sampling.feature.steps=1", "guard.largest_gap=1e9", f"data.path={SAMPLE}",
]  # fmt: skip


def events(count: int = 300, seed: int = 0) -> np.ndarray:
    """Within the data and far outside of it."""
    return (3 * np.random.default_rng(seed).normal(size=(count, 2))).astype(np.float32)


@pytest.mark.parametrize("name", POSTERIORS)
def test_every_kind_of_run(name, tmp_path):
    short = {"pretraining__epochs": 1, "training__epochs": 1}
    train(structure(tiny(**POSTERIORS[name], **short)), tmp_path / "run")
    found = export_onnx(tmp_path / "run", tmp_path / "m.onnx", draws=20)
    assert {"energy", "score", "log_prob"} <= set(found)
    assert all(difference.share <= 1 for difference in found.values())
    model, x = normae.load(tmp_path / "run"), events()
    out = run_onnx(tmp_path / "m.onnx", x)
    assert out["score"].shape == (300,)
    if name in ("plain", "sphere", "spectral"):
        assert np.allclose(out["log_prob"], model.log_prob(x), rtol=1e-4, atol=1e-4)
        return
    draws = model.score_draws(x, 20)
    assert out["score_draws"].shape == (20, 300)
    assert np.allclose(out["score_draws"], draws, rtol=1e-4, atol=1e-3)
    assert np.allclose(out["score_std"], draws.std(0, ddof=1), rtol=1e-3, atol=1e-3)
    assert draws.std(0).min() > 0
    assert np.allclose(out["log_prob"], model.log_prob_draws(x, 20).mean(0), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("jets-paper-qcd-nae", []),
        ("jets-paper-qcd-bnae", []),
        ("jets-paper-qcd-bnae", ["bayesian.layers=all", "bayesian.pretraining=shared"]),
    ],
)
def test_the_jet_network(preset, changes, tmp_path, monkeypatch):
    monkeypatch.setattr(workflow, "EVENTS", 100)
    train(read(ROOT / "configs" / f"{preset}.toml", [*JETS, *changes]), tmp_path / "run")
    found = export_onnx(tmp_path / "run", tmp_path / "m.onnx", draws=5)
    model = normae.load(tmp_path / "run")
    x = np.random.default_rng(0).random((9, 1, 40, 40), dtype=np.float32) / 800
    out = run_onnx(tmp_path / "m.onnx", x, batch=4)
    assert ("score_std" in found) == (preset.endswith("bnae"))
    assert "log_prob" not in found
    if "score_std" in found:
        draws = model.score_draws(x, 5)
        assert np.allclose(out["score_draws"], draws, rtol=1e-3)
        assert draws.std(0).min() > 0
    else:
        assert np.allclose(out["score"], model.score(x), rtol=1e-3)


def test_the_file_says_what_it_is(tmp_path):
    export_onnx("toy-2gauss-nae", tmp_path / "m.onnx")
    content = onnx.load(tmp_path / "m.onnx")
    kept = {entry.key: entry.value for entry in content.metadata_props}
    model = normae.load("toy-2gauss-nae")
    assert float(kept["temperature"]) == model.temperature
    assert json.loads(kept["log_z"]) == {"value": model.log_z.value, "error": model.log_z.error}
    assert json.loads(kept["event"]) == [2]
    assert kept["name"] == "toy-2gauss-nae"
    assert {"commit", "columns", "normae"} <= set(kept)
    assert content.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    assert [out.name for out in content.graph.output] == ["energy", "score", "log_prob"]


def test_a_run_on_a_table_takes_its_rows(table_run, tmp_path):
    found = export_onnx(table_run.path, tmp_path / "m.onnx")
    model, x = normae.load(table_run.path), rows(300, seed=1)
    x[0] = [1e7, 30.0, -1e7]  # where the coordinates are logarithmic
    out = run_onnx(tmp_path / "m.onnx", x)
    assert {"energy", "score", "log_prob"} == set(found) == set(out)
    assert out["score"].dtype == np.float64
    for name in found:
        assert np.allclose(out[name], getattr(model, name)(x), rtol=1e-5, atol=1e-5)


def test_columns_with_curves(tmp_path):
    random = np.random.default_rng(0)
    x = np.column_stack([np.exp(2 * random.standard_normal(600)), random.random(600)])
    normae.train(x, tmp_path / "run", settings=["contrast.iterations=20"])
    export_onnx(tmp_path / "run", tmp_path / "m.onnx")
    model = normae.load(tmp_path / "run")
    assert model.coordinates.bent.any()
    x = np.concatenate([x[:200] * 1.01, [[1e4, 0.5], [-3.0, 1.2]]])  # and beyond the knots
    found = run_onnx(tmp_path / "m.onnx", x)["log_prob"]
    assert np.allclose(found, model.log_prob(x), rtol=1e-4, atol=1e-4)  # float32: kernels see differences of squares


def test_a_row_that_was_trained_on_is_judged_by_the_others_there_too(table_run, tmp_path):
    export_onnx(table_run.path, tmp_path / "m.onnx")
    model, x = normae.load(table_run.path), rows()
    assert np.abs(run_onnx(tmp_path / "m.onnx", x)["score"] - model.score(x)).max() < 1e-3
    assert np.abs(model.score(x + 1e-3 * x.std(0)) - model.score(x)).max() > 0.1  # with its own kernel it is not


def test_error_bars_of_a_run_on_a_table(bars_run, tmp_path):
    export_onnx(bars_run.path, tmp_path / "m.onnx")
    model, x = normae.load(bars_run.path), rows(300, seed=1)
    draws, found, out = model.score_draws(x), model.rows(x), run_onnx(tmp_path / "m.onnx", x)
    assert out["score_draws"].shape == (4, 300)
    assert np.allclose(out["score_draws"], draws, rtol=1e-4, atol=1e-4)
    assert np.allclose(out["score_std"], found.spread(), rtol=1e-3, atol=1e-4)
    assert np.allclose(out["log_prob"], found.log_prob(), rtol=1e-4, atol=1e-4)
    assert np.allclose(out["energy"], model.energy(x), rtol=1e-4, atol=1e-2)


def test_functions_that_the_runtime_lacks(tmp_path):
    """Every activation in float64, against torch."""
    h = torch.linspace(-9, 9, 1801, dtype=torch.float64)
    for kind, activation in ACTIVATIONS.items():
        graph = Graph(np.float64)
        content = graph.model({"h": ("N",)}, {"y": (graph.activation(kind, Node(graph, "h")), ("N",))}, {})
        (tmp_path / "m.onnx").write_bytes(content.SerializeToString())
        out = run_onnx(tmp_path / "m.onnx", h.numpy())
        assert np.abs(out["y"] - activation.forward(h).numpy()).max() < 1e-13


def test_a_difference_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match="differs from the model's by up to"):
        export_onnx("toy-2gauss-nae", tmp_path / "m.onnx", tolerance=1e-12)
    assert not list(tmp_path.iterdir())


def test_a_wrong_graph_is_found_out(tmp_path):
    """With another temperature, or a NaN."""
    model, x = normae.load("toy-2gauss-nae"), events()
    expected = {"score": model.score(x)}
    model.temperature *= 1.01
    (tmp_path / "m.onnx").write_bytes(onnx_model(model).SerializeToString())
    assert compare(run_onnx(tmp_path / "m.onnx", x), expected, 1e-3, 1.0)["score"].share > 1
    assert compare({"score": expected["score"] * np.nan}, expected, 1e-3, 1.0)["score"].share == np.inf


def test_refused(tmp_path):
    with pytest.raises(InputError, match=r"ends in \.onnx"):
        export_onnx("toy-2gauss-nae", tmp_path / "m.pb")
    with pytest.raises(InputError, match="positive"):
        export_onnx("toy-2gauss-nae", tmp_path / "m.onnx", tolerance=-1)
    model = normae.load("toy-2gauss-nae")
    model.autoencoder.decoder = torch.nn.Sequential(*conv_decoder(4, 2, 3, 3, True, torch.Generator()), torch.nn.Tanh())
    with pytest.raises(InputError, match="no ONNX form of the layer Tanh"):
        onnx_model(model)
    assert not list(tmp_path.iterdir())


def test_the_example_in_c_compiles(tmp_path):
    """Where ONNX Runtime's headers and library are."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    header = "#include <onnxruntime_cxx_api.h>\n"
    probe = subprocess.run(["g++", "-std=c++17", "-E", "-x", "c++", "-"], input=header, capture_output=True, text=True)
    if probe.returncode:
        pytest.skip("no headers of ONNX Runtime")
    source = ROOT / "docs" / "examples" / "score.cpp"
    subprocess.run(["g++", "-std=c++17", "-c", str(source), "-o", str(tmp_path / "score.o")], check=True)


def test_the_command(tmp_path):
    out = tmp_path / "m.onnx"
    result = CliRunner().invoke(app, ["export", "toy-2gauss-nae", "--onnx", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "largest differences: energy" in result.output
    assert out.is_file()
    for flags in ([], ["--onnx", "--trigger"]):
        result = CliRunner().invoke(app, ["export", "toy-2gauss-nae", *flags, "-o", str(out)])
        assert "one of --onnx and --trigger" in str(result.exception)
    again = CliRunner().invoke(app, ["export", "toy-2gauss-nae", "--onnx", "-o", str(out)])
    assert "exists already; choose another name" in str(again.exception)


def test_a_missing_extra_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"onnxruntime is not installed; `pip install 'normae\[export\]'`"):
        export_onnx("toy-2gauss-nae", tmp_path / "m.onnx")
