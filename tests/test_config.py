"""Configurations: every mistake is one sentence that names the key; what is written is read back."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normae.config import read, structure, structure_as, to_toml
from normae.errors import InputError
from tiny_run import tiny

CONFIGS = Path(__file__).parents[1] / "configs"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("toy-*.toml")), ids=lambda p: p.stem)
def test_presets_read_and_round_trip(path, tmp_path):
    run = read(path)
    assert run.name == path.stem
    again = tmp_path / "config.toml"
    again.write_text(to_toml(run))
    assert read(again) == run


def test_the_paper_preset_has_the_paper_s_numbers():
    run = read(CONFIGS / "toy-paper.toml")
    assert (run.data.train, run.data.test) == (500_000, 250_000)
    assert (run.network.hidden, run.network.latent, run.network.activation) == ((128, 128, 128), 3, "relu")
    assert (run.temperature.initial, run.temperature.trained, run.temperature.learning_rate) == (0.2, True, 1e-3)
    for phase, rate in ((run.pretraining, 1e-3), (run.training, 1e-5)):
        assert (phase.epochs, phase.batch, phase.learning_rate, phase.schedule) == (100, 2048, rate, "constant")
        assert (phase.latent_penalty, phase.l2_penalty) == (7.069e-6, 0.0)
    assert (run.training.negative_penalty, run.training.average) == (1.0, 0.0)
    assert (run.sampling.buffer, run.sampling.replay, run.sampling.buffer_space) == (10_000, 0.95, "latent")
    latent, feature = run.sampling.latent, run.sampling.feature
    assert (latent.steps, latent.step_size, latent.noise, latent.bounds) == (50, 5e-3, 0.1, None)
    assert (feature.steps, feature.step_size, feature.noise, feature.bounds) == (100, 5e-3, 0.1, (-4.5, 4.5))
    assert latent.exact
    assert feature.exact
    assert latent.adapt is feature.adapt is None
    test = run.evaluation.classifier
    assert (test.points, test.train, test.validation, test.test) == (250_000, 300_000, 50_000, 150_000)
    assert (test.hidden, test.learning_rate, test.batch, test.max_epochs, test.patience) == (
        (64, 64, 64), 1e-3, 2048, 200, 20,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training__epoch": 5}, "unknown key 'training.epoch'; did you mean 'epochs'"),
        ({"trainig": {}}, "unknown key 'trainig'; did you mean 'training'"),
        ({"sampling__feature__stepsize": 1}, "unknown key 'sampling.feature.stepsize'; did you mean 'step_size'"),
        ({"training__epochs": 2.5}, "training.epochs: expected a whole number, got 2.5"),
        ({"training__epochs": "five"}, "training.epochs: expected a whole number, got 'five'"),
        ({"training__epochs": True}, "training.epochs: expected a whole number, got True"),
        ({"training__schedule": "square"}, "training.schedule: expected 'constant' or 'cosine', got 'square'"),
        ({"training__epochs": -1}, "epochs: expected a number of at least 0, got -1"),
        ({"training__learning_rate": 0.0}, "learning_rate: expected a positive number"),
        ({"training__average": 1.0}, "average: expected a decay"),
        ({"training__schedule": "linear"}, "schedule"),
        ({"sampling__replay": 1.5}, "sampling.replay: expected a share between 0 and 1, got 1.5"),
        ({"sampling__feature__bounds": [1.0, 1.0]}, "bounds: expected a lower and a higher finite number"),
        ({"data__density": "three-gaussians"}, "data.density: expected one of"),
        ({"data__file": "x.npy"}, "one of density, file and jets"),
        ({"network": 3}, "network: expected a table"),
        ({"network__hidden": ["a"]}, "network.hidden: expected a whole number, got 'a'"),
        ({"network__hidden": 3}, "network.hidden: expected a list, got 3"),
        ({"sampling__feature__bounds": [1.0]}, "sampling.feature.bounds: expected a list of 2, got [1.0]"),
        ({"network__latent_space": "sphere"}, "sampling.latent.sphere: expected"),
        ({"sampling__latent__sphere": "geodesic"}, 'expected network.latent_space = "sphere"'),
        ({"sampling__feature__sphere": "project", "sampling__feature__bounds": None}, "events do not live on a sphere"),
        ({"sampling__buffer_space": "feature", "sampling__buffer": 10}, "sampling.buffer: expected at least the batch"),
        ({"evaluation__log_z_cells": 7}, "evaluation.log_z_cells: expected an even number"),
        ({"evaluation__classifier__learning_rate": -1.0}, "evaluation.classifier.learning_rate: expected a positive"),
        ({"evaluation__classifier__hidden": [0]}, "evaluation.classifier.hidden: expected positive widths"),
        ({"data__test": 0}, "data.test: expected 1 to"),
        ({"network__hidden": []}, "network.hidden"),
        ({"seed": -1}, "seed: expected a whole number of at least 0"),
        ({"guard__checkpoint_every": 7}, "guard.checkpoint_every: expected a multiple of log_every"),
    ],
)
def test_mistakes(change, message):
    with pytest.raises(InputError) as caught:
        structure(tiny(**change))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_any_name_survives_the_file(tmp_path):
    run = structure(tiny(name='a\n"b"\\ \x7f é 🐈'))
    (tmp_path / "c.toml").write_text(to_toml(run), encoding="utf-8")
    assert read(tmp_path / "c.toml") == run


def test_a_name_that_no_file_can_hold_is_one_sentence():
    with pytest.raises(InputError, match="expected text that UTF-8 can hold"):
        to_toml(structure(tiny(name="a\udc80")))


def test_missing_table():
    content = tiny()
    del content["data"]
    with pytest.raises(InputError, match="the key 'data' is missing"):
        structure(content)


@dataclass(frozen=True)
class Named:
    widths: dict[str, float] = field(default_factory=dict)


def test_a_table_with_names_of_the_user_s():
    assert structure_as(Named, {"widths": {"mass": 2, "pt": 0.5}}, "here").widths == {"mass": 2.0, "pt": 0.5}
    with pytest.raises(InputError, match="here: widths.mass: expected a number, got 'a'"):
        structure_as(Named, {"widths": {"mass": "a"}}, "here")
    with pytest.raises(InputError, match="here: widths: expected a table, got 3"):
        structure_as(Named, {"widths": 3}, "here")


def test_overrides(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(to_toml(structure(tiny())))
    run = read(path, ["training.epochs=7", "sampling.feature.adapt=0.5", "name=mine", "network.hidden=[4, 4]"])
    assert (run.training.epochs, run.sampling.feature.adapt, run.name, run.network.hidden) == (7, 0.5, "mine", (4, 4))
    with pytest.raises(InputError, match="section.key=value"):
        read(path, ["training.epochs"])
    with pytest.raises(InputError, match="did you mean 'epochs'"):
        read(path, ["training.epoch=1"])
    with pytest.raises(InputError, match="which is a value and not a table"):
        read(path, ["seed.epochs=1"])


def test_not_toml(tmp_path):
    path = tmp_path / "c.toml"
    path.write_bytes(b"a = = b")
    with pytest.raises(InputError, match="not a TOML file"):
        read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not a TOML file"):
        read(path)
    with pytest.raises(InputError, match="no such configuration file"):
        read(tmp_path / "none.toml")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    place=st.sampled_from(
        ["seed", "device", "training__epochs", "training__average", "sampling__feature__bounds", "network__hidden",
         "data", "sampling", "temperature__trained", "evaluation__classifier"]
    ),
    value=JSON,
)  # fmt: skip
def test_any_value_is_taken_or_refused_with_one_sentence(place, value):
    with contextlib.suppress(InputError):
        assert to_toml(structure(tiny(**{place: value})))
