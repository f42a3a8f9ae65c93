"""An NAE that begins with a finished autoencoder, a limit of time, and the sample that is watched."""

import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import normae
from normae.cli import main
from normae.config import Run, read, structure, to_toml
from normae.errors import InputError
from normae.evaluation.evaluate import draw_pretraining
from normae.inference import BayesianModel
from normae.runs.folder import RunFolder, read_tensors
from normae.runs.session import train
from normae.sources import load_events
from normae.training import Record
from tiny_jets import CONFIGS, SAMPLE, same, tiny_jets
from tiny_run import tiny


def short_jets(kind: str, *changes: str) -> Run:
    return tiny_jets(f"jets-paper-qcd-{kind}", "sampling.latent.steps=1", "sampling.feature.steps=1", *changes)


@pytest.fixture(scope="module")
def nae(tmp_path_factory) -> Path:
    """An NAE that was pretrained and trained in one run."""
    path = tmp_path_factory.mktemp("starts") / "nae"
    assert train(short_jets("nae"), path)
    return path


@pytest.fixture(scope="module")
def autoencoder(tmp_path_factory) -> Path:
    """The autoencoder alone."""
    path = tmp_path_factory.mktemp("starts") / "ae"
    assert train(short_jets("nae", "training.epochs=0"), path)
    return path


def test_an_nae_from_a_finished_autoencoder_is_the_nae_of_one_run(nae, autoencoder, tmp_path):
    """Spectral normalization included: to the last bit, since the undivided weights and their vectors are kept."""
    assert train(short_jets("nae", f"start={autoencoder}"), tmp_path / "run")
    assert same(tmp_path / "run", nae)
    phases = {line["phase"] for line in RunFolder(tmp_path / "run").read_history()}
    assert phases == {"training"}, "nothing was pretrained"
    facts = RunFolder(tmp_path / "run").read_provenance()
    assert facts["start"]["run"] == str(autoencoder)


def test_a_run_keeps_the_autoencoder_it_began_with(nae, autoencoder, tmp_path):
    kept = RunFolder(nae).pretrained
    assert same(kept, autoencoder)
    x = load_events(short_jets("nae").data, 0).test.numpy()
    np.testing.assert_array_equal(normae.load(kept).energy(x), normae.load(autoencoder).energy(x))
    assert not np.array_equal(normae.load(kept).energy(x), normae.load(nae).energy(x))
    assert {line["phase"] for line in RunFolder(kept).read_history()} == {"pretraining"}
    assert train(short_jets("nae", f"start={kept}"), tmp_path / "again")
    assert same(tmp_path / "again", nae)


def test_a_start_without_the_undivided_weights_is_the_same_network(autoencoder, tmp_path):
    """As of the zoo: the first energies are those of the autoencoder."""
    bare = tmp_path / "bare"
    shutil.copytree(autoencoder, bare)
    RunFolder(bare).start.unlink()
    seen = []

    def stop_at_once(trainer, happening):
        if not seen:
            energy = trainer.models.energy(trainer.weights)
            seen.append(energy(torch.from_numpy(x)).detach())
        trainer.stop = True

    config = short_jets("nae", f"start={bare}")
    x = load_events(config.data, 0).test[:4].numpy()
    assert not train(config, tmp_path / "run", watch=stop_at_once)
    np.testing.assert_allclose(seen[0], normae.load(autoencoder).energy(x), rtol=1e-3)


