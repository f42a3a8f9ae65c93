"""Numbers of runs on jets: how one class is told from the other, and what is generated; the study of a classifier.

**Tagging**, section 4.1 of the paper. The score is E/T: whoever was trained on QCD jets tags tops, and the other way
round. Numbers without "_draws" are of all weight draws together, with counting errors; those with it are mean and
standard deviation over draws, as in the paper's table for Bayesian networks. The energies of the test sample are kept
in scores.npz, with a key that stands for weights, jets and draws.

**Generated jets**, appendix C.2. The paper's recipe: latent chains of 240 steps from noise, without the buffer,
decoded, then the feature chain of the training. A picture, true or generated, is divided by its sum before observables
are made of it: masses are in units of the jet's pT. Two classifiers try to tell generated from true jets, one from the
six observables, one from the pictures; their inputs are centred and scaled by the truth's.

**A supervised classifier** is the benchmark of section 4.1, with the reliability diagram of section 4.2. Its score is
log r = log p_top - log p_QCD; label 1 is top. It was corrected on validation jets; the test jets only measure.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from normae import sources, statistics
from normae.config import Run
from normae.data import SparseEvents
from normae.dual.output import draw_reliability
from normae.errors import InputError
from normae.evaluation.evaluate import Captions, Draw, Metrics, Study, draw_one, good_if
from normae.figures import new_figure
from normae.figures.curves import loss_curves
from normae.figures.jets import RocCurve, roc_curves
from normae.files import atomic_path
from normae.inference import Model, Rows
from normae.jets.gallery import COLOURS
from normae.jets.imaging import NAMES, THRESHOLD, observables, usable
from normae.report import Check, save_figure
from normae.report.paper import TAGGING, TAGGING_METRICS, PaperValue
from normae.runs.classifier import load_classifier
from normae.runs.folder import RunFolder, model_digest, read_json, read_tensors
from normae.sources import KINDS, NOTHING, Known, jets_path, pieces
from normae.statistics import background_efficiency
from normae.statistics.arrays import Array, Estimate, over, sample_mean
from normae.statistics.calibration import calibration
from normae.tensors import stream
from normae.training.two_sample import ClassifierReference, classifier_test

OTHERS = ("pictures", "auc", "counts", "acceptance")  # in generated.npz beside observables, ordered as `GeneratedJets`
OBSERVED = tuple(f"{kind}_{name}" for kind in ("generated", "truth") for name in NAMES)  # the observables in it
FEWEST_TESTED = 10  # jets of each class that numbers with errors need
EFFICIENCIES = {"rejection_20": 0.2, "rejection_30": 0.3}  # signal efficiencies of the paper's table
CURVE = np.concatenate([np.linspace(0.001, 0.05, 50, endpoint=False), np.linspace(0.05, 1.0, 191)])
"""Signal efficiencies of a ROC curve."""
CPU_CHAINS, CUDA_CHAINS = 256, 4096  # chains that run side by side
SHOWN = 8  # generated jets of which the pictures are kept
FEWEST = 60  # jets that a classifier test can be made with


class JetTest(NamedTuple):
    """Held-out jets."""

    background: SparseEvents  # the class trained on; QCD for a classifier, which was trained on both
    signal: SparseEvents  # the other one
    label: int  # of the background

    @property
    def digest(self) -> str:
        """Stands for the jets."""
        return f"{self.background.sha256()[:32]}{self.signal.sha256()[:32]}"


def held_out_jets(config: Run, known: Known = NOTHING) -> JetTest:
    """`data.test` jets of each class, all for 0: of the file `test` of a folder, or what a split held out of one file.

    Of one file, the class that a run was not trained on is split alike, so that runs of one seed are judged on the same
    jets whichever class they were trained on. A file that cannot be the one that was trained on is not split. Files
    that the run has known otherwise are refused.
    """
    path, label = jets_path(config.data, judged=True), KINDS.index("top") if config.data.jets == "top" else 0
    file = sources.file_in(path, "test") if path.is_dir() else path
    images = sources.read_jet_images(sources.check_jets(file, known))
    chosen = []
    for kind in (KINDS[label], KINDS[1 - label]):
        events = sources.events_of_class(images, kind)
        if not path.is_dir():
            events = sources.held_out(events, config.data, config.seed)
        chosen.append(events.first(config.data.test or len(events)))
        if (count := len(chosen[-1])) < FEWEST_TESTED:
            raise InputError(f"{path}: expected at least {FEWEST_TESTED} {kind} jets for the test, got {count}")
    return JetTest(chosen[0], chosen[1], label)


@dataclass(frozen=True)
class JetScores:
    """T times the score of every weight draw, one for a deterministic run: shapes (n, N) and (n, M)."""

    background: NDArray[np.float32]
    signal: NDArray[np.float32]
    temperature: float
    constant: float | None = None  # mean of those that the trainings of a mixture have, and E/T in it is less by
    trainings: int = 1  # of a mixture, whose draws are of each in turn

    def mean_energy(self, energies: NDArray[np.float32]) -> Array:
        """Mean over draws of E, with shape (N,), of the signal or the background; the constants are removed."""
        return np.asarray(energies.mean(axis=0, dtype=np.float64) + self.temperature * (self.constant or 0.0))

    @property
    def bayesian(self) -> bool:
        """Whether there are several draws."""
        return len(self.background) > 1

    @property
    def central(self) -> tuple[Array, Array]:
        """E/T of signal and background, each with shape (N,): what the draws say together."""
        scores = (e.astype(np.float64) / self.temperature for e in (self.signal, self.background))
        mixture = self.constant is not None  # the density is the mean of those of the draws
        signal, background = (np.asarray(Rows(score, None, mixture).score()) for score in scores)
        return signal, background


def jet_scores(run: RunFolder, model: Model, test: JetTest, draws: int) -> JetScores:
    """The energies of the test sample: those that scores.npz keeps, where they belong to this run and these jets."""
    key = digest(run, test.digest, str(draws))
    constants = read_tensors(run.model)[1].get("constants")
    kept = read_kept(run.scores, key, ("background", "signal", *([] if constants is None else ["shift"])))
    if kept is None:
        kept = {name: energies(model, getattr(test, name), draws) for name in ("background", "signal")}
        kept |= {} if constants is None else {"shift": np.array(constants)}
        write_kept(run.scores, key, kept)
    return as_scores(kept, model.temperature)


def as_scores(kept: Any, temperature: float) -> JetScores:
    """What scores.npz holds."""
    shift = kept.get("shift")
    mixture = (None, 1) if shift is None else (float(shift.mean()), len(shift))
    return JetScores(kept["background"], kept["signal"], temperature, *mixture)


def energies(model: Model, events: SparseEvents, draws: int) -> NDArray[np.float32]:
    """T times the score of every draw, (n, N); draws of a mixture may differ in T, so that E could not be compared."""
    found = [model.temperature * model.rows(x, draws).scores for x in pieces(events)]
    return np.concatenate(found, axis=1, dtype=np.float32)


def digest(run: RunFolder, *parts: str) -> str:
    """Stands for a run's weights and for `parts`."""
    return hashlib.sha256("\n".join([model_digest(run.model), *parts]).encode()).hexdigest()


