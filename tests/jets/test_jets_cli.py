"""The commands: parse, one call, write; bad input is one sentence."""

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from normae import jets
from normae.cli.jets import app, parse_rows
from normae.errors import InputError
from normae.jets.gallery import mean_images


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


def test_convert_and_info(data: Path, tmp_path: Path) -> None:
    assert "5 jets" in run("convert", data / "pandas_table.h5", "-o", tmp_path / "own.h5", "--rows", "2:7")
    assert len(jets.read(tmp_path / "own.h5")) == 5
    lines = dict(line.split(maxsplit=1) for line in run("info", tmp_path / "own.h5").splitlines())
    assert lines["jets"] == "5"
    assert lines["format"] == "normae-jets HDF5"
    assert lines["source"] == "pandas_table.h5"
    assert "QCD (label 0)           100" in run("info", data / "sample.npz")


def test_images(data: Path, tmp_path: Path, sample: jets.Jets) -> None:
    run("images", data / "sample.npz", "-o", tmp_path / "images.h5")
    np.testing.assert_allclose(jets.read_images(tmp_path / "images.h5").dense(), jets.images(sample), atol=5e-4)
    assert "float16" in run("info", tmp_path / "images.h5")
    run("images", data / "sample.npz", "-o", tmp_path / "single.h5", "--float32", "--rows", 10)
    read = jets.read_images(tmp_path / "single.h5")
    np.testing.assert_allclose(read.dense(), jets.images(sample[:10]), atol=1e-6)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_observables(suffix: str, data: Path, tmp_path: Path, sample: jets.Jets) -> None:
    path = tmp_path / f"table{suffix}"
    run("observables", data / "sample.npz", "-o", path, "--rows", "20:40")
    readers = {".csv": pyarrow.csv.read_csv, ".parquet": pyarrow.parquet.read_table, ".npz": load}
    table = readers[suffix](path)
    expected = jets.observables(sample[20:40])
    np.testing.assert_array_equal(np.asarray(table["label"]), sample.labels[20:40])
    for name, values in expected.items():
        np.testing.assert_allclose(np.asarray(table[name]), values)


def test_observables_of_images(data: Path, tmp_path: Path, sample: jets.Jets) -> None:
    run("images", data / "sample.npz", "-o", tmp_path / "images.h5", "--float32", "--rows", 20)
    run("observables", tmp_path / "images.h5", "-o", tmp_path / "table.npz", "--threshold", "1e-3")
    expected = jets.observables(jets.images(sample[:20]), 1e-3)
    with np.load(tmp_path / "table.npz") as table:
        np.testing.assert_allclose(table["tau1"], expected["tau1"], rtol=1e-3)


def test_skip_bad(tmp_path: Path, sample: jets.Jets) -> None:
    pt, path = sample.pt.copy(), tmp_path / "bad.h5"
    pt[sample.offsets[7]] = np.nan
    jets.write(path, jets.Jets(sample.labels, sample.offsets, pt, sample.eta, sample.phi))
    for command, out in (("convert", "a.h5"), ("images", "b.h5"), ("observables", "c.csv")):
        with pytest.raises(InputError, match="row 7 has a momentum that is not finite"):
            run(command, path, "-o", tmp_path / out)
        assert not (tmp_path / out).exists()
        assert "1 bad jets skipped" in run(command, path, "-o", tmp_path / out, "--skip-bad")
    assert "bad jets                1" in run("info", path, "--skip-bad")


def test_images_skip_jets_outside_the_frame(tmp_path: Path, sample: jets.Jets) -> None:
    wide = jets.from_lists([[(1.0, 0, -0.75), (1.0, 0, 0.75)]])
    jets.write(tmp_path / "wide.h5", jets.concatenate([sample[:3], wide, sample[3:5]]))
    with pytest.raises(InputError, match=r"wide\.h5: row 3 has no pT inside"):
        run("images", tmp_path / "wide.h5", "-o", tmp_path / "images.h5", "--rows", "1:5")
    assert "5 images" in run("images", tmp_path / "wide.h5", "-o", tmp_path / "images.h5", "--skip-bad")
    with pytest.raises(InputError, match=r"wide\.h5: row 3 has no pT inside"):
        mean_images(tmp_path / "wide.h5", (1, 5))
    means, _ = mean_images(tmp_path / "wide.h5", skip_bad=True)
    assert all(np.isfinite(mean).all() for mean in means.values())


