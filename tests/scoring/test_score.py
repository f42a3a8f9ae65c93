"""`normae score`: the same scores whatever the file, the chunks, the shards and the stops; bad files leave nothing."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import normae
from command import command
from normae import jets, zoo
from normae.config import read, structure
from normae.errors import InputError
from normae.runs.folder import RunFolder, model_digest, read_tensors
from normae.runs.session import train
from normae.scoring.score import Scorer, open_scorer, parse_shard, score
from normae.sources import load_events
from tiny_run import tiny
from watched import watched

NAMES = ("mass", "η", "tau 1")
ROWS = 2000
CONFIGS = Path(__file__).parents[2] / "configs"
JETS = Path(__file__).parents[1] / "jets" / "data" / "sample.npz"


def table(rows: int = ROWS, seed: int = 0) -> pa.Table:
    x = np.random.default_rng(seed).normal(size=(rows, 3))
    return pa.table({"label": ["a"] * rows, "η": x[:, 1], "tau 1": x[:, 2], "mass": x[:, 0]})


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run that was trained on three named columns of a Parquet file."""
    folder = tmp_path_factory.mktemp("table")
    pyarrow.parquet.write_table(table(), folder / "train.parquet")
    content = tiny(data={"file": str(folder / "train.parquet"), "columns": list(NAMES), "train": 1500, "test": 500})
    assert train(structure(content), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def scorer(run) -> Scorer:
    """With small parts, so that small files have many."""
    return replace(open_scorer(run, device="cpu"), block=64, part=256)


@pytest.fixture
def parquet(tmp_path) -> Path:
    pyarrow.parquet.write_table(table(seed=1), tmp_path / "events.parquet", row_group_size=300)
    return tmp_path / "events.parquet"


def columns_of(path: Path) -> dict[str, np.ndarray]:
    return {name: column.to_numpy() for name, column in zip(*_columns(path), strict=True)}


def _columns(path: Path) -> tuple[list[str], list]:
    content = pyarrow.parquet.read_table(path)
    return content.column_names, content.columns


def test_a_run_remembers_its_columns(run):
    assert read_tensors(RunFolder(run).model)[1]["columns"] == list(NAMES)
    config = read(run / "config.toml")
    assert config.data.columns == NAMES
    assert load_events(config.data, config.seed).columns == NAMES


def test_names_given_to_an_array_are_remembered(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(9, 3)))
    data = structure(tiny(data={"file": str(tmp_path / "x.npy"), "columns": list(NAMES), "train": 5, "test": 4})).data
    assert load_events(data, 0).columns == NAMES
    assert load_events(replace(data, columns=None), 0).columns is None


def test_scores_and_p_values(run, parquet, tmp_path):
    assert command("score", run, parquet, "-o", tmp_path / "s.parquet", "--device", "cpu") == 0
    found = columns_of(tmp_path / "s.parquet")
    assert list(found) == ["file", "row", "score", "p_value", "p_value_error"]  # log Z is not known in three dimensions
    assert set(found["file"]) == {str(parquet)}
    assert np.array_equal(found["row"], np.arange(ROWS))
    x = np.stack([table(seed=1)[name].to_numpy() for name in NAMES], axis=1).astype(np.float32)
    model = normae.load(run)
    assert np.allclose(found["score"], model.score(x), rtol=1e-5)
    config = read(run / "config.toml")
    background = model.score(load_events(config.data, config.seed).test.numpy())
    above = (background[None, :] >= found["score"][:, None]).sum(1)
    assert np.abs(found["p_value"] - (above + 1) / 501).max() < 3 / 501
    assert found["p_value"].min() >= 1 / 501
    assert (found["p_value_error"] > 0).all()
    assert not (tmp_path / "s.parquet.parts").exists()
    assert (run / "background.npz").is_file()


def write_other(kind: str, folder: Path) -> Path:
    columns = {name: table(seed=1)[name].to_numpy() for name in NAMES}
    path = folder / f"t.{kind}"
    if kind == "csv":
        pyarrow.csv.write_csv(table(seed=1), path)
    elif kind == "npz":
        np.savez(path, **columns)
    elif kind == "npy":
        np.save(path, np.stack(list(columns.values()), axis=1))
    elif kind == "h5":
        with h5py.File(path, "w") as file:
            for name, values in columns.items():
                file[name] = values
    else:
        pytest.importorskip("uproot").recreate(path).mktree("t", dict.fromkeys(columns, "f8")).extend(columns)
    return path


