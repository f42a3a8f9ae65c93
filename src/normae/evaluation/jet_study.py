"""The studies of runs on jets: how well it tags, the health of its training, jets to look at, paper beside ours."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from normae.components import ComponentsCoordinates
from normae.data import SparseEvents, linear_errors
from normae.errors import InputError
from normae.evaluation import evaluate as study
from normae.evaluation import jets
from normae.evaluation.evaluate import Captions, Draw, Metrics, Study
from normae.evaluation.table import ROWS, TableStudy, table_metrics, table_test
from normae.figures import new_figure
from normae.figures.curves import training_energies
from normae.figures.jets import ClassHistogram, ObservableSample, energy_histograms, observable_panels, picture_rows
from normae.inference import Model
from normae.jets.gallery import CLASSES
from normae.jets.imaging import NAMES
from normae.report import Check, save_figure
from normae.report.paper import TAGGING, TAGGING_METRICS, PaperValue
from normae.runs.folder import RunFolder
from normae.runs.load import load
from normae.sources import Events, pieces
from normae.statistics.arrays import Array, Estimate, format_estimate, sample_mean
from normae.temperature.estimates import chain_metrics, late_mean
from normae.tensors import stream

GALLERY, SMALL = 8, 1.5  # jets of a gallery, and inches that one picture is wide
TRAINING_COLUMNS = ("iteration", "positive_energy", "negative_energy", "latent_acceptance", "feature_acceptance")
BAYESIAN = {"last": "the last layer's weights", "decoder": "the decoder's weights", "all": "all weights"}
"""What a mean-field posterior is of, by its `layers`."""


class JetStudy(Study):
    """A run on one class of jets."""

    needed = ("auc", "rejection_20", "rejection_30", "score_background", "mse_components", "test_signal")
    own: ClassVar = {
        "energy_background": "mean energy of the jets that it was trained on",
        "mse_mean_image": "the same of their mean image",
        "mse_components": "the same of principal components, as many as latent dimensions",
        "negative_energy": "energy of negative samples at the end of the training",
        "manifold_energy": "the same of samples at T on the decoder's manifold: chains in equilibrium do not exceed it",
        "generated_jets": "generated jets",
        **{f"wasserstein_{of}": f"Wasserstein distance of {of} from the truth's, in its standard deviations"
           for of in NAMES},
        "auc_generated_observables": "AUC of a classifier, generated against true jets, six observables",
        "auc_generated_images": "the same, pictures",
    }  # fmt: skip
    of_jets = True

    @property
    def classes(self) -> tuple[str, str]:
        """What it was trained on, and what it tags."""
        return ("QCD", "top") if self.config.data.jets == "qcd" else ("top", "QCD")

    @property
    def network(self) -> str:
        """AE, NAE, BAE or BNAE."""
        return ("B" if self.config.posteriors else "") + ("NAE" if self.config.training.epochs else "AE")

    def judge(self, device: str, generated: int | None) -> tuple[Metrics, Draw]:
        """Tagging, simpler models, energies of the chains, generated jets; energies and observables are kept."""
        run, config = self.run, self.config
        model, test = load(run.path, device), jets.held_out_jets(config, run.read_provenance())
        scores = jets.jet_scores(run, model, test, config.evaluation.draws if config.posteriors else 1)
        metrics = jets.tagging_metrics(scores)
        metrics |= simple_models(test.background, config.latent_dimensions, model.device)
        metrics |= chain_metrics(run, config, model)
        made = None
        if config.training.epochs:
            usual = config.evaluation.generated if model.device.type == "cuda" else 0
            count = usual if generated is None else generated
            made = jets.generated_jets(run, model, test.background, count, config.seed)
            metrics |= {} if made is None else jets.generation_metrics(made, config.seed)

        def draw() -> None:
            words = f"{self.network}, AUC {metrics['auc']}"
            jets.draw_roc(run, jets.roc_curve_of(words, scores, 1 - test.label), len(test.background))
            edges, shown = energy_densities(scores, test.label)
            columns: dict[str, Array] = {"low": edges[:-1], "high": edges[1:]}
            for one in shown:
                name = CLASSES[one.kind].lower()
                columns |= {name: one.density} | ({} if one.band is None else {f"{name}_sigma": one.band})
            study.draw_one(run, "energies", columns, energy_histograms, edges, shown, test.label, panel=(4.6, 3.5))
            draw_galleries(run, model, test, scores)
            study.draw_training(self, training_energies, 2, TRAINING_COLUMNS)
            if made is not None:
                draw_generated(run.figures, {test.label: (made, metrics)})

        return metrics, draw

    def title(self) -> str:
        kind = ("Bayesian " if self.config.posteriors else "") + ("normalized " if self.config.training.epochs else "")
        background, signal = self.classes
        ensemble = self.config.ensemble
        which = f"seed {self.config.seed}" if ensemble is None else f"{ensemble.members} trainings"
        tags = "tops" if signal == "top" else signal
        return f"{'a' if kind else 'an'} {kind}autoencoder trained on {background} jets, which tags {tags}, {which}"

    def summary(self, metrics: Metrics) -> str:
        background, signal = self.classes
        modes = self.config.modes
        auc = metrics["auc"] if modes else metrics.get("auc_draws", metrics["auc"])
        said = (
            f"Trained on {background} jets alone, the reconstruction error ranks a {signal} jet above a {background} "
            f"jet in {100 * auc.value:.1f} % of pairs (AUC {auc}, 0.5 is a coin); at a signal efficiency of 0.3 one in "
            f"{metrics['rejection_30'].value:.3g} {background} jets passes."
        )
        if "auc_draws" in metrics:
            of_draws = "The errors of AUC and rejections are the spread over weight draws"
            of_modes = f"That is of the mixture; its trainings have an AUC of {metrics['auc_draws']}"
            said += (
                f" {of_modes if modes else of_draws}; the energy of a single {background} jet is uncertain by "
                f"{100 * metrics['relative_sigma_background'].value:.1f} % (median)."
            )
        if "auc_generated_images" in metrics:
            said += (
                f" A classifier tells its generated jets from true ones with AUC {metrics['auc_generated_images']} by "
                f"their pictures and {metrics['auc_generated_observables']} by six observables."
            )
        return said

    def sample(self) -> dict[str, str]:
        data = self.config.data
        return {
            "training sample": f"{data.train:,} {self.classes[0]} jets, images of 40 × 40 pixels",
            "test sample": f"{data.test:,} jets of each class",
        }

    def numbers(self, metrics: Metrics) -> dict[str, str | Estimate]:
        count = " and ".join(f"{metrics[f'test_{of}'].value:,.0f} {of}" for of in ("background", "signal"))
        mean, components = (f"{metrics[name].value:.3g}" for name in ("mse_mean_image", "mse_components"))
        return {
            "jets of this evaluation": f"{count} jets",
            "energy of the background": metrics["energy_background"],
            "energy of the mean image alone": mean,
            f"energy of {self.config.latent_dimensions} principal components": components,
        }

    def values(self) -> list[PaperValue]:
        """Those of section 4.1; of a Bayesian network with the spread over draws and the counting error."""
        theirs = self.config.network.latent == 6  # as the paper's networks have
        printed = TAGGING[f"{self.classes[1]}-tagging", self.network] if theirs else ("—",) * len(TAGGING_METRICS)
        rows: list[PaperValue] = []
        for (metric, title), value in zip(TAGGING_METRICS.items(), printed, strict=True):
            draws = f"{metric}_draws"
            if self.config.modes:
                rows.append(PaperValue(metric, title, value, "of the mixture, counting error"))
                rows.append(PaperValue(draws, f"{title}, one training", "—", "mean and spread over draws"))
            elif self.config.posteriors:
                rows.append(PaperValue(draws, title, value, "mean and spread over weight draws"))
                rows.append(PaperValue(metric, f"{title}, mean energy", "—", "counting error"))
            else:
                rows.append(PaperValue(metric, title, value, "counting error"))
        return rows

    def choices(self) -> str:
        scale = {"temperature": "energies divided by T", "plain": "energies as they are"}
        config, chain, start = self.config, self.config.sampling.feature, self.config.network.output_start
        near = f"; the output starts near {start:g}" if start else ""
        lines = [f"- loss of the pretraining: {scale[config.pretraining.loss_scale]}{near}"]
        if config.training.epochs:
            test = "no Metropolis test, which accepts nothing at the paper's step" if chain.metropolis == "off" else (
                "an exact Metropolis test" if chain.exact else "a Metropolis test")  # fmt: skip
            lines += [
                f"- loss of the training: {scale[config.training.loss_scale]}",
                f"- feature chain: {test}; the gradient is clipped by the rule `{chain.clip_rule}`",
                f"- latent chain on the sphere: `{config.sampling.latent.sphere}` proposal",
            ]
        return "\n## Chosen where the paper is silent, or where we depart from it\n\n" + "\n".join(lines) + "\n"

    def limits(self) -> str:
        config, said = self.config, (
            "E/T is a score; log Z is not known for images, so that there is no log p.\nTrained on simulated jets only,"
            " which are not part of the package. The paper's values are for the public TopTagging sample."
        )  # fmt: skip
        if config.bayesian is not None and not config.modes:
            return said + f" Its error bars are those of {BAYESIAN[config.bayesian.layers]},\nnot of another training."
        if config.posteriors:
            return said + f" Its error bars are of this posterior: {study.posterior_words(config)}."
        return said + " The model is deterministic: its scores have no error bars."

    def checks(self, metrics: Metrics) -> list[Check]:
        lines, checks = self.lines("training"), [self._reconstruction_check(metrics)]
        if lines and self.config.training.epochs:
            walked = [kind for kind in ("latent", "feature") if lines[-1].get(f"{kind}_acceptance") is not None]
            checks += [_gap_check(lines), *(study.acceptance_check(lines, self.config, kind) for kind in walked)]
            checks += self._equilibrium_check(metrics)
        auc = metrics.get("auc_draws", metrics["auc"])
        higher = auc.value > 0.5 + 3 * auc.error
        said = f"What it was not trained on scores higher: AUC {auc}."
        if not higher:
            said = (
                f"What it was not trained on does not score higher: AUC {auc}. A plain autoencoder does so where the "
                "signal is simpler than the background; a normalized one should not."
            )
        remedy = "" if higher else "Train it as a normalized autoencoder (training.epochs above 0), or longer."
        return [*checks, self.stability(), study.good_if("tagging", higher, said, remedy)]

    def _reconstruction_check(self, metrics: Metrics) -> Check:
        energy, mean, best = (metrics[name].value for name in ("energy_background", "mse_mean_image", "mse_components"))
        kept = self.config.latent_dimensions
        share = f"{energy:.2g}; the mean image alone has {mean:.2g}, {kept} principal components {best:.2g}"
        remedy = "Pretrain for more epochs (pretraining.epochs), or start from a pretrained autoencoder (start)."
        if energy > 0.9 * mean:
            said = f"It reconstructs no better than one image for all: E = {share}."
            return Check("reconstruction", "bad", said, remedy)
        said = f"The energy of the jets it was trained on is {share}."
        return study.good_if("reconstruction", energy < 1.5 * best, said, remedy)

    def _equilibrium_check(self, metrics: Metrics) -> list[Check]:
        """Where negative samples are relaxed below T, so that they may not lie above the manifold they came from."""
        negative, manifold = (metrics.get(f"{name}_energy") for name in ("negative", "manifold"))
        if negative is None or manifold is None or self.config.sampling.feature.metropolis == "exact":
            return []
        said = f"Negative samples ended at E = {negative}; samples at T on the decoder's manifold have {manifold}"
        if negative.value < 1.2 * manifold.value:
            return [Check("equilibrium", "good", f"{said}, and relaxing them lowers it.")]
        said += ": the chains are too short, or their steps too small, to reach equilibrium."
        return [Check("equilibrium", "warning", said, "Raise sampling.latent.step_size or sampling.latent.steps.")]

    def captions(self, metrics: Metrics) -> Captions:
        background, signal = self.classes
        bands = "; bands are one standard deviation over weight draws" if self.config.posteriors else ""
        error = ", ± the standard deviation over weight draws" if self.config.posteriors else ""
        found = {
            "roc": ("ROC curve", f"The share of {signal} jets kept over that of {background} jets, and the rejection "
                    f"of {background} jets{bands}. Dotted: a coin."),
            "energies": ("Energies", f"E/T of {background} jets, which it was trained on, and of {signal} jets{bands}. "
                         "The further the signal lies to the right, the better it is tagged."),
            "gallery-anomalous": ("The most anomalous jets",
                f"The eight highest scores among all test jets, with their true class and E/T{error}: input, what the "
                "network makes of it, and the difference (red: energy that it misses, blue: that it invents). η to the "
                "right, φ upwards. Inputs and reconstructions are on a logarithmic scale, differences on a linear one: "
                "E is the mean of their squares, so that a score is what the dark places add up to."),
            "gallery-typical": ("Typical jets",
                f"{background} jets with a score at the median. The scale of the differences is that of this picture "
                "alone; what is left in a jet that is well described is fine structure, at the size of a pixel."),
            "generated": ("Observables of generated jets",
                "Generated (dashed) and true jets (solid). W is the Wasserstein distance in standard deviations of the "
                "truth, in brackets that of two halves of the truth: a model that is right would have about as much."),
            "generated-jets": (
                "Generated jets", "Pictures of the first chains: do they look like the typical jets above?"),
            "pretraining": ("Course of the pretraining",
                "Reconstruction error on training and on validation jets, and what simpler models of the training jets "
                "reach on the validation jets: their mean image, and as many principal components as the latent sphere "
                "has dimensions."),
            "training": ("Course of the training",
                "Energies of jets and of chains, which should meet, and the share of accepted steps."),
        }  # fmt: skip
        old = () if "wasserstein_mass" in metrics else ("generated", "generated-jets")
        return {name: words for name, words in found.items() if name not in old}


def simple_models(events: SparseEvents, components: int, device: torch.device) -> Metrics:
    """What an autoencoder must beat: E of the test jets' mean image, and of as many components as it has dimensions."""
    found = linear_errors(events, events, (0, components), device)
    return {name: sample_mean(e.numpy()) for name, e in zip(("mse_mean_image", "mse_components"), found, strict=True)}


