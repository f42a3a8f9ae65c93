"""Data frames of pandas, polars and Arrow in and out of the three doors: columns by their names."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import normae
from command import command
from normae.errors import InputError

NAMES = ["a", "b", "c"]
FEW = ["contrast.iterations=5"]
KINDS = {
    "pandas": lambda rows, names: pd.DataFrame(dict(zip(names, rows.T, strict=True))),
    "polars": lambda rows, names: pl.DataFrame(dict(zip(names, rows.T, strict=True))),
    "arrow": lambda rows, names: pa.table(dict(zip(names, rows.T, strict=True))),
}


def rows(n=60, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 3)) * [1, 10, 100] + [0, 50, 3]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    nae = normae.NormalizedAutoencoder(start_iterations=5, random_state=0).fit(KINDS["pandas"](rows(), NAMES))
    nae.save(tmp_path_factory.mktemp("frames") / "run")
    return nae, normae.load(tmp_path_factory.getbasetemp() / "frames0" / "run")


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_takes_columns_by_their_names(kind, fitted):
    nae, model = fitted
    assert model.columns == tuple(nae.feature_names_in_) == tuple(NAMES)
    new = rows(seed=1)
    other = KINDS[kind](np.column_stack([new[:, ::-1], new[:, 0]]), ["c", "b", "a", "more"])
    np.testing.assert_allclose(model.score(other), model.score(new), rtol=1e-6)
    assert not np.allclose(model.score(new[:, ::-1]), model.score(new))  # the wrong version: by position
    with pytest.raises(InputError, match="no column 'b'; there are 'a', 'c'"):
        model.score(KINDS[kind](new[:, [0, 2]], ["a", "c"]))


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimator_takes_them_and_refuses_another_order(kind, fitted):
    nae, model = fitted
    new = rows(seed=1)
    np.testing.assert_allclose(nae.score_samples(KINDS[kind](new, NAMES)), model.log_prob(new), rtol=1e-3)
    with pytest.raises(ValueError, match="order"):
        nae.score_samples(KINDS[kind](new[:, ::-1], NAMES[::-1]))
    again = normae.NormalizedAutoencoder(start_iterations=5, random_state=0).fit(KINDS[kind](rows(), NAMES))
    assert list(again.feature_names_in_) == NAMES
    framed = KINDS[kind](new, NAMES)
    np.testing.assert_array_equal(again.score_samples(framed), nae.score_samples(framed))


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_names_that_scikit_learn_does_not_see(fitted, monkeypatch):
    """As version 1.6 those of a new polars: the estimator knows them, and takes no column for another."""
    monkeypatch.setattr("sklearn.utils.validation._get_feature_names", lambda _: None)
    frame = KINDS["polars"]
    again = normae.NormalizedAutoencoder(start_iterations=5, random_state=0).fit(frame(rows(), NAMES))
    assert list(again.feature_names_in_) == NAMES
    for nae in (again, fitted[0]):
        with pytest.raises(ValueError, match="in their order"):
            nae.score_samples(frame(rows()[:, ::-1], NAMES[::-1]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_in_python_takes_them(kind):
    model = normae.train(KINDS[kind](rows(), NAMES), columns=["c", "a"], settings=FEW)
    assert model.columns == ("c", "a")
    assert model.event == (2,)


def test_constant_doubled_and_bounded_columns_have_a_density_that_knows_them():
    """A constant and a doubled column change nothing of what the others say, and a bounded one ends at its bounds."""
    random = np.random.default_rng(0)
    x, bounded = random.normal(size=1000), random.uniform(size=1000)
    table = np.column_stack([x, np.full(1000, 3.0), x, bounded])
    nae = normae.NormalizedAutoencoder(start_iterations=20, random_state=0).fit(table)
    typical, other = nae.score_samples([[0, 3, 0, 0.5]])[0], nae.score_samples([[0, 4, 0, 0.5], [0, 3, 1, 0.5]])
    assert (other < typical - 20).all()  # another constant; doubles that differ
    beyond = nae.score_samples([[0, 3, 0, 1.5], [0, 3, 0, -0.5]])
    assert (beyond < typical - 5).all()
    inside = nae.score_samples([[0, 3, 0, v] for v in (0.05, 0.3, 0.7, 0.95)])
    assert np.ptp(inside) < 1.0
    samples = nae.sample(500, random_state=0)
    assert np.abs(samples[:, 0] - samples[:, 2]).max() < 0.5
    assert np.abs(samples[:, 1] - 3).max() < 0.5
    assert ((samples[:, 3] > -0.1) & (samples[:, 3] < 1.1)).mean() > 0.99


def test_a_lognormal_column_is_described_as_well_as_its_logarithm():
    """sigma 2: mean log p of new rows within 0.1 of the fit to logarithms, in the same units."""
    random = np.random.default_rng(0)
    z, new = random.normal(size=(3000, 2)) * [2, 1], random.normal(size=(2000, 2)) * [2, 1]
    log_prob = [
        normae.NormalizedAutoencoder(start_iterations=50, random_state=0).fit(how(z)).score_samples(how(new)).mean()
        for how in (np.exp, np.array)
    ]
    assert log_prob[0] == pytest.approx(log_prob[1] - new.sum(1).mean(), abs=0.1)


def spoiled():
    table = rows()
    table[[3, 7, 8], [0, 1, 1]] = np.nan
    return table


@pytest.mark.parametrize("kind", ["array", *KINDS, "parquet", "csv"])
def test_missing_values_are_refused_by_name_or_their_rows_dropped(kind, tmp_path):
    """What is trained on is the same as if the rows had not been there."""
    data = spoiled()
    if kind in KINDS:
        data = KINDS[kind](data, NAMES)
    elif kind != "array":
        frame, path = KINDS["pandas"](data, NAMES), tmp_path / f"rows.{kind}"
        data = (frame.to_csv if kind == "csv" else frame.to_parquet)(path, index=False) or path
    with pytest.raises(InputError, match=r"(row 3, column ('a'|0|a)|column 'a', the first at row 3).*missing=\"drop\""):
        normae.train(data, settings=FEW)
    model = normae.train(data, settings=FEW, missing="drop")
    if kind == "array":
        clean = normae.train(rows()[~np.isnan(spoiled()).any(1)], settings=FEW)
        np.testing.assert_array_equal(model.score(rows()), clean.score(rows()))
    with pytest.raises(InputError, match="NaN"):
        model.score(spoiled())


def test_the_estimator_and_the_command_drop_them_too(tmp_path, caplog, capsys, monkeypatch):
    table, weights = spoiled(), np.linspace(1, 2, 60)
    with pytest.raises(InputError, match="row 3, column 0"):
        normae.NormalizedAutoencoder().fit(table)
    nae = normae.NormalizedAutoencoder(start_iterations=5, random_state=0, missing="drop").fit(table, None, weights)
    assert "3 of 60 rows with missing values are left out" in caplog.text
    whole = ~np.isnan(table).any(1)
    clean = normae.NormalizedAutoencoder(start_iterations=5, random_state=0).fit(table[whole], None, weights[whole])
    np.testing.assert_array_equal(nae.score_samples(rows()), clean.score_samples(rows()))
    KINDS["pandas"](table, NAMES).to_csv(tmp_path / "rows.csv", index=False)
    given = ["train", tmp_path / "rows.csv", "-o", tmp_path / "run", "--set", *FEW]
    assert command(*given) != 0
    assert "missing" in capsys.readouterr().err
    monkeypatch.setattr("normae.training.contrast.ROWS", 20)
    assert command(*given, "--set", "contrast.draws=20", "--set", "contrast.batch=10", "--missing", "drop") == 0
    assert "contrast, uses 20 of 37 rows" in capsys.readouterr().out
    assert normae.load(tmp_path / "run").columns == tuple(NAMES)
