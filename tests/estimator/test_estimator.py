"""The estimator for tables: scikit-learn's conventions, the density's norm, error bars and failures."""

import json
import pickle
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import normae
from command import command
from normae import sources, zoo
from normae.config import read
from normae.data.toys import GaussianMixture
from normae.errors import InputError, LogZUnknown, TrainingDiverged
from normae.inference import log_z
from normae.runs import automatic, folder, session

TINY = {"start_iterations": 40, "iterations": 5, "batch_size": 32, "hidden": (8,), "chain_steps": 2, "log_z": "never"}


def tiny(**changes):
    return normae.NormalizedAutoencoder(**TINY | {"random_state": 0} | changes)


@pytest.fixture(scope="module")
def table():
    random = np.random.RandomState(0)
    return random.standard_normal((300, 4)) @ random.standard_normal((4, 4)) + 3


@pytest.fixture(scope="module")
def bayesian(table):
    return tiny(bayesian=True, log_z="auto").fit(table)


@pytest.fixture(scope="module")
def plane():
    random = np.random.RandomState(1)
    angle = np.pi * random.random_sample(1500)
    circle = np.column_stack([10 * np.cos(angle), 0.1 * np.sin(angle)])
    return circle + random.standard_normal(circle.shape) * [1.0, 0.01]


@pytest.fixture(scope="module")
def curved(plane):
    settings = {"start_iterations": 800, "iterations": 40, "hidden": (32, 32), "random_state": 0}
    return normae.NormalizedAutoencoder(**settings).fit(plane[:1000])


def test_check_estimator():
    few = "weights that count as fewer than 10 rows are refused"
    refused = {f"check_sample_weight{name}": few for name in ("s_not_overwritten", "_equivalence_on_dense_data")}
    check_estimator(tiny(start_iterations=10, iterations=2, log_z="auto"), on_skip=None, expected_failed_checks=refused)


def test_other_units_are_said_once(bayesian, table, caplog):
    """By all members together."""
    for method in (bayesian.score_samples, bayesian.predict, bayesian.score_std):
        method(table)
        assert not caplog.records
        method(1000 * table)
        assert [record.message.count("same units?") for record in caplog.records] == [1]
        caplog.clear()


# --- what the density is


def test_log_prob_is_normalized_in_the_units_of_the_table(curved):
    x, y = np.linspace(-25, 25, 400), np.linspace(-0.25, 0.35, 400)
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    mass = np.exp(curved.score_samples(grid)).sum() * (x[1] - x[0]) * (y[1] - y[0])
    assert curved.score_kind_ == "log_prob"
    assert mass == pytest.approx(1, abs=0.02)


def test_a_curved_table_is_learned_better_than_by_a_gaussian(curved, plane):
    train, test = plane[:1000], plane[1000:]
    centred, covariance = test - train.mean(0), np.cov(train.T)
    gaussian = -0.5 * (centred @ np.linalg.inv(covariance) * centred).sum(1) - 0.5 * np.linalg.slogdet(covariance)[1]
    assert curved.score(test) > gaussian.mean() - np.log(2 * np.pi) + 0.1


def test_samples_look_like_the_table(curved, plane):
    drawn = curved.sample(1000, random_state=0)
    assert drawn.mean(0) == pytest.approx(plane.mean(0), abs=0.15 * plane.std(0).max())
    assert drawn.std(0) == pytest.approx(plane.std(0), rel=0.2)
    assert np.array_equal(drawn, curved.sample(1000, random_state=0))


def gaussians(d):
    """Three Gaussians in d columns of units from 1e-3 to 1e3: rows to train on, rows held out, and their true log p."""
    g = torch.Generator().manual_seed(d)
    factors = 0.5 * torch.randn(3, d, d, generator=g) / d**0.5
    directions = torch.nn.functional.normalize(torch.randn(3, d, generator=g), dim=1)
    weights, scales = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.0, 4.0, 4.0])
    density = GaussianMixture(directions * scales[:, None], 0.5 * torch.eye(d) + factors @ factors.mT, weights)
    units = np.logspace(-3, 3, d)
    train, test = density.sample(4000, g), density.sample(4000, g)
    return train.numpy() * units, test.numpy() * units, density.log_prob(test).numpy() - np.log(units).sum()