def _gap_check(lines: Sequence[dict[str, Any]]) -> Check:
    positive, negative = (late_mean(lines, f"{sign}_energy").value for sign in ("positive", "negative"))
    gap = (positive - negative) / max(positive, negative)
    said = f"(E⁺ − E⁻) is {100 * gap:+.0f} % of the larger one over the last tenth of the training; it vanishes where"
    remedy = "Train for more epochs (training.epochs), or with longer chains."
    return Check("energies meet", study.graded(abs(gap), 0.1, 0.5), f"{said} samples follow the data.", remedy)


def draw_pictures(folder: Path, name: str, rows: dict[str, Any], titles: Sequence[str], first: str = "") -> None:
    """Rows of pictures (K, 40, 40) by name, under the titles of their columns; in the CSV, one column for each."""
    figure, axes = new_figure(len(rows), 1, panel=(SMALL * len(titles), 1.3 * SMALL))
    picture_rows(axes[:, 0], list(rows.values()), list(rows), titles)
    pixels = {f"{first or kind}_{k}": one.ravel() for kind, row in rows.items() for k, one in enumerate(row)}
    save_figure(figure, folder, name, pixels)


def energy_densities(scores: jets.JetScores, label: int) -> tuple[Array, list[ClassHistogram]]:
    """Even bins in log E/T, and the densities of both classes per unit of log10, with their spread over draws."""
    sides = (scores.background, scores.signal)
    ends = np.log10([np.quantile(e, (0.001, 0.999)) for e in sides]) - np.log10(scores.temperature)
    size = min(scores.background.shape[1], scores.signal.shape[1])
    cuts = np.linspace(ends[:, 0].min(), ends[:, 1].max() + 1e-6, int(np.clip(size**0.5 / 2, 12, 60)) + 1)
    shown = []
    for kind, energy in ((label, scores.background), (1 - label, scores.signal)):
        rows = np.log10(energy.astype(np.float64) / scores.temperature)
        counts = np.stack([np.histogram(row, cuts)[0] / (row.size * (cuts[1] - cuts[0])) for row in rows])
        band = counts.std(axis=0, ddof=1) if scores.bayesian else None
        shown.append(ClassHistogram(kind, counts.mean(axis=0), band))
    return np.asarray(10**cuts), shown


