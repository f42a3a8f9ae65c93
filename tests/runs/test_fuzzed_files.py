"""Files that are wrong in any way, through the command line: a whole result, or one sentence and nothing left."""

import contextlib
import io
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import normae
from command import command
from normae.config import structure, to_toml
from tiny_run import tiny

KINDS = ["npy", "npz", "csv", "parquet", "h5", "root"]
JETS = Path(__file__).parents[1] / "jets" / "data" / "sample.npz"
CONFIGS = Path(__file__).parents[2] / "configs"
ROWS, NAMES = 60, ("mass", "tau")
QUICK = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))

Table = dict[str, np.ndarray]


def good() -> Table:
    x = np.random.default_rng(0).normal(size=(ROWS, 2))
    return {"mass": x[:, 0], "tau": x[:, 1]}


def write(path: Path, columns: Table) -> None:
    """A table of named columns as a file of whatever kind the suffix says; text columns are NumPy's."""
    kind = path.suffix[1:]
    if kind == "npz":
        np.savez(path, **columns)
    elif kind == "npy":
        record = np.zeros(len(next(iter(columns.values()))), dtype=[(n, c.dtype) for n, c in columns.items()])
        for name, column in columns.items():
            record[name] = column
        with contextlib.suppress(UserWarning):  # names beyond Latin-1 need a newer format
            np.save(path, record)
    elif kind == "csv":
        lines = [",".join(f'"{name}"' for name in columns)]
        lines += [",".join(map(str, row)) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif kind == "parquet":
        pyarrow.parquet.write_table(pa.table({n: pa.array(c) for n, c in columns.items()}), path)
    elif kind == "h5":
        with h5py.File(path, "w") as file:
            for name, column in columns.items():
                file[name] = column.astype("S") if column.dtype.kind == "U" else column
    else:
        with pytest.importorskip("uproot").recreate(path) as file:
            numbers = {n: c for n, c in columns.items() if c.dtype.kind != "U"}
            file.mktree("t", {n: c.dtype for n, c in numbers.items()}).extend(numbers)


def preset(folder: Path, file: Path, test: int = 20) -> Path:
    """A configuration that trains on a table for a moment."""
    content = tiny(
        data={"file": str(file), "train": 0, "test": test}, network={"hidden": [4]},
        pretraining={"epochs": 1, "batch": 20}, training={"epochs": 1, "batch": 20},
    )  # fmt: skip
    content["sampling"] |= {"buffer": 20}
    (folder / "fuzz.toml").write_text(to_toml(structure(content)), encoding="utf-8")
    return folder / "fuzz.toml"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    write(folder / "t.parquet", good())
    assert command("train", preset(folder, folder / "t.parquet"), "--out", folder / "run") == 0
    return folder / "run"


def spoken(*arguments: object) -> tuple[int, list[str]]:
    """Exit code of the command, and the lines that it wrote to standard error."""
    with contextlib.redirect_stderr(io.StringIO()) as stream, contextlib.redirect_stdout(io.StringIO()):
        code = command(*arguments)
    return code, [line for line in stream.getvalue().splitlines() if line.strip()]


def scored(run: Path, path: Path, folder: Path) -> tuple[int, str]:
    """`normae score`: a whole result and exit code 0, or one sentence, exit code 2 and nothing left."""
    out = folder / "out" / "s.parquet"
    code, lines = spoken("score", run, path, "-o", out, "--device", "cpu")
    if code == 0:
        found = pyarrow.parquet.read_table(out)
        assert np.isfinite(found["score"].to_numpy()).all()
        assert np.array_equal(found["row"].to_numpy(), np.arange(len(found)))
    else:
        one_sentence(code, lines)
        assert not out.parent.exists() or list(out.parent.iterdir()) == []
    return code, " ".join(lines)


def refused(path: Path, folder: Path) -> str:
    """The one sentence of `normae train` that asks for more rows than there are: the whole file is read before that."""
    code, lines = spoken("train", preset(folder, path, test=10_000), "--out", folder / "run")
    one_sentence(code, lines)
    assert not (folder / "run").exists()
    return lines[0]


def one_sentence(code: int, lines: list[str]) -> None:
    assert code == 2, lines
    assert len(lines) == 1, lines
    assert lines[0].startswith("normae: ")
    assert "Traceback" not in lines[0]


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    if request.param == "root":
        pytest.importorskip("uproot")
    return str(request.param)


def test_a_table_of_every_kind_from_training_to_scores(kind, tmp_path):
    """As a user would; the run's own kind of file, and columns in another order among others."""
    write(tmp_path / f"t.{kind}", good())
    assert trained_run(tmp_path / f"t.{kind}", tmp_path) == 0
    x = {"weight": np.arange(float(ROWS)), "tau": good()["tau"], "mass": good()["mass"]}
    write(tmp_path / f"other.{kind}", x)
    out = tmp_path / "s.parquet"
    assert spoken("score", tmp_path / "run", tmp_path / f"other.{kind}", "-o", out, "--device", "cpu")[0] == 0
    found = pyarrow.parquet.read_table(out)
    assert found.column_names == ["file", "row", "score", "log_prob", "p_value", "p_value_error"]
    model = normae.load(tmp_path / "run")
    expected = model.score(np.stack([good()[name] for name in columns_of(tmp_path / "run")], axis=1).astype(np.float32))
    assert np.allclose(found["score"].to_numpy(), expected, rtol=1e-5)
    assert 1 / 21 <= min(found["p_value"].to_pylist()) <= max(found["p_value"].to_pylist()) <= 1
    write(tmp_path / f"less.{kind}", {"mass": good()["mass"], "other": good()["tau"]})
    assert "no column 'tau'" in scored(tmp_path / "run", tmp_path / f"less.{kind}", tmp_path)[1]


def columns_of(run: Path) -> list[str]:
    from normae.runs.folder import RunFolder, read_tensors

    found = read_tensors(RunFolder(run).model)[1]["columns"]
    assert isinstance(found, list)
    assert sorted(found) == sorted(NAMES)
    return found


def trained_run(path: Path, folder: Path) -> int:
    return spoken("train", preset(folder, path), "--out", folder / "run")[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    """A good file of every kind."""
    folder = tmp_path_factory.mktemp("whole")
    found = {}
    for kind in KINDS:
        with contextlib.suppress(pytest.skip.Exception):
            write(folder / f"t.{kind}", good())
            found[kind] = (folder / f"t.{kind}").read_bytes()
    return found


@QUICK
@given(data=st.data())
def test_truncated(run, whole, kind, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut")
    raw = whole[kind]
    length = data.draw(st.integers(0, len(raw) - 2), "length")
    path = folder / f"t.{kind}"
    path.write_bytes(raw[:length])
    code, sentence = scored(run, path, folder)
    assert code == 2 or kind == "csv", "a file that was cut is not read"
    assert str(path) in sentence or code == 0
    sentence = refused(path, folder)
    assert str(path) in sentence
    assert "expected at least 10001 events" not in sentence or kind == "csv", "a file that was cut is not read"


@QUICK
@given(data=st.data())
def test_bytes_changed(run, whole, kind, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("changed")
    raw = bytearray(whole[kind])
    for _ in range(data.draw(st.integers(1, 6), "changes")):
        raw[data.draw(st.integers(0, len(raw) - 1), "place")] = data.draw(st.integers(0, 255), "byte")
    path = folder / f"t.{kind}"
    path.write_bytes(raw)
    scored(run, path, folder)
    assert str(path) in refused(path, folder)


WRONG = {
    "text": lambda c: np.array(["x"] * len(c)),
    "complex": lambda c: c + 1j,
    "NaN": lambda c: np.where(np.arange(len(c)) == 7, np.nan, c),
    "infinity": lambda c: np.where(np.arange(len(c)) == 7, np.inf, c),
    "beyond float32": lambda c: np.where(np.arange(len(c)) == 7, -1e300, c),
    "beyond squares": lambda c: np.where(np.arange(len(c)) == 7, 1e30, c),
    "huge integers": lambda c: np.where(np.arange(len(c)) == 7, 2**64 - 1, 0).astype(np.uint64),
    "empty": lambda c: c,
}


@pytest.mark.parametrize("wrong", list(WRONG))
def test_wrong_values(run, kind, wrong, tmp_path):
    """Text, complex, NaN, infinity, huge numbers and no rows: named with column, or row."""
    columns = good()
    columns["tau"] = WRONG[wrong](columns["tau"])
    if wrong == "complex" and kind in ("parquet", "root"):
        pytest.skip("has no complex numbers")
    if wrong == "empty":
        columns = {name: column[:0] for name, column in columns.items()}
    path = tmp_path / f"t.{kind}"
    write(path, columns)
    code, found = scored(run, path, tmp_path)
    assert code == 2
    for sentence in (found, refused(path, tmp_path)):
        assert str(path) in sentence
        if wrong == "text" and kind == "root":  # uproot writes no text: a column less
            continue
        assert "'tau'" in sentence or wrong == "empty"


@QUICK
@given(
    data=st.data(),
    names=st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=6), min_size=1, max_size=4, unique=True),
)
def test_wrong_and_unicode_names(run, kind, data, names, tmp_path_factory):
    """Any names of columns: a file that lacks those of the run is refused; a training takes it or says why not."""
    folder = tmp_path_factory.mktemp("names")
    path = folder / f"t.{kind}"
    try:
        write(path, {name: good()["mass"] + j for j, name in enumerate(names)})
    except Exception:
        return  # the format cannot hold such a name
    code, sentence = scored(run, path, folder)
    assert code == 2, sentence
    assert str(path) in refused(path, folder)


@pytest.fixture(scope="module")
def jet_run(tmp_path_factory) -> tuple[Path, Path]:
    """A run on jets, and its configuration."""
    folder = tmp_path_factory.mktemp("jets")
    return jets_trained(JETS, folder), folder


JET_CHANGES = [
    "device=cpu", "data.test=20", "data.validation=0", "network.channels=2", "network.hidden=[8]",
    "pretraining.epochs=1",
    "pretraining.batch=20", "training.epochs=1", "training.batch=20", "sampling.buffer=20", "sampling.latent.steps=2",
    "sampling.feature.steps=2", "guard.largest_gap=1e9",
]  # fmt: skip


def jets_arguments(path: Path, folder: Path, train: int = 60) -> list[object]:
    changes = [
        word for change in [*JET_CHANGES, f"data.path={path}", f"data.train={train}"] for word in ("--set", change)
    ]
    return ["train", CONFIGS / "jets-paper-qcd-nae.toml", "--out", folder / "run", *changes]


def jets_trained(path: Path, folder: Path) -> Path:
    code, lines = spoken(*jets_arguments(path, folder))
    assert code == 0, lines
    return folder / "run"


@pytest.mark.parametrize("suffix", ["npz", "h5", "images"])
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_jets(jet_run, suffix, data, tmp_path_factory):
    run, kept = jet_run
    source = jets_file(suffix, kept)
    folder = tmp_path_factory.mktemp("jets")
    raw = bytearray(source.read_bytes())
    if data.draw(st.booleans(), "cut"):
        raw = raw[: data.draw(st.integers(0, len(raw) - 2), "length")]
    else:
        for _ in range(data.draw(st.integers(1, 6), "changes")):
            raw[data.draw(st.integers(0, len(raw) - 1), "place")] = data.draw(st.integers(0, 255), "byte")
    path = folder / source.name
    path.write_bytes(raw)
    scored(run, path, folder)
    one_sentence(*spoken(*jets_arguments(path, folder, train=100_000)))  # more than there are: all is read before
    assert not (folder / "run").exists()


def jets_file(suffix: str, folder: Path) -> Path:
    if suffix == "npz":
        return JETS
    path = folder / f"{suffix}.h5"
    if not path.exists():
        (normae.jets.convert if suffix == "h5" else normae.jets.convert_images)(JETS, path)
    return path


@pytest.mark.parametrize("suffix", ["npz", "csv", "parquet"])
def test_a_table_for_a_run_on_jets_and_jets_for_a_table(run, jet_run, suffix, tmp_path):
    path = tmp_path / f"t.{suffix}"
    write(path, good())
    assert scored(jet_run[0], path, tmp_path)[0] == 2
    assert scored(run, JETS, tmp_path)[0] == 2
