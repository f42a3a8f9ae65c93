"""`normae spread`: what it says of trainings that differ in their seeds, and what it refuses."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from command import command
from normae.cli import app
from normae.config import structure
from normae.errors import InputError
from normae.evaluation.evaluate import evaluate
from normae.evaluation.spread import scatter, spread_of_runs
from normae.files import write_json
from normae.runs.session import train
from normae.statistics import Estimate
from tiny_run import tiny


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """Three evaluated seeds."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("seeds") / "group"
    train(structure(tiny()), folder, seeds=[0, 1, 2])
    for k in range(3):
        evaluate(folder / f"seed-{k}", figures=False, device="cpu")
    return folder


def test_mean_and_scatter():
    found = scatter([Estimate(1.0, 1.5), Estimate(2.0, 0.5), Estimate(4.0, 0.5)])
    student = 1.3213  # 68.27 % of Student's t with 2 degrees of freedom lie within it
    assert found.mean == pytest.approx((7 / 3, student * math.sqrt(7 / 3) / math.sqrt(3)), rel=1e-4)
    assert found.deviation == pytest.approx(math.sqrt(7 / 3))
    assert found.stated == pytest.approx(math.sqrt((2.25 + 0.25 + 0.25) / 3))
    assert found.within == pytest.approx(1 / 6), "only 2 lies within 1.5 of 1"


@pytest.mark.parametrize(("width", "low", "high"), [(1.0, 0.49, 0.55), (0.1, 0.04, 0.08), (5.0, 0.99, 1.0)])
def test_share_within_of_true_small_and_large_errors(width, low, high):
    """Two numbers of one Gaussian are within its width of each other in 52 % of the cases."""
    values = np.random.default_rng(0).normal(size=400)
    assert low < scatter([Estimate(float(value), width) for value in values]).within < high


def test_unknown_errors():
    for error in (0.0, math.nan, math.inf):
        found = scatter([Estimate(1.0, 0.1), Estimate(2.0, error)])
        assert found.mean.value == 1.5
        assert math.isnan(found.stated)
        assert math.isnan(found.within)


def test_a_folder_of_seeds(group, tmp_path):
    command = ["spread", str(group), "-o", str(tmp_path / "spread.json")]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0
    assert "over 3 trainings" in shown.output
    each = [json.loads((group / f"seed-{k}" / "metrics.json").read_text())["kl"]["value"] for k in range(3)]
    written = json.loads((tmp_path / "spread.json").read_text())
    assert written["kl"]["values"] == each
    assert written["kl"]["mean"]["value"] == pytest.approx(np.mean(each))
    assert written["kl"]["deviation"] == pytest.approx(np.std(each, ddof=1))
    assert spread_of_runs([group / "seed-0", group / "seed-2"])["kl"].values == (each[0], each[2])


def test_dual_tests(tmp_path):
    def test_of(name: str, slope: float, data: str = "jets") -> str:
        folder = tmp_path / name
        folder.mkdir()
        numbers = {"slope": {"value": slope, "error": 0.01}, "constant": {"value": None, "error": None}}
        content = numbers | {"notes": ["words"], "tested": {"run_a": "a", "run_b": "b", "data": data}}
        (folder / "dual.json").write_text(json.dumps(content))
        return str(folder)

    first, second = test_of("first", 0.9), test_of("second", 1.1)
    found = spread_of_runs([first, second])
    assert list(found) == ["slope"], "what has no value is left out"
    assert found["slope"].mean == pytest.approx((1.0, 0.18373), rel=1e-4)
    with pytest.raises(InputError, match=r"third: expected the data of .*first, got other"):
        spread_of_runs([first, test_of("third", 1.0, "other")])
    (tmp_path / "fourth").mkdir()
    with pytest.raises(InputError, match=r"fourth: expected the folder of a dual test, as the others"):
        spread_of_runs([first, tmp_path / "fourth"])
    (tmp_path / "fourth" / "dual.json").write_text("[]")
    with pytest.raises(InputError, match="expected what `normae dual` writes"):
        spread_of_runs([first, tmp_path / "fourth"])