def draw_galleries(run: RunFolder, model: Model, test: jets.JetTest, scores: jets.JetScores) -> None:
    """The most anomalous jets of the test sample, and jets of the class trained on with scores near its median."""
    energy = np.concatenate([scores.background, scores.signal], axis=1) / scores.temperature
    signal, background = scores.central
    central, sigma = np.concatenate([background, signal]), energy.std(axis=0, dtype=np.float64)
    count = scores.background.shape[1]
    middle = np.argsort(np.abs(central[:count] - np.median(central[:count])), kind="stable")
    chosen = {"gallery-anomalous": np.argsort(-central, kind="stable"), "gallery-typical": middle}
    for name, order in chosen.items():
        index = order[:GALLERY]
        labels = [CLASSES[test.label if i < count else 1 - test.label] for i in index]
        pairs = [Estimate(float(central[i]), float(sigma[i])) for i in index]
        scored = [format_estimate(e, 2) if e.error > 0 else f"{e.value:#.3g}".rstrip(".") for e in pairs]
        titles = [f"{label}, $E/T$ =\n{words}" for label, words in zip(labels, scored, strict=True)]
        parts = [(test.background, i) if i < count else (test.signal, i - count) for i in index.tolist()]
        images = torch.cat([events[torch.tensor([i])] for events, i in parts])
        with torch.no_grad():  # at the centre of the posterior
            made = model.energy_function.decode(model.energy_function.encode(images.to(model.device))).cpu()
        rows = {"input": images[:, 0], "reconstruction": made[:, 0], "residual": images[:, 0] - made[:, 0]}
        draw_pictures(run.figures, name, {kind: row.numpy() for kind, row in rows.items()}, titles)


