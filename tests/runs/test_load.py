"""Coordinates in a model file: what is written is read, and scores of a run are in the user's units."""

import shutil

import numpy as np
import pytest
import torch

import normae
from normae import zoo
from normae.coordinates import TableCoordinates
from normae.errors import InputError
from normae.runs.folder import RunFolder, read_tensors, stored, write_tensors
from normae.runs.load import load_run

ROWS = np.random.default_rng(0).lognormal(2.0, 0.5, size=(400, 2)) * np.array([1e4, 1e-3])


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """The toy as if its table had been in other units."""
    folder = RunFolder(shutil.copytree(zoo.path("toy-2gauss-nae"), tmp_path / "run"))
    tensors, header = read_tensors(folder.model)
    coordinates = TableCoordinates.of(torch.from_numpy(ROWS))
    write_tensors(folder.model, tensors | stored(coordinates), header | {"coordinates": "table", "columns": ["a", "b"]})
    return folder


def test_scores_are_in_the_user_s_units(run):
    model, toy = normae.load(run.path), normae.load("toy-2gauss-nae")
    coordinates = TableCoordinates.of(torch.from_numpy(ROWS))
    y, slope = coordinates.forward(torch.from_numpy(ROWS)), coordinates.log_slope(torch.from_numpy(ROWS)).numpy()
    assert model.columns == ("a", "b")
    assert np.allclose(model.score(ROWS), toy.score(y.numpy()) - slope, rtol=1e-6)
    assert np.allclose(model.log_prob(ROWS), toy.log_prob(y.numpy()) + slope, rtol=1e-6)


def test_the_onnx_graph_takes_rows_as_they_are(run, tmp_path):
    pytest.importorskip("onnxruntime")
    from normae.export.graph import onnx_model
    from normae.export.onnx import run_onnx

    model = normae.load(run.path)
    (tmp_path / "m.onnx").write_bytes(onnx_model(model).SerializeToString())
    out = run_onnx(tmp_path / "m.onnx", ROWS)
    assert np.allclose(out["score"], model.score(ROWS), rtol=1e-4, atol=1e-4)
    assert np.allclose(out["log_prob"], model.log_prob(ROWS), rtol=1e-4, atol=1e-4)


def test_coordinates_that_do_not_belong_are_one_sentence(run):
    tensors, header = read_tensors(run.model)
    write_tensors(run.model, tensors, header | {"coordinates": "other"})
    with pytest.raises(InputError, match="the coordinates do not belong to the model"):
        load_run(run.path)
