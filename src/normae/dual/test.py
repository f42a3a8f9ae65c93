"""The dual test of two runs, from run folders or the zoo to a folder with numbers, figures and a page.

`dual_test` gives a `DualResult` and writes nothing; `dual` writes it too. What is tested, and how it is judged, is in
`normae.dual.judge`.
"""

from pathlib import Path

import torch

from normae.config import Run, read
from normae.data import DENSITIES, Density
from normae.data.labelled import Labelled, cut, draw_labelled, is_labelled, read_labelled
from normae.dual.jets import jet_classes, jet_samples, run_reference
from normae.dual.judge import FEWEST_EVENTS, DualResult, DualSettings, Side, judge
from normae.errors import InputError
from normae.inference import Model
from normae.runs.classifier import load_classifier
from normae.runs.load import load, run_of
from normae.sources import jets_path
from normae.statistics import Estimate
from normae.training.reference import classifier_reference

DRAWS = 100
FILE_PARTS = (0.5, 0.125, 0.375)
"""Shares of a file that train the classifier, correct it, and test the models."""
TOY_PARTS = (0.8, 0.2)
"""Shares of a drawn sample that train the classifier and correct it; the test has one of its own."""


def dual_test(
    run_a: str | Path,
    run_b: str | Path,
    data: str | Path | None = None,
    settings: DualSettings | None = None,
    device: str = "auto",
    reference: str | Path | None = None,
) -> DualResult:
    """The dual test of two runs, each a run folder or a name of the zoo. Nothing is written.

    Args:
        data: a .npz file with the arrays `x` and `labels`; without it, samples of the two densities are drawn, which
            must be known. For runs on jets: a folder or a file of jets too, and `jets_path` of A without it.
        reference: a trained jet classifier, a run folder or a name of the zoo, in place of one that is trained here.
    """
    settings = settings or DualSettings()
    a, b = load(run_a, device), load(run_b, device)
    if a.event != b.event:
        raise InputError(f"expected two runs of one event shape, got {a.event} of {run_a} and {b.event} of {run_b}")
    draws = _number_of_draws((a, b), settings)
    configs = [config_of(run) for run in (run_a, run_b)]
    kinds = jet_classes(*configs)
    if reference is not None and kinds is None:
        raise InputError(f"{reference}: a jet classifier is a reference for two runs on jets, got {run_a} and {run_b}")
    data = jets_path(configs[0].data) if kinds is not None and data is None else data
    densities = known_densities(run_a, run_b)
    if densities is None and data is None:
        raise InputError(
            f"{run_a} and {run_b}: not trained on two different known densities, so give a labelled sample with --data"
        )
    if densities is None and not settings.classifier:
        raise InputError(f"{run_a} and {run_b}: without known densities the classifier is the only reference, keep it")
    trains = settings.classifier and reference is None
    if kinds is not None and data is not None and not is_labelled(data):
        most = settings.events
        training, holdout, test = jet_samples(Path(data), kinds[1], most, trains, FILE_PARTS, settings.seed)
        check_numbers(test, data)
    else:
        training, holdout, test = samples(data, densities, a, settings, trains)
    sides = [evaluate_side(model, test, draws, settings.seed) for model in (a, b)]
    classifier = None
    if reference is not None and kinds is not None:
        found = load_classifier(reference, device)
        classifier = run_reference(found, test, kinds[1], found.correction is not None, settings.seed)
    elif settings.classifier:
        first, second, third = (in_coordinates(a, sample) for sample in (training, holdout, test))
        classifier = classifier_reference(first, second, third, settings.network, settings.seed, a.device)
    result = judge(test, sides[0], sides[1], densities, classifier, settings)
    for model, side in ((a, "a"), (b, "b")):
        result.metrics[f"temperature_{side}"] = Estimate(model.temperature, 0.0)
    return result


def _number_of_draws(models: tuple[Model, Model], settings: DualSettings) -> int:
    if any(not model.posterior.certain for model in models):
        return settings.draws or DRAWS
    if settings.draws is not None:
        raise InputError(f"draws: {models[0].name} and {models[1].name} are deterministic and have no weight draws")
    return 1


def config_of(run: str | Path) -> Run:
    """The configuration of a run folder or of a model of the zoo."""
    return read(run_of(run).config)


def known_densities(run_a: str | Path, run_b: str | Path) -> tuple[Density, Density] | None:
    """The densities that the two runs were trained on, where they are known and differ."""
    a, b = (config_of(run).data.density for run in (run_a, run_b))
    return None if a is None or b is None or a == b else (DENSITIES[a](), DENSITIES[b]())


def samples(
    data: str | Path | None,
    densities: tuple[Density, Density] | None,
    model: Model,
    settings: DualSettings,
    trains: bool = True,
) -> tuple[Labelled, Labelled, Labelled]:
    """Disjoint samples that train the classifier, correct it, and test the models.

    Args:
        model: that of A, whose events they are.
        trains: whether a classifier is trained here; if not, all of a file is the test sample.
    """
    if data is None:
        assert densities is not None
        training, holdout = cut(
            draw_labelled(*densities, settings.events, settings.seed, "classifier"), TOY_PARTS, settings.seed
        )
        return training, holdout, draw_labelled(*densities, settings.events, settings.seed, "test")
    sample = read_labelled(data, model.event, model.event_dtype)
    check_numbers(sample, data)
    if not trains:
        return sample, sample, sample
    training, holdout, test = cut(sample, FILE_PARTS, settings.seed)
    return training, holdout, test


def in_coordinates(model: Model, sample: Labelled) -> Labelled:
    """The sample as the network of the model sees it: log r is the same in all coordinates, a classifier is not."""
    coordinates = model.coordinates.to("cpu")
    return sample._replace(x=coordinates.forward(torch.from_numpy(sample.x)).float().numpy())


def check_numbers(sample: Labelled, data: str | Path) -> None:
    """Refuse a sample with too few events of a class."""
    fewest = int(min(sample.labels.sum(), (~sample.labels).sum()))
    if fewest < FEWEST_EVENTS:
        raise InputError(f"{data}: expected at least {FEWEST_EVENTS} events of each class, got {fewest} of one")


def evaluate_side(model: Model, sample: Labelled, draws: int, seed: int) -> Side:
    """The model at the events of the sample."""
    return Side(model.name, model.rows(sample.x, draws, seed))


def dual(
    run_a: str | Path,
    run_b: str | Path,
    data: str | Path | None = None,
    out: str | Path | None = None,
    settings: DualSettings | None = None,
    device: str = "auto",
    reference: str | Path | None = None,
) -> DualResult:
    """The dual test of two runs, written into a folder: dual.json, figures/ and report.html.

    Arguments as in `dual_test`.

    Args:
        out: the folder; `normae.dual.output.default_folder` if not given. One that holds something else is
            refused.
    """
    from normae.dual.output import DualFolder, default_folder  # drawing needs matplotlib, the numbers do not

    path = default_folder(run_a, run_b, data, reference) if out is None else Path(out)
    folder = DualFolder(path, run_a, run_b, data, reference)
    folder.check()
    result = dual_test(run_a, run_b, data, settings, device, reference)
    folder.write(result)
    return result