def draw_generated(folder: Path, made: dict[int, tuple[jets.GeneratedJets, Metrics]], name: str = "generated") -> None:
    """The six observables of generated and true jets, and some generated ones as pictures, by the class's label."""
    samples = []
    for label, (found, metrics) in sorted(made.items()):
        of = {name: (metrics[f"wasserstein_{name}"], metrics[f"wasserstein_{name}_truth"].value) for name in NAMES}
        text = {name: f"W = {distance} (halves {halves:.3f})" for name, (distance, halves) in of.items()}
        samples.append(ObservableSample(label, found.generated, found.truth, text))
    figure, axes = new_figure(2, 3, panel=(4.0, 3.2))
    observable_panels(axes.ravel(), samples)
    parts = []
    for sample in samples:
        for flag, values in ((1, sample.generated), (0, sample.truth)):
            n = len(values["mass"])
            parts.append({"class": np.full(n, sample.kind), "generated": np.full(n, flag), **values})
    save_figure(figure, folder, name, parts)
    for label, (found, _) in made.items():
        file = f"{name}-jets" if len(made) == 1 else f"{name}-jets-{CLASSES[label]}"
        rows = {f"{CLASSES[label]}, generated": found.pictures}
        draw_pictures(folder, file, rows, [""] * len(found.pictures), "jet")