def test_dual_tests_of_the_same_models(group, tmp_path):
    """One folder twice, one pair twice, and models of the zoo with other settings."""

    def tested(name: str, a: object, b: object) -> Path:
        content = {"slope": {"value": 1.0, "error": 0.1}, "tested": {"run_a": str(a), "run_b": str(b), "data": None}}
        write_json(tmp_path / name / "dual.json", content)
        return tmp_path / name

    first, lost = tested("first", group / "seed-0", group / "seed-1"), tested("lost", "a", "b")
    assert spread_of_runs([first, tested("other", group / "seed-0", group / "seed-2")])["slope"].deviation == 0
    with pytest.raises(InputError, match=r"again: the models of .*first; expected others"):
        spread_of_runs([first, tested("again", group / "seed-0", group / "seed-1")])
    with pytest.raises(InputError, match=r"lost: the models of .*lost; expected others"):
        spread_of_runs([lost, tmp_path / "other" / ".." / "lost"])
    zoo = [tested(name, f"jets-qcd-{name}", f"jets-top-{name}") for name in ("nae", "nae-3d")]
    with pytest.raises(InputError, match=r"nae-3d: expected the settings of .*jets-qcd-nae with another seed"):
        spread_of_runs(zoo)


@pytest.mark.parametrize(("value", "error"), [("x", 1), (1, {}), (10**400, 1), ([1], 1), (True, 1)])
def test_what_is_no_number_is_one_sentence(group, tmp_path, capsys, value, error):
    """In metrics.json, which others read too, and in dual.json."""
    numbers = {"value": value, "error": error}
    run = shutil.copytree(group / "seed-1", tmp_path / "run")
    (run / "metrics.json").write_text(json.dumps({"kl": numbers}))
    assert command("spread", group / "seed-0", run) == 2
    assert command("report", run) == 2
    for name in ("a", "b"):
        write_json(tmp_path / name / "dual.json", {"slope": numbers, "tested": {}})
    assert command("spread", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "out.json") == 2
    said = capsys.readouterr().err.splitlines()
    assert [("expected" in line, "Traceback" in line) for line in said] == 3 * [(True, False)]
    assert not (tmp_path / "out.json").exists()


def test_an_infinite_error_is_unknown(group, tmp_path):
    run = shutil.copytree(group / "seed-1", tmp_path / "run")
    (run / "metrics.json").write_text('{"kl": {"value": 1.0, "error": Infinity}}')
    (run / "provenance.json").unlink()
    assert command("spread", group / "seed-0", run, "-o", tmp_path / "out.json") == 0
    assert json.loads((tmp_path / "out.json").read_text())["kl"]["stated"] is None


def test_nothing_in_common(group, tmp_path):
    run = shutil.copytree(group / "seed-1", tmp_path / "run")
    (run / "metrics.json").write_text('{"kl": {"value": NaN, "error": 0}}')
    for given in ([run], [group / "seed-0", run]):
        with pytest.raises(InputError, match="expected numbers that all of the trainings have, got none"):
            spread_of_runs(given)


def test_what_is_refused(group, tmp_path):
    with pytest.raises(InputError, match="at least two trainings, got 1"):
        spread_of_runs([group / "seed-0"])
    with pytest.raises(InputError, match="different seeds, got 1, 1"):
        spread_of_runs([group / "seed-1", group / "seed-1"])
    with pytest.raises(InputError, match="neither a run folder nor a model of the zoo"):
        spread_of_runs([group / "seed-1", tmp_path / "none"])
    other = tiny()
    other["training"]["learning_rate"] = 3e-4
    train(structure(other | {"seed": 7}), tmp_path / "other")
    with pytest.raises(InputError, match=r"other: expected the settings of .*seed-0 with another seed, got another tr"):
        spread_of_runs([group / "seed-0", tmp_path / "other"])
    train(structure(tiny() | {"seed": 8}), tmp_path / "new")
    with pytest.raises(InputError, match=r"new: not evaluated yet; run `normae evaluate"):
        spread_of_runs([group / "seed-0", tmp_path / "new"])