@pytest.mark.parametrize("d", [5, 10])
def test_log_prob_of_a_known_mixture_beyond_two_columns(d):
    train, test, truth = gaussians(d)
    settings = {"start_iterations": 500, "iterations": 20, "hidden": (64, 64), "learning_rate": 3e-3}
    estimator = normae.NormalizedAutoencoder(**settings, random_state=0).fit(train)
    assert estimator.score_kind_ == "log_prob"
    assert 0 < estimator.log_z_.error < 0.1
    ratio = estimator.score_samples(test) - truth
    mass, error = np.exp(ratio).mean(), np.exp(ratio).std() / np.sqrt(len(test))
    assert abs(mass - 1) < 4 * (error + estimator.log_z_.error) < 0.15, "int p = <p/p_true> over true rows"
    assert -0.3 < ratio.mean() < 4 * estimator.log_z_.error, "minus the divergence from the truth"
    units = train.std(0)
    gaussian = multivariate_normal(train.mean(0) / units, np.corrcoef(train.T)).logpdf(test / units)
    assert estimator.score(test) > gaussian.mean() - np.log(units).sum() + 0.2
    drawn = estimator.sample(1000, random_state=0)
    assert np.abs((drawn.mean(0) - train.mean(0)) / train.std(0)).max() < 0.2
    assert np.abs(np.corrcoef(drawn.T) - np.corrcoef(train.T)).max() < 0.2


def test_never_and_bounds_that_disagree_leave_the_score_unnormalized(table, monkeypatch, caplog):
    never, known = tiny().fit(table), tiny(log_z="auto").fit(table)
    assert (never.score_kind_, caplog.records) == ("unnormalized", [])
    assert known.score_kind_ == "log_prob"
    shift = known.score_samples(table) - never.score_samples(table)
    assert np.allclose(shift, -known.log_z_.value), "the same training, with and without log Z"
    monkeypatch.setattr(log_z, "LEAST_EFFECTIVE", 1e9)  # draws of the base do not do
    monkeypatch.setattr(automatic, "LOG_Z", replace(automatic.LOG_Z, tolerance=1e-9, retries=0))
    failed = tiny(log_z="auto").fit(table)
    assert failed.score_kind_ == "unnormalized"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "log Z is not known: log Z: the bounds differ by more than 1e-09" in caplog.text
    assert np.array_equal(failed.score_samples(table), never.score_samples(table))
    with pytest.raises(LogZUnknown):
        _ = failed.log_z_
    with pytest.raises(LogZUnknown, match=r"fit with log_z='auto'"):
        never.score(table)
    with pytest.raises(LogZUnknown, match=r"differ by more than 1e-09.*log_z.steps and log_z.chains"):
        failed.score(table)
    assert "log_z" in failed.get_params()
    assert {"steps", "chains"} <= {field.name for field in fields(automatic.LOG_Z)}


def test_the_units_of_the_columns_do_not_matter(table):
    estimator = tiny().fit(table)
    scaled = table * [1, 1e6, 1e-6, 100]
    other = tiny().fit(scaled)
    assert np.allclose(other.decision_function(scaled), estimator.decision_function(table), atol=1e-2)


# --- scikit-learn's signs and tools


def test_signs_and_contamination(table):
    estimator = tiny(contamination=0.05).fit(table)
    assert np.mean(estimator.predict(table) == -1) == pytest.approx(0.05, abs=0.01)
    far = table.mean(0) + 20 * table.std(0)
    assert estimator.predict(far[None]) == -1
    assert estimator.decision_function(far[None]) < 0
    assert np.allclose(estimator.decision_function(table), estimator.score_samples(table) - estimator.offset_)


