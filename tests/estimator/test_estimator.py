"""The estimator for tables: scikit-learn's conventions, the density's norm, error bars and failures."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import normae
from normae.errors import InputError, LogZUnknown, TrainingDiverged
from normae.estimator import fitting
from normae.estimator.nae import log_z_of
from normae.estimator.preparation import Preparation, harden, soften

TINY = {"start_iterations": 40, "iterations": 5, "batch_size": 32, "hidden": (8,), "chain_steps": 2}


def tiny(**changes):
    return normae.NormalizedAutoencoder(**TINY | {"random_state": 0} | changes)


@pytest.fixture(scope="module")
def table():
    random = np.random.RandomState(0)
    return random.standard_normal((300, 4)) @ random.standard_normal((4, 4)) + 3


@pytest.fixture(scope="module")
def bayesian(table):
    return tiny(bayesian=True).fit(table)


@pytest.fixture(scope="module")
def plane():
    random = np.random.RandomState(1)
    angle = np.pi * random.random_sample(1500)
    circle = np.column_stack([10 * np.cos(angle), 0.1 * np.sin(angle)])
    return circle + random.standard_normal(circle.shape) * [1.0, 0.01]


@pytest.fixture(scope="module")
def curved(plane):
    settings = {"start_iterations": 400, "iterations": 40, "hidden": (32, 32), "random_state": 0}
    return normae.NormalizedAutoencoder(**settings).fit(plane[:1000])


def test_check_estimator():
    check_estimator(tiny(), on_skip=None)


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


def test_beyond_two_columns_the_score_says_that_it_is_not_normalized(bayesian):
    assert bayesian.score_kind_ == "unnormalized"
    assert log_z_of(bayesian.model_) is None
    with pytest.raises(LogZUnknown):
        _ = bayesian.log_z_


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


def test_pipeline_cross_validation_and_clone(table):
    pipeline = make_pipeline(StandardScaler(), tiny())
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
    with pytest.raises(ValueError, match="feature names"):
        estimator.score_samples(frame[list("abdc")])


# --- error bars


def test_error_bars(bayesian, table):
    draws = bayesian.score_draws(table[:7], n_draws=20)
    assert draws.shape == (20, 7)
    assert np.allclose(bayesian.score_std(table[:7], n_draws=20), draws.std(0, ddof=1))
    assert np.abs(draws.mean(0) - bayesian.score_samples(table[:7])).max() < 6 * draws.std(0).max()
    far = table.mean(0) + 5 * table.std(0)
    assert bayesian.score_std(far[None])[0] > np.median(bayesian.score_std(table))


def test_error_bars_in_two_columns_are_those_of_log_prob(table):
    estimator = tiny(bayesian=True).fit(table[:, :2])
    estimator.model_.cells = 60
    draws = estimator.score_draws(table[:50, :2], n_draws=10)
    assert np.abs(draws.mean(0) - estimator.score_samples(table[:50, :2])).mean() < 0.3


def test_error_bars_need_bayesian(table):
    assert not hasattr(tiny(), "score_std")
    with pytest.raises(InputError, match="n_draws: expected at least 2"):
        tiny(bayesian=True).fit(table).score_std(table, n_draws=1)


# --- failures


def test_what_cannot_be_used(table, bayesian):
    with pytest.raises(ValueError, match="NaN"):
        tiny().fit(np.where(table > 5, np.nan, table))
    with pytest.raises(ValueError, match="expecting 4 features"):
        bayesian.score_samples(table[:, :3])
    with pytest.raises(ValueError, match="minimum of 2"):
        tiny().fit(table[:1])
    with pytest.raises(NotFittedError):
        tiny().score_samples(table)
    with pytest.raises(InputError, match="n_samples: expected at least 1"):
        bayesian.sample(0)
    with pytest.raises(InputError, match="n_draws: expected at least 1"):
        bayesian.score_draws(table, n_draws=0)
    with pytest.raises(ValueError, match="contamination"):
        tiny(contamination=0.7).fit(table)


def test_a_training_that_runs_away_is_tried_again_and_then_named(table, monkeypatch):
    rates, train = [], fitting._train

    def diverges(train_rows, held_out, settings, seed, attempt):
        rates.append(settings.learning_rate)
        if attempt < 3:
            raise TrainingDiverged("too fast")
        return train(train_rows, held_out, settings, seed, attempt)

    monkeypatch.setattr(fitting, "_train", diverges)
    assert tiny().fit(table).n_tries_ == 3
    assert rates == pytest.approx([1e-3, 3e-4, 9e-5])
    monkeypatch.setattr(fitting, "TRIES", 2)
    with pytest.raises(TrainingDiverged, match="2 trainings ran away"):
        tiny().fit(table)


# --- the preparation


def test_preparation_is_invertible_and_its_slope_is_right(table):
    preparation = Preparation.of(table)
    rows = np.vstack([table[:20], 30 * table[:5]])
    assert np.allclose(preparation.inverse(preparation.forward(rows)), rows)
    row, step = rows[-1:], 1e-6
    moved = np.vstack([preparation.forward(row + step * e) for e in np.eye(4)]) - preparation.forward(row)
    assert preparation.log_slope(row)[0] == pytest.approx(np.linalg.slogdet(moved / step)[1], abs=1e-3)
    assert np.allclose(harden(soften(np.linspace(-1e6, 1e6, 101))), np.linspace(-1e6, 1e6, 101))


def test_noisy_rows_have_unit_covariance_even_of_constant_and_collinear_columns(table):
    wide = np.column_stack([table, np.full(300, 7.0), table[:, 0] * 2])
    rows = Preparation.of(wide).noisy(wide, 50, np.random.RandomState(0))
    assert np.abs(np.cov(rows.T) - np.eye(6)).max() < 0.05


def test_one_outlier_does_not_move_the_map(table):
    spoiled = np.vstack([table, 1e9 * np.ones((1, 4))])
    assert np.allclose(Preparation.of(spoiled).width, Preparation.of(table).width, rtol=0.05)


def test_constant_tables_and_outliers_train(table):
    estimator = tiny().fit(np.column_stack([np.vstack([table, 1e9 * np.ones((1, 4))]), np.zeros(301)]))
    score = estimator.score_samples([[3, 3, 3, 3, 0], [3, 3, 3, 3, 5], [3, 3, 3, 1e9, 0]])
    assert np.isfinite(score).all()
    assert score[0] > score[1]