@pytest.mark.parametrize("kind", ["csv", "npz", "npy", "h5", "root"])
def test_every_kind_of_file_gives_the_same_scores(scorer, parquet, tmp_path, kind):
    if kind == "root":
        pytest.importorskip("uproot")
    score(scorer, [parquet], tmp_path / "a.parquet")
    score(scorer, [write_other(kind, tmp_path)], tmp_path / "b.parquet")
    a, b = columns_of(tmp_path / "a.parquet"), columns_of(tmp_path / "b.parquet")
    assert all(np.array_equal(a[name], b[name]) for name in a if name != "file")


@pytest.mark.parametrize("suffix", ["parquet", "csv", "npz"])
def test_chunks_shards_and_stops_change_no_byte(scorer, parquet, tmp_path, suffix):
    other = tmp_path / "other.csv"
    pyarrow.csv.write_csv(table(rows=301, seed=2), other)
    files = [parquet, other]
    assert score(scorer, files, tmp_path / f"whole.{suffix}").whole
    whole = (tmp_path / f"whole.{suffix}").read_bytes()
    for chunk in (1, 200, 10**9):
        score(scorer, files, tmp_path / f"{chunk}.{suffix}", chunk=chunk)
        assert (tmp_path / f"{chunk}.{suffix}").read_bytes() == whole
    out = tmp_path / f"shards.{suffix}"
    for shard in ("2/3", "0/3", "1/3"):
        assert not score(scorer, files, out, shard=shard).whole
        assert not out.exists()
    assert score(scorer, files, out).whole
    assert out.read_bytes() == whole
    out = tmp_path / f"stopped.{suffix}"
    _stop_after(scorer, files, out, 1000)
    assert score(scorer, files, out).whole
    assert out.read_bytes() == whole
    assert not list(tmp_path.glob("*.parts"))


def _stop_after(scorer: Scorer, files: list[Path], out: Path, rows: int) -> None:
    def stop(done: int, total: int) -> None:
        assert total == ROWS + 301
        if done > rows:
            raise KeyboardInterrupt

    with watched(stop), pytest.raises(KeyboardInterrupt):
        score(scorer, files, out)
    assert not out.exists()


def test_a_restart_does_only_what_is_missing(scorer, parquet, tmp_path, monkeypatch):
    out = tmp_path / "s.parquet"
    score(scorer, [parquet], out, shard="0/2")
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "s.parquet.parts").iterdir()}
    rows = []
    monkeypatch.setattr(Scorer, "score", _counting(Scorer.score, rows))
    score(scorer, [parquet], out, shard="0/2")
    assert rows == []
    assert kept == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "s.parquet.parts").iterdir()}
    score(scorer, [parquet], out)
    assert sum(rows) == ROWS - 4 * 256


def _counting(work, rows):
    def count(self, x):
        rows.append(len(x))
        return work(self, x)

    return count


@pytest.mark.slow
def test_killed_in_the_middle(run, tmp_path):
    """kill -9 while parts are written: nothing under the final name, and the next call gives the whole."""
    pyarrow.parquet.write_table(table(rows=3_000_000), tmp_path / "long.parquet")
    out, parts = tmp_path / "s.parquet", tmp_path / "s.parquet.parts"
    call = [sys.executable, "-m", "normae", "score", str(run), str(tmp_path / "long.parquet"), "-o", str(out)]
    process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not list(parts.glob("[!.]*.safetensors")) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    process.kill()
    assert process.wait(60) == -9
    assert not out.exists()
    kept = list(parts.glob("[!.]*.safetensors"))
    assert 1 <= len(kept) < 6
    rows = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scorer, "score", _counting(Scorer.score, rows))
        assert score(open_scorer(run, device="cpu"), [tmp_path / "long.parquet"], out).whole
    assert sum(rows) == 3_000_000 - len(kept) * (1 << 19)
    assert np.array_equal(columns_of(out)["row"], np.arange(3_000_000))
    assert not parts.exists()