def read_kept(path: Path, key: str, names: tuple[str, ...]) -> dict[str, NDArray[Any]] | None:
    """The arrays of a file that was kept with this key; None where there is none, or a damaged or another one."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            return {name: content[name] for name in names} if str(content["key"]) == key else None
    except Exception:  # a parser of damaged bytes may raise anything
        return None


def write_kept(path: Path, key: str, arrays: dict[str, NDArray[Any]]) -> None:
    """Keep arrays with a key that says what they belong to."""
    with atomic_path(path) as temporary:
        np.savez_compressed(temporary, key=np.array(key), **arrays)  # type: ignore[arg-type]


def tagging_metrics(scores: JetScores) -> Metrics:
    """AUC and background rejections, mean scores, and what the draws say of all of them."""
    signal, background = scores.central
    metrics = separation(signal, background)
    metrics |= {"score_background": sample_mean(background), "score_signal": sample_mean(signal)}
    metrics["energy_background"] = sample_mean(scores.mean_energy(scores.background))
    metrics["temperature"] = Estimate(scores.temperature, 0.0)
    metrics |= {"test_background": Estimate(background.size, 0.0), "test_signal": Estimate(signal.size, 0.0)}
    if not scores.bayesian:
        return metrics
    rows = [separation(s, b) for s, b in zip(scores.signal, scores.background, strict=True)]
    metrics |= {f"{name}_draws": over([row[name].value for row in rows], scores.trainings) for name in rows[0]}
    for name, energy in (("background", scores.background), ("signal", scores.signal)):
        relative = energy.std(axis=0, ddof=1, dtype=np.float64) / scores.mean_energy(energy)
        metrics[f"relative_sigma_{name}"] = Estimate(float(np.median(relative)), 0.0)
    return metrics


def separation(signal: NDArray[Any], background: NDArray[Any]) -> Metrics:
    """AUC and rejections of scores with shapes (N,) and (M,)."""
    shares = {name: statistics.rejection(signal, background, share) for name, share in EFFICIENCIES.items()}
    return {"auc": statistics.auc(signal, background), **shares}


def roc_band(scores: JetScores) -> tuple[Array, Array | None]:
    """eps_B of the central score at the efficiencies of `CURVE`, and the spread over draws of eps_B and log eps_B."""
    central = background_efficiency(*scores.central, CURVE)
    if not scores.bayesian:
        return central, None
    rows = [background_efficiency(s, b, CURVE) for s, b in zip(scores.signal, scores.background, strict=True)]
    shares = np.maximum(np.stack(rows), 0.5 / scores.background.shape[1])
    return central, np.stack([shares.std(axis=0, ddof=1), np.log(shares).std(axis=0, ddof=1)])


def roc_curve_of(label: str, scores: JetScores, signal_label: int, style: str = "-") -> RocCurve:
    """The ROC curve of a run, in the colour of what it tags."""
    central, band = roc_band(scores)
    return RocCurve(label, COLOURS[signal_label], CURVE, central, band, style)


def draw_roc(run: RunFolder, curve: RocCurve, background: int) -> None:
    """Both views of a ROC curve, as far as so many background jets can tell."""
    figure, axes = new_figure(1, 2)
    roc_curves(axes[0], [curve], smallest=10 / background)
    columns = {"signal_efficiency": curve.signal, "background_efficiency": curve.background}
    if curve.band is not None:
        columns |= {"background_efficiency_sigma": curve.band[0], "log_rejection_sigma": curve.band[1]}
    save_figure(figure, run.figures, "roc", columns)


class GeneratedJets(NamedTuple):
    """Observables by name, generated and true, each with shape (N,), and what else is known of generated jets."""

    generated: dict[str, NDArray[np.float64]]
    truth: dict[str, NDArray[np.float64]]
    pictures: NDArray[np.float32]  # of a few generated jets, (K, 40, 40)
    auc: NDArray[np.float64]  # the classifier's on pictures, value and error, NaN where there were too few jets
    counts: NDArray[np.int64]  # jets that were generated, and those of them that have observables
    acceptance: NDArray[np.float64]  # of the feature chain


def generated_jets(run: RunFolder, model: Model, truth: SparseEvents, n: int, seed: int) -> GeneratedJets | None:
    """`n` jets of the model beside as many true ones; those that generated.npz keeps, where n is 0 or the same."""
    key = digest(run, truth.sha256(), str(seed))
    kept = read_kept(run.generated, key, (*OBSERVED, *OTHERS))
    if kept is None or (n and int(kept["counts"][0]) != n):
        if n == 0:
            return None
        images, acceptance = sample_jets(model, n, seed)
        true = np.concatenate(list(pieces(truth.first(n))))
        kept = {f"generated_{name}": values for name, values in observables_of(images).items()}
        kept |= {f"truth_{name}": values for name, values in observables_of(true).items()}
        told = _told_apart(true, images, true.std(), stream(seed, "classifier/pictures"), str(model.device))
        others = (images[:SHOWN, 0], told, [n, len(kept["generated_mass"])], acceptance)
        kept |= {name: np.array(value) for name, value in zip(OTHERS, others, strict=True)}
        write_kept(run.generated, key, kept)
    return as_generated(kept)


def as_generated(kept: Any) -> GeneratedJets:
    """What generated.npz holds."""
    generated, true = ({name: kept[f"{kind}_{name}"] for name in NAMES} for kind in ("generated", "truth"))
    return GeneratedJets(generated, true, *(kept[name] for name in OTHERS))


def _told_apart(
    truth: NDArray[Any], generated: NDArray[Any], width: Any, generator: torch.Generator, device: str = "cpu"
) -> Estimate:
    """AUC of a classifier on inputs that are centred and scaled by the truth's; NaN where there are too few."""
    if min(len(truth), len(generated)) < FEWEST:
        return Estimate(np.nan, np.nan)
    true, made = ((x - truth.mean(axis=0)) / width for x in (truth, generated))
    return classifier_test(true, made, generator=generator, device=device).auc


