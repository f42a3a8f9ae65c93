"""`normae ensemble`: what a model out of finished runs says, and what is refused."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from typer.testing import CliRunner

import normae
from normae.cli import app
from normae.config import read, structure
from normae.dual.judge import central
from normae.errors import InputError, LogZUnknown
from normae.evaluation.evaluate import evaluate
from normae.export.onnx import export_onnx
from normae.inference import BayesianModel, Model
from normae.runs.ensemble import gather, made_of
from normae.runs.folder import RunFolder, read_tensors, write_tensors
from normae.runs.load import seed_folders
from normae.runs.session import train
from normae.scoring.scorer import open_scorer
from normae.search.histogram import Binner, HistogramSettings
from normae.sources import load_events
from normae.temperature.estimates import estimate_temperatures
from tiny_run import tiny

X = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    """Four seeds, each with events of its own."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("seeds") / "group"
    train(structure(tiny()), folder, seeds=[0, 1, 2, 3])
    return folder


def test_the_mean_and_the_spread_are_the_members(group, tmp_path):
    command = ["ensemble", str(group), "--out", str(tmp_path / "new")]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert read(tmp_path / "new" / "config.toml").ensemble.events == "split"
    model = normae.load(tmp_path / "new")
    assert isinstance(model, BayesianModel)
    scores = np.array([normae.load(group / f"seed-{k}").score(X) for k in range(4)], dtype=np.float64)
    draws = model.energy_draws(X, 4000).astype(np.float64) / model.posterior.temperatures.mean().item()
    assert np.abs(np.median(draws, axis=0) - scores.mean(0)).max() < 0.1 * scores.std(0).max()
    half = np.quantile(draws, 0.8413, axis=0) - np.median(draws, axis=0)
    student = 1.197  # the same quantile of Student's t with three degrees of freedom
    assert half / (scores.std(0, ddof=1) / 2) == pytest.approx(student, rel=0.15), "the error of a mean of four"


def test_draws_are_normalized_and_the_run_is_whole(group, tmp_path):
    gather([group / f"seed-{k}" for k in (2, 0, 1, 3)], tmp_path / "new")
    points = np.stack(np.meshgrid(*[(np.arange(60) + 0.5) / 60 * 9 - 4.5] * 2), axis=-1).reshape(-1, 2)
    total = np.exp(normae.load(tmp_path / "new").log_prob_draws(points, 3).astype(np.float64)).sum(1) * (9 / 60) ** 2
    assert total == pytest.approx(1, abs=1e-2)
    facts = json.loads((tmp_path / "new" / "provenance.json").read_text())
    assert [member["seed"] for member in facts["members"]] == [2, 0, 1, 3]
    assert {"coverage_quantile_68", "kl"} <= set(evaluate(tmp_path / "new", figures=False, device="cpu"))
    lines = [(tmp_path / "new" / "metrics.jsonl"), *(group / f"seed-{k}" / "metrics.jsonl" for k in range(4))]
    last = [json.loads(path.read_text().splitlines()[-1])["positive_energy"] for path in lines]
    assert last[0] == pytest.approx(np.mean(last[1:]))


def test_the_same_events_give_the_spread_of_one_training(group, tmp_path):
    runs = [shutil.copytree(group / f"seed-{k}", tmp_path / f"run{k}") for k in range(4)]
    facts = json.loads((runs[0] / "provenance.json").read_text())
    for k, run in enumerate(runs):
        (run / "provenance.json").write_text(json.dumps(facts | {"seed": k}))
    gather(runs, tmp_path / "new")
    assert read(tmp_path / "new" / "config.toml").ensemble.events == "all"
    assert not normae.load(tmp_path / "new").posterior.independent


def test_seeds_that_cut_one_file_are_refused(tmp_path):
    """Another seed keeps other rows for the test, which the others were trained on."""
    np.save(tmp_path / "rows.npy", np.random.default_rng(1).normal(size=(900, 2)).astype(np.float32))
    data = {"file": str(tmp_path / "rows.npy"), "train": 600, "test": 200}
    train(structure(tiny(data=data)), tmp_path / "group", seeds=[0, 1, 2, 3])
    with pytest.raises(InputError, match="seeds that cut one sample in different ways"):
        gather([tmp_path / "group"], tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("few", "expected at least 4, got 3"),
        ("same", "the same model as"),
        ("settings", "with another seed, got another training"),
        ("unfinished", "not finished; go on with"),
        ("bayesian", r"expected a run without error bars or with \[bayesian\] alone, got \[ensemble\]"),
        ("exists", "exists already"),
        ("events", "got some of both"),
    ],
)
def test_what_is_refused(group, tmp_path, change, message):
    runs = [shutil.copytree(group / f"seed-{k}", tmp_path / f"run{k}") for k in range(4)]
    out = tmp_path / "new"
    if change == "few":
        runs.pop()
    elif change == "same":
        for name in ("model.safetensors", "config.toml"):
            shutil.copy(runs[1] / name, runs[3] / name)
    elif change == "settings":
        config = runs[3] / "config.toml"
        config.write_text(config.read_text().replace("average = 0.9", "average = 0.8"))
    elif change == "unfinished":
        (runs[3] / "model.safetensors").unlink()
    elif change == "bayesian":
        gather(runs, tmp_path / "one")
        runs[3] = tmp_path / "one"
    elif change == "exists":
        out.mkdir()
        (out / "thesis.tex").write_text("mine")
    else:
        shutil.copy(runs[0] / "provenance.json", runs[3] / "provenance.json")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=message):
        gather(runs, out)
    assert sorted(tmp_path.rglob("*")) == before


