"""`normae temperature`: estimates of a run, and a search that is stopped, taken up and ends at a root."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import normae
from normae.cli import main
from normae.config import Run, read, structure, to_toml
from normae.errors import InputError
from normae.runs.folder import RunFolder
from normae.runs.session import train
from normae.statistics import Estimate
from normae.temperature.estimates import estimate_temperatures, write_temperatures
from normae.temperature.search import SearchSettings, _reference, search_temperature
from tiny_jets import CONFIGS, SAMPLE, tiny_jets
from tiny_run import tiny
from tiny_table import rows, trained


def toy(density: str) -> Run:
    return structure(
        tiny(
            name=density,
            data__density=density,
            data__validation=400,
            data__train=1000,
            pretraining__epochs=1,
            training__epochs=1,
            training__average=0.0,
            guard__largest_gap=1e6,
        )
    )


SETTINGS = SearchSettings(trainings=2, start=0.2, tolerance=1e-6, events=200)


@pytest.fixture(scope="module")
def searched(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("temperature") / "search"
    found = search_temperature((toy("two-gaussians"), toy("one-gaussian")), path, settings=SETTINGS)
    assert found.finished
    assert len(found.points) == 2
    return path


def test_a_search_leaves_runs_numbers_and_a_figure(searched):
    content = json.loads((searched / "temperature.json").read_text())
    temperatures = [point["temperature"] for point in content["points"]]
    assert temperatures[0] == 0.2
    assert len(set(temperatures)) == 2
    for temperature in temperatures:
        for side in "ab":
            run = RunFolder(searched / f"T-{temperature:.3g}" / side)
            facts = run.read_provenance()
            assert facts["start"]["run"] == str(searched / f"autoencoder-{side}")
    assert {p.suffix for p in (searched / "figures").glob("slope.*")} == {".svg", ".pdf", ".csv"}


def test_a_search_that_is_stopped_goes_on_to_the_same_numbers(searched, tmp_path, unrendered):
    """Stopped by the limit, at once, and by each training's fifth happening, however fast the machine is."""
    configs, calls, seen = (toy("two-gaussians"), toy("one-gaussian")), 0, 0

    def stop(trainer, happening):
        nonlocal seen
        seen += 1
        trainer.stop = seen % 5 == 0

    assert not search_temperature(configs, tmp_path / "s", settings=SETTINGS, minutes=1e-6).finished
    while not search_temperature(configs, tmp_path / "s", settings=SETTINGS, watch=stop).finished:
        calls += 1
        assert calls < 100
    assert calls > 1
    one, other = (json.loads((path / "temperature.json").read_text()) for path in (searched, tmp_path / "s"))
    assert one["points"] == other["points"]


def test_an_ended_search_trains_nothing_and_another_is_refused(searched):
    configs = (toy("two-gaussians"), toy("one-gaussian"))

    def fail(trainer, happening):
        raise AssertionError("nothing is left to train")

    assert search_temperature(configs, searched, settings=SETTINGS, watch=fail).finished
    with pytest.raises(InputError, match="holds another search"):
        search_temperature(configs, searched, settings=SearchSettings(trainings=2, start=0.3, events=200))


def test_jets_are_held_against_a_classifier(tmp_path):
    from test_classifier_runs import tiny_classifier

    assert train(tiny_classifier("classifier.epochs=4"), tmp_path / "classifier")
    changes = ["training.batch=30", "sampling.latent.steps=1", "sampling.feature.steps=1"]
    configs = tuple(tiny_jets(f"jets-paper-{kind}-nae", *changes) for kind in ("qcd", "top"))
    settings = SearchSettings(trainings=2)
    found = search_temperature(configs, tmp_path / "s", (None, None), tmp_path / "classifier", settings)
    first = found.points[0].temperature
    assert 1e-6 < first < 1e-4, "the mean squared error of the autoencoders"
    sample, ratio = _reference(configs, tmp_path / "classifier", settings)
    swapped, minus = _reference(configs[::-1], tmp_path / "classifier", settings)
    n = int(sample.labels.sum())
    np.testing.assert_array_equal(sample.x[-n:], swapped.x[:n])
    np.testing.assert_allclose(ratio[-n:], -minus[:n], rtol=1e-5)
    assert ratio[sample.labels].mean() > ratio[~sample.labels].mean(), "log r = log p_B - log p_A, B the tops"


