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


def test_whole_numbers_that_would_be_rounded_and_masks_are_seen(fitted):
    nae = normae.NormalizedAutoencoder(start_iterations=5, random_state=0)
    huge = rows().astype(int)
    huge[4, 1] = 2**53 + 1
    nae.fit(rows())
    for given in (huge, huge.astype(object)):
        for take in (nae.fit, normae.train, nae.score_samples):
            with pytest.raises(InputError, match="the array holds whole numbers beyond 2\\^53"):
                take(given)
    masked = np.ma.masked_array(rows(), np.isnan(spoiled()))
    for take in (nae.fit, normae.train, fitted[1].score):
        with pytest.raises(InputError, match="NaN"):
            take(masked)
    dropped = normae.NormalizedAutoencoder(start_iterations=5, random_state=0, missing="drop")
    same = dropped.fit(spoiled()).score_samples(rows())
    np.testing.assert_array_equal(dropped.fit(masked).score_samples(rows()), same)
    whole = normae.train(np.round(rows()).astype(int), settings=FEW)
    with pytest.raises(InputError, match="NaN"):
        whole.score(np.ma.masked_array(np.round(rows()).astype(int), np.isnan(spoiled())))


@pytest.mark.parametrize("columns", [[0, 1, 2], pd.MultiIndex.from_product([["x"], NAMES])])
def test_names_that_are_no_text_are_known_too(columns):
    frame = pd.DataFrame(rows(), columns=columns)
    nae = normae.NormalizedAutoencoder(start_iterations=5, random_state=0).fit(frame)
    assert nae.score_samples(frame).shape == (60,)
    for other in (frame.iloc[:, ::-1], frame.set_axis([5, 6, 7], axis=1)):
        with pytest.raises(ValueError, match="expected the columns of the fit in their order"):
            nae.score_samples(other)
    nae.fit(frame.set_axis([5, 6, 7], axis=1))  # a new fit forgets


def test_the_index_of_a_pandas_frame_and_batches_of_arrow():
    frame = KINDS["pandas"](rows(), NAMES).sort_values("c")  # its index is no range
    nae = normae.NormalizedAutoencoder(start_iterations=5, random_state=0, log_z="never")
    expected = nae.fit(frame).score_samples(frame)
    for data in (pa.Table.from_pandas(frame), pa.RecordBatch.from_pandas(frame)):
        nae.fit(data)
        assert list(nae.feature_names_in_) == nae.frame_.column_names == NAMES
        np.testing.assert_array_equal(nae.score_samples(pa.Table.from_pandas(frame[::-1]))[::-1], expected)
        assert nae.sample(3, random_state=0).to_pandas().shape == (3, 3)
    assert normae.train(pa.Table.from_pandas(frame), settings=FEW).columns == tuple(NAMES)


def test_weights_that_are_none(fitted):
    nae, frame = fitted[0], KINDS["pandas"](rows(), NAMES)
    weights = np.linspace(1, 2, 60)
    assert nae.score(frame, sample_weight=weights) == pytest.approx(np.average(nae.score_samples(frame), None, weights))
    for take in (nae.score, normae.NormalizedAutoencoder().fit):
        for wrong, sentence in (
            ("a", r"sample_weight: expected an array with shape \(N,\), got a name"),
            (np.zeros(60), "sample_weight: expected weights with a sum above zero"),
            (weights[:3], "sample_weight: expected a weight for each of 60 rows"),
            (np.where(weights < 1.5, np.nan, 1), "sample_weight: expected finite numbers, got NaN"),
        ):
            with pytest.raises(InputError, match=sentence):
                take(frame, sample_weight=wrong)


def test_what_is_empty_is_one_sentence(fitted):
    frame, model = KINDS["pandas"](rows(), NAMES), fitted[1]
    for take in (normae.train, normae.NormalizedAutoencoder().fit):
        with pytest.raises(InputError, match="expected at least 10 rows, got 0"):
            take(frame[:0])
        with pytest.raises(InputError, match="expected at least one column, got none"):
            take(frame[[]])
        with pytest.raises(InputError, match="call collect"):
            take(KINDS["polars"](rows(), NAMES).lazy())
    with pytest.raises(InputError, match="expected at least 10 rows, got 0"):
        normae.train(np.empty((0, 2)))
    assert model.explain(rows()[:0]).shape == (0, 3)
    assert model.explain(rows()[:2]).shape == (2, 3)


def test_a_word_for_missing_that_is_none_is_refused(tmp_path):
    frame = KINDS["pandas"](rows(), NAMES)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    for data in (frame, tmp_path / "rows.csv"):
        with pytest.raises(InputError, match='missing: expected "refuse" or "drop", got \'Refuse\''):
            normae.train(data, missing="Refuse")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_samples_without_names_can_be_scored(suffix, tmp_path):
    """In the order of the run, whose columns have none."""
    np.save(tmp_path / "rows.npy", rows(200))
    model = normae.train(tmp_path / "rows.npy", out=tmp_path / "run", settings=FEW)
    drawn, scores = tmp_path / f"drawn.{suffix}", tmp_path / "scores.parquet"
    assert command("sample", tmp_path / "run", "-n", 20, "-o", drawn) == 0
    assert command("score", tmp_path / "run", drawn, "-o", scores) == 0
    table = pd.read_csv(drawn) if suffix == "csv" else pd.read_parquet(drawn)
    assert list(table) == ["column_0", "column_1", "column_2"]
    np.testing.assert_allclose(pd.read_parquet(scores).score, model.score(table.to_numpy()), rtol=1e-4, atol=1e-4)
