"""`normae histogram` from files to workspace and tables; what it refuses leaves nothing behind."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import normae
from normae.cli import app
from normae.config import structure
from normae.errors import InputError
from normae.runs.folder import RunFolder
from normae.runs.session import train
from normae.scoring.score import open_scorer
from normae.scoring.scorer import tail_probability
from normae.search.histogram import Binner, HistogramSettings, histogram
from tiny_run import tiny
from tiny_table import TableRun, trained
from tiny_table import rows as table_rows
from tiny_table import write as write_table

pytest.importorskip("pyhf")

NAMES = ["a", "b"]


def rows(count: int, seed: int, centre: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(centre, 1, size=(count, 2)).astype(np.float32)


def write(path, x, weights=None):
    table = {"b": x[:, 1], "a": x[:, 0], "w": np.ones(len(x)) if weights is None else weights}
    pyarrow.parquet.write_table(pa.table(table), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("histogram")
    train_file = write(folder / "train.parquet", rows(3000, 0))
    data = {"file": str(train_file), "columns": NAMES, "train": 1000, "test": 2000}
    for name, changes in {"plain": {}, "bayes": {"bayesian": {"layers": "last"}}}.items():
        assert train(structure(tiny(data=data, **changes)), folder / name)
    write(folder / "background.parquet", rows(4000, 1), np.random.default_rng(2).uniform(0.5, 1.5, 4000))
    write(folder / "signal.parquet", rows(500, 3, 2.0))
    write(folder / "data.parquet", rows(1000, 4))
    return folder


def test_a_deterministic_run(folder, tmp_path):
    settings = HistogramSettings(bins="0,1,2,4", expected=1000, weights="w")
    found, sentences = histogram(
        folder / "plain", [folder / "background.parquet"], tmp_path / "out", settings, [folder / "signal.parquet"],
        [folder / "data.parquet"], device="cpu",
    )  # fmt: skip
    model = normae.load(folder / "plain")
    x, weights = rows(4000, 1), np.random.default_rng(2).uniform(0.5, 1.5, 4000)
    edges = [-np.inf, 1, 2, np.inf]
    counts = np.histogram(model.score(x), edges, weights=weights)[0]
    scale = 1000 / counts.sum()
    assert np.allclose(found.background.value, scale * counts, rtol=1e-5)
    squares = np.histogram(model.score(x), edges, weights=weights**2)[0]
    assert np.allclose(found.background.variance, scale**2 * squares, rtol=1e-5)
    assert np.array_equal(found.data, np.histogram(model.score(rows(1000, 4)), edges)[0])
    assert found.signal.value.sum() == pytest.approx(500)
    assert found.covariance is None
    spec = json.loads((tmp_path / "out" / "workspace.json").read_text())
    assert spec["observations"][0]["data"] == found.data.tolist()
    numbers = json.loads((tmp_path / "out" / "search.json").read_text())
    assert 0 < numbers["discovery"]["p_value"] < 1
    assert "p-value of background only" in sentences[0]
    names = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert {"histogram.json", "hepdata/submission.yaml", "hepdata/histogram.yaml", "figures/histogram.svg"} <= names
    assert "hepdata/covariance.yaml" not in names


@pytest.mark.parametrize("quantity", ["score", "log_prob", "p_value"])
def test_a_bayesian_run(folder, tmp_path, quantity):
    settings = HistogramSettings(quantity=quantity, draws=20)
    found, _ = histogram(
        folder / "bayes", [folder / "background.parquet"], tmp_path / "out", settings, [folder / "signal.parquet"],
        device="cpu",
    )  # fmt: skip
    model = normae.load(folder / "bayes")
    x = rows(4000, 1)
    scores = model.score_draws(x, 20)
    if quantity == "log_prob":
        each = model.log_prob_draws(x, 20)
    elif quantity == "score":
        each = scores
    else:
        held = np.sort(model.score_draws(_held_out(folder / "bayes"), 20), axis=1)
        each = np.stack([tail_probability(s, h)[0] for s, h in zip(scores, held, strict=True)])
    edges = np.array([-np.inf, *found.edges[1:-1], np.inf])
    counts = np.stack([np.histogram(one, edges)[0] for one in each])
    assert np.abs(found.background.draws - counts).max() <= 2  # float32 scores next to an edge
    bins = len(found.edges) - 1
    assert np.allclose(found.covariance[:bins, :bins], np.cov(found.background.draws, rowvar=False))
    written = json.loads((tmp_path / "out" / "histogram.json").read_text())
    assert np.allclose(written["covariance"], found.covariance)
    assert written["nuisance_parameters"] == len(found.shifts["signal"]) > 0
    assert (tmp_path / "out" / "hepdata" / "covariance.yaml").is_file()
    shares = found.background.value / found.background.value.sum()
    order = np.sort(shares)[::-1]
    assert np.allclose(order, [0.5, 0.25, 0.125, 0.0625, 0.0625], atol=0.04)  # of 2000 held-out events


def test_a_table_with_error_bars(tmp_path):
    """Its draws are its members, fewer than were asked for."""
    halves = ["ensemble.members=8", "ensemble.events=half", "training.iterations=0", "contrast.iterations=20"]
    run = trained(tmp_path, table_rows(), halves)
    scores = normae.load(run.path).score_draws(table_rows())
    middle = round(float(np.median(scores)), 3)
    settings = HistogramSettings(bins=f"0,{middle},{2 * middle}", draws=20)
    found, _ = histogram(run.path, [run.file], tmp_path / "out", settings)
    counts = [np.histogram(one, [-np.inf, middle, np.inf])[0] for one in scores]
    assert found.background.draws.shape == (8, 2)
    assert np.abs(found.background.draws - counts).max() <= 2  # float32 scores next to an edge


def _held_out(run):
    from normae.config import read
    from normae.sources import load_events

    config = read(run / "config.toml")
    return load_events(config.data, config.seed).test.numpy()


def test_bins(folder):
    scorer, run = open_scorer(folder / "plain", device="cpu"), RunFolder(folder / "plain")

    def edges(**settings):
        return Binner(scorer, run, HistogramSettings(**settings)).edges()

    assert np.allclose(edges(bins="4", quantity="p_value"), [0, 0.25, 0.5, 0.75, 1])
    assert len(edges(bins="7")) == 8
    share = (scorer.background >= edges(quantiles="0.9")[1]).mean()
    assert share == pytest.approx(0.1, abs=0.002)
    score, density = edges(quantiles="0.5,0.9"), edges(quantiles="0.5,0.9", quantity="log_prob")
    log_z = scorer.model.log_z.value
    assert np.allclose(density[1:-1], -score[1:-1][::-1] - log_z, atol=1e-5)
    for settings, words in [
        ({"bins": "many"}, "--bins: expected tail"),
        ({"bins": "0"}, "--bins: expected tail"),
        ({"bins": "2,1"}, "rising"),
        ({"bins": "1,x"}, "separated by commas"),
        ({"quantiles": "0.5,1.5"}, "between 0 and 1"),
        ({"quantity": "mass"}, "--quantity"),
        ({"expected": -1.0}, "--expected"),
        ({"draws": 1}, "--draws"),
        ({"normalization": 2.0}, "--normalization"),
    ]:
        with pytest.raises(InputError, match=words):
            edges(**settings)


def test_what_is_refused_leaves_nothing(folder, tmp_path):
    background = str(folder / "background.parquet")
    run = str(folder / "plain")
    out = str(tmp_path / "out")
    for arguments in (
        [run, background, "-o", str(folder)],
        [run, background, "-o", out, "--weights", "none"],
        [run, background, "-o", out, "--bins", "0,100,200"],
        [run, background, "-o", out, "--pseudo-experiments", "5"],
        [run, str(folder / "none.parquet"), "-o", out],
        [run, background, f"{folder}/./background.parquet", "-o", out],
    ):
        result = CliRunner().invoke(app, ["histogram", *arguments, "--device", "cpu"])
        assert isinstance(result.exception, InputError), arguments
    assert not list(tmp_path.iterdir())
    assert not [p for p in folder.iterdir() if p.name.endswith(".part")]


def test_a_file_that_changes_while_it_is_filled_is_refused(folder, tmp_path, monkeypatch):
    path, fill = write(tmp_path / "background.parquet", rows(4000, 1)), Binner.sample

    def change(self, *words):
        write(path, rows(4000, 2))
        return fill(self, *words)

    monkeypatch.setattr(Binner, "sample", change)
    with pytest.raises(InputError, match="changed while it was read"):
        histogram(folder / "plain", [path], tmp_path / "out", HistogramSettings(bins="0,1,2,4"), device="cpu")
    assert not (tmp_path / "out").exists()


def test_the_command(folder, tmp_path):
    arguments = ["histogram", str(folder / "plain"), str(folder / "background.parquet"), "-o", str(tmp_path / "out")]
    signal = ["--signal", str(folder / "signal.parquet"), "--expected", "1000", "--expected-signal", "30"]
    arguments += [*signal, "--bins", "0,1,2,4", "--pseudo-experiments", "3"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (tmp_path / "out" / "search.json").write_text("mine")
    refused = CliRunner().invoke(app, arguments)
    assert "out: exists already; choose another name, or replace it with --force" in str(refused.exception)
    assert (tmp_path / "out" / "search.json").read_text() == "mine"
    assert CliRunner().invoke(app, [*arguments, "--force"]).exit_code == 0
    assert "3 pseudo-experiments" in result.output
    numbers = json.loads((tmp_path / "out" / "search.json").read_text())
    assert len(numbers["pseudo_experiments"]["p_values"]) == 3


def test_settings_that_need_a_signal_are_one_sentence(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(InputError, match="--pseudo-experiments: expected 0 or more, got -5"):
        histogram("toy-2gauss-nae", ["x.npy"], out, HistogramSettings(), ["x.npy"], experiments=-5)
    with pytest.raises(InputError, match="--expected-signal: expected --signal"):
        histogram("toy-2gauss-nae", ["x.npy"], out, HistogramSettings(expected_signal=5.0))
    assert not out.exists()


def test_a_run_on_a_table(table_run: TableRun, tmp_path):
    """Scores begin where the units let them, and a sample in other units is said."""
    signal = write_table(table_rows(300, seed=2) * [1e-3, 1, 1], tmp_path / "signal.parquet")
    found, sentences = histogram(
        table_run.path, [table_run.file], tmp_path / "out", HistogramSettings(bins="3"), [signal], device="cpu"
    )
    score = normae.load(table_run.path).score(table_rows())
    assert 10 < found.edges[0] < score.min()
    assert np.array_equal(found.background.value, np.histogram(score, [0, *found.edges[1:-1], 1e9])[0])
    assert sentences[0].startswith("signal: ALL 300 rows lie outside the range of the training sample in `pt`")


WEIGHTS = {"negative": [-1.0], "cancelling": [0.1, 0.2, -0.3], "cancelling but for float32": [0.3, -0.1, -0.2]}


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("sample", ["signal", "background"])
def test_weights_that_sum_to_nothing(folder, tmp_path, kind, sample):
    """A sum below zero turned the signal's sign, a sum of zero was a division by it."""
    weights = np.resize(WEIGHTS[kind], 498)
    wrong = write(tmp_path / "wrong.parquet", rows(len(weights), 3), weights)
    files = {"background": folder / "background.parquet", "signal": folder / "signal.parquet"} | {sample: wrong}
    settings = HistogramSettings(bins="0,1,2,4", weights="w", expected_signal=10)
    with pytest.raises(InputError, match=f"--weights w: expected a positive sum for the {sample}, got"):
        histogram(folder / "plain", [files["background"]], tmp_path / "out", settings, [files["signal"]], device="cpu")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["expected", "expected_signal"])
def test_events_that_no_fit_can_count(name):
    for value in (1e300, float("inf"), float("nan"), 0.0, -1.0):
        with pytest.raises(InputError, match="expected a number of events above 0, up to 1e.12"):
            HistogramSettings(**{name: value})
