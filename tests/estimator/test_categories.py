"""Columns of text through the three doors: a probability for every category, and data frames in and out."""

import json
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

import normae
from command import command
from normae.config import read
from normae.data import as_rows, open_table, read_rows
from normae.errors import InputError
from normae.lattice import IMPOSSIBLE

WORDS, SHARES, PLACES = np.array(["red", "blue", "green"]), np.array([0.2, 0.5, 0.3]), np.array([0.0, 4.0, 0.0])
ORDER = ("blue", "green", "red")
FEW = ["contrast.iterations=5"]


def frame(n=600, seed=0):
    """A category, a number whose place is that of its category, a count, and a yes or no."""
    random = np.random.default_rng(seed)
    which = random.choice(3, n, p=SHARES)
    yes = np.where(random.uniform(size=n) < np.where(which == 0, 0.9, 0.2), "yes", "no")
    x = PLACES[which] + random.normal(size=n)
    return pd.DataFrame({"colour": WORDS[which], "x": x, "n": random.poisson(2, n), "member": yes})


KINDS = {
    "pandas": lambda table: table,
    "category": lambda table: table.astype({"colour": "category", "member": "string", "n": "uint8"}),
    "object": lambda table: table.astype({"colour": object, "n": "Int64"}),
    "polars": lambda table: pl.DataFrame(table.to_dict("list")).with_columns(pl.col("colour").cast(pl.Categorical)),
    "arrow": lambda table: pa.table(
        table.to_dict("list") | {"colour": pa.array(table.colour.tolist()).dictionary_encode()}
    ),
}


@pytest.fixture(scope="module")
def fitted():
    return normae.NormalizedAutoencoder(start_iterations=50, random_state=0).fit(frame(3000))


@pytest.mark.parametrize("kind", [*KINDS, "csv", "parquet"])
def test_text_becomes_codes_the_commonest_first(kind, tmp_path):
    table = frame()
    if kind == "csv":
        table.to_csv(tmp_path / "rows.csv", index=False)
    elif kind == "parquet":
        pyarrow.parquet.write_table(KINDS["arrow"](table), tmp_path / "rows.parquet")
    if kind in KINDS:
        rows = as_rows(KINDS[kind](table))
        again = as_rows(KINDS[kind](table[::-1]), categories=rows.categories)
    else:
        rows = read_rows(tmp_path / f"rows.{kind}", None, None, None, "refuse", None)
        again = rows._replace(values=rows.values[::-1])
    assert rows.categories == (ORDER, (), (), ("no", "yes"))
    np.testing.assert_array_equal(rows.values[:, 0], [ORDER.index(word) for word in table.colour])
    np.testing.assert_array_equal(rows.values[:, 3], table.member == "yes")
    np.testing.assert_array_equal(again.values[::-1], rows.values)


def test_probabilities_are_those_of_the_categories_and_sum_to_one(fitted):
    """Summed over all that can occur, and integrated over x; a wrong version, with x shifted, does not pass."""
    x = np.linspace(-6, 10, 201)
    total = dict.fromkeys(ORDER, 0.0)
    for word in ORDER:
        for member in ("yes", "no"):
            for n in range(14):
                rows = pd.DataFrame({"colour": word, "x": x, "n": n, "member": member})
                total[word] += float(np.exp(fitted.score_samples(rows)).sum()) * (x[1] - x[0])
    assert sum(total.values()) == pytest.approx(1, abs=4 * fitted.log_z_.error)
    assert [total[word] for word in WORDS] == pytest.approx(SHARES, abs=0.03)
    new = frame(1000, seed=1)
    wrong = new.assign(colour=new.colour.map({"red": "blue", "blue": "green", "green": "red"}))
    assert fitted.score(new) > fitted.score(wrong) + 1


def test_a_category_that_is_new_cannot_occur(fitted):
    one = pd.DataFrame({"colour": ["blue", "violet"], "x": 4.0, "n": 2, "member": "no"})
    scores = fitted.score_samples(one)
    assert scores[0] > -10
    assert -2 * IMPOSSIBLE < scores[1] < -IMPOSSIBLE + 50
    assert fitted.predict(one).tolist() == [1, -1]
    assert fitted.model_.explain(one)[1].argmax() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_a_frame_of_the_kind_and_the_types_that_were_fitted(kind, fitted):
    given = KINDS[kind](frame())
    nae = pickle.loads(pickle.dumps(normae.NormalizedAutoencoder(start_iterations=5, random_state=0).fit(given)))
    found = nae.sample(300, random_state=1)
    assert type(found) is type(given)
    if kind == "arrow":
        assert found.schema.equals(given.schema)
    else:
        assert list(found.dtypes) == list(given.dtypes)
        assert list(found.columns) == list(given.columns)
    assert (nae.score_samples(found) > -100).all()  # none that cannot occur
    assert (nae.feature_names_in_ == ["colour", "x", "n", "member"]).all()
    words = found["colour"].to_pylist() if kind == "arrow" else list(found["colour"])
    assert {word: words.count(word) / 300 for word in WORDS} == pytest.approx(
        dict(zip(WORDS, SHARES, strict=True)), abs=0.1
    )
    assert fitted.sample(2, random_state=1).shape == (2, 4)


