"""Beyond the bounds of its chains a density without a base is zero, wherever its score is asked for."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from torch import nn

import normae
from command import command
from normae.config import structure, to_toml
from normae.coordinates import Identity
from normae.inference import Model, grid_log_z, grid_points
from normae.lattice import IMPOSSIBLE, cannot_occur
from normae.networks import NetworkConfig, build_mlp_autoencoder
from normae.networks.scoring_energy import scoring_energy
from normae.sampling import ChainConfig, SamplingConfig
from normae.tensors import stream
from tiny_run import tiny

OUTSIDE = np.array([[1.6, 0.0], [-9.0, 1.5], [1.6, -1.6]])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on a table with columns a, b between -1.49 and 1.49, taken as they are; bounds -1.5 to 1.5."""
    folder = tmp_path_factory.mktemp("box")
    x = np.random.default_rng(0).uniform(-1.49, 1.49, size=(1000, 2))
    pyarrow.parquet.write_table(pa.table({"a": x[:, 0], "b": x[:, 1]}), folder / "t.parquet")
    config = tiny(data={"file": str(folder / "t.parquet"), "train": 0, "test": 300}, training__epochs=1,
                  sampling__feature__bounds=[-1.5, 1.5])  # fmt: skip
    (folder / "tiny.toml").write_text(to_toml(structure(config)))
    assert command("train", folder / "tiny.toml", "-o", folder / "run") == 0
    return folder / "run"


@pytest.mark.parametrize("name", ["toy-2gauss-nae", "toy-2gauss-bnae", "table"])
def test_the_density_is_zero_beyond_the_bounds_and_as_it_was_within(name, run):
    model = normae.load(run if name == "table" else name)
    low, high = model.sampling.feature.bounds
    inside = grid_points(torch.linspace(low, high, 5, dtype=torch.float64), 2).numpy()  # with the edges themselves
    outside = 4 * OUTSIDE
    found, far = model.rows(inside), model.rows(outside)
    model.coordinates = Identity()
    np.testing.assert_array_equal(found.scores, model.rows(inside).scores)
    values = ((outside < low) | (outside > high)).sum(1)
    assert values.tolist() == [1, 2, 2]
    np.testing.assert_allclose(far.scores, model.rows(outside).scores + IMPOSSIBLE * values, rtol=1e-5)
    assert (np.exp(far.log_prob().astype(np.float64)) == 0).all()


def test_the_density_of_all_the_plane_integrates_to_one():
    """Four times as wide as the bounds: without them there is twice as much."""
    network = build_mlp_autoencoder(NetworkConfig(hidden=(8, 8), activation="silu"), (2,), stream(0, "init"))
    sampling, bounds = SamplingConfig(feature=ChainConfig(bounds=(-1.0, 1.0))), (-1.0, 1.0)
    model = Model(network, 1.0, (2,), sampling, grid_log_z(scoring_energy(network), 1.0, bounds, 2, 200))
    cells = torch.linspace(-4, 4, 801, dtype=torch.float64)
    points = grid_points((cells[1:] + cells[:-1]) / 2, 2).numpy()
    assert np.exp(model.log_prob(points).astype(np.float64)).sum() * 0.01**2 == pytest.approx(1, abs=1e-3)
    model.coordinates = Identity()
    assert np.exp(model.log_prob(points).astype(np.float64)).sum() * 0.01**2 > 2


@pytest.mark.parametrize("name", ["toy-2gauss-nae", "toy-2gauss-bnae"])
def test_parts_of_the_score_show_which_feature_it_is(name):
    model = normae.load(name)
    x = np.array([[9.0, 0.0], [2.0, 0.0]])
    parts = model.explain(x)
    np.testing.assert_allclose(parts.sum(1), model.score(x), rtol=1e-4)
    assert parts[0, 0] > IMPOSSIBLE > 100 + parts[0, 1]


def test_files_are_scored_with_a_note_and_the_same_numbers(run, tmp_path, capsys):
    x = np.concatenate([np.zeros((97, 2)), OUTSIDE])
    for name in ("new", "other"):
        pyarrow.parquet.write_table(pa.table({"a": x[:, 0], "b": x[:, 1]}), tmp_path / f"{name}.parquet")
    assert (
        command("score", run, tmp_path / "new.parquet", tmp_path / "other.parquet", "-o", tmp_path / "s.parquet") == 0
    )
    said = " ".join("".join(capsys.readouterr()).split())
    assert (
        "6 of 200 rows have a value in `a` that cannot occur, such as one between whole numbers, beyond the bounds of "
        "the chain, or a category that the training had not; their probability is 0, and each such value adds 10,000 "
        "to the score" in said
    )
    found, model = pyarrow.parquet.read_table(tmp_path / "s.parquet"), normae.load(run)
    for column, wanted in (("score", model.score(x)), ("log_prob", model.log_prob(x))):
        np.testing.assert_allclose(found[column].to_numpy()[:100], wanted, rtol=1e-5, atol=1e-5)
    assert found["p_value"].to_numpy()[97:100] == pytest.approx(1 / 301)
    pyarrow.parquet.write_table(pa.table({"a": x[:97, 0], "b": x[:97, 1]}), tmp_path / "new.parquet")
    assert command("score", run, tmp_path / "new.parquet", "-o", tmp_path / "within.parquet") == 0
    assert "bounds" not in "".join(capsys.readouterr())