def test_a_resume_does_not_need_the_start(autoencoder, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(autoencoder, moved)
    config = short_jets("nae", f"start={moved}")

    def stop(trainer, happening):
        trainer.stop = isinstance(happening, Record)

    assert not train(config, tmp_path / "run", watch=stop)
    shutil.rmtree(moved)
    assert train(config, tmp_path / "run", resume=True)
    assert RunFolder(tmp_path / "run").read_provenance()["start"]["run"] == str(moved)


def test_each_seed_starts_from_its_own(tmp_path):
    config = structure(tiny(training__epochs=0))
    assert train(config, tmp_path / "ae", seeds=[3, 4])
    started = structure(tiny(start=str(tmp_path / "ae"), training__epochs=1, training__learning_rate=1e-12))
    assert train(started, tmp_path / "nae", seeds=[4, 3])
    for seed in (3, 4):
        before, _ = read_tensors(RunFolder(tmp_path / "ae" / f"seed-{seed}").model)
        after, _ = read_tensors(RunFolder(tmp_path / "nae" / f"seed-{seed}").model)
        for name, value in before.items():
            torch.testing.assert_close(after[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("nae", ["network.latent=3"], "has network.latent = 6, expected 3 as in this configuration"),
        ("nae", ["network.output=linear"], "has network.output = sigmoid, expected linear"),
        ("bnae", ["network.output=sigmoid"], "has network.spectral_norm = True, expected False"),
        ("nae", ["start=nowhere"], "start: nowhere: neither a run folder nor a model of the zoo"),
    ],
)
def test_a_start_that_does_not_fit_is_one_sentence(autoencoder, tmp_path, kind, changes, message):
    with pytest.raises(InputError, match=message):
        train(short_jets(kind, f"start={autoencoder}", *changes), tmp_path / "run")
    assert not (tmp_path / "run" / "config.toml").exists()


def test_a_deterministic_start_of_a_bayesian_run_is_refused(tmp_path):
    assert train(structure(tiny(training__epochs=0)), tmp_path / "ae")
    config = structure(tiny(start=str(tmp_path / "ae"), bayesian={"layers": "last"}))
    with pytest.raises(InputError, match=r"is deterministic, expected Bayesian \(last\)"):
        train(config, tmp_path / "run")


def test_a_bayesian_autoencoder_starts_a_bayesian_nae(tmp_path):
    assert train(short_jets("bnae", "training.epochs=0"), tmp_path / "bae")
    assert train(short_jets("bnae", f"start={tmp_path / 'bae'}"), tmp_path / "bnae")
    one, _ = read_tensors(RunFolder(tmp_path / "bae").model)
    other, _ = read_tensors(RunFolder(tmp_path / "bnae").model)
    name = next(name for name in one if name.startswith("rho."))
    assert (one[name] - other[name]).abs().max() < 0.01, "the widths go on from where they were"


@pytest.mark.parametrize(
    ("table", "settings"),
    [
        ("ensemble", {"members": 4}),
        ("bayesian", {}),
    ],
)
def test_the_autoencoder_inside_any_kind_of_run_loads(tmp_path, table, settings):
    short = {"training__epochs": 1, "training__schedule": "constant", "data__train": 600, "evaluation__log_z_cells": 20}
    assert train(structure(tiny(**short, **{table: settings})), tmp_path / "run")
    model = normae.load(tmp_path / "run" / "pretrained")
    assert isinstance(model, BayesianModel)
    assert np.isfinite(model.score(np.zeros((3, 2)))).all()


# --- minutes


def test_a_limit_of_time_stops_with_a_checkpoint_and_changes_nothing(tmp_path, nae):
    config, path = short_jets("nae"), tmp_path / "run"
    for stops in range(8):  # one iteration each, so from the pretraining into the NAE phase
        assert not train(config, path, resume=stops > 0, minutes=1e-6)
        assert RunFolder(path).checkpoint.is_file()
    assert train(config, path, resume=True, minutes=10)
    assert same(path, nae)


def test_the_limit_is_kept(tmp_path):
    config = structure(tiny(training__epochs=100_000))
    begun = time.monotonic()
    assert not train(config, tmp_path / "run", minutes=0.04)
    assert 2 < time.monotonic() - begun < 15


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan")])
def test_a_limit_must_be_positive(tmp_path, minutes):
    with pytest.raises(InputError, match="minutes: expected a positive number"):
        train(structure(tiny()), tmp_path / "run", minutes=minutes)


def test_the_command_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    config = tmp_path / "run.toml"
    config.write_text(to_toml(structure(tiny(training__epochs=100_000))))
    arguments = ["normae", "train", str(config), "--out", str(tmp_path / "run"), "--minutes", "0.02"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as stopped:
        main()
    error = " ".join(capsys.readouterr().err.split())
    assert stopped.value.code == 130
    assert "Go on with: normae train" in error
    assert error.endswith("--minutes 0.02 --resume")


def test_a_jet_checkpoint_is_small(tmp_path):
    """It travels to a GPU and back: weights, averages, two moments and 10,000 latent points of the paper's network."""
    paper = read(CONFIGS / "jets-paper-qcd-nae.toml", [f"data.path={SAMPLE}"])
    config = replace(short_jets("nae"), network=paper.network, sampling=replace(paper.sampling, buffer=10_000))

    def stop(trainer, happening):
        trainer.stop = True

    assert not train(config, tmp_path / "run", watch=stop)
    assert RunFolder(tmp_path / "run").checkpoint.stat().st_size < 5_000_000


# --- the validation sample


def test_the_validation_energy_is_that_of_the_model(nae, autoencoder):
    config = short_jets("nae")
    held = load_events(config.data, 0).validation.dense().numpy()
    last = RunFolder(autoencoder).read_history()[-1]
    assert last["validation_energy"] == pytest.approx(normae.load(autoencoder).energy(held).mean(), rel=1e-2)
    assert all("validation_energy" in json.loads(line) for line in RunFolder(nae).history.read_text().splitlines())


def test_validation_does_not_change_a_training(tmp_path):
    for n in (0, 100):
        assert train(structure(tiny(data__validation=n)), tmp_path / str(n))
    one, other = (read_tensors(RunFolder(tmp_path / str(n)).model)[0] for n in (0, 100))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_training_does_not_need_the_test_jets(tmp_path):
    for name in ("train.npz", "val.npz"):
        (tmp_path / name).symlink_to(SAMPLE)
    assert train(short_jets("nae", f"data.path={tmp_path}", "training.epochs=0"), tmp_path / "run")


def test_the_pretraining_is_held_against_linear_models(nae):
    run = RunFolder(nae)
    known = run.read_provenance()["baselines"]
    events = load_events(short_jets("nae").data, 0)
    mean = events.train.dense().double().mean(0)
    error = (events.validation.dense().double() - mean).square().mean()
    assert known["mse_mean_event"]["value"] == pytest.approx(float(error), rel=1e-5)
    assert 0 < known["mse_5_components"]["value"] < known["mse_mean_event"]["value"]
    assert known == RunFolder(run.pretrained).read_provenance()["baselines"]
    assert draw_pretraining(run)
    assert {p.suffix for p in run.figures.glob("pretraining.*")} == {".svg", ".pdf", ".csv"}


def test_without_a_validation_sample_there_is_no_such_figure(tmp_path):
    assert train(structure(tiny(training__epochs=0)), tmp_path / "run")
    assert not draw_pretraining(RunFolder(tmp_path / "run"))
