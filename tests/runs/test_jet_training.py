"""The jet presets at tiny sizes: trained, stopped, resumed, loaded and scored; what is missing is one sentence."""

import shutil
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import normae
from command import command
from normae import zoo
from normae.cli import main
from normae.config import read
from normae.errors import InputError
from normae.files import digest
from normae.inference import BayesianModel
from normae.runs.folder import RunFolder, read_tensors
from normae.runs.session import train
from normae.sources import load_events
from normae.training import Record
from plain_conv import PlainConv
from tiny_jets import CONFIGS, SAMPLE, TINY, same, tiny_jets
from watched import watched

PRESETS = ["jets-paper-qcd-nae", "jets-paper-top-nae", "jets-paper-qcd-bnae", "jets-paper-top-bnae"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Both kinds of models, trained without a stop."""
    paths = {kind: tmp_path_factory.mktemp("jets") / kind for kind in ("nae", "bnae")}
    for kind, path in paths.items():
        assert train(tiny_jets(f"jets-paper-qcd-{kind}"), path)
    return paths


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_the_paper_s(preset):
    run = read(CONFIGS / f"{preset}.toml")
    bayesian = preset.endswith("bnae")
    assert run.name == preset
    assert run.data.jets == preset.split("-")[2]
    assert (run.network.latent, run.network.channels, run.network.hidden) == (6, 8, (100,))
    assert run.network.output == ("linear" if bayesian else "sigmoid")
    assert run.network.spectral_norm == (not bayesian)
    assert (run.bayesian is not None) == bayesian
    assert run.training.l2_penalty == (0 if bayesian else 1e-8)
    assert (run.temperature.initial, run.temperature.trained) == (6e-7, False)
    assert run.sampling.latent.sphere == "geodesic"
    assert run.sampling.feature.metropolis == "off"


@pytest.mark.parametrize("folder", [False, True])
def test_other_jets_than_those_of_the_training_are_refused(tmp_path, folder, capfd):
    """A file of jets that was exchanged, wherever a finished run reads it again; the one that was there is taken."""
    place, names = tmp_path / "jets", ("train", "val", "test") if folder else ("jets",)
    place.mkdir()
    for name in names:
        shutil.copy(SAMPLE, place / f"{name}.npz")
    where, run, file = place if folder else place / "jets.npz", tmp_path / "run", place / f"{names[-1]}.npz"
    assert train(tiny_jets("jets-paper-qcd-nae", f"data.path={where}"), run)
    with np.load(SAMPLE) as content:
        np.savez(file, **{key: array[::-1] for key, array in content.items()})
    calls = [
        ["score", run, file, "-o", tmp_path / "s.csv", "--device", "cpu"],
        ["evaluate", run, "--no-figures", "--device", "cpu"],
        ["temperature", "estimate", run, "--events", "10", "--device", "cpu"],
        ["dual", run, "jets-top-nae", "-o", tmp_path / "d", "--device", "cpu"],
    ]
    for words in calls:
        assert command(*words) == 2
        assert "not the jets that the run was made with" in " ".join(capfd.readouterr().err.split())
    shutil.copy(SAMPLE, file)
    assert command(*calls[0]) == 0
    assert "p_value" in (tmp_path / "s.csv").read_text()


@pytest.mark.parametrize("read", [1, 2])
def test_jets_that_change_while_a_training_reads_them_are_not_taken_for_those_it_read(tmp_path, read):
    """The file that is read, or, while another one is, one that has been: what the run knows is what it has read."""
    place, seen = tmp_path / "jets", []
    place.mkdir()
    for name in ("train", "val", "test"):
        shutil.copy(SAMPLE, place / f"{name}.npz")

    def change(*_: int) -> None:
        seen.append(1)
        if len(seen) == read:
            with np.load(SAMPLE) as content:
                np.savez(place / "train.npz", **{key: array[::-1] for key, array in content.items()})

    run = tiny_jets("jets-paper-qcd-nae", f"data.path={place}")
    with watched(change), pytest.raises(InputError, match="changed while it was read") if read == 1 else nullcontext():
        train(run, tmp_path / "run")
    if read == 2:
        known = RunFolder(tmp_path / "run").read_provenance()["jets_sha256"]
        assert known[str(place / "train.npz")] == digest(SAMPLE) != digest(place / "train.npz")


def test_jets_that_the_environment_names_are_known_by_what_they_hold(tmp_path, monkeypatch, capfd):
    """Wherever they are: a copy is taken; others give no background, but a run may be judged on them."""
    run, other = tmp_path / "run", tmp_path / "other.npz"
    with np.load(SAMPLE) as content:
        np.savez(other, **{**content, "label": 1 - content["label"]})
    monkeypatch.setenv("NORMAE_JETS", str(SAMPLE))
    assert train(read(CONFIGS / "jets-paper-qcd-nae.toml", TINY), run)
    monkeypatch.setenv("NORMAE_JETS", str(other))
    words = ["score", run, SAMPLE, "-o", tmp_path / "s.csv", "--device", "cpu"]
    assert command(*words) == 2
    assert f"{other.name}: not the jets that the run was made with" in " ".join(capfd.readouterr().err.split())
    assert not RunFolder(run).background.exists()
    config = read(run / "config.toml")
    assert len(RunFolder(run).events(replace(config, data=replace(config.data, path=str(other)))).test) == 20
    assert command("evaluate", run, "--no-figures", "--device", "cpu", "--jets", other) == 0
    monkeypatch.setenv("NORMAE_JETS", str(shutil.copy(SAMPLE, tmp_path / "copy.npz")))
    assert command(*words) == 0
    assert "p_value" in (tmp_path / "s.csv").read_text()


@pytest.mark.parametrize("kind", ["nae", "bnae"])
def test_a_stop_and_a_resume_change_nothing(runs, tmp_path, kind):
    """Stopped in the pretraining and again in the chains' phase: the same weights to the last bit."""
    config, path = tiny_jets(f"jets-paper-qcd-{kind}"), tmp_path / "run"

    def stop_in(phase):
        def watch(trainer, happening):
            trainer.stop = isinstance(happening, Record) and happening.phase == phase

        return watch

    assert not train(config, path, watch=stop_in("pretraining"))
    assert not train(config, path, resume=True, watch=stop_in("training"))
    assert not RunFolder(path).model.exists()
    assert train(config, path, resume=True)
    assert same(path, runs[kind])


def test_seeds_side_by_side(tmp_path, runs):
    """One batched pass is the single runs up to the order of sums."""
    assert train(tiny_jets("jets-paper-qcd-nae"), tmp_path / "two", seeds=[0, 1])
    alone, _ = read_tensors(RunFolder(runs["nae"]).model)
    beside, _ = read_tensors(RunFolder(tmp_path / "two" / "seed-0").model)
    for name, value in alone.items():
        torch.testing.assert_close(beside[name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_a_trained_model_scores_jets(runs):
    model = normae.load(runs["nae"])
    x = load_events(tiny_jets("jets-paper-qcd-nae").data, 0).test.numpy()
    assert x.shape == (20, 1, 40, 40)
    plain = PlainConv(model.autoencoder)
    with torch.no_grad():
        np.testing.assert_allclose(model.energy(x), plain(torch.from_numpy(x)).numpy(), rtol=1e-4)
    np.testing.assert_allclose(model.score(x), model.energy(x) / 6e-7, rtol=1e-5)
    assert len(model.score(x[:0])) == 0
    for name, p in model.autoencoder.named_parameters():
        if p.ndim > 1:  # the finished weights are the divided ones
            assert torch.linalg.matrix_norm(p.flatten(1), 2) < 1.3, name
    events = torch.from_numpy(x[:2]).requires_grad_(True)
    (grad,) = torch.autograd.grad(model.energy(events).sum(), events)
    assert grad.abs().max() > 0


def test_a_bayesian_model_has_draws(runs):
    model = normae.load(runs["bnae"])
    assert isinstance(model, BayesianModel)
    x = load_events(tiny_jets("jets-paper-qcd-bnae").data, 0).test[:3].numpy()
    assert model.score_draws(x, 4).shape == (4, 3)
    assert all(name.startswith("decoder.12") for name in model.posterior.widths)


def test_the_fast_energy_is_faster_than_the_network_as_written():
    """Ratio of the best of some interleaved turns; docs/research/jets-network.md has the measured one."""
    from normae.networks import build_autoencoder
    from normae.networks.scoring_energy import ScoringEnergy

    network = build_autoencoder(read(CONFIGS / "jets-paper-qcd-nae.toml").network, (1, 40, 40), torch.Generator())
    network.requires_grad_(False)
    x, best = torch.rand(64, 1, 40, 40) * 2e-3, {}
    for _ in range(12):
        for name, energy in (("plain", PlainConv(network).requires_grad_(False)), ("fast", ScoringEnergy(network))):
            start = time.perf_counter()
            energy(x)
            best[name] = min(best.get(name, 9.0), time.perf_counter() - start)
    assert best["plain"] > 1.4 * best["fast"], best  # 2 to 4, by processor; what is left is for busy machines


# --- what can be wrong


@pytest.mark.parametrize(
    ("changes", "environment", "message"),
    [
        ([], None, "data.path: expected a file or folder of jets there, or in the variable NORMAE_JETS"),
        ([], "nowhere", "nowhere: no such file or folder of jets"),
        (["data.path=nowhere.npz"], None, "nowhere.npz: no such file or folder of jets"),
        ([], ".", ".: expected a file train.npz or train.h5 in it"),
        (["data.jets=bottom"], None, "data.jets"),
        ([f"data.path={SAMPLE}", "data.train=99"], None,
         "expected at least 129 qcd jets for train = 99, test = 20 and validation = 10"),
    ],
)  # fmt: skip
def test_bad_jets_are_one_sentence_and_exit_code_2(monkeypatch, capsys, tmp_path, changes, environment, message):
    monkeypatch.delenv("NORMAE_JETS", raising=False)
    if environment is not None:
        monkeypatch.setenv("NORMAE_JETS", environment)
    settings = [part for change in [*TINY, *changes] for part in ("--set", change)]
    preset = str(CONFIGS / "jets-paper-qcd-nae.toml")
    monkeypatch.setattr(sys, "argv", ["normae", "train", preset, "--out", "run", *settings])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main()
    error = capsys.readouterr().err
    assert stopped.value.code == 2, error
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_jets_from_a_folder_and_from_the_variable(tmp_path, monkeypatch):
    (tmp_path / "train.npz").symlink_to(SAMPLE)
    (tmp_path / "test.npz").symlink_to(SAMPLE)
    (tmp_path / "val.npz").symlink_to(SAMPLE)
    monkeypatch.setenv("NORMAE_JETS", str(tmp_path))
    sizes = ["data.train=30", "data.validation=5"]
    config = read(CONFIGS / "jets-paper-top-nae.toml", [*sizes, "data.test=10"]).data
    events = load_events(config, 0)
    assert events.train.shape == (30, 1, 40, 40)
    assert events.test.shape == (10, 1, 40, 40)
    assert events.validation.shape == (5, 1, 40, 40)
    short = load_events(read(CONFIGS / "jets-paper-top-nae.toml", [*sizes, "data.test=101"]).data, 0)
    assert short.train.shape == (30, 1, 40, 40), "whoever needs no test jets does not need 101 of them"
    with pytest.raises(InputError, match="expected 101 top jets in test, got 100"):
        _ = short.test


def test_one_file_is_split_by_the_seed():
    config = tiny_jets("jets-paper-qcd-nae").data
    a, b, c = (load_events(config, seed) for seed in (0, 0, 1))
    assert torch.equal(a.test, b.test)
    assert not torch.equal(a.test, c.test)
    whole = torch.cat([a.train.dense(), a.test, a.validation.dense()]).flatten(1)
    assert len(whole.unique(dim=0)) == 90, "no jet is in two samples"


@pytest.mark.parametrize("jets", ["qcd", "top"])
def test_three_latent_dimensions(jets):
    """As the preset says: another rate and T, no L2 penalty."""
    three, six = (read(CONFIGS / f"jets-best-{jets}-nae{end}.toml") for end in ("-3d", ""))
    assert three.name == f"jets-best-{jets}-nae-3d"
    assert three.network == replace(six.network, latent=3)
    assert three.training == replace(six.training, learning_rate=2.5e-5, l2_penalty=0.0)
    assert three.sampling.latent.step_size / three.temperature.initial == pytest.approx(120)


@pytest.mark.parametrize("kind", ["nae", "bnae"])
@pytest.mark.parametrize("jets", ["qcd", "top"])
def test_our_presets_differ_from_the_paper_by_what_they_say(kind, jets):
    """The rate and its schedule, averaging, T with the step sizes over T unchanged, and the NAE's network."""
    best, paper = (read(CONFIGS / f"jets-{name}-{jets}-{kind}.toml") for name in ("best", "paper"))
    assert best.name == f"jets-best-{jets}-{kind}"
    candidate = "NOT YET TRAINED" in (CONFIGS / f"{best.name}.toml").read_text()
    assert candidate == (f"jets-{jets}-{kind}" not in zoo.names()), "called so until the zoo has it"
    for name in ("data", "pretraining", "bayesian", "guard"):
        assert getattr(best, name) == getattr(paper, name), name
    theirs = replace(paper.network, output="linear", spectral_norm=False)
    assert best.network == (theirs if kind == "nae" else paper.network)
    for chain in ("latent", "feature"):
        ours, theirs = (getattr(run.sampling, chain) for run in (best, paper))
        over = [c.step_size / run.temperature.initial for c, run in ((ours, best), (theirs, paper))]
        assert over[0] == pytest.approx(over[1], rel=1e-9)
        assert replace(ours, step_size=theirs.step_size) == theirs
    schedule = {
        name: getattr(paper.training, name) for name in ("epochs", "learning_rate", "schedule", "warmup", "average")
    }
    assert replace(best.training, **schedule) == paper.training
    assert best.training.average > 0


def test_an_ensemble_of_networks_that_end_in_a_sigmoid(tmp_path):
    """No layer is the last one, so that every member passes the whole network."""
    assert train(tiny_jets("jets-paper-qcd-nae", "ensemble.members=4"), tmp_path / "run")
    model = normae.load(tmp_path / "run")
    assert isinstance(model, BayesianModel)
    x = load_events(tiny_jets("jets-paper-qcd-nae").data, 0).test[:3]
    draws = model.energy_draws(x.numpy(), 6)
    assert draws.shape == (6, 3)
    assert (draws.std(axis=0) > 0).all()
    assert (draws > 0).all()


def test_adapted_latent_steps_are_kept(tmp_path):
    adapting = tiny_jets("jets-best-qcd-nae", "training.warmup=0", "sampling.latent.adapt=0.6")
    assert train(adapting, tmp_path / "run")
    _, header = read_tensors(RunFolder(tmp_path / "run").model)
    assert header["step_sizes"][0] != pytest.approx(1.14e-4, rel=1e-3)
    assert header["step_sizes"][1] == pytest.approx(5.7e-5, rel=1e-5)


def test_the_temperature_of_jets_can_be_trained(tmp_path):
    assert train(tiny_jets("jets-paper-qcd-nae", "temperature.trained=true"), tmp_path / "run")
    assert normae.load(tmp_path / "run").temperature != pytest.approx(6e-7, rel=1e-5)
