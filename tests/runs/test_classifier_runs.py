"""The jet classifier: trained, stopped, resumed, calibrated and loaded; it must tell what can be told apart."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import normae
from normae.cli import main
from normae.config import Run, read, structure, to_toml
from normae.data import SparseEvents
from normae.errors import InputError
from normae.networks.autoencoder import conv_encoder
from normae.networks.reconstruction import fill, prefixed
from normae.runs.classifier import Classifier, _correction, _correction_tensors
from normae.runs.folder import RunFolder, read_tensors
from normae.runs.session import train
from normae.sources import load_both
from normae.statistics import auc
from normae.statistics.calibration import CORRECTIONS
from normae.training import ClassifierConfig, Record, classifier_trainer
from tiny_jets import CONFIGS, SAMPLE, tiny_jets

TINY = [
    "device=cpu", f"data.path={SAMPLE}", "data.train=60", "data.test=10", "data.validation=30", "network.channels=2",
    "network.hidden=[8]", "classifier.epochs=12", "classifier.batch=20", "classifier.learning_rate=5e-3",
]  # fmt: skip


def tiny_classifier(*changes: str) -> Run:
    return read(CONFIGS / "jets-paper-classifier.toml", [*TINY, *changes])


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("classifier") / "run"
    assert train(tiny_classifier(), path)
    return path


def test_the_preset_is_the_paper_s():
    run = read(CONFIGS / "jets-paper-classifier.toml")
    assert (run.classifier.epochs, run.classifier.batch, run.classifier.learning_rate) == (300, 2048, 1e-3)
    assert (run.data.train, run.network.channels, run.network.hidden) == (100_000, 8, (100,))


def test_the_folder_is_like_any_other(trained):
    run = RunFolder(trained)
    for path in (run.config, run.model, run.checkpoint, run.history, run.provenance):
        assert path.is_file(), path
    assert read(run.config) == tiny_classifier()
    assert "[training]" not in run.config.read_text(), "settings that nothing reads are not written"
    lines = run.read_history()
    assert [line["epoch"] for line in lines] == list(range(1, 13))
    assert run.read_provenance()["validation"]["auc"]["value"] > 0.5
    assert all(math.isfinite(line["validation_loss"]) for line in lines)


def test_the_weights_are_those_of_the_lowest_validation_loss(trained):
    best = min(line["validation_loss"] for line in RunFolder(trained).read_history())
    model = normae.load_classifier(trained)
    _, held = load_both(tiny_classifier().data, 0)
    qcd, top = (model.log_ratio(images.dense(), corrected=False) for images in held)
    loss = np.mean([np.logaddexp(0, qcd), np.logaddexp(0, -top)])
    assert loss == pytest.approx(best, rel=1e-4)
    assert auc(top, qcd).value > 0.7, "tops and QCD jets can be told apart"


def test_a_stop_and_a_resume_change_nothing(trained, tmp_path):
    path = tmp_path / "run"

    def stop(trainer, happening):
        trainer.stop |= isinstance(happening, Record) and happening.epoch in (2, 5)

    assert not train(tiny_classifier(), path, watch=stop)
    assert not train(tiny_classifier(), path, resume=True, watch=stop)
    assert not train(tiny_classifier(), path, resume=True, minutes=1e-6)
    assert train(tiny_classifier(), path, resume=True)
    one, other = (read_tensors(RunFolder(p).model) for p in (path, trained))
    assert one[1] == other[1]
    assert all(torch.equal(one[0][name], other[0][name]) for name in one[0] | other[0])
    assert [json.loads(a)["loss"] for a in RunFolder(path).history.read_text().splitlines()] == [
        json.loads(a)["loss"] for a in RunFolder(trained).history.read_text().splitlines()
    ]


def blobs(seed: int, n: int) -> list[SparseEvents]:
    """Images of one pixel of value v: v ~ N(1, 0.3) for class 0 and N(1.2, 0.3) for class 1, without a filter."""
    generator = torch.Generator().manual_seed(seed)
    pixel = torch.full((n, 1), 27, dtype=torch.int16)
    return [
        SparseEvents(pixel, (mean + 0.3 * torch.randn(n, 1, generator=generator)), torch.eye(8)) for mean in (1.0, 1.2)
    ]


def test_it_learns_a_known_likelihood_ratio():
    """Of two Gaussians of one width: log r = (x - 1.1) 0.2 / 0.09."""
    network = conv_encoder(8, 4, 16, 1, torch.Generator().manual_seed(1))
    config = ClassifierConfig(epochs=15, batch=200, learning_rate=3e-3, schedule="cosine")
    trainer = classifier_trainer(network, blobs(0, 2000), blobs(1, 1000), config, 0, torch.device("cpu"))
    for _ in trainer.run():
        pass
    phase, views = trainer.current, trainer.setup.layout.views(trainer.current.best)
    fill(network, {name: view[0] for name, view in prefixed(views, "energy.").items()})
    model = Classifier(network, phase.scale, phase.prior, (1, 8, 8))
    value = torch.linspace(0.7, 1.5, 9)
    x = SparseEvents(torch.full((9, 1), 27, dtype=torch.int16), value[:, None], torch.eye(8)).dense()
    np.testing.assert_allclose(model.log_ratio(x), (value - 1.1) * 0.2 / 0.09, atol=0.3)
    assert model.log_ratio(x[:0]).shape == (0,)


@pytest.mark.gpu
def test_the_captured_training_is_the_plain_one():
    """On a CUDA device as a graph, against a CPU, whose order of events is another: nearly the same loss."""
    config, losses = ClassifierConfig(epochs=2, batch=100, learning_rate=1e-3), []
    for device in ("cpu", "cuda"):
        network = conv_encoder(8, 4, 16, 1, torch.Generator().manual_seed(1))
        trainer = classifier_trainer(network, blobs(0, 500), blobs(1, 200), config, 0, torch.device(device))
        records = [happening for happening in trainer.run() if isinstance(happening, Record)]
        losses.append([record.values["validation_loss"][0] for record in records])
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-2)


@pytest.mark.parametrize("method", list(CORRECTIONS))
def test_a_correction_survives_the_file(method):
    generator = np.random.default_rng(0)
    labels = np.repeat([0, 1], 500)
    ratio = 2 * (generator.normal(size=1000) + labels)
    correct = CORRECTIONS[method](ratio, labels)
    tensors, numbers = _correction_tensors(correct)
    again = _correction({"method": method, **numbers}, tensors)
    np.testing.assert_array_equal(again(ratio), correct(ratio))


# --- what can be wrong


def test_a_classifier_is_no_autoencoder(trained, tmp_path):
    with pytest.raises(InputError, match="load it with normae.load_classifier"):
        normae.load(trained)
    with pytest.raises(InputError, match="an autoencoder, not a classifier"):
        normae.load_classifier("toy-2gauss-nae")
    with pytest.raises(InputError, match="expected events of shape"):
        normae.load_classifier(trained).log_ratio(np.zeros((2, 40, 40)))
    config = tiny_jets("jets-paper-qcd-nae", f"start={trained}")
    with pytest.raises(InputError, match="is a classifier, expected an autoencoder"):
        train(config, tmp_path / "nae")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.jets=qcd"], 'expected data.jets = "both"'),
        (["data.validation=0"], "data.validation of at least 1"),
        (["training.epochs=3"], "training: a classifier has no such settings"),
        (["start=somewhere"], "start: a classifier has no such settings"),
        (["classifier.epochs=0"], "classifier.epochs: expected a positive number"),
    ],
)
def test_bad_settings_are_one_sentence(changes, message):
    with pytest.raises(InputError, match=message):
        tiny_classifier(*changes)


def test_both_classes_are_for_classifiers_only():
    content = {"data": {"jets": "both", "train": 10, "test": 1}}
    with pytest.raises(InputError, match=r"only with it"):
        structure(content)


def test_the_commands(tmp_path, monkeypatch, capsys):
    config = tmp_path / "c.toml"
    config.write_text(to_toml(tiny_classifier("classifier.epochs=1")))
    for arguments in (["train", str(config), "--out", str(tmp_path / "run")], ["info", str(tmp_path / "run")]):
        monkeypatch.setattr(sys, "argv", ["normae", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code in (0, None)
    out = capsys.readouterr().out
    assert "jets (both)" in out
    assert "Trained" in out
