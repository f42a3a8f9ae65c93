"""Train, load, evaluate, report: the whole way on a tiny run, and everything that can be wrong with a folder."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import normae
from normae.config import Run, read
from normae.errors import InputError, TrainingDiverged
from normae.evaluation.evaluate import evaluate, report
from normae.runs.folder import RunFolder, locked, read_tensors, write_tensors
from normae.runs.session import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory, pdf_with_fonts):
    from normae.config import structure
    from tiny_run import tiny

    path = tmp_path_factory.mktemp("runs") / "tiny"
    assert train(structure(tiny()), path)
    evaluate(path, device="cpu")
    report(path)
    return RunFolder(path)


def test_everything_is_there(trained):
    for path in (
        trained.config,
        trained.model,
        trained.checkpoint,
        trained.history,
        trained.metrics,
        trained.provenance,
    ):
        assert path.is_file(), path
    assert not list(trained.path.rglob(".*")), "no temporary file and no lock is left"
    names = {p.stem for p in trained.figures.iterdir()}
    assert {"marginal-x1", "marginal-x2", "grid-correlation", "grid-regions", "test-correlation", "test-deviation",
            "density", "training"} == names  # fmt: skip
    for name in names:
        assert {p.suffix for p in trained.figures.glob(f"{name}.*")} == {".svg", ".pdf", ".csv"}


def test_metrics_are_flat_pairs(trained):
    metrics = json.loads(trained.metrics.read_text())
    assert all(set(m) == {"value", "error"} for m in metrics.values())
    assert {"pearson_grid", "pearson_test", "kl", "share_within_10_percent", "auc_classifier_recipe",
            "auc_classifier_long", "auc_classifier_exact", "auc_ideal", "log_z", "log_z_paper_grid",
            } <= set(metrics)  # fmt: skip


def test_provenance(trained):
    facts = json.loads(trained.provenance.read_text())
    assert facts["seed"] == 0
    assert len(facts["data_sha256"]) == 64
    assert facts["torch"] == torch.__version__


def test_report_is_one_self_contained_page(trained):
    page = trained.report.read_text()
    assert page.lower().startswith("<!doctype html>")
    assert page.count("<svg") == 8
    assert 'src="http' not in page
    assert 'href="http' not in page
    assert "0.979" in page, "the paper's value stands beside ours"


def test_load_gives_the_contract(trained):
    model = normae.load(trained.path)
    x = np.random.default_rng(0).normal(size=(10, 2))
    assert model.energy(x).shape == (10,)
    assert isinstance(model.temperature, float)
    assert np.allclose(model.log_prob(x), -model.score(x) - model.log_z.value, atol=1e-5)
    assert model.sample(20, seed=0).shape == (20, 2)


def test_log_prob_is_normalized(trained):
    model = normae.load(trained.path)
    axis = (np.arange(300) + 0.5) / 300 * 9 - 4.5
    points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    total = np.exp(model.log_prob(points).astype(np.float64)).sum() * (9 / 300) ** 2
    assert total == pytest.approx(1.0, abs=1e-3)


def test_zoo_models_load_and_are_small():
    from normae import zoo

    for name in zoo.names():
        assert (zoo.path(name) / "model.safetensors").stat().st_size < 1_000_000
        assert "limits" in zoo.card(name).lower()
        if name.startswith("toy-"):  # jets have a test of their own
            assert np.isfinite(normae.load(name).log_prob(np.zeros((3, 2)))).all()


# --- folders


def test_nothing_is_overwritten(trained, tiny_run):
    before = trained.model.read_bytes()
    with pytest.raises(InputError, match="holds this run already; add --resume .resume=True."):
        train(tiny_run, trained.path)
    with pytest.raises(InputError, match="another configuration"):
        train(replace(tiny_run, seed=5), trained.path, resume=True)
    with pytest.raises(InputError, match="other seeds"):
        train(tiny_run, trained.path, seeds=[1, 2])
    assert train(tiny_run, trained.path, resume=True), "resuming a finished run does nothing"
    assert trained.model.read_bytes() == before


def test_foreign_folder(tmp_path, tiny_run):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="exists and is not a run folder"):
        train(tiny_run, tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "mine"
    with pytest.raises(InputError, match="no config.toml"):
        evaluate(tmp_path)
    with pytest.raises(InputError, match="no such run folder"):
        evaluate(tmp_path / "none")
    with pytest.raises(InputError, match="nothing to resume"):
        train(tiny_run, tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()


def test_folder_in_use(tmp_path, tiny_run):
    with locked(tmp_path / "run"), pytest.raises(InputError, match="in use by a running job"):
        train(tiny_run, tmp_path / "run")
    assert train(tiny_run, tmp_path / "run")


def test_a_run_that_another_job_writes_to_is_not_judged_or_reported(trained):
    kept = trained.report.read_bytes()
    for judge in (lambda: evaluate(trained.path, True), lambda: report(trained.path, force=True)):
        with locked(trained.path), pytest.raises(InputError, match="in use by a running job"):
            judge()
    assert trained.report.read_bytes() == kept


def test_a_killed_job_leaves_no_lock(tmp_path):
    code = (
        "import os, pathlib, sys\n"
        "from normae.runs.folder import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    with locked(tmp_path):
        pass


def test_weights_files(trained, tmp_path, tiny_run):
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "config.toml").write_text(trained.config.read_text())
    model = copy / "model.safetensors"
    with pytest.raises(InputError, match="not finished"):
        normae.load(copy)
    model.write_bytes(trained.model.read_bytes()[:-100])
    with pytest.raises(InputError, match="truncated or not a safetensors file"):
        normae.load(copy)
    model.write_bytes(b"hello")
    with pytest.raises(InputError, match="truncated or not a safetensors file"):
        normae.load(copy)
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(2)}, model)
    with pytest.raises(InputError, match="not one of normae"):
        normae.load(copy)
    tensors, header = read_tensors(trained.model)
    tensors["encoder.layers.0.weight"] = torch.zeros(3, 3)
    write_tensors(model, tensors, header)
    with pytest.raises(InputError, match="do not belong to config.toml"):
        normae.load(copy)
    with pytest.raises(InputError, match="neither a run folder nor a model of the zoo"):
        normae.load("no-such-model")


def test_several_seeds(tmp_path, tiny_run):
    train(tiny_run, tmp_path / "runs", seeds=[3, 4])
    members = RunFolder(tmp_path / "runs").members()
    assert [read(m.config).seed for m in members] == [3, 4]
    first, second = (normae.load(m.path).energy(np.zeros((1, 2))) for m in members)
    assert first != second
    with pytest.raises(InputError, match="holds several runs"):
        RunFolder.existing(tmp_path / "runs")
    with pytest.raises(InputError, match="different seeds"):
        train(tiny_run, tmp_path / "again", seeds=[3, 3])


class StopAfter:
    """Ends a training at the first record of a phase, as an interruption would."""

    def __init__(self, phase: str) -> None:
        self.phase = phase

    def __call__(self, trainer, happening) -> None:
        trainer.stop = trainer.stop or getattr(happening, "phase", "") == self.phase


def test_seeds_keep_their_folders(tmp_path, tiny_run):
    assert not train(tiny_run, tmp_path / "runs", seeds=[0, 1], watch=StopAfter("training"))
    with pytest.raises(InputError, match=r"holds seeds \[0, 1\] in this order, got \[1, 0\]"):
        train(tiny_run, tmp_path / "runs", seeds=[1, 0], resume=True)
    assert train(tiny_run, tmp_path / "runs", seeds=[0, 1], resume=True)


def test_changed_data_are_refused(tmp_path, make_run):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(900, 2)))
    run = make_run(data={"file": str(tmp_path / "x.npy"), "train": 600, "test": 100})
    assert not train(run, tmp_path / "run", watch=StopAfter("training"))
    np.save(tmp_path / "x.npy", rng.normal(size=(900, 2)))
    with pytest.raises(InputError, match="training data have changed"):
        train(run, tmp_path / "run", resume=True)


def test_resuming_a_finished_run_touches_nothing(tmp_path, tiny_run):
    import shutil

    train(tiny_run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert train(tiny_run, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_files_of_others_stay(tmp_path, tiny_run):
    """A folder that holds one, hidden or not, is not begun in; in a run that is taken up again they stay."""

    def stop(trainer, happening) -> None:
        trainer.stop = True

    assert not train(tiny_run, tmp_path / "run", watch=stop)
    mine = [".cache/.movie.part", ".notes.part.txt", "checkpoint/.mine.0123abcd.part"]
    for k, name in enumerate(mine):
        for folder in (tmp_path / "run", tmp_path / f"other-{k}"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("mine")
        with pytest.raises(InputError, match="exists and is not a run folder"):
            train(tiny_run, tmp_path / f"other-{k}")
        assert (tmp_path / f"other-{k}" / name).read_text() == "mine"
    assert train(tiny_run, tmp_path / "run", resume=True)
    assert all((tmp_path / "run" / name).read_text() == "mine" for name in mine)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_stop_with_a_checkpoint(tmp_path, tiny_run, number):
    before = signal.signal(number, signal.SIG_DFL)  # nohup has SIGHUP ignored, and then it stays so

    def stop(trainer, happening) -> None:
        if not trainer.stop:
            os.kill(os.getpid(), number)
            assert trainer.stop
            assert signal.getsignal(number) == signal.SIG_DFL, "a second one ends it at once"

    assert not train(tiny_run, tmp_path / "run", watch=stop)
    assert RunFolder(tmp_path / "run").checkpoint.is_file()
    assert signal.getsignal(number) == signal.SIG_DFL
    signal.signal(number, before)


def test_a_signal_that_nohup_has_ignored_stops_nothing(tmp_path, tiny_run):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert train(tiny_run, tmp_path / "run", watch=lambda *_: os.kill(os.getpid(), signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_job_killed_before_its_first_files_can_begin_again(tmp_path, tiny_run):
    (tmp_path / "runs" / "seed-0").mkdir(parents=True)
    (tmp_path / "runs" / ".lock").touch()
    (tmp_path / "runs" / "seed-0" / ".config.ab12cd34.normae-part.toml").write_text("name =")
    assert train(tiny_run, tmp_path / "runs", seeds=[0, 1], resume=True)
    assert not list((tmp_path / "runs").rglob("*normae-part*"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metrics.jsonl", "garbage\n", "line 1 is not a line of metrics"),
        ("metrics.json", "[1]", "expected names with value and error"),
        ("metrics.json", '{"kl": 3}', "expected names with value and error"),
        ("metrics.json", "{}", "lacks kl"),
        ("provenance.json", "{}", "expected the keys"),
        ("config.toml", "\x00", "not a TOML file"),
    ],
)
def test_damaged_files_are_one_sentence(trained, tmp_path, name, content, message):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(trained.path, copy)
    (copy / name).write_text(content)
    with pytest.raises(InputError, match=message):
        report(copy, force=True)


def test_other_densities_do_not_show_the_paper_s_values(tmp_path, make_run, unrendered):
    train(make_run(data__density="one-gaussian"), tmp_path / "run")
    evaluate(tmp_path / "run", device="cpu")
    assert "0.979" not in report(tmp_path / "run").read_text()


def test_reproduce_never_overwrites(tmp_path, tiny_run):
    from normae.paper.reproduce import reproduce

    train(tiny_run, tmp_path / "zoo" / "toy-2gauss-nae-paper")
    with pytest.raises(InputError, match="holds another run"):
        reproduce("toy", tmp_path)


def test_bayesian_run(tmp_path, make_run):
    run = make_run(bayesian={"layers": "last", "initial_width": 0.02})
    train(run, tmp_path / "run")
    model = normae.load(tmp_path / "run")
    assert isinstance(model, normae.BayesianModel)
    x = np.zeros((3, 2))
    assert model.log_prob_draws(x, n=10).shape == (10, 3)
    assert model.log_prob_draws(x, n=10).std() > 0
    assert model.sample(20).shape == (20, 2)
    assert read(tmp_path / "run" / "config.toml") == run
    with pytest.raises(InputError, match=r"did you mean 'layers'"):
        make_run(bayesian={"layer": "last"})


def test_training_from_a_file(tmp_path, make_run):
    x = np.random.default_rng(0).normal(size=(900, 3))
    np.save(tmp_path / "x.npy", x)
    run = make_run(data={"file": str(tmp_path / "x.npy"), "train": 600, "test": 100})
    assert train(run, tmp_path / "run")
    model = normae.load(tmp_path / "run")
    assert model.score(x).shape == (900,)
    with pytest.raises(normae.LogZUnknown):
        model.log_prob(x)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.full((900, 2), np.nan), "NaN, infinity or a number beyond float64, the first at row 0"),
        (np.zeros((0, 2)), "at least one event of"),
        (np.zeros((50, 2)), "expected at least 700 events"),
        (np.zeros((900, 1, 4, 4)), "vectors of shape"),
    ],
)
def test_bad_data_leave_nothing_behind(tmp_path, make_run, content, message):
    np.save(tmp_path / "x.npy", content)
    run = make_run(data={"file": str(tmp_path / "x.npy"), "train": 600, "test": 100})
    with pytest.raises(InputError, match=message):
        train(run, tmp_path / "run")
    assert not (tmp_path / "run" / "config.toml").exists()


def test_divergence_says_why(tmp_path, make_run):
    run: Run = make_run(training__learning_rate=3e38, guard={"log_every": 2, "checkpoint_every": 2, "rollbacks": 1})
    with pytest.raises(TrainingDiverged, match="lower training.learning_rate"):
        train(run, tmp_path / "run")
    lines = RunFolder(tmp_path / "run").read_history()
    assert sum("rollback" in line for line in lines) == 1
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_not_evaluated_yet(tmp_path, tiny_run):
    train(tiny_run, tmp_path / "run")
    with pytest.raises(InputError, match="run `normae evaluate"):
        report(tmp_path / "run")