def test_the_graph_has_the_bounds_too(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    assert command("export", run, "--onnx", "-o", tmp_path / "model.onnx") == 0
    x = np.concatenate([OUTSIDE, [[1.5, -1.5], [0.0, 0.0]]]).astype(np.float32)
    names = ["energy", "score", "log_prob"]
    found = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(names, {"events": x})
    model = normae.load(run)
    for values, wanted in zip(found, (model.energy(x), model.score(x), model.log_prob(x)), strict=True):
        np.testing.assert_allclose(values, wanted, rtol=1e-5, atol=1e-3)


def test_a_base_and_bounds_that_clamp_leave_the_density_as_it_is():
    x = np.random.default_rng(0).normal(size=(300, 2))
    model = normae.train(x, settings=["contrast.iterations=5", "training.iterations=0"], device="cpu")
    assert model.sampling.feature.bounds is not None
    assert not cannot_occur(torch.tensor([[200.0, 0.0]]).double(), model.coordinates.lattice).any()
    assert -IMPOSSIBLE < model.log_prob([[200.0, 0.0]])[0] < -10
    assert normae.load("jets-qcd-nae").coordinates.lattice is None
    assert normae.load("jets-qcd-components").in_components().coordinates.lattice is None


def test_bounds_that_float32_rounds_hold_their_own_edge():
    network = build_mlp_autoencoder(NetworkConfig(hidden=(8,)), (2,), stream(0, "init"))
    model = Model(network, 1.0, (2,), SamplingConfig(feature=ChainConfig(bounds=(-0.1, 0.1))))
    for x in (np.array([[0.1, -0.1]]), torch.tensor([[0.1, -0.1]]), torch.tensor([[0.1, -0.1]]).double()):
        assert model.score(x)[0] < IMPOSSIBLE < 2 * IMPOSSIBLE < model.score(1.001 * x)[0]


# --- in whitened columns


def integral_and_rest(model: Model) -> tuple[float, float]:
    """Of p over a square twice as wide as the bounds, in the units of the table, and the largest p beyond them."""
    low, high = model.sampling.feature.bounds
    edges = torch.linspace(2 * low, 2 * high, 801, dtype=torch.float64)
    y = grid_points((edges[1:] + edges[:-1]) / 2, 2)
    x = model.coordinates.inverse(y)
    p = np.exp(model.log_prob(x.numpy()).astype(np.float64) - model.coordinates.log_slope(x).numpy())  # of y
    within = ((y >= low) & (y <= high)).all(1).numpy()
    return p.sum() * float(edges[1] - edges[0]) ** 2, p[~within].max()


def rows_beyond(model: Model) -> np.ndarray:
    """With one, two and none of their whitened values beyond the bounds."""
    low, high = model.sampling.feature.bounds
    return model.coordinates.inverse(torch.tensor([[1.5 * high, 0.0], [1.5 * low, 1.1 * high], [0.0, 0.0]])).numpy()


def test_networks_of_one_s_own_on_a_table_end_where_their_chains_end():
    rows = np.random.default_rng(0).multivariate_normal([0.0, 5.0], [[1.0, 14.0], [14.0, 400.0]], size=300)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        energy = nn.Sequential(nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 1), nn.Flatten(0))
    quick = ["contrast.iterations=5", "training.iterations=2", "sampling.feature.steps=2", "evaluation.log_z_cells=120"]
    model = normae.train(rows, settings=quick, energy=energy, device="cpu")
    assert integral_and_rest(model) == (pytest.approx(1, abs=0.01), 0)
    x = rows_beyond(model)
    assert np.rint(model.score(x) / IMPOSSIBLE).tolist() == [1, 2, 0]
    np.testing.assert_allclose(model.explain(x).sum(1), model.score(x), rtol=1e-4)


def test_so_does_a_table_without_a_base_in_files_and_graphs(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    config = tiny(data={"file": str(run.parent / "t.parquet"), "train": 0, "test": 300}, training__epochs=1,
                  sampling__feature__bounds=[-3.0, 3.0], coordinates={"kind": "table"})  # fmt: skip
    (tmp_path / "tiny.toml").write_text(to_toml(structure(config)))
    assert command("train", tmp_path / "tiny.toml", "-o", tmp_path / "run") == 0
    model = normae.load(tmp_path / "run")
    assert integral_and_rest(model) == (pytest.approx(1, abs=0.01), 0)
    x = rows_beyond(model)
    wanted = model.score(x)
    assert np.rint(wanted / IMPOSSIBLE).tolist() == [1, 2, 0]
    pyarrow.parquet.write_table(pa.table({"a": x[:, 0], "b": x[:, 1]}), tmp_path / "x.parquet")
    assert command("score", tmp_path / "run", tmp_path / "x.parquet", "-o", tmp_path / "s.parquet") == 0
    found = pyarrow.parquet.read_table(tmp_path / "s.parquet")["score"].to_numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert command("export", tmp_path / "run", "--onnx", "-o", tmp_path / "model.onnx") == 0
    (found,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(["score"], {"events": x})
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