@pytest.mark.parametrize(
    ("configs", "reference", "message"),
    [
        (("jets-paper-qcd-nae", "jets-paper-qcd-nae"), None, 'one configuration of "qcd" and one of "top"'),
        (("jets-paper-qcd-nae", "jets-paper-top-nae"), None, "--reference: expected a classifier"),
        (("jets-paper-qcd-nae", "jets-paper-top-nae"), "nowhere", "nowhere: neither a run folder nor"),
    ],
)
def test_bad_searches_are_one_sentence(tmp_path, configs, reference, message):
    with pytest.raises(InputError, match=message):
        search_temperature(tuple(tiny_jets(name) for name in configs), tmp_path / "s", reference=reference)
    assert not (tmp_path / "s").exists()


def test_estimates_are_written_beside_the_run(tmp_path):
    assert train(toy("two-gaussians"), tmp_path / "run")
    found = estimate_temperatures(tmp_path / "run", events=300, device="cpu")
    content = json.loads(write_temperatures(tmp_path / "run", found).read_text())
    assert content["estimates"].keys() == found.estimates.keys()
    assert content["events"] == 300
    assert {p.suffix for p in (tmp_path / "run" / "figures").glob("temperature.*")} == {".svg", ".pdf", ".csv"}


def test_of_members_one_is_asked_in_its_own_coordinates(tmp_path):
    halves = ["ensemble.members=8", "ensemble.events=half", "training.iterations=0", "contrast.iterations=20"]
    run = RunFolder(trained(tmp_path, rows(), halves).path)
    member, held = normae.load(run.path).members[0], run.events(read(run.config)).test
    found = estimate_temperatures(run.path)
    assert found.mean_energy.value == pytest.approx(float(member.energy(held).mean()), rel=1e-4)
    assert found.model == member.temperature


def test_a_table_is_asked_at_rows_at_which_its_base_has_no_kernels(tmp_path):
    """At its validation rows the estimate would be negative."""
    run = trained(tmp_path, rows(), ["training.iterations=0"])
    found = estimate_temperatures(run.path)
    assert found.estimates.keys() == {"configurational", "denoising", "components"}
    for one in found.estimates.values():
        assert one.value == pytest.approx(found.model, rel=0.3)
    nae = normae.NormalizedAutoencoder(start_iterations=5, log_z="never").fit(rows(100))
    nae.save(tmp_path / "saved")  # with no test rows
    with pytest.raises(InputError, match="no test rows were held out; give others with --data"):
        estimate_temperatures(tmp_path / "saved")
    np.save(tmp_path / "more.npy", rows(100, seed=1))
    assert estimate_temperatures(tmp_path / "saved", data=tmp_path / "more.npy").events == 20  # as the run cuts a file


def test_an_unknown_error_is_null(tmp_path):
    found = estimate_temperatures("toy-2gauss-nae", events=50, device="cpu")
    found.estimates["latent"] = Estimate(math.nan, math.inf)
    assert found.content()["estimates"]["latent"] == {"value": None, "error": None}


def test_the_command(tmp_path, monkeypatch, capsys):
    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["normae", "temperature", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        return int(stopped.value.code or 0)

    assert run("toy-2gauss-nae", "--events", "100", "--device", "cpu") == 0
    assert "equipartition" in capsys.readouterr().out
    files = []
    for density in ("two-gaussians", "one-gaussian"):
        files.append(tmp_path / f"{density}.toml")
        files[-1].write_text(to_toml(toy(density)))
    assert run(*map(str, files)) == 2
    assert "--out" in capsys.readouterr().err
    search = [*map(str, files), "--out", str(tmp_path / "s"), "--first", "0.2", "--events", "100", "--device", "cpu"]
    assert run(*search, "--minutes", "1e-5") == 130
    assert "Go on with the same command" in " ".join(capsys.readouterr().err.split())
    assert run(*search, "--trainings", "2", "--epochs", "1", "--start", "a") == 2
    assert run(str(CONFIGS / "jets-paper-qcd-nae.toml"), str(SAMPLE), "--out", str(tmp_path / "x")) == 2


def test_a_column_of_few_values_is_named_as_what_no_estimate_holds_for(tmp_path, caplog):
    """Its density has steps, and estimates from gradients came out at a tenth of T."""
    x = np.random.default_rng(0).normal(size=(600, 2))
    settings = ["contrast.iterations=20", "data.test=100"]
    normae.train(x, tmp_path / "smooth", settings=settings)
    estimate_temperatures(tmp_path / "smooth", 50)
    assert "20 values" not in caplog.text
    x[:, 0] = np.arange(600) % 2
    normae.train(x, tmp_path / "steps", settings=settings)
    estimate_temperatures(tmp_path / "steps", 50)
    assert "a column has 20 values or fewer" in caplog.text