class ComponentsStudy(TableStudy):
    """A run on one class of jets in components: a table, judged as one, whose rows are pictures.

    Rows held out have the noise that the training added, since the density is theirs; all other jets have none.
    """

    own: ClassVar = {
        "auc": "AUC of the score, jets of the other class against held-out ones",
        "rejection_30": "background rejection at signal efficiency 0.3",
        **TableStudy.own,
        "log_z": "log Z",
        **{f"wasserstein_{name}": f"Wasserstein distance of {name} of generated jets" for name in NAMES},
    }
    of_jets = True

    def judge(self, device: str, generated: int | None) -> tuple[Metrics, Draw]:
        """What a table's study says of the components, and tagging and generated jets."""
        model, events = load(self.run.path, device), self.run.events(self.config)
        rows = component_events(model, events, self.config.seed)
        test = table_test(model.in_components(), self.config, rows)
        metrics = table_metrics(model.in_components(), self.config, test)
        found, made = None, None
        with suppress(InputError):  # the file may have no jets of the other class
            found = jets.held_out_jets(self.config, self.run.read_provenance())
        if found is not None:
            sides = (found.signal, found.background)
            signal, background = (np.concatenate([model.score(x) for x in pieces(one)]) for one in sides)
            metrics |= jets.separation(signal, background)
            if generated:
                made = jets.generated_jets(self.run, model, found.background, generated, self.config.seed)
                metrics |= {} if made is None else jets.generation_metrics(made, self.config.seed)

        def draw() -> None:
            self._draw(test)
            self._draw_pictures(model, events.test.numpy())
            if found is not None:
                scores, tagged = jets.JetScores(background[None], signal[None], 1.0), 1 - found.label
                curve = jets.roc_curve_of(f"AUC {metrics['auc']}", scores, tagged)
                jets.draw_roc(self.run, curve, len(background))
            if made is not None:
                draw_generated(self.run.figures, {int(self.config.data.jets == "top"): (made, metrics)})

        return metrics, draw

    def _draw_pictures(self, model: Model, pictures: np.ndarray) -> None:
        """The least likely test jets, what their components say of them, and where the score comes from."""
        scores = np.concatenate([model.score(part) for part in np.array_split(pictures, -(-len(pictures) // 4096))])
        worst = np.argsort(-scores, kind="stable")[:GALLERY]
        x = pictures[worst]
        seen = model.coordinates.inverse(model.coordinates.forward(torch.from_numpy(x).to(model.device))).cpu().numpy()
        rows = {"picture": x[:, 0], "its components": seen[:, 0], "parts": model.explain(x)[:, 0]}
        draw_pictures(self.run.figures, "pictures", rows, [f"$E/T$ = {score:.3g}" for score in scores[worst]])

    def title(self) -> str:
        ensemble, jets_of = self.config.ensemble, "QCD" if self.config.data.jets == "qcd" else "top"
        which = f"seed {self.config.seed}" if ensemble is None else f"a mixture of {ensemble.members} trainings"
        return f"a normalized autoencoder of {jets_of} jets in components, {which}"

    def summary(self, metrics: Metrics) -> str:
        number = sum(name.startswith("wasserstein component") for name in metrics)
        share = 100 * metrics["auc"].value if "auc" in metrics else None  # the file may have no jets of the other class
        tags = "" if share is None else f" Jets of the other class score higher in {share:.1f} % of pairs (AUC)."
        return (
            f"The model is a density of jets in {number} components of their pictures, with the noise that is stated "
            "below; the score of a jet is the negative log-likelihood of its components. A classifier tells samples of "
            f"the model from held-out jets with AUC {metrics['auc_samples']} (0.5: not at all).{tags}"
        )

    def sample(self) -> dict[str, str]:
        data, given = self.config.data, self.config.coordinates.components
        assert given is not None
        size = f"{data.train:,}" if data.train else "all other"
        what = f"{given.number} of pixel^{given.power:g}, basis {given.basis}, noise {given.noise:g} of a component's"
        samples = {"training sample": f"{size} {data.jets} jets", "test sample": f"{data.test:,} jets"}
        return samples | {"components": f"{what} width"}

    def captions(self, metrics: Metrics) -> Captions:
        found = super().captions(metrics)
        found["pictures"] = (
            "The least likely jets",
            "Test jets of the class trained on with the highest scores: the picture, the picture that its components "
            "alone make, and what each pixel adds to the score (red) or takes from it (blue), against a likely jet.",
        )
        if "auc" in metrics:
            found["roc"] = ("ROC curve", "Jets of the other class kept over held-out jets kept. Dotted: a coin.")
        if "generated_jets" in metrics:
            found["generated"] = ("Observables of generated jets", "Generated (dashed) and true jets (solid).")
        return found

    def limits(self) -> str:
        return (
            "log p is that of the components with their noise: what a picture has beside them does not count. A "
            "likelihood ratio asks a density far outside its own sample, where it is an extrapolation. A density is not"
            " a tagger: a jet of another class can lie where this class is dense."
        )


def component_events(model: Model, events: Events, seed: int) -> Events:
    """Training and test jets as rows of components, with their noise, at most so many as are looked at."""
    coordinates = model.coordinates.to("cpu")
    assert isinstance(coordinates, ComponentsCoordinates)

    def noisy(name: str, y: torch.Tensor) -> torch.Tensor:
        return coordinates.noisy(y, 1, stream(seed, f"evaluation/noise/{name}"))

    def train() -> torch.Tensor:
        assert isinstance(events.train, SparseEvents)
        return noisy("train", coordinates.rows(events.train.first(ROWS)))

    names = tuple(f"component {k}" for k in range(model.seen_event[0]))
    test = noisy("test", coordinates.forward(events.test[:ROWS]))
    return Events(train, lambda: None, lambda: test, None, lambda: names)