def test_a_damaged_background_is_made_again(run, scorer):
    (run / "background.npz").write_bytes(b"PK\x03\x04 nothing")
    assert open_scorer(run, device="cpu").digest == scorer.digest


def test_a_changed_file_is_scored_again(scorer, parquet, tmp_path):
    out = tmp_path / "s.parquet"
    score(scorer, [parquet], out, shard="0/2")
    pyarrow.parquet.write_table(table(seed=5), parquet)
    score(scorer, [parquet], out)
    score(scorer, [parquet], tmp_path / "fresh.parquet")
    assert out.read_bytes() == (tmp_path / "fresh.parquet").read_bytes()


def test_csv_and_npz_hold_the_same(scorer, parquet, tmp_path):
    for suffix in ("parquet", "csv", "npz"):
        score(scorer, [parquet], tmp_path / f"s.{suffix}")
    a = columns_of(tmp_path / "s.parquet")
    csv = pyarrow.csv.read_csv(tmp_path / "s.csv")
    assert csv.column_names == list(a)
    assert np.array_equal(csv["score"].to_numpy().astype(np.float32), a["score"])
    with np.load(tmp_path / "s.npz", allow_pickle=False) as npz:
        assert np.array_equal(npz["files"][npz["file"]], a["file"].astype(str))
        assert all(np.array_equal(npz[name], a[name]) for name in a if name != "file")


