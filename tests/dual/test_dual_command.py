"""`normae dual` as a user runs it: two tiny runs, labelled samples, every error; and verdicts that must come out."""

import json
import shutil
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import normae
from normae.cli import main
from normae.config import structure
from normae.data import DENSITIES
from normae.data.labelled import Labelled, cut, draw_labelled, read_labelled
from normae.data.tables import write_columns
from normae.dual.judge import DualSettings, judge, supported, true_ratio
from normae.dual.output import default_folder, notes
from normae.dual.test import dual, dual_test
from normae.errors import InputError
from normae.files import lock
from normae.inference import Rows
from normae.report import SavedFigure
from normae.runs.session import train
from normae.statistics.calibration import calibration, choose_correction
from normae.training.two_sample import ClassifierReference, classifier_reference
from tiny_run import tiny
from tiny_table import SETTINGS, rows, trained

A, B = DENSITIES["two-gaussians"](), DENSITIES["one-gaussian"]()


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Run folders two, one (toys), bayes and bayes-two (Bayesian), file-a and file-b (three features, no log Z)."""
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    np.save(folder / "a.npy", rng.normal(size=(900, 3)))
    np.save(folder / "b.npy", rng.normal(size=(900, 3)) + 1)
    changes = {
        "two": {},
        "one": {"data__density": "one-gaussian"},
        "bayes": {"data__density": "one-gaussian", "bayesian": {"layers": "last", "initial_width": 0.05}},
        "bayes-two": {"bayesian": {"layers": "last", "initial_width": 0.05}},
        "file-a": {"data": {"file": str(folder / "a.npy"), "train": 600, "test": 100}},
        "file-b": {"data": {"file": str(folder / "b.npy"), "train": 600, "test": 100}},
    }
    for name, change in changes.items():
        assert train(structure(tiny(**change)), folder / name)
    labelled(folder / "plane.npz", 2)
    labelled(folder / "space.npz", 3)
    return folder


def labelled(path: Path, features: int, n: int = 400, **changes: object) -> Path:
    """A sample of N(1, 1) with label 1 and N(0, 1) with label 0."""
    rng = np.random.default_rng(1)
    labels = np.arange(2 * n) % 2
    content = {"x": rng.normal(size=(2 * n, features)) + labels[:, None], "labels": labels} | changes
    np.savez(path, **{name: value for name, value in content.items() if value is not None})
    return path


def command(monkeypatch, capsys, *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `normae dual` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["normae", "dual", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


@pytest.fixture
def undrawn(monkeypatch):
    """No figures: they are most of the time."""
    monkeypatch.setattr("normae.dual.output.draw_dual", lambda result, folder: [])


# --- the command


def test_two_toys(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, said, error = command(monkeypatch, capsys, runs / "two", runs / "one", "--events", 500, "--device", "cpu")
    assert code == 0, error
    assert "Against the true ratio it " in said
    assert "Against the classifier it " in said
    assert "C from the two log Z" in said
    folder = tmp_path / "dual" / "two-one"
    content = json.loads((folder / "dual.json").read_text())
    texts = {"verdicts", "notes", "tested", "settings"}
    assert all(set(value) == {"value", "error"} for name, value in content.items() if name not in texts)
    sides = [f"{name}_{side}" for name in ("pearson", "slope", "outside") for side in "ab"]
    for name in ("pearson", "slope", "constant", "outside", *sides):
        for end in ("true_c0", "true_log_z", "classifier_c0", "classifier_log_z"):
            assert f"{name}_{end}" in content
    assert content["slope_true_c0"] == pytest.approx(content["slope_true_log_z"]), "a constant changes no slope"
    shift = content["constant_true_c0"]["value"] - content["constant_true_log_z"]["value"]
    assert shift == pytest.approx(content["slope_true_c0"]["value"] * content["constant_log_z"]["value"], abs=1e-6)
    assert set(content["verdicts"]) == {"true", "classifier", "labels"}
    assert "By labels alone, a logistic fit gives log r the factor b = " in said
    assert content["verdicts"]["true"]["sentence"] in said
    figures = {"correlation-true", "correlation-classifier", "calibration", "outside", "distributions", "residuals",
               "reliability"}  # fmt: skip
    assert {p.name for p in (folder / "figures").iterdir()} == {
        f"{name}.{suffix}" for name in figures for suffix in ("svg", "pdf", "csv")
    }
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 7
    assert "http" not in page.split("<body>")[1].replace("http://www.w3.org", "")
    assert not list(folder.parent.rglob("*normae-part*"))


def test_a_labelled_file_and_no_log_z(runs, tmp_path, monkeypatch, capsys):
    drawn = []
    svg = tmp_path / "drawn.svg"
    svg.write_text("<svg/>")

    def undrawn(figure, folder, name, table):
        drawn.append(name)
        return SavedFigure(svg, svg, svg)

    monkeypatch.setattr("normae.dual.output.save_figure", undrawn)
    code, said, error = command(
        monkeypatch, capsys, runs / "file-a", runs / "file-b", "--data", runs / "space.npz", "-o", tmp_path / "out"
    )
    assert code == 0, error
    assert "log Z is not known for both models, so that C is fitted" in said
    content = json.loads((tmp_path / "out" / "dual.json").read_text())
    assert "slope_classifier_c0" in content
    assert not any(name.endswith("log_z") for name in content)
    assert set(content["verdicts"]) == {"classifier", "labels"}
    assert "The file was split: 300 of its 800 events test the models" in said
    assert content["settings"]["events"] == 300, "the rest trained and corrected the classifier"
    assert drawn == ["correlation-classifier", "calibration", "distributions", "residuals", "reliability"], (
        "a map is for two features"
    )


def check_pairs(result, shape: tuple[int, int]) -> None:
    found = result.against["true"]
    assert found.pairs is not None
    assert found.pairs.slope.shape == shape
    assert result.metrics["slope_pairs_true"].error == pytest.approx(found.pairs.slope.std(ddof=1))
    assert result.distributions["log_z"].band.max() > 0
    assert "Over all pairs of weight draws" in " ".join(notes(result))


def test_bayesian_runs(runs, tmp_path):
    settings = DualSettings(events=500, draws=12, classifier=False)
    result = dual(runs / "two", runs / "bayes", out=tmp_path / "out", settings=settings, device="cpu")
    check_pairs(result, (1, 12))
    page = (tmp_path / "out" / "report.html").read_text()
    assert "spread over all pairs" in page
    check_pairs(dual_test(runs / "bayes", runs / "two", settings=settings, device="cpu"), (12, 1))
    both = dual_test(runs / "bayes", runs / "bayes-two", settings=settings, device="cpu")
    check_pairs(both, (12, 12))
    # The constants of all pairs follow from one fit; a pair of single draws must give the same.
    a, b = (normae.load(runs / name).log_prob_draws(both.sample.x, 12, 0)[3] for name in ("bayes", "bayes-two"))
    line = np.polyfit(b - a, both.against["true"].log_ratio, 1)
    assert both.against["true"].pairs.slope[3, 3] == pytest.approx(line[0], rel=1e-3)
    assert both.against["true"].pair_constants["log_z"][3, 3] == pytest.approx(line[1], abs=1e-3)


def test_the_central_ratio_is_that_of_the_models(runs):
    result = dual_test(runs / "two", runs / "bayes", settings=DualSettings(events=200, classifier=False), device="cpu")
    a, b = normae.load(runs / "two"), normae.load(runs / "bayes")
    x = result.sample.x
    assert np.allclose(result.ratios["log_z"], b.log_prob(x) - a.log_prob(x), atol=1e-4)
    assert np.allclose(result.ratios["c0"], a.score(x) - b.score(x), atol=1e-4)


def test_a_zoo_model_and_default_folder(runs):
    result = dual_test("toy-2gauss-nae", runs / "one", settings=DualSettings(events=300, classifier=False))
    assert result.names[0] == "toy-2gauss-nae"
    assert default_folder("toy-2gauss-nae", "runs/a/seed-1", "x/test.npz") == Path(
        "dual/toy-2gauss-nae-a-seed-1-on-test"
    )


# --- files


def test_labels_are_read_from_tables_and_from_arrays(tmp_path):
    """Columns by name, whatever else is there; arrays of .npz and .h5; and numbers of float64 as they are."""
    x = np.random.default_rng(0).normal(size=(6, 2)) + 1e6
    labels = np.array([1, 0, 0, 1, 1, 0])
    columns = {"eta": x[:, 1], "label": labels, "more": np.zeros(6), "pt": x[:, 0]}
    write_columns(columns, tmp_path / "a.csv")
    write_columns(columns, tmp_path / "a.parquet")
    write_columns({"x": x, "labels": labels}, tmp_path / "a.npz")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["labels"] = x, labels
    for suffix in ("csv", "parquet", "npz", "h5"):
        found = read_labelled(tmp_path / f"a.{suffix}", (2,), np.float64, ("pt", "eta"))
        assert np.array_equal(found.x, x), suffix
        assert np.array_equal(found.labels, labels == 1), suffix
    with h5py.File(tmp_path / "flat.h5", "w") as file:
        file["eta"], file["labels"], file["pt"] = x[:, 1], labels == 1, x[:, 0]
    assert np.array_equal(read_labelled(tmp_path / "flat.h5", (2,), np.float64).x, x[:, ::-1]), "all but the label"
    with pytest.raises(InputError, match="no column 'mass'; the file has 'eta', 'label', 'more', 'pt'"):
        read_labelled(tmp_path / "a.csv", (2,), columns=("pt", "mass"))
    with pytest.raises(InputError, match=r"expected events of shape \(2,\), got \(3,\)"):
        read_labelled(tmp_path / "a.csv", (2,))


def test_runs_on_other_columns_are_refused(tmp_path):
    x = np.random.default_rng(0).normal(size=(300, 2))
    for name, columns in (("a", ["pt", "eta"]), ("b", ["eta", "pt"])):
        normae.train(x, tmp_path / name, columns=columns, settings=["contrast.iterations=5", *SETTINGS[1:]])
    with pytest.raises(InputError, match="expected two runs on the same columns and categories, in one order"):
        dual_test(tmp_path / "a", tmp_path / "b", "none.csv")


# --- bad input


def bad_arguments(runs: Path, tmp_path: Path) -> dict[str, tuple[list[object], str]]:
    """Arguments and what the sentence must say, by name."""
    two, one, plane = runs / "two", runs / "one", runs / "plane.npz"
    x = np.zeros((400, 2))
    np.save(tmp_path / "events.npy", x)
    table = tmp_path / "table.csv"
    table.write_text("pt,eta\n1,2\n")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    shutil.copy(two / "config.toml", unfinished)
    half = np.arange(800) % 2
    infinite = np.zeros((800, 2))
    infinite[3, 1] = np.nan

    def sample(**changes: object) -> Path:
        return labelled(tmp_path / f"{'-'.join(changes)}-{len(list(tmp_path.iterdir()))}.npz", 2, **changes)

    return {
        "shapes differ": ([two, runs / "file-a", "--data", plane], "expected two runs of one event shape, got (2,)"),
        "other events": ([two, one, "--data", runs / "space.npz"], "expected events of shape (2,), got (3,)"),
        "no labels in npy": ([two, one, "--data", tmp_path / "events.npy"], "names of columns, one of them 'labels'"),
        "no labels": ([two, one, "--data", sample(labels=None)], "no array 'labels' with labels; the file has ['x']"),
        "no column": ([two, one, "--data", table], "no column 'label'; the file has 'pt', 'eta'"),
        "one class": ([two, one, "--data", sample(labels=np.ones(800))], "got only label 1 in 800 events"),
        "lengths": ([two, one, "--data", sample(labels=half[:-1])], "expected one label per event, 800, got 799"),
        "labels": ([two, one, "--data", sample(labels=half + 1)], "expected labels 0 and 1, got 2"),
        "NaN label": ([two, one, "--data", sample(labels=np.where(half, np.nan, 0))], "labels 0 and 1, got nan"),
        "text labels": ([two, one, "--data", sample(labels=half.astype(str))], "expected labels 0 and 1, got '0', '1'"),
        "not finite": (
            [two, one, "--data", sample(x=infinite)],
            "beyond float32, the first at row 3; remove such rows",
        ),
        "few": ([two, one, "--data", labelled(tmp_path / "few.npz", 2, 50)], "at least 100 events of each class"),
        "no file": ([two, one, "--data", "none.npz"], "none.npz: no such file; give a table with a column label"),
        "no run": ([two, "none"], "neither a run folder nor a model of the zoo"),
        "not finished": ([unfinished, one], "the run is not finished"),
        "no density": ([runs / "file-a", runs / "file-b"], "so give a labelled sample with --data"),
        "one density": ([one, one], "so give a labelled sample with --data"),
        "no reference": ([one, one, "--data", plane, "--no-classifier"], "the classifier is the only reference"),
        "one draw": ([two, runs / "bayes", "--draws", 1], "draws: expected 2 to 1000, since a spread needs two"),
        "deterministic": ([two, one, "--draws", 50], "are deterministic and have no weight draws"),
        "few events": ([two, one, "--events", 5], "events: expected 100 to"),
        "seed": ([two, one, "--seed", -1], "seed: expected a whole number"),
        "device": ([two, one, "--device", "gpu"], "device: expected auto, cpu or cuda"),
    }


def test_bad_input_is_one_sentence_and_exit_code_2(runs, tmp_path, monkeypatch, capsys):
    cases = bad_arguments(runs, tmp_path)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for name, (arguments, message) in cases.items():
        code, _, error = command(monkeypatch, capsys, *arguments)
        assert code == 2, name
        assert message in error, f"{name}: {error}"
        assert len(error.strip().splitlines()) == 1, name
        assert list(Path.cwd().iterdir()) == [], f"{name}: nothing is left behind"


def test_nothing_else_is_overwritten(runs, tmp_path, undrawn):
    settings = DualSettings(events=100, classifier=False)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("mine")
    for folder in (mine, mine / "thesis.tex"):
        with pytest.raises(InputError, match="exists already; choose another name, or replace it with --force"):
            dual(runs / "two", runs / "one", out=folder, settings=settings)
    with pytest.raises(InputError, match=r"mine: holds thesis\.tex, which is not replaced"):
        dual(runs / "two", runs / "one", out=mine, settings=settings, force=True)
    assert [p.name for p in mine.iterdir()] == ["thesis.tex"]
    out = tmp_path / "out"
    with lock(out), pytest.raises(InputError, match="in use by a running job"):
        dual(runs / "two", runs / "one", out=out, settings=settings)
    dual(runs / "two", runs / "one", out=out, settings=settings)
    before = (out / "dual.json").read_bytes()
    dual(runs / "one", runs / "two", out=out, settings=settings, force=True)
    assert (out / "dual.json").read_bytes() != before
    dual(runs / "two", runs / "one", out=out, settings=settings, force=True)
    assert (out / "dual.json").read_bytes() == before, "the seed gives all randomness"
    assert {p.name for p in tmp_path.iterdir()} == {"mine", "out"}, "nothing is left beside it"


# --- verdicts


def exact_sides(sample: Labelled, scale: float = 1.0, log_z: float = 3.0) -> tuple[Rows, Rows]:
    """Models that are the true densities, with -E/T = scale log p + log Z and that log Z."""
    x = torch.from_numpy(sample.x)
    a, b = (scale * density.log_prob(x).numpy()[None] for density in (A, B))
    return Rows(-a - log_z, np.array([log_z])), Rows(-b, np.array([0.0]))


def with_scores(side: Rows, scores: np.ndarray, **more) -> Rows:
    return side._replace(scores=scores, **more)


QUICK = DualSettings(n_bootstrap=30, events=4000)


def test_exact_models_pass():
    sample = draw_labelled(A, B, 4000, 0, "test")
    result = judge(sample, *exact_sides(sample), (A, B), None, QUICK)
    assert result.passes
    found = result.against["true"].comparisons
    assert found["log_z"].line.slope.value == pytest.approx(1, abs=1e-5)
    assert found["log_z"].line.constant.value == pytest.approx(0, abs=1e-5)
    assert found["log_z"].outside.value == 0
    assert found["c0"].outside.value == 1, "without log Z every event is off by 3"
    assert found["c0"].line.constant.value == pytest.approx(3, abs=1e-4)
    assert found["c0"].verdict.passes, "a constant is allowed to be free"


def test_overstated_models_fail_and_it_is_said_how():
    sample = draw_labelled(A, B, 4000, 0, "test")
    result = judge(sample, *exact_sides(sample, scale=1.5), (A, B), None, QUICK)
    assert not result.passes
    for where in ("for all events", "within A", "within B"):
        assert f"{where} m = 0.66" in result.verdicts["true"]
    assert result.verdicts["true"].count("the models overstate log r") == 3
    assert not result.calibrated
    assert "(log r is overstated)" in notes(result)[0]


def test_a_wrong_region_fails_and_is_named():
    sample = draw_labelled(A, B, 4000, 0, "test")
    a, b = exact_sides(sample)
    wrong = with_scores(b, b.scores - 2.0 * (true_ratio(A, B, sample) > 3.5))
    result = judge(sample, a, wrong, (A, B), None, QUICK)
    assert not result.passes
    assert "the relation is not linear" in result.verdicts["true"]
    assert "of label 1" in result.verdicts["true"]


def test_the_spread_over_draws_is_part_of_the_verdict():
    """A slope of 0.9 fails for a model that is sure of it, and passes for draws that scatter by as much."""
    sample = draw_labelled(A, B, 2000, 0, "test")
    a, b = exact_sides(sample)
    scales = 1.0 / 0.9 * np.linspace(0.75, 1.25, 7)[:, None]
    wide_a, wide_b = (with_scores(side, scales * side.scores, log_z=np.repeat(side.log_z, 7)) for side in (a, b))
    sure = [with_scores(side, side.scores / 0.9) for side in (a, b)]
    assert not judge(sample, sure[0], sure[1], (A, B), None, QUICK).passes
    verdict = judge(sample, wide_a, wide_b, (A, B), None, QUICK).against["true"].best.verdict
    assert verdict.slope_passes


def test_a_classifier_judges_exact_models_right():
    test, pool = draw_labelled(A, B, 6000, 0, "test"), draw_labelled(A, B, 8000, 0, "pool")
    training, holdout = cut(pool, (0.8, 0.2), 0)
    found = classifier_reference(training, holdout, test, QUICK.network, 0)
    right = judge(test, *exact_sides(test), None, found, QUICK)
    assert right.passes, right.verdicts
    wrong = judge(test, *exact_sides(test, scale=1.5), None, found, QUICK)
    assert not wrong.passes
    assert right.metrics["classifier_ece"].error > 0
    assert found.members.shape == (4, 12000)
    assert right.metrics["slope_members_classifier"].error > 0, "trainings differ"


def test_the_spread_over_classifiers_is_part_of_the_verdict():
    """Models that are off by 1.4 fail, unless the classifiers themselves differ by as much."""
    sample = draw_labelled(A, B, 2000, 0, "test")
    true = true_ratio(A, B, sample)
    measured = calibration(true, sample.labels, 0)
    sure = ClassifierReference(true, np.stack([true] * 4), "none", measured, measured)
    unsure = sure._replace(members=np.multiply.outer([0.8, 0.9, 1.1, 1.2], true))
    assert not judge(sample, *exact_sides(sample, scale=1.4), None, sure, QUICK).against["classifier"].passes
    assert judge(sample, *exact_sides(sample, scale=1.4), None, unsure, QUICK).against["classifier"].passes
    off = sure._replace(log_ratio=1.2 * true, members=1.2 * true[None])
    assert judge(sample, *exact_sides(sample), None, off, QUICK).passes, "labels say that the classifier is off"


def test_a_classifier_on_the_models_rows_is_a_reference_of_its_own():
    """One that knows more than the models agrees with them less."""
    sample = draw_labelled(A, B, 4000, 0, "test")
    true = true_ratio(A, B, sample)
    more = true + np.random.default_rng(0).normal(size=true.size)
    measured = calibration(true, sample.labels, 0)
    pixels, rows = (ClassifierReference(one, one[None], "none", measured, measured) for one in (more, true))
    result = judge(sample, *exact_sides(sample), None, pixels, QUICK, rows=rows)
    assert result.metrics["pearson_a_rows_c0"].value == pytest.approx(1, abs=1e-6)
    assert result.metrics["pearson_a_classifier_c0"].value < 0.95
    assert "Against a classifier on the models' rows it passes" in result.verdicts["rows"]


def test_an_uncalibrated_score_is_corrected_by_the_simplest_means():
    sample = draw_labelled(A, B, 6000, 0, "holdout")
    true = true_ratio(A, B, sample)
    assert choose_correction(true, sample.labels, 0)[0] == "none"
    name, correct = choose_correction(2.0 * true, sample.labels, 0)
    assert name == "temperature"
    assert correct([1.0])[0] == pytest.approx(0.5, abs=0.03)
    name, correct = choose_correction(2.0 * true + 3.0, sample.labels, 0)
    assert name == "Platt"
    assert correct([3.0])[0] == pytest.approx(0.0, abs=0.1)
    assert choose_correction(np.sign(true) * true**2, sample.labels, 0)[0] == "isotonic"


def test_the_range_that_a_classifier_can_judge():
    ratio, labels = np.arange(200.0), np.arange(200) >= 50
    assert supported(ratio, labels, QUICK.rule) is None, "separate classes share no range"
    low, high = supported(np.concatenate([ratio, ratio]), np.arange(400) >= 200, QUICK.rule)
    assert (low, high) == (15.0, 184.0)


def test_cut_is_disjoint_and_keeps_the_shares():
    sample = Labelled(np.arange(1000, dtype=np.float32)[:, None], np.arange(1000) % 4 == 0)
    parts = cut(sample, (0.5, 0.125, 0.375), 3)
    assert [len(part.labels) for part in parts] == [500, 125, 375]
    assert np.unique(np.concatenate([part.x for part in parts])).size == 1000
    for part in parts:
        assert part.labels.mean() == pytest.approx(0.25, abs=0.01)
        assert np.array_equal(part.labels, part.x[:, 0] % 4 == 0)


def test_runs_on_tables_in_large_units(table_run, tmp_path):
    """log r from models and classifier is that of the rows, whatever their units."""
    x = rows(2000, seed=1)
    moved = (x - x.mean(0)) * [1, 1.3, 1] + x.mean(0)
    other = trained(tmp_path, moved[:1000])
    np.savez(tmp_path / "test.npz", x=np.concatenate([x, moved]), labels=np.repeat([0, 1], 2000))
    found = dual_test(table_run.path, other.path, tmp_path / "test.npz", device="cpu")
    models = [normae.load(run.path).log_prob(found.sample.x) for run in (table_run, other)]
    assert found.sample.x.dtype == np.float64
    assert np.allclose(found.ratios["log_z"], models[1] - models[0], atol=1e-4)
    assert np.corrcoef(found.against["classifier"].log_ratio, np.abs(found.sample.x[:, 1]))[0, 1] > 0.3