# --- of Bayesian runs


@pytest.fixture(scope="module")
def bayesian(tmp_path_factory):
    """Three seeds with mean-field layers."""
    folder = tmp_path_factory.mktemp("bayesian") / "group"
    train(structure(tiny(bayesian={"layers": "last"}, data__validation=500)), folder, seeds=[0, 1, 2])
    return folder


def test_several_modes_have_the_mean_of_their_densities(bayesian, tmp_path):
    gather([bayesian], tmp_path / "new")
    model = normae.load(tmp_path / "new")
    members = [normae.load(bayesian / f"seed-{k}") for k in range(3)]
    expected = np.log(np.mean([np.exp(m.log_prob_draws(X).astype(np.float64)).mean(0) for m in members], axis=0))
    assert model.log_prob(X) == pytest.approx(expected, abs=0.05), "100 draws are not the same for all"
    points = np.stack(np.meshgrid(*[(np.arange(60) + 0.5) / 60 * 9 - 4.5] * 2), axis=-1).reshape(-1, 2)
    assert np.exp(model.log_prob(points).astype(np.float64)).sum() * (9 / 60) ** 2 == pytest.approx(1, abs=1e-2)
    metrics = evaluate(tmp_path / "new", figures=False, device="cpu")
    assert metrics["sigma_log_p"].value > 0


def test_their_spread_is_that_of_the_trainings(bayesian, tmp_path):
    gather([bayesian], tmp_path / "new")
    between = np.std([normae.load(bayesian / f"seed-{k}").log_prob(X) for k in range(3)], axis=0)
    within = normae.load(bayesian / "seed-0").log_prob_draws(X).std(0)
    whole = normae.load(tmp_path / "new").log_prob_draws(X).std(0)
    assert within.mean() < 0.5 * between.mean(), "else this test says nothing"
    assert whole.mean() == pytest.approx(between.mean(), rel=0.25)


def test_score_energy_and_log_p_of_modes_differ_by_constants(bayesian, tmp_path):
    gather([bayesian], tmp_path / "new")
    model = normae.load(tmp_path / "new")
    log_z = float(model.log_z_draws().mean())
    assert model.score(X) == pytest.approx(-model.log_prob(X) - log_z, abs=1e-4)
    assert model.energy(X) == pytest.approx(model.temperature * model.score(X))
    assert model.score(torch.from_numpy(X)).numpy() == pytest.approx(model.score(X), abs=1e-5), (
        "tensors need no gradient"
    )
    with pytest.raises(LogZUnknown):
        assert model.log_z is None, "that of one member would be wrong"


def test_the_constants_count_where_members_have_other_zero_points(bayesian, tmp_path):
    """Without log Z in the headers they come from events: a constant more in one member's energy changes nothing."""
    runs = [shutil.copytree(bayesian / f"seed-{k}", tmp_path / f"run{k}") for k in range(3)]
    for run in runs:
        tensors, header = read_tensors(run / "model.safetensors")
        write_tensors(run / "model.safetensors", tensors, header | {"log_z": None})
    gather(runs, tmp_path / "new")
    constants = np.array(read_tensors(tmp_path / "new" / "model.safetensors")[1]["constants"])
    config = read(runs[0] / "config.toml")
    held = load_events(config.data, config.seed).validation.numpy()
    models = [normae.load(run) for run in runs]
    scores = np.stack([Model(m.autoencoder, m.temperature, m.event, m.sampling).score(held) for m in models])
    log_p = constants[:, None] - scores.astype(np.float64)
    assert np.exp(log_p - logsumexp(log_p, axis=0)).mean(1) == pytest.approx([1 / 3] * 3, abs=1e-5)
    draws = normae.load(tmp_path / "new").draw_set(3, 0)
    rows, alone = draws.energies(torch.from_numpy(held)), [draws.one(k)(torch.from_numpy(held)) for k in range(3)]
    shifts = [float((a - r).mean() / t) for a, r, t in zip(alone, rows, draws.temperature, strict=True)]
    assert sorted(shifts) == pytest.approx(sorted(constants), abs=1e-4)


def test_a_histogram_of_modes_is_that_of_their_density(bayesian, tmp_path):
    gather([bayesian], tmp_path / "new")
    scorer = open_scorer(tmp_path / "new", device="cpu")
    for quantity, expected in (("score", "score"), ("log_prob", "log_prob")):
        binner = Binner(scorer, RunFolder(tmp_path / "new"), HistogramSettings(quantity=quantity))
        nominal, each = binner.values(X)
        assert nominal == pytest.approx(getattr(scorer.model, expected)(X), abs=1e-4)
        assert each.shape == (100, len(X))


