"""The dual test of two runs, from run folders or the zoo to a folder with numbers, figures and a page.

**Jets.** A folder of jets has a file `test`, on which the models are tested; a classifier that is trained here learns
from its `train` and is corrected with its `val`, so that the test is made on all of the test jets. One file of jets is
cut, as a file of labelled events is; it must not hold jets that the models were trained on. Label 1 is the class that B
was trained on, whatever the file calls it.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from normae.components import ComponentsCoordinates
from normae.config import Run, read
from normae.data import DENSITIES, Density
from normae.data.labelled import Labelled, cut, draw_labelled, read_labelled
from normae.dual.judge import FEWEST_EVENTS, DualResult, DualSettings, judge
from normae.errors import InputError, refuse
from normae.files import Place, check_new, new_folder
from normae.inference import Model
from normae.jets import is_jets
from normae.runs.classifier import Classifier, load_classifier
from normae.runs.load import load, run_of
from normae.sources import KINDS, Kind, check_jets, events_of_class, file_in, jets_path, read_jet_images
from normae.statistics import Estimate
from normae.statistics.calibration import calibration
from normae.tensors import stream
from normae.training.two_sample import ClassifierReference, classifier_reference

QUICK = 20_000  # jets of each class that a classifier is trained on here
FILE_PARTS = (0.5, 0.125, 0.375)  # shares of a file that train the classifier, correct it, and test the models
PARTS = (0.8, 0.2)  # the same where the test has a sample of its own


def jet_classes(a: Run, b: Run) -> tuple[Kind, Kind] | None:
    """The classes that two runs were trained on, where both are runs on jets; they must differ."""
    if a.data.jets not in KINDS or b.data.jets not in KINDS:
        return None
    refuse(a.data.jets == b.data.jets, f"expected one run on QCD jets and one on top jets, got two on {a.data.jets}")
    return a.data.jets, b.data.jets


def read_labelled_jets(path: Path, b: Kind, most: int) -> Labelled:
    """At most `most` jets of each class of a file as images, the class `b` with label 1; A comes first."""
    images = read_jet_images(path)
    a = KINDS[1 - KINDS.index(b)]
    parts = [events_of_class(images, kind).first(most) for kind in (a, b)]
    x = np.concatenate([part.dense().numpy() for part in parts])
    return Labelled(x, np.repeat([False, True], [len(part) for part in parts]))


def run_reference(classifier: Classifier, test: Labelled, b: Kind, corrected: bool, seed: int) -> ClassifierReference:
    """A trained classifier as the reference: its log r at the test jets, as it is and, where it was, corrected."""
    sign = 1.0 if b == "top" else -1.0
    found = sign * np.asarray(classifier.log_ratio(test.x), dtype=np.float64)
    after = before = calibration(found, test.labels, seed)
    if corrected:
        before = calibration(sign * np.asarray(classifier.log_ratio(test.x, corrected=False)), test.labels, seed)
    return ClassifierReference(found, found[None], "as its run was" if corrected else "none", before, after)


def sample_of(a: Run, data: str | Path | None) -> str | Path | None:
    """Where the test is made: `data`, or for a run on jets those of its configuration, or the public ones."""
    return jets_path(a.data, judged=True) if data is None and a.data.jets in KINDS else data


def dual_test(
    run_a: Place, run_b: Place, data: Place | None = None, settings: DualSettings | None = None, device: str = "auto",
    reference: Place | None = None,
) -> DualResult:  # fmt: skip
    """The dual test of two runs, each a run folder or a name of the zoo. Nothing is written.

    Args:
        data: a table with the columns of the runs and one called label, 1 for B, or arrays `x` and `labels`; without it
            samples of the two known densities are drawn. For runs on jets a folder or a file of jets, or `sample_of` A.
        reference: a trained jet classifier, a run folder or a name of the zoo, in place of one that is trained here.
    """
    settings = settings or DualSettings()
    a, b = load(run_a, device), load(run_b, device)
    if a.event != b.event:
        raise InputError(f"expected two runs of one event shape, got {a.event} of {run_a} and {b.event} of {run_b}")
    apart = None not in (a.columns, b.columns) and (a.columns, a.categories) != (b.columns, b.categories)
    refuse(apart, f"{run_a} and {run_b}: expected two runs on the same columns and categories, in one order")
    one, other = a.coordinates.tensors(), b.coordinates.tensors()
    same = one.keys() == other.keys() and all(torch.equal(one[name].cpu(), other[name].cpu()) for name in one)
    if a.coordinates.kind == "components" and not same:
        raise InputError(f"expected two runs in the same components, got others of {run_a} and of {run_b}")
    if settings.draws is not None and a.posterior.certain and b.posterior.certain:
        raise InputError(f"draws: {a.name} and {b.name} are deterministic and have no weight draws")
    configs = [read(run_of(run).config) for run in (run_a, run_b)]
    kinds = jet_classes(*configs)
    if reference is not None and kinds is None:
        raise InputError(f"{reference}: a jet classifier is a reference for two runs on jets, got {run_a} and {run_b}")
    data = sample_of(configs[0], data)
    for run in (run_a, run_b) if kinds is not None else ():
        check_jets(Path(data or ""), run_of(run).read_provenance())
    names, densities = [config.data.density for config in configs], None
    if None not in names and names[0] != names[1]:
        densities = DENSITIES[str(names[0])](), DENSITIES[str(names[1])]()
    words = f"{run_a} and {run_b}: not trained on two different known densities, so give a labelled sample with --data"
    refuse(densities is None and data is None, words)
    if densities is None and not settings.classifier:
        raise InputError(f"{run_a} and {run_b}: without known densities the classifier is the only reference, keep it")
    trains = settings.classifier and (reference is None or a.coordinates.kind == "components")
    try:
        samples = _samples(data, kinds, densities, a, settings, trains)
    except InputError:
        if reference is None or not trains:
            raise
        trains, samples = False, _samples(data, kinds, densities, a, settings, False)  # no jets to train one with
    test = samples[2]
    sides = [model.rows(test.x, settings.draws, settings.seed) for model in (a, b)]
    classifier, rows = _trained(samples, a, settings) if trains else None, None
    if reference is not None and kinds is not None:
        rows, found = classifier, load_classifier(reference, device)
        classifier = run_reference(found, test, kinds[1], found.correction is not None, settings.seed)
    result = judge(test, sides[0], sides[1], densities, classifier, settings, (a.name, b.name), rows)
    if trains and data is not None and Path(data).is_file():
        result = replace(result, events=sum(len(sample.labels) for sample in samples))
    result.metrics["temperature_a"], result.metrics["temperature_b"] = (Estimate(m.temperature, 0.0) for m in (a, b))
    return result


def _trained(samples: list[Labelled], model: Model, settings: DualSettings) -> ClassifierReference:
    """A classifier of what a model sees: log r is the same in all coordinates, a classifier is not."""
    coordinates = model.coordinates.to("cpu")
    seen = [coordinates.forward(torch.from_numpy(sample.x)) for sample in samples]
    if isinstance(coordinates, ComponentsCoordinates):  # the densities are of rows with noise, asked without it
        noise = stream(settings.seed, "dual/noise")
        seen = [coordinates.noisy(seen[0], 1, noise), coordinates.noisy(seen[1], 1, noise), seen[2]]
    first, second, third = (s._replace(x=y.float().numpy()) for s, y in zip(samples, seen, strict=True))
    return classifier_reference(first, second, third, settings.network, settings.seed, model.device)


def _samples(
    data: Place | None, kinds: tuple[Kind, Kind] | None, densities: tuple[Density, Density] | None, model: Model,
    settings: DualSettings, trains: bool,
) -> list[Labelled]:  # fmt: skip
    """Disjoint samples that train the classifier, correct it, and test the models; the last alone if none `trains`.

    Where a folder of jets has no file `val`, training jets correct the classifier.
    """
    if data is None:
        assert densities is not None
        n, seed = settings.events, settings.seed
        drawn, test = (draw_labelled(*densities, n, seed, name) for name in ("classifier", "test"))
        return [*cut(drawn, PARTS, settings.seed), test]
    given = Path(data)
    if kinds is None or (given.suffix == ".npz" and not is_jets(given)):
        test = read_labelled(given, model.event, model.event_dtype, model.columns, model.categories)
    else:
        test = read_labelled_jets(file_in(given, "test") if given.is_dir() else given, kinds[1], settings.events)
    least = int(min(test.labels.sum(), (~test.labels).sum()))
    refuse(least < FEWEST_EVENTS, f"{data}: expected at least {FEWEST_EVENTS} events of each class, got {least} of one")
    if not trains:
        return [test] * 3
    if kinds is None or not given.is_dir():
        return cut(test, FILE_PARTS, settings.seed)
    training = read_labelled_jets(file_in(given, "train"), kinds[1], QUICK)
    try:
        return [training, read_labelled_jets(file_in(given, "val"), kinds[1], QUICK), test]
    except InputError:
        return [*cut(training, PARTS, settings.seed), test]


def dual(
    run_a: Place, run_b: Place, out: Place, data: Place | None = None, settings: DualSettings | None = None,
    device: str = "auto", reference: Place | None = None, force: bool = False,
) -> DualResult:  # fmt: skip
    """The dual test of two runs, written into the folder `out`: dual.json, figures/ and report.html.

    Arguments as in `dual_test`; the folder must be new, or with `force` an earlier test is replaced.
    """
    from normae.dual import output  # drawing needs matplotlib, the numbers do not

    data = sample_of(read(run_of(run_a).config), data)
    tested = {"run_a": str(run_a), "run_b": str(run_b), "data": None if data is None else str(data)}
    tested |= {} if reference is None else {"reference": str(reference)}
    check_new(out, force, folder=True)
    result = dual_test(run_a, run_b, data, settings, device, reference)
    with new_folder(out, force) as temporary:
        output.write_dual(temporary, result, tested)
    return result