def sample_jets(model: Model, n: int, seed: int) -> tuple[NDArray[np.float32], float]:
    """`n` pictures with shape (n, 1, 40, 40) by the paper's recipe, and the share of accepted feature steps."""
    if model.event != model.seen_event:  # draws, and no chain
        return model.sample(n, seed), 1.0
    size = CPU_CHAINS if model.device.type == "cpu" else CUDA_CHAINS
    generator = stream(seed, "evaluation/chain", model.device)
    found, accepted = [], []
    for start in range(0, n, size):
        chain = model.sample_chain(min(size, n - start), generator)
        found.append(chain.position.cpu().numpy())
        accepted.append(float(chain.acceptance.mean()) * len(found[-1]))
    return np.concatenate(found), sum(accepted) / n


def observables_of(images: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
    """Observables of pictures that are divided by their sum; empty ones are left out."""
    scaled = images / np.maximum(images.sum(axis=(1, 2, 3), keepdims=True), THRESHOLD)
    return observables(scaled[usable(scaled)])


def generation_metrics(made: GeneratedJets, seed: int) -> Metrics:
    """A Wasserstein distance for each observable, that of halves of the truth, and the AUC of both classifiers."""
    metrics = {"generated_jets": Estimate(float(made.counts[0]), 0.0)}
    metrics["generated_usable"] = Estimate(float(made.counts[1] / made.counts[0]), 0.0)
    metrics["acceptance_generated"] = Estimate(float(made.acceptance), 0.0)
    for name in NAMES:
        generator = stream(seed, f"wasserstein/{name}")
        true = made.truth[name]
        metrics[f"wasserstein_{name}"] = statistics.wasserstein(made.generated[name], true, generator=generator)
        metrics[f"wasserstein_{name}_truth"] = statistics.wasserstein_halves(true, generator=generator)
    generated, truth = (np.stack([kind[name] for name in NAMES], axis=1) for kind in (made.generated, made.truth))
    aucs = {"observables": _told_apart(truth, generated, truth.std(axis=0), stream(seed, "classifier/observables"))}
    aucs["images"] = Estimate(*map(float, made.auc))
    return metrics | {f"auc_generated_{of}": found for of, found in aucs.items() if np.isfinite(found).all()}


class ClassifierStudy(Study):
    """A classifier of jets."""

    needed = ("auc", "rejection_20", "rejection_30", "ece", "ece_perfect")
    own: ClassVar = {"ece": "expected calibration error", "ece_perfect": "the same of a perfect classifier",
                     "ece_corrected": "the same after correction"}  # fmt: skip
    of_jets = True

    def judge(self, device: str, generated: int | None) -> tuple[Metrics, Draw]:  # noqa: ARG002
        """Tagging and calibration on the test jets; the scores are kept."""
        test = held_out_jets(self.config, self.run.read_provenance())
        found, labels = classifier_ratio(self.run, test, device, self.config.seed)
        metrics = separation(found.log_ratio[labels], found.log_ratio[~labels])
        metrics["ece"], metrics["ece_perfect"] = found.before.error
        metrics["cross_entropy"] = found.before.cross_entropy
        sizes = {"background": ~labels, "signal": labels}
        metrics |= {f"test_{name}": Estimate(int(of.sum()), 0.0) for name, of in sizes.items()}
        if found.method != "none":
            metrics["ece_corrected"] = found.after.error.measured
            metrics["cross_entropy_corrected"] = found.after.cross_entropy

        def draw() -> None:
            draw_roc(self.run, classifier_curve(found.log_ratio, labels, metrics), int((~labels).sum()))
            draw_reliability(found, self.run.figures)
            lines = [line for line in self.run.read_history() if "validation_loss" in line]
            if lines:
                names = ("epoch", "loss", "validation_loss")
                columns = {name: np.array([line[name] for line in lines]) for name in names}
                draw_one(self.run, "training", columns, loss_curves, *columns.values(), panel=(4.6, 3.5))

        return metrics, draw

    def title(self) -> str:
        return f"a supervised classifier of top and QCD jets, seed {self.config.seed}"

    def summary(self, metrics: Metrics) -> str:
        corrected = f"; corrected, it is {metrics['ece_corrected']}" if "ece_corrected" in metrics else ""
        return (
            f"A supervised classifier, which knows both classes: AUC {metrics['auc']} on the test jets. Its expected "
            f"calibration error is {metrics['ece']}, where a perfect one would have {metrics['ece_perfect']}"
            f"{corrected}. Calibrated, its log odds are the likelihood ratio that the dual test compares with."
        )

    def sample(self) -> dict[str, str]:
        sizes = {"training": self.config.data.train, "test": self.config.data.test}
        return {f"{kind} sample": f"{size:,} jets of each class" for kind, size in sizes.items()}

    def settings(self) -> dict[str, str]:
        given = self.config.classifier
        assert given is not None
        rate = f"learning rate {given.learning_rate:g} ({given.schedule})"
        return {
            "network": f"the encoder, {self.config.network.channels} channels, one output",
            "training": f"{given.epochs} epochs, batch {given.batch}, {rate}, the lowest validation loss kept",
            "input": "images divided by the root mean square pixel of the training sample; the score is corrected on "
            "validation jets where it is not calibrated there",
        }

    def values(self) -> list[PaperValue]:
        rows = zip(TAGGING_METRICS.items(), TAGGING["supervised", "classifier"], strict=True)
        return [PaperValue(metric, title, value, "counting error") for (metric, title), value in rows]

    def checks(self, metrics: Metrics) -> list[Check]:
        found, perfect = metrics.get("ece_corrected", metrics["ece"]), metrics["ece_perfect"]
        good = found.value < perfect.value + 3 * max(perfect.error, 1e-12)
        said = f"The expected calibration error is {found} after correction; a perfect score would have {perfect}."
        return [good_if("calibration", good, said, "Give it more validation jets (data.validation).")]

    def captions(self, metrics: Metrics) -> Captions:  # noqa: ARG002
        return {
            "roc": ("ROC curve", "Top jets kept over QCD jets kept, and the rejection of QCD jets. Dotted: a coin."),
            "reliability": (
                "Reliability",
                "Share of top jets among test jets over the score: on the diagonal the score is the probability."),
            "training": ("Course of the training", "The network with the lowest validation loss is kept."),
        }  # fmt: skip

    def limits(self) -> str:
        return "Its log odds are a likelihood ratio only where both classes have jets and for jets made like these."


def classifier_curve(log_ratio: NDArray[np.float64], labels: NDArray[np.bool_], metrics: Metrics) -> RocCurve:
    """Tops kept over QCD jets kept."""
    share = background_efficiency(log_ratio[labels], log_ratio[~labels], CURVE)
    return RocCurve(f"classifier, AUC {metrics['auc']}", "0.2", CURVE, share, None, "--")


def classifier_ratio(run: RunFolder, test: JetTest, device: str, seed: int) -> tuple[ClassifierReference, NDArray[Any]]:
    """log r at the test jets, QCD first, with its calibration; and their labels, booleans."""
    key = digest(run, test.digest)
    labels = np.repeat([False, True], [len(test.background), len(test.signal)])
    kept = read_kept(run.scores, key, ("log_ratio", "uncorrected"))
    if kept is None:
        classifier = load_classifier(run.path, device)
        kept = {}
        for name, corrected in (("log_ratio", True), ("uncorrected", False)):
            jets = (x for events in (test.background, test.signal) for x in pieces(events))
            kept[name] = np.concatenate([classifier.log_ratio(x, corrected=corrected) for x in jets])
        write_kept(run.scores, key, kept | {"labels": labels})
    before = calibration(kept["uncorrected"], labels, seed)
    method = str(read_json(run.provenance).get("calibration", "none"))
    after = before if method == "none" else calibration(kept["log_ratio"], labels, seed)
    return ClassifierReference(kept["log_ratio"], kept["log_ratio"][None], method, before, after), labels
