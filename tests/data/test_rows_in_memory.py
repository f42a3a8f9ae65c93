"""Rows from memory: what is missing stays missing, what would be rounded is refused, and no index is a feature."""

from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from normae.data import Rows, as_rows
from normae.data.frames import as_frame, by_name, unmasked
from normae.errors import InputError

HUGE = 2**53 + 1  # float64 does not have it
BATCH = pa.RecordBatch.from_pydict({"a": ["x", "y", "x", "y"], "b": [True, None, False, True], "c": [1, None, 3, 2]})


def test_what_is_masked_is_missing():
    """Of whatever type; the numbers that fill it are nobody's."""
    mask = [[0, 0], [0, 1], [0, 0]]
    for dtype in (float, np.float32, int, object):
        given = np.ma.masked_array([[1, 2], [3, 99], [5, 6]], mask, dtype=dtype)
        with pytest.raises(InputError, match="got NaN in row 1, column 1"):
            as_rows(given)
        np.testing.assert_array_equal(as_rows(given, missing="drop").whole("x").values, [[1, 2], [5, 6]])
    with pytest.raises(InputError, match="beyond 2\\^53"):
        as_rows(np.ma.masked_array([[HUGE, 2], [3, 99], [5, 6]], mask), missing="drop")
    hidden = np.ma.masked_array([[1, 2], [3, HUGE], [5, 6]], mask)
    assert unmasked(hidden).dtype == np.float64  # what is masked cannot be rounded
    with pytest.raises(InputError, match="weights: expected finite|got NaN"):
        as_rows(np.ones((3, 2))).weighted(np.ma.masked_array([1.0, 2, 3], [0, 1, 0]), "weights")


def test_the_index_of_a_pandas_frame_is_no_feature(caplog):
    frame = pd.DataFrame({"pt": [10.0, 50, 20, 60, 70], "eta": [1.0, 2, 3, 4, 5]})
    for cut, index in ((frame[frame.pt > 40], "__index_level_0__"), (frame.set_index("pt").iloc[1:], "pt")):
        table = pa.Table.from_pandas(cut)
        assert as_rows(table).columns == as_rows(cut).columns == tuple(cut.columns)
        assert f"the index of a pandas frame, '{index}', is left out" in caplog.text
        assert as_rows(table, [index, "eta"]).columns == (index, "eta")  # it is taken where it is named
    assert as_rows(pa.Table.from_pandas(frame)).columns == ("pt", "eta")


def test_missing_values_of_every_kind_of_column():
    """Those of pandas, NA, are no text, and Arrow's batches are tables."""
    frame = pd.DataFrame({"b": pd.array([True, None, False], "boolean"), "i": pd.array([1, None, 2], "Int64")})
    frame = frame.assign(f=pd.array([0.5, None, 1], "Float64"), s=pd.array(["u", None, "u"], "string"))
    expected = [[1, 1, 0.5, 0], [np.nan] * 4, [0, 2, 1, 0]]
    for kind in (frame, frame.convert_dtypes(dtype_backend="pyarrow")):
        np.testing.assert_array_equal(as_rows(kind, missing="drop").values, expected)
        with pytest.raises(InputError, match="got NaN in row 1, column 'b'"):
            as_rows(kind)
    for kind in (BATCH, pa.Table.from_batches([BATCH]), pl.from_arrow(BATCH), BATCH.to_pandas()):
        found = as_rows(kind, missing="drop")
        np.testing.assert_array_equal(found.values, [[0, 1, 1], [1, np.nan, np.nan], [0, 0, 3], [1, 1, 2]])
        again = as_frame(found.whole("x"), kind[:0])
        assert type(again) is type(kind)
        assert again["a"].tolist() if kind is BATCH else list(again["a"])


def test_whole_numbers_that_would_be_rounded():
    for values in ([HUGE, 1], [HUGE, None], [Decimal(HUGE), Decimal("0.5")]):
        with pytest.raises(InputError, match="'n' holds whole numbers beyond 2\\^53, which float64 rounds"):
            as_rows(pd.DataFrame({"n": pd.Series(values, dtype=object)}), missing="drop")
    kept = [2**60, Decimal("0.1"), np.nan, 1e300]
    assert as_rows(pd.DataFrame({"n": pd.Series(kept, dtype=object)}), missing="drop").values[0] == 2**60


def test_decimals_go_in_and_come_back_or_one_sentence_says_why():
    like = pa.table({"d": pa.array([Decimal("1.25")], pa.decimal128(20, 2))})
    assert as_rows(like).values.tolist() == [[1.25]]
    assert as_frame(Rows(np.array([[-7.254]]), ("d",)), like)["d"].to_pylist() == [Decimal("-7.25")]
    for frame in (like, pl.from_arrow(like)):
        with pytest.raises(InputError, match="the types of the data frame cannot hold the rows .*; fit it as float64"):
            as_frame(Rows(np.array([[1e30]]), ("d",)), frame)


def test_no_columns_no_rows_and_rows_that_are_not_there_yet():
    frame = pd.DataFrame({"a": [1.0, 2.0]})
    for data, columns in ((frame, []), (frame[[]], None)):
        with pytest.raises(InputError, match="data: expected at least one column, got none"):
            as_rows(data, columns)
    with pytest.raises(InputError, match=r"shape \(N, d\), got shape \(2, 0\)"):
        as_rows(np.empty((2, 0)))
    with pytest.raises(InputError, match="got a LazyFrame, which holds no rows yet; call collect"):
        as_rows(pl.LazyFrame({"a": [1.0]}))
    with pytest.raises(InputError, match=r"data: expected 2 columns, got 1: \['a'\]"):
        as_rows(frame, categories=((), ()))  # one short, none is cut off silently
    for empty in (frame[:0], np.empty((0, 1))):
        assert as_rows(empty).whole("data").values.shape == (0, 1)


def test_advice_that_helps():
    with pytest.raises(InputError, match='or train without such rows, missing="drop"$'):
        as_rows([[1.0], [np.nan]])
    with pytest.raises(InputError, match="got infinity .*; fill or remove them first$"):
        as_rows([[1.0], [np.inf]], missing="drop")


def test_columns_without_names_get_some_that_head_a_file():
    assert list(by_name(Rows(np.zeros((1, 2)), None))) == ["column_0", "column_1"]
