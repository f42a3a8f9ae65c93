"""Judge a run, and write its page. What kind of run it is, is decided here, once."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

from normae.config import Run, read
from normae.errors import InputError
from normae.evaluation.study import Metrics, Study
from normae.figures import figure_style
from normae.files import check_new, output, write_json
from normae.report import render
from normae.runs.folder import RunFolder, locked
from normae.statistics import Estimate


def study_of(run: RunFolder, data: str | Path | None = None) -> Study:
    """The study of a run; `data` are other jets than those that its configuration names."""
    config = read(run.config)
    if data is not None:
        config = replace(config, data=replace(config.data, path=str(data)))
    return _kind(config)(run, config)


def _kind(config: Run) -> type[Study]:
    """The class for a kind of data; only its own file is imported."""
    place = ("toy_posterior", "BayesianToyStudy") if config.posteriors else ("toy", "ToyStudy")
    if config.classifier is not None:
        place = ("jets", "ClassifierStudy")
    elif config.coordinates.kind == "components":
        place = ("components", "ComponentsStudy")
    elif config.data.jets is not None:
        place = ("jet_study", "JetStudy")
    elif config.data.file is not None:
        place = ("table", "TableStudy")
    found: type[Study] = getattr(import_module(f"normae.evaluation.{place[0]}"), place[1])
    return found


def evaluate(
    path: str | Path,
    figures: bool = True,
    device: str = "auto",
    generated: int | None = None,
    data: str | Path | None = None,
) -> Metrics:
    """Write metrics.json and figures/ of the run at `path`, and return the metrics.

    Args:
        figures: whether to draw.
        device: where to compute.
        generated: jets to generate from a run on jets; None for `evaluation.generated` on CUDA and none on a CPU.
        data: jets to judge a run on jets on, a folder or a file, where they are not where the run found them.
    """
    run = RunFolder.existing(path)
    if not _kind(read(run.config)).of_jets and (generated is not None or data is not None):
        raise InputError(f"{path}: --generated and --jets are for runs on jets, and this is not one")
    study = study_of(run, data)
    with locked(run.path):
        metrics, draw = study.judge(device, generated)
        write_json(run.metrics, {name: one._asdict() for name, one in metrics.items()})
        if figures:
            with figure_style():
                draw()
    return metrics


def report(path: str | Path, force: bool = False) -> Path:
    """Write report.html of the evaluated run at `path` and return where it is; `force` replaces one."""
    run = RunFolder.existing(path)
    check_new(run.report, force)
    study = study_of(run)
    metrics = {name: Estimate(m["value"], m["error"]) for name, m in run.read_metrics().items()}
    with output(run.report, force) as temporary:
        temporary.write_text(render(study.page(metrics)), encoding="utf-8")
    return run.report