def test_bayesian_columns(tmp_path):
    content = tiny(bayesian={"layers": "last"}, data__test=300)
    assert train(structure(content), tmp_path / "run")
    x = np.random.default_rng(0).normal(size=(700, 2)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    scorer = open_scorer(tmp_path / "run", device="cpu")
    score(scorer, [tmp_path / "x.npy"], tmp_path / "s.parquet")
    found = columns_of(tmp_path / "s.parquet")
    model = normae.load(tmp_path / "run")
    draws, log_p = model.score_draws(x), model.log_prob_draws(x)
    assert np.allclose(found["score"], draws.mean(0), rtol=1e-5)
    assert np.allclose(found["score_std"], draws.std(0, ddof=1), rtol=1e-3)
    assert np.allclose(found["log_prob"], log_p.mean(0), rtol=1e-4, atol=1e-5)
    for name, q in (("q16", 0.16), ("q50", 0.5), ("q84", 0.84)):
        assert np.allclose(
            found[f"log_prob_{name}"], np.quantile(log_p, q, axis=0, method="weibull"), rtol=1e-4, atol=1e-4
        )
    assert found["p_value"].min() >= 1 / 301


def test_jets(tmp_path):
    changes = [
        "device=cpu", "data.train=60", "data.test=20", "data.validation=0", "network.channels=2", "network.hidden=[8]",
        "pretraining.epochs=1", "pretraining.batch=20", "training.epochs=1", "training.batch=20", "sampling.buffer=20",
        "sampling.latent.steps=2", "sampling.feature.steps=2", "guard.largest_gap=1e9", f"data.path={JETS}",
    ]  # fmt: skip
    assert train(read(CONFIGS / "jets-paper-qcd-nae.toml", changes), tmp_path / "run")
    scorer = open_scorer(tmp_path / "run", device="cpu")
    normae.jets.convert_images(JETS, tmp_path / "images.h5")
    small = replace(scorer, block=16, part=32)
    score(small, [JETS], tmp_path / "a.parquet")
    score(small, [JETS], tmp_path / "b.parquet", chunk=16)
    score(small, [tmp_path / "images.h5"], tmp_path / "c.parquet")
    a, c = (columns_of(tmp_path / f"{name}.parquet") for name in "ac")
    assert list(a) == ["file", "row", "score", "p_value", "p_value_error"]
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert np.array_equal(a["score"], c["score"])
    x = normae.jets.sparse_images(normae.jets.read(JETS)).dense()
    assert np.allclose(a["score"], normae.load(tmp_path / "run").score(x), rtol=1e-4)
    with pytest.raises(InputError, match="neither an HDF5 nor an npz file"):
        score(small, [__file__], tmp_path / "d.parquet")


def test_jets_without_labels_get_p_values_from_the_zoo_alone(tmp_path, monkeypatch):
    """Half of the QCD jets lie below 0.5, tops are found; no other jets are needed."""
    monkeypatch.delenv("NORMAE_JETS", raising=False)
    with np.load(JETS) as arrays:
        np.savez(tmp_path / "data.npz", **{name: arrays[name] for name in arrays.files if name != "label"})
    scorer = open_scorer("jets-qcd-nae", device="cpu")
    assert (scorer.notes, len(scorer.background)) == ([], 20_000)
    score(scorer, [tmp_path / "data.npz"], tmp_path / "s.parquet")
    p, labels = columns_of(tmp_path / "s.parquet")["p_value"], normae.jets.read(JETS).labels
    assert abs((p[labels == 0] < 0.5).mean() - 0.5) < 0.15
    assert np.median(p[labels == 1]) < 0.1


@pytest.mark.parametrize("name", [name for name in zoo.names() if "jets" in name and "classifier" not in name])
def test_every_jet_model_of_the_zoo_has_the_scores_of_its_background(name):
    run = RunFolder(zoo.path(name))
    with np.load(run.background) as kept:
        assert len(kept["score"]) == 20_000
        assert str(kept["weights"]) == model_digest(run.model)
        mean = kept["score"].mean(dtype=float)
    if "components" in name:  # their metrics are of rows with noise, scores of pictures without
        sample = jets.public()
        scores = normae.load(name).score(jets.images(sample)[sample.labels == int("top" in name)])
        assert mean == pytest.approx(scores.mean(), abs=3 * scores.std() / len(scores) ** 0.5)
    else:
        assert mean == pytest.approx(run.read_metrics()["score_background"]["value"], rel=0.02), "the same jets"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (table().drop(["mass"]), "no column 'mass'; the file has 'label', 'η', 'tau 1'"),
        (table().rename_columns(["mass", "η", "tau 1", "x"]), "the column 'mass' holds values of type string"),
        (table(rows=0), "expected at least one event"),
        (pa.table({name: [1.0, 2.0, float("nan")] for name in NAMES}), "in column 'mass', the first at row 2"),
        (pa.table({name: [1e300, 2.0] for name in NAMES}), "beyond float32 in column 'mass', the first at row 0"),
        (pa.table({name: [[1.0], [2.0]] for name in NAMES}), "the column 'mass' holds values of type list"),
    ],
)
def test_bad_tables_leave_nothing(run, tmp_path, capfd, content, message):
    folder = tmp_path / "empty"
    folder.mkdir()
    pyarrow.parquet.write_table(content, tmp_path / "bad.parquet")
    assert command("score", run, tmp_path / "bad.parquet", "-o", folder / "s.parquet", "--device", "cpu") == 2
    error = capfd.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.parquet", "-o", "s.parquet"], "none.parquet: no such file"),
        (["FILE", "FILE", "-o", "s.parquet"], "given twice"),
        (["FILE", "-o", "FILE"], "the output is one of the inputs"),
        (["FILE", "-o", "s.txt"], "expected a name that ends in .parquet, .csv, .npz"),
        (["FILE", "-o", "s.parquet", "--shard", "3/3"], "--shard: expected i/n"),
        (["FILE", "-o", "s.parquet", "--chunk", "0"], "--chunk: expected at least 1 row"),
        (["FILE", "-o", "s.parquet", "--columns", "mass"], "got 1: ['mass']"),
        (["FILE", "-o", "s.parquet", "--columns", "a,b,c"], "no column 'a'"),
        (["FILE", "-o", "s.parquet", "--columns", "mass,mass,η"], "the column 'mass' is there more than once"),
        (["FILE", "-o", "RUN/config.toml"], "expected a name that ends in"),
    ],
)
def test_bad_arguments_are_one_sentence(run, parquet, tmp_path, monkeypatch, capfd, arguments, message):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    given = [a.replace("FILE", str(parquet)).replace("RUN", str(run)) for a in arguments]
    assert command("score", run, *given) == 2
    error = capfd.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_link_that_leads_to_itself_is_no_file(run, tmp_path, capfd):
    (tmp_path / "loop.parquet").symlink_to(tmp_path / "loop.parquet")
    assert command("score", run, tmp_path / "loop.parquet", "-o", tmp_path / "s.csv") == 2
    assert "loop.parquet: no such file" in capfd.readouterr().err


