"""bench/jet_files.py: that it runs, and that the classifier finds what it should and nothing else."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from normae import jets
from normae.errors import InputError

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "jets" / "data"
spec = importlib.util.spec_from_file_location("jet_files", ROOT / "bench" / "jet_files.py")
bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)


def test_classifier_sees_a_difference_and_no_more() -> None:
    first, second = bench.synthetic(1500, seed=1), bench.synthetic(1500, seed=2)
    auc, error = bench.auc_between(first, second, folds=2)
    assert abs(auc - 0.5) < 4 * error
    assert 0.005 < error < 0.02
    assert bench.auc_between(first, bench.synthetic(1500, mean=44, seed=3), folds=2)[0] > 0.6


def test_features() -> None:
    sample = jets.read(DATA / "sample.npz")
    values = bench.features(sample)
    assert values.shape == (200, 15)
    assert np.isfinite(values).all()
    np.testing.assert_allclose(values[:, 5], jets.observables(sample)["tau3"])


def test_rates() -> None:
    assert bench.bench_images(str(DATA / "sample.npz"))["jets/s"] > 0
    pytest.importorskip("fastjet")
    numbers = bench.bench_observables(count=500, oracle=100)
    assert numbers["mean constituents"] == pytest.approx(40, abs=2)
    assert numbers["times fastjet, wall"] > 1


def test_table_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "large.h5"
    bench.write_table(str(DATA / "pandas_table.h5"), 300, str(path), chunk=130)
    read = jets.read(path)
    assert len(read) == 300
    np.testing.assert_array_equal(read.labels[:130], bench.synthetic(130, 49.0, 0).labels)
    numbers = bench.bench_reading(str(path), repeat=1)
    assert numbers["jets"] == 300
    assert numbers["ours (s)"] > 0


def test_generator_is_cheap_beside_pythia() -> None:
    pytest.importorskip("pythia8mc")
    numbers = bench.bench_generator("qcd", count=50)
    assert numbers["events tried"] > 50
    assert numbers["whole / Pythia"] < 3


def test_compare(tmp_path: Path) -> None:
    paths = [tmp_path / "a.h5", tmp_path / "b.h5"]
    for seed, path in enumerate(paths):
        jets.write(path, bench.synthetic(400, seed=seed))
    numbers = bench.compare([str(paths[0])], str(paths[1]))
    assert {"qcd AUC", "top AUC", "qcd AUC error"} <= set(numbers)


def test_unknown_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="expected one of images"):
        bench.main(["speed"])
    bench.main(["images", str(DATA / "sample.npz")])
    assert "jets/s" in capsys.readouterr().out