def test_the_dual_test_of_modes_has_the_log_p_of_the_model(bayesian, tmp_path):
    gather([bayesian], tmp_path / "new")
    model = normae.load(tmp_path / "new")
    rows = model.rows(X, 100, 0)
    assert central(rows) - rows.log_z.mean() == pytest.approx(model.log_prob(X), abs=1e-4)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("constants", None), ("constants", [0.0]), ("constants", [0.0, "a", 1.0]), ("constants", [0.0, math.nan, 1.0]),
        ("temperatures", [0.5, 0.5]), ("temperatures", [0.5, 0.5, 0.0]), ("temperatures", [0.5] * 4),
    ],
)  # fmt: skip
def test_a_damaged_header_is_one_sentence(bayesian, tmp_path, key, value):
    gather([bayesian], tmp_path / "new")
    tensors, header = read_tensors(tmp_path / "new" / "model.safetensors")
    write_tensors(tmp_path / "new" / "model.safetensors", tensors, header | {key: value})
    with pytest.raises(InputError, match=f"lacks or garbles {key}, expected 3 numbers"):
        normae.load(tmp_path / "new")


@pytest.mark.parametrize("change", ["fewer", "missing"])
def test_damaged_members_are_one_sentence(bayesian, tmp_path, change):
    gather([bayesian], tmp_path / "new")
    tensors, header = read_tensors(tmp_path / "new" / "model.safetensors")
    name = next(name for name in tensors if name.startswith("member."))
    tensors = {
        k: v[:2] if k == name and change == "fewer" else v for k, v in tensors.items() if k != name or change == "fewer"
    }
    write_tensors(tmp_path / "new" / "model.safetensors", tensors, header)
    with pytest.raises(InputError, match=r"the weights do not belong to config.toml"):
        normae.load(tmp_path / "new")


def test_what_modes_do_not_offer_is_one_sentence(bayesian, tmp_path):
    gather([bayesian], tmp_path / "new")
    start = structure(tiny(bayesian={"layers": "last"}, start=str(tmp_path / "new")))
    with pytest.raises(InputError, match="a mixture of several trainings, expected one of them"):
        train(start, tmp_path / "again")
    with pytest.raises(InputError, match="which have a temperature each"):
        estimate_temperatures(tmp_path / "new")
    with pytest.raises(InputError, match="has no ONNX form"):
        export_onnx(tmp_path / "new", tmp_path / "new.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]


def test_a_folder_comes_before_the_zoo(bayesian, tmp_path, monkeypatch):
    shutil.copytree(bayesian / "seed-0", tmp_path / "jets-qcd-nae")
    monkeypatch.chdir(tmp_path)
    assert read(seed_folders(["jets-qcd-nae"])[0].config).name == "tiny"
    assert read(seed_folders(["jets-top-nae"])[0].config).data.jets == "top"


def test_an_ensemble_knows_its_members(bayesian, tmp_path):
    members = [RunFolder(bayesian / f"seed-{k}") for k in range(3)]
    new = gather([bayesian], tmp_path / "new")
    assert made_of(new, members)
    assert not made_of(new, members[:2])
    assert not made_of(RunFolder(tmp_path / "none"), members)


def test_modes_score_as_the_model_says_and_are_not_trained(bayesian, tmp_path):
    gather([bayesian], tmp_path / "new")
    np.save(tmp_path / "x.npy", X)
    command = ["score", str(tmp_path / "new"), str(tmp_path / "x.npy"), "-o", str(tmp_path / "scores.npz")]
    assert CliRunner().invoke(app, command).exit_code == 0
    model = normae.load(tmp_path / "new")
    with np.load(tmp_path / "scores.npz") as scores:
        assert scores["score"] == pytest.approx(model.score(X), abs=1e-5)
        assert scores["log_prob"] == pytest.approx(model.log_prob(X), abs=1e-4)
    with pytest.raises(InputError, match="join them with"):
        train(read(tmp_path / "new" / "config.toml"), tmp_path / "again")


def test_modes_need_validation_events_and_at_least_two(bayesian, tmp_path):
    with pytest.raises(InputError, match="expected at least 2, got 1"):
        gather([bayesian / "seed-0"], tmp_path / "new")
    train(structure(tiny(bayesian={"layers": "last"})), tmp_path / "group", seeds=[0, 1])
    for seed in (0, 1):
        tensors, header = read_tensors(tmp_path / "group" / f"seed-{seed}" / "model.safetensors")
        write_tensors(tmp_path / "group" / f"seed-{seed}" / "model.safetensors", tensors, header | {"log_z": None})
    with pytest.raises(InputError, match=r"data.validation: expected events there"):
        gather([tmp_path / "group"], tmp_path / "new")
    with pytest.raises(InputError, match="expected Bayesian runs on jets"):
        gather([tmp_path / "group"], tmp_path / "new", tmp_path)
    assert not (tmp_path / "new").exists()