def test_what_exists_is_not_overwritten(run, parquet, tmp_path, capfd):
    (tmp_path / "s.csv").write_text("mine")
    assert command("score", run, parquet, "-o", tmp_path / "s.csv") == 2
    assert "exists already" in capfd.readouterr().err
    assert (tmp_path / "s.csv").read_text() == "mine"
    (tmp_path / "folder.csv").mkdir()
    for more, words in (([], "exists already"), (["--force"], "a folder, not a file; choose")):
        assert command("score", run, parquet, "-o", tmp_path / "folder.csv", *more) == 2
        assert f"folder.csv: {words}" in capfd.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.parquet", "folder.csv", "s.csv"]


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), suffix=st.sampled_from(["csv", "parquet", "npz", "h5"]))
def test_damaged_files_never_leave_a_result(scorer, tmp_path_factory, data, suffix):
    folder = tmp_path_factory.mktemp("damaged")
    if suffix == "parquet":
        pyarrow.parquet.write_table(table(rows=600), folder / "t.parquet", row_group_size=100)
    else:
        write_other(suffix, folder)
    path = folder / f"t.{suffix}"
    raw = path.read_bytes()
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw) - 30))] + data.draw(st.binary(max_size=20)))
    sentence = failure(scorer, path, folder / "out" / "s.npz")
    assert str(path) in sentence or suffix == "csv"  # a shorter CSV file is a CSV file
    assert (folder / "out" / "s.npz").exists() == (sentence == "")


def failure(scorer: Scorer, path: Path, out: Path) -> str:
    try:
        score(scorer, [path], out)
    except InputError as error:
        return str(error)
    return ""


def test_a_model_of_the_zoo(tmp_path):
    """Events without names; a table with as many columns will do, with others they must be named."""
    x = np.random.default_rng(0).normal(size=(50, 2))
    pyarrow.parquet.write_table(pa.table({"u": x[:, 0], "v": x[:, 1]}), tmp_path / "two.parquet")
    pyarrow.parquet.write_table(pa.table({"w": x[:, 0], "v": x[:, 1], "u": x[:, 0]}), tmp_path / "three.parquet")
    scorer = open_scorer("toy-2gauss-nae", device="cpu")
    assert not RunFolder(normae.zoo.path("toy-2gauss-nae")).background.exists()
    score(scorer, [tmp_path / "two.parquet"], tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"expected events of shape \(2,\), got 3 columns"):
        score(scorer, [tmp_path / "three.parquet"], tmp_path / "b.parquet")
    score(replace(scorer, columns=("u", "v")), [tmp_path / "three.parquet"], tmp_path / "b.parquet")
    a, b = columns_of(tmp_path / "a.parquet"), columns_of(tmp_path / "b.parquet")
    assert np.array_equal(a["score"], b["score"])
    assert np.allclose(a["log_prob"], normae.load("toy-2gauss-nae").log_prob(x), atol=1e-4)


def test_shards():
    assert parse_shard(None) == (0, 1)
    assert parse_shard("1/4") == (1, 4)
    for bad in ("", "1", "4/4", "-1/4", "1/0", "a/b", "1/2/3"):
        with pytest.raises(InputError, match="--shard"):
            parse_shard(bad)


MEASURE = """
import sys
from normae.scoring.score import open_scorer, score
def peak():  # not ru_maxrss, which begins with the peak of the parent
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
before = peak()
score(open_scorer(sys.argv[1], device="cpu"), [sys.argv[2]], sys.argv[3])
print(peak() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(run, tmp_path):
    """Two files, one ten times as long, in one row group: peaks within 100 MiB, both under 1 GiB."""
    peaks = []
    for rows in (100_000, 1_000_000):
        path = tmp_path / f"{rows}.parquet"
        pyarrow.parquet.write_table(table(rows), path, row_group_size=rows)
        code = [sys.executable, "-c", MEASURE, str(run), str(path), str(tmp_path / f"s{rows}.parquet")]
        done = subprocess.run(code, capture_output=True, text=True, check=True)
        peaks.append(float(done.stdout))
    assert max(peaks) < 1024
    assert peaks[1] - peaks[0] < 100