@pytest.mark.parametrize("kind", ["jets", "images", "one class"])
def test_show(kind: str, tmp_path: Path, sample: jets.Jets) -> None:
    source = tmp_path / "source.h5"
    jets.write(source, sample[sample.labels == 1] if kind == "one class" else sample)
    if kind == "images":
        jets.write_images(source, jets.sparse_images(sample[:20]), force=True)
    output = run("show", source)
    folder = tmp_path / "source-figures"
    names = {"images.png", "images.pdf", "images.csv", "observables.png", "observables.pdf", "observables.csv"}
    assert {p.name for p in folder.iterdir()} == names
    assert all(str(folder / name) in output for name in names)
    assert (folder / "images.png").read_bytes().startswith(b"\x89PNG")
    assert pyarrow.csv.read_csv(folder / "images.csv").num_rows == 1600


def test_generate(tmp_path: Path) -> None:
    pytest.importorskip("pythia8mc")
    output = run("generate", "top", "-n", 3, "--seed", 2, "-o", tmp_path / "top.h5", "--workers", 1)
    assert "3 jets in" in output
    assert "jets/s" in output
    with h5py.File(tmp_path / "top.h5") as file:
        assert file.attrs["kind"] == "top"
        assert len(file["labels"]) == 3


@pytest.mark.parametrize("text", ["a:b", "x", "1:2:3"])
def test_bad_rows(text: str) -> None:
    with pytest.raises(InputError, match="START:STOP"):
        parse_rows(text)


def test_rows() -> None:
    assert parse_rows(None) is None
    assert parse_rows("5") == 5
    assert parse_rows(":7") == slice(0, 7)
    assert parse_rows("3:") == slice(3, None)


def test_unknown_suffix(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in \.csv, \.parquet, \.npz"):
        run("observables", data / "sample.npz", "-o", tmp_path / "table.xlsx")


def test_subprocess(data: Path, tmp_path: Path) -> None:
    code = "from normae.cli.jets import app; app()"
    arguments = ["convert", str(data / "sample.npz"), "-o", str(tmp_path / "own.h5")]
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "200 jets" in done.stderr
    assert len(jets.read(tmp_path / "own.h5")) == 200


def test_import_is_light() -> None:
    """Neither numba nor Pythia nor matplotlib is imported before it is needed."""
    heavy = "{'numba', 'pythia8mc', 'fastjet', 'awkward', 'matplotlib.pyplot'}"
    code = f"import sys, normae.jets; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_observables_name_the_row_of_a_bad_image(tmp_path: Path, sample: jets.Jets) -> None:
    path, out = tmp_path / "images.h5", tmp_path / "table.csv"
    sparse = jets.sparse_images(sample[:12])
    value = sparse.value.copy()
    value[sparse.offsets[8] : sparse.offsets[9]] = 0
    jets.write_images(path, jets.SparseImages(sparse.labels, sparse.offsets, sparse.pixel, value))
    with pytest.raises(InputError, match=f"^{path}: row 8 has no pixel above"):
        run("observables", path, "-o", out, "--rows", "5:12")
    assert "6 jets" in (output := run("observables", path, "-o", out, "--rows", "5:12", "--skip-bad"))
    assert "1 bad jets skipped" in output


def test_observables_name_the_row_of_a_crowded_jet(tmp_path: Path, sample: jets.Jets) -> None:
    path, out = tmp_path / "crowded.h5", tmp_path / "table.csv"
    jets.write(path, jets.concatenate([sample[:3], jets.from_lists([np.ones((8193, 3))]), sample[3:5]]))
    with pytest.raises(InputError, match=f"^{path}: row 3 has more than 8192 constituents"):
        run("observables", path, "-o", out, "--rows", "2:6")
    assert "1 bad jets skipped" in run("observables", path, "-o", out, "--skip-bad")
    assert pyarrow.csv.read_csv(out).num_rows == 5


@pytest.mark.parametrize("threshold", ["nan", "inf", "-1"])
def test_bad_threshold(threshold: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a threshold"):
        run("observables", data / "sample.npz", "-o", tmp_path / "a.csv", "--threshold", threshold)


def test_images_are_not_converted(tmp_path: Path, sample: jets.Jets) -> None:
    path = tmp_path / "images.h5"
    jets.write_images(path, jets.sparse_images(sample[:2]))
    for command in ("convert", "images"):
        with pytest.raises(InputError, match=f"^{path}: the file holds images already"):
            run(command, path, "-o", tmp_path / "out.h5")


def test_output_is_not_the_input(tmp_path: Path, data: Path) -> None:
    path = tmp_path / "own.npz"
    path.write_bytes((data / "sample.npz").read_bytes())
    for command in ("convert", "images", "observables"):
        with pytest.raises(InputError, match=f"^{path}: the output is the input"):
            run(command, path, "-o", path)
    assert len(jets.read(path)) == 200