def test_new_rows_of_a_small_wide_table_are_called_anomalous_as_often_as_asked():
    from sklearn.datasets import load_breast_cancer

    table, benign = load_breast_cancer(return_X_y=True)
    rows = np.random.default_rng(0).permutation(table[benign == 1])
    estimator = normae.NormalizedAutoencoder(log_z="never", random_state=0).fit(rows[:250])
    assert np.mean(estimator.predict(rows[250:]) == -1) == pytest.approx(0.1, abs=0.06)  # two errors of 107 rows


def test_pipeline_cross_validation_and_clone(table):
    pipeline = make_pipeline(StandardScaler(), tiny(log_z="auto"))
    assert np.isfinite(cross_val_score(pipeline, table, cv=2)).all()
    copy = clone(tiny(latent=2))
    assert copy.get_params()["latent"] == 2
    assert copy.set_params(latent=3).latent == 3


def test_random_state_gives_the_same_numbers(table):
    first, second, other = (tiny(random_state=seed).fit(table).score_samples(table[:5]) for seed in (3, 3, 4))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_names_of_columns(table):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(table, columns=list("abcd"))
    estimator = tiny().fit(frame)
    assert list(estimator.feature_names_in_) == list("abcd")
    assert np.array_equal(estimator.score_samples(frame), tiny().fit(table).score_samples(table))
    with pytest.raises(ValueError, match="feature names"):
        estimator.score_samples(frame[list("abdc")])
    with pytest.raises(InputError, match="row 0, column 'b'"):
        estimator.score_samples(frame.assign(b=np.nan))


# --- error bars


def gaussian_bars(seed: int) -> tuple[float, float]:
    """The median error of log p and the median bar, after a training on 600 rows of a Gaussian in two columns."""
    random = np.random.RandomState(seed)
    rows, new = random.standard_normal((600, 2)), random.standard_normal((500, 2))
    estimator = normae.NormalizedAutoencoder(bayesian=True, start_iterations=20, hidden=(8,), random_state=seed)
    off = estimator.fit(rows).score_samples(new) - multivariate_normal.logpdf(new, np.zeros(2))
    return float(np.median(np.abs(off))), float(np.median(estimator.score_std(new)))


def test_error_bars_are_as_long_as_the_error():
    """A bar of one standard deviation is 1.5 median errors."""
    error, bar = np.median([gaussian_bars(seed) for seed in range(3)], axis=0)
    assert 0.5 < bar / (1.48 * error) < 2


def test_members_on_the_same_rows_would_agree(monkeypatch):
    monkeypatch.setattr(session, "MEMBER", 0)  # the same first weights
    halved = sources.halved
    monkeypatch.setattr(sources, "halved", lambda events, seed: [halved(events, seed)[0]] * 2)  # the same half
    error, bar = gaussian_bars(0)
    assert bar < 0.2 * error


def test_members_are_densities_of_their_own(table):
    rows = table[:, :2]
    estimator = tiny(bayesian=True, log_z="auto").fit(rows)
    (low, high), centre = (rows.mean(0) + sign * 9 * rows.std(0) for sign in (-1, 1)), rows[:5]
    axes = [np.linspace(a, b, 250) for a, b in zip(low, high, strict=True)]
    grid = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 2)
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    assert np.allclose(np.exp(estimator.score_draws(grid)).sum(1) * cell, 1, atol=0.01)
    draws = estimator.score_draws(centre)
    assert draws.shape == (8, 5)
    assert len(np.unique(draws[:, 0])) == 8
    assert np.allclose(draws.mean(0), estimator.score_samples(centre))
    assert np.allclose(estimator.score_std(centre), estimator.model_.bar * draws.std(0, ddof=1))
    assert 0.6 < estimator.model_.bar < 1.07  # all of it rows would be 1.07, all of it chance about 0.81