def test_three_doors_and_a_saved_run_know_the_same_categories(fitted, tmp_path, capsys):
    table = frame()
    table.to_csv(tmp_path / "rows.csv", index=False)
    assert command("train", tmp_path / "rows.csv", "-o", tmp_path / "run", "--set", *FEW) == 0
    assert read(tmp_path / "run" / "config.toml").data.categories == (ORDER, (), (), ("no", "yes"))
    model, trained = normae.load(tmp_path / "run"), normae.train(table, settings=FEW)
    assert model.categories == trained.categories == (ORDER, (), (), ("no", "yes"))
    codes = as_rows(table).values
    np.testing.assert_allclose(model.score(table[::-1])[::-1], model.score(codes), rtol=1e-6)

    fitted.save(tmp_path / "fitted")
    same = normae.NormalizedAutoencoder.load(tmp_path / "fitted")
    np.testing.assert_array_equal(same.score_samples(table), fitted.score_samples(table))
    assert same.sample(3, random_state=0).shape == (3, 4)  # codes: which kind of frame it was is not stored

    table.assign(colour=["violet", *table.colour[1:]]).to_parquet(tmp_path / "new.parquet")
    assert command("score", tmp_path / "run", tmp_path / "new.parquet", "-o", tmp_path / "scores.parquet") == 0
    assert "1 of 600 rows have a value in `colour` that cannot occur" in capsys.readouterr().err
    scores = pd.read_parquet(tmp_path / "scores.parquet").score
    np.testing.assert_allclose(scores[1:], model.score(table)[1:], rtol=1e-5, atol=1e-5)
    assert scores[0] > IMPOSSIBLE - 50
    assert command("evaluate", tmp_path / "run") == 0
    for name in ("samples.csv", "samples.parquet"):
        assert command("sample", tmp_path / "run", "-n", 50, "-o", tmp_path / name) == 0
        with open_table(tmp_path / name) as written:
            assert written.columns == ("colour", "x", "n", "member")
    assert set(pd.read_csv(tmp_path / "samples.csv").colour) <= set(WORDS)


def test_an_exported_model_takes_the_places_of_categories(fitted, tmp_path):
    onnx = pytest.importorskip("onnx")
    fitted.save(tmp_path / "run")
    assert command("export", tmp_path / "run", "--onnx", "-o", tmp_path / "model.onnx") == 0
    said = {entry.key: entry.value for entry in onnx.load(tmp_path / "model.onnx").metadata_props}
    assert json.loads(said["categories"]) == [list(ORDER), [], [], ["no", "yes"]]


def test_members_with_error_bars_have_all_categories():
    """Also one that is in few rows, and perhaps in none of a half."""
    table = frame(300)
    table.loc[:1, "colour"] = "black"
    nae = normae.NormalizedAutoencoder(bayesian=True, start_iterations=5, random_state=0).fit(table)
    assert (nae.score_draws(table[:2]) > -100).all()


def test_what_is_refused_names_the_column(tmp_path, capsys):
    table, fit = frame(), normae.NormalizedAutoencoder(start_iterations=5).fit
    with pytest.raises(
        InputError, match="X: the column 'name' holds text with 600 or more different values in 600 rows"
    ):
        fit(table.assign(name=[f"row {k}" for k in range(600)]))
    table.assign(name=[f"row {k}" for k in range(600)]).to_csv(tmp_path / "names.csv", index=False)
    with pytest.raises(InputError, match=r"names.csv: the column 'name' holds text with 600 or more different values"):
        normae.train(tmp_path / "names.csv")
    with pytest.raises(InputError, match="X: the column 'x' holds text, where real numbers are expected"):
        fit(table.assign(x=["a", *map(str, table.x[1:])]))
    table.assign(x=["a", *map(str, table.x[1:])]).to_csv(tmp_path / "slip.csv", index=False)
    with pytest.raises(
        InputError, match=r"the column 'x' does not hold real numbers .*'a'.* leave it out with --columns"
    ):
        normae.train(tmp_path / "slip.csv")
    with pytest.raises(InputError, match="'colour' holds text, where weights are expected"):
        normae.train(table, weights="colour")
    with pytest.raises(InputError, match="condition: expected columns of numbers, got one of text"):
        normae.train(table, condition="colour")
    with pytest.raises(InputError, match="no likelihood training.* leave such columns out"):
        normae.NormalizedAutoencoder(iterations=5).fit(table)
    model = normae.train(table, settings=FEW)
    with pytest.raises(InputError, match="the column 'colour' holds no text, where categories are expected"):
        model.score(table.assign(colour=1.0))
    normae.train(table, out=tmp_path / "run", settings=FEW)
    table.assign(colour=1.0).to_parquet(tmp_path / "numbers.parquet")
    assert command("score", tmp_path / "run", tmp_path / "numbers.parquet", "-o", tmp_path / "scores.csv") != 0
    assert "numbers.parquet: the column 'colour' holds no text" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["pandas", "csv"])
def test_missing_text_is_a_missing_value(kind, tmp_path):
    table = frame()
    table.loc[3, "colour"] = None
    data = table
    if kind == "csv":
        data = tmp_path / "rows.csv"
        table.to_csv(data, index=False)
    with pytest.raises(InputError, match=r"(row 3, column 'colour'|'colour', the first at row 3)"):
        normae.train(data, settings=FEW)
    assert normae.train(data, settings=FEW, missing="drop").categories[0] == ORDER


def test_a_condition_beside_text():
    """p(colour | x) of categories whose places differ."""
    nae = normae.NormalizedAutoencoder(condition=["x"], start_iterations=50, random_state=0).fit(frame(2000))
    at = [pd.DataFrame({"colour": ORDER, "x": x, "n": 2, "member": "no"}) for x in (0.0, 4.0)]
    assert [ORDER[int(nae.score_samples(rows).argmax())] for rows in at] == ["green", "blue"]
