"""Files with any name, as input and as output: what is no UTF-8 works, and what a spreadsheet would run does not."""

import os
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from normae.scoring.score import Scorer, open_scorer, score
from tiny_table import NAMES, rows

X = rows(100)


@pytest.fixture(scope="module")
def scorer(table_run) -> Scorer:
    return open_scorer(table_run.path, device="cpu")


def write(path: Path) -> Path:
    if path.suffix == ".parquet":
        with pyarrow.OSFile(os.fsencode(path), "wb") as file:
            pyarrow.parquet.write_table(pyarrow.table(dict(zip(NAMES, X.T, strict=True))), file)
    elif path.suffix == ".csv":
        np.savetxt(path, X, delimiter=",", header=",".join(NAMES), comments="")
    else:
        np.savez(path, **dict(zip(NAMES, X.T, strict=True)))
    return path


@pytest.mark.parametrize("suffix", ["csv", "parquet", "npz"])
def test_a_name_that_is_no_text(suffix, scorer, tmp_path, monkeypatch):
    """The same scores, from and to such names; in the result its bytes are escaped."""
    monkeypatch.chdir(tmp_path)
    plain, odd = (write(Path(f"{name}.{suffix}")) for name in ("t", os.fsdecode(b"t\xff")))
    outs = [Path(f"{name}.{suffix}") for name in ("s", os.fsdecode(b"s\xff"))]
    for file, out in zip((plain, odd), outs, strict=True):
        assert score(scorer, [file], out).whole
    if suffix == "npz":
        first, second = (np.load(out) for out in outs)
        assert np.array_equal(first["score"], second["score"])
        assert second["files"].tolist() == [r"t\udcff.npz"]
        return
    read = pyarrow.parquet.read_table if suffix == "parquet" else pyarrow.csv.read_csv
    first, second = (read(pyarrow.OSFile(os.fsencode(out), "rb")) for out in outs)
    assert first["score"].equals(second["score"])
    assert set(second["file"].to_pylist()) == {rf"t\udcff.{suffix}"}


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "plain"])
def test_a_spreadsheet_runs_nothing(name, scorer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = write(Path(f"{name}.npz"))
    assert score(scorer, [file], "s.csv").whole
    found = set(pyarrow.csv.read_csv("s.csv")["file"].to_pylist())
    assert found == {str(file) if name == "plain" else f"'{file}"}