def test_members_have_coordinates_and_rows_of_their_own(bayesian, table):
    members = bayesian.model_.members
    assert len({float(member.coordinates.noise) + float(member.coordinates.centre[0]) for member in members}) == 8
    assert {len(member.autoencoder.base.centres) for member in members} == {150}
    sampled = bayesian.sample(4000, random_state=0)
    assert np.allclose(np.corrcoef(sampled.T), np.corrcoef(table.T), atol=0.15)
    parts = bayesian.model_.explain(table[:3])
    assert np.allclose(parts.sum(1), bayesian.model_.score(table[:3]), atol=1e-3)


def test_error_bars_need_bayesian_and_log_z(table):
    assert not hasattr(tiny(), "score_std")
    with pytest.raises(LogZUnknown, match="log Z of the members is not known"):
        tiny(bayesian=True).fit(table[:40]).score_std(table)


# --- failures


def test_what_cannot_be_used(table, bayesian):
    for value, name in ((np.nan, "NaN"), (-np.inf, "infinity")):
        spoiled = table.copy()
        spoiled[[7, 9], 2] = value
        with pytest.raises(InputError, match=rf"got {name}.* in row 7, column 2, and NaN or infinity in 2 of 300 rows"):
            tiny().fit(spoiled)
        with pytest.raises(InputError, match=r"row 7, column 2"):
            bayesian.score_samples(spoiled)
    with pytest.raises(ValueError, match="expecting 4 features"):
        bayesian.score_samples(table[:, :3])
    with pytest.raises(ValueError, match="minimum of 2"):
        tiny().fit(table[:1])
    with pytest.raises(NotFittedError):
        tiny().score_samples(table)
    with pytest.raises(InputError, match="n_samples: expected at least 1"):
        bayesian.sample(0)
    with pytest.raises(ValueError, match="contamination"):
        tiny(contamination=0.7).fit(table)


def test_a_training_that_runs_away_is_named(table):
    words = "is not finite at iteration .* of contrast, after 5 rollbacks; lower contrast.learning_rate$"
    with pytest.raises(TrainingDiverged, match=words):
        tiny(learning_rate=1e30).fit(table)


# --- tables as they come


def test_constant_tables_and_outliers_train(table):
    estimator = tiny().fit(np.column_stack([np.vstack([table, 1e9 * np.ones((1, 4))]), np.zeros(301)]))
    score = estimator.score_samples([[3, 3, 3, 3, 0], [3, 3, 3, 3, 5], [3, 3, 3, 1e9, 0]])
    assert np.isfinite(score).all()
    assert score[0] > score[1]


TABLES = {
    "duplicated rows": lambda r: np.repeat(r.standard_normal((20, 3)), 20, axis=0),
    "one row differs": lambda r: np.vstack([np.zeros((99, 3)), r.standard_normal((1, 3))]),
    "200 columns of 300 rows": lambda r: r.standard_normal((300, 10)) @ r.standard_normal((10, 200)),
    "2 columns of 50 rows": lambda r: r.standard_normal((50, 2)),
    "integers": lambda r: r.poisson(2, (300, 4)),
    "booleans": lambda r: r.random_sample((300, 4)) < 0.3,
    "no tails end": lambda r: r.standard_cauchy((300, 3)),
    "far from zero": lambda r: 1e15 + 1e12 * r.standard_normal((300, 3)),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_as_they_come(name):
    table = TABLES[name](np.random.RandomState(0))
    narrow = table.shape[1] < 100
    estimator = tiny(log_z="auto" if narrow else "never").fit(table)
    assert estimator.score_kind_ == ("log_prob" if narrow else "unnormalized")
    assert np.isfinite(estimator.score_samples(table)).all()
    assert np.mean(estimator.predict(table) == -1) <= 0.1 + 1 / len(table)
    drawn = estimator.sample(50, random_state=0)
    assert drawn.shape == (50, table.shape[1])
    assert np.isfinite(drawn).all()


def test_columns_and_tables_that_are_refused(table):
    names = [f"row {k}" for k in range(len(table))]
    frame = pd.DataFrame(table, columns=list("abcd")).assign(name=names, day=pd.Timestamp("2026-01-01"))
    with pytest.raises(InputError, match="X: the column 'name' holds text"):
        tiny().fit(frame)
    with pytest.raises(InputError, match="X: the column 'day' holds dates"):
        tiny().fit(frame.drop(columns="name"))
    with pytest.raises(InputError, match="X: all 50 rows are equal"):
        tiny().fit(np.full((50, 3), 1e12))
    with pytest.raises(InputError, match="X: expected at least 10 rows, got 5"):
        tiny().fit(table[:5])
    for text in (np.array([["a", "b"]] * 50), np.array([["a", 1.0]] * 50, dtype=object), [["a", "b"]] * 50):
        with pytest.raises(InputError, match="X: the array holds text, where real numbers are expected; leave it out"):
            tiny().fit(text)


# --- one model behind three doors


def test_saved_loaded_and_pickled(table, bayesian, tmp_path):
    bayesian.save(tmp_path / "run")
    loaded, again = normae.NormalizedAutoencoder.load(tmp_path / "run"), pickle.loads(pickle.dumps(bayesian))
    for other in (loaded, again):
        assert np.array_equal(other.score_samples(table), bayesian.score_samples(table))
        assert np.array_equal(other.predict(table), bayesian.predict(table))
        assert np.array_equal(other.sample(5, random_state=1), bayesian.sample(5, random_state=1))
        assert np.array_equal(other.score_draws(table), bayesian.score_draws(table))
    model = normae.load(tmp_path / "run")
    assert np.allclose(model.log_prob(table), bayesian.score_samples(table), atol=1e-4)
    with pytest.raises(InputError, match="run: exists already; choose another name$"):
        bayesian.save(tmp_path / "run")


def test_an_estimator_whose_table_was_gone_is_saved_and_finds_it_again(table, tmp_path, caplog):
    """Its threshold is not known: no JSON of an infinite number, and no threshold that stays unknown."""
    settings = ["contrast.iterations=5", "training.iterations=0"]
    normae.train(table[:200], tmp_path / "run", settings=settings, device="cpu")
    rows = (tmp_path / "run" / "data.npz").rename(tmp_path / "rows.npz")
    lost = normae.NormalizedAutoencoder.load(tmp_path / "run")
    assert lost.offset_ == -np.inf
    lost.set_params(contamination=0.3)
    lost.save(tmp_path / "kept")
    assert json.loads((tmp_path / "kept" / "estimator.json").read_text())["offset"] is None
    caplog.clear()
    again = normae.NormalizedAutoencoder.load(tmp_path / "kept")
    assert (again.offset_, again.contamination) == (-np.inf, 0.3)
    assert "predict calls no row anomalous" in caplog.text
    rows.rename(tmp_path / "kept" / "data.npz")
    found = normae.NormalizedAutoencoder.load(tmp_path / "kept")
    assert (found.predict(table) == -1).any()


@pytest.mark.parametrize("damage", ["digit", "NaN", "empty", "list", "unsealed", "of another model"])
def test_a_damaged_or_foreign_offset_is_refused(damage, table, tmp_path):
    """It alone says which rows are anomalous."""
    estimator = tiny().fit(table)
    estimator.save(tmp_path / "run")
    path = tmp_path / "run" / "estimator.json"
    facts = json.loads(path.read_text())
    assert facts["offset"] == estimator.offset_
    if damage == "of another model":
        estimator.run_["model.safetensors"] += b"0"
        facts = estimator._bound({key: x for key, x in facts.items() if key != "checksum"})
    changed = {
        "digit": json.dumps(facts | {"offset": facts["offset"] + 1}), "NaN": json.dumps(facts | {"offset": np.nan}),
        "empty": "", "list": "[1]", "unsealed": json.dumps({"offset": -3.0, "contamination": 0.1}),
    }  # fmt: skip
    path.write_text(changed.get(damage, json.dumps(facts)))
    words = "cannot be read as JSON" if damage == "empty" else "damaged, or not of the model beside it; take it"
    with pytest.raises(InputError, match=rf"estimator\.json: {words}"):
        normae.NormalizedAutoencoder.load(tmp_path / "run")


def test_a_loaded_estimator_has_the_settings_of_the_one_that_was_saved(table, tmp_path):
    """Numbers of NumPy too; of a generator it has the seed that it gave, so that a clone trains the same."""
    changes = {"hidden": np.array([8, 4]), "contamination": np.float64(0.2), "latent": np.int64(2), "missing": "drop"}
    saved = tiny(**changes, random_state=3, verbose=0).fit(table)
    saved.save(tmp_path / "run")
    loaded = normae.NormalizedAutoencoder.load(tmp_path / "run")
    assert loaded.get_params() == saved.get_params() | {"hidden": (8, 4)}
    assert np.array_equal(clone(loaded).fit(table).score_samples(table), saved.score_samples(table))
    drawn = tiny(random_state=np.random.RandomState(5)).fit(table)
    drawn.save(tmp_path / "drawn")
    assert (
        normae.NormalizedAutoencoder.load(tmp_path / "drawn").random_state == read(tmp_path / "drawn/config.toml").seed
    )


def test_a_copy_of_a_saved_run_keeps_its_rows_and_a_run_without_says_so(table, bayesian, tmp_path, monkeypatch):
    bayesian.save(tmp_path / "run")
    normae.NormalizedAutoencoder.load(tmp_path / "run").save(tmp_path / "again")
    first, second = (folder.RunFolder(tmp_path / name) for name in ("run", "again"))
    assert torch.equal(*(run.events(read(run.config)).train for run in (first, second)))
    loaded = normae.NormalizedAutoencoder.load(tmp_path / "again")
    (tmp_path / "again" / "data.npz").unlink()
    loaded.save(tmp_path / "third")
    monkeypatch.setattr("normae.estimator.nae.MOST_KEPT", 200)
    tiny().fit(table).save(tmp_path / "many")
    for name in ("third", "many"):
        run = folder.RunFolder(tmp_path / name)
        with pytest.raises(InputError, match=f"{name}: lacks its rows; an estimator saves up to 100,000"):
            run.events(read(run.config))


def test_a_run_of_the_command_line_is_an_estimator(table, tmp_path):
    np.save(tmp_path / "x.npy", table)
    settings = ["--set", "contrast.iterations=40", "--set", "training.iterations=5", "--set", "network.hidden=[8]"]
    assert command("train", tmp_path / "x.npy", "-o", tmp_path / "run", *settings) == 0
    estimator = normae.NormalizedAutoencoder.load(tmp_path / "run")
    model = normae.load(tmp_path / "run")
    assert np.allclose(model.log_prob(table), estimator.score_samples(table), atol=1e-4)
    assert 0.02 < np.mean(estimator.predict(table) == -1) < 0.25


def test_a_run_on_anything_else_is_no_estimator():
    with pytest.raises(InputError, match="expected a run on a table"):
        normae.NormalizedAutoencoder.load(zoo.path("toy-2gauss-nae"))


def test_a_run_with_networks_of_one_s_own_is_named_as_it_was_given(table, tmp_path):
    energy = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(0))
    settings = ["training.iterations=2", "log_z.retries=0", "sampling.generation=20"]
    normae.train(table, tmp_path / "own", energy=energy, settings=settings)
    with pytest.raises(InputError, match=f"^{tmp_path}/own: was trained with networks of your own"):
        normae.NormalizedAutoencoder.load(tmp_path / "own")
