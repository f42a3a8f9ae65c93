"""The report of a run on jets: how well it tags, the health of its training, jets to look at, paper beside ours."""

from collections.abc import Mapping
from typing import Any

from normae.config import Run
from normae.errors import InputError
from normae.evaluation.jets import network_name, task_name
from normae.evaluation.toy_page import Status, acceptance_check, picture, posterior_words
from normae.report import Check, Comparison, Fact, Picture, Report
from normae.report.paper import tagging_values
from normae.runs.baselines import latent_dimensions
from normae.runs.folder import RunFolder
from normae.statistics import Estimate
from normae.temperature.latent import late_mean

Metrics = Mapping[str, Estimate]
NEEDED = ("auc", "rejection_20", "rejection_30", "score_background", "mse_mean_image", "mse_components")
NEEDED_CLASSIFIER = ("auc", "rejection_20", "rejection_30", "ece", "ece_perfect")
PAPER_LATENT = 6


def jet_report(run: RunFolder, config: Run, metrics: Metrics) -> Report:
    """What the page of a run on jets says."""
    missing = [name for name in (NEEDED if config.classifier is None else NEEDED_CLASSIFIER) if name not in metrics]
    if missing:
        raise InputError(f"{run.metrics}: lacks {missing[0]}; run `normae evaluate {run.path}` again")
    provenance, history = run.read_provenance(), run.read_history()
    autoencoder = config.classifier is None
    return Report(
        title=_title(config),
        summary=_summary(config, metrics) if autoencoder else _classifier_summary(metrics),
        facts=_facts(config, metrics, provenance),
        checks=jet_health(config, metrics, provenance, history) if autoencoder else [_calibration_check(metrics)],
        comparisons=jet_comparisons(config, metrics),
        pictures=_pictures(run, config, metrics) if autoencoder else _classifier_pictures(run),
        footer=f"normae {provenance['normae']}, commit {provenance['commit'] or 'unknown'}; made again by "
        f"normae evaluate {run.path} and normae report {run.path}",
    )


def jet_names(config: Run) -> tuple[str, str]:
    """Task and network, as the paper's table calls them."""
    return ("supervised", "classifier") if config.classifier is not None else (task_name(config), network_name(config))


def jet_comparisons(config: Run, metrics: Metrics) -> list[Comparison]:
    """The paper's values beside ours, for every metric that is there."""
    of_the_paper = config.classifier is not None or config.network.latent == PAPER_LATENT
    values = tagging_values(*jet_names(config), of_the_paper, config.modes)
    return [Comparison(v.title, v.value, metrics[v.metric], v.note) for v in values if v.metric in metrics]


def _title(config: Run) -> str:
    if config.classifier is not None:
        return f"{config.name}: a supervised classifier of top and QCD jets, seed {config.seed}"
    kind = ("Bayesian " if config.posteriors else "") + ("normalized " if config.training.epochs else "")
    words = {"qcd": "QCD jets, which tags tops", "top": "top jets, which tags QCD"}[str(config.data.jets)]
    article = "an" if not kind else "a"
    which = f"seed {config.seed}" if config.ensemble is None else f"{config.ensemble.members} trainings"
    return f"{config.name}: {article} {kind}autoencoder trained on {words}, {which}"


def _summary(config: Run, metrics: Metrics) -> str:
    background, signal = ("QCD", "top") if config.data.jets == "qcd" else ("top", "QCD")
    auc = metrics["auc"] if config.modes else metrics.get("auc_draws", metrics["auc"])
    said = (
        f"Trained on {background} jets alone, the reconstruction error ranks a {signal} jet above a {background} jet "
        f"in {100 * auc.value:.1f} % of pairs (AUC {auc}, 0.5 is a coin); at a signal efficiency of 0.3 one in "
        f"{metrics['rejection_30'].value:.3g} {background} jets passes."
    )
    if "auc_draws" in metrics:
        of_draws = "The errors of AUC and rejections are the spread over weight draws"
        of_modes = f"That is of the mixture; its trainings have an AUC of {metrics['auc_draws']}"
        said += (
            f" {of_modes if config.modes else of_draws}; the energy of a single {background} jet is uncertain by "
            f"{100 * metrics['relative_sigma_background'].value:.1f} % (median)."
        )
    if "auc_generated_images" in metrics:
        said += (
            f" A classifier tells its generated jets from true ones with AUC {metrics['auc_generated_images']} by "
            f"their pictures and {metrics['auc_generated_observables']} by six observables."
        )
    return said


def _classifier_summary(metrics: Metrics) -> str:
    corrected = f"; corrected, it is {metrics['ece_corrected']}" if "ece_corrected" in metrics else ""
    return (
        f"A supervised classifier, which knows both classes: AUC {metrics['auc']} on the test jets. Its expected "
        f"calibration error is {metrics['ece']}, where a perfect one would have {metrics['ece_perfect']}{corrected}. "
        "Calibrated, its log odds are the likelihood ratio that the dual test compares with."
    )


def _facts(config: Run, metrics: Metrics, provenance: dict[str, Any]) -> list[Fact]:
    network, training = config.network, config.training
    sphere = " on a sphere" if network.latent_space == "sphere" else ""
    facts = [
        Fact("preset", config.name),
        Fact("training sample", f"{config.data.train:,} jets ({config.data.jets})"),
        Fact("test sample", f"{config.data.test:,} jets of each class"),
    ]
    if config.classifier is not None:
        given = config.classifier
        facts.append(Fact("training", f"{given.epochs} epochs, batch {given.batch}, the lowest validation loss kept"))
    else:
        facts += [
            Fact("network", f"convolutional, {network.channels} channels, {network.latent} latent dimensions{sphere}, "
                 f"{network.output} output" + (", spectral normalization" if network.spectral_norm else "")),
            Fact("pretraining", f"from {config.start}" if config.start else
                 f"{config.pretraining.epochs} epochs, batch {config.pretraining.batch}"),
            *([Fact("training", f"{training.epochs} epochs, batch {training.batch}"),
               Fact("latent chain", config.sampling.latent.describe()),
               Fact("feature chain", config.sampling.feature.describe())] if training.epochs else []),
            Fact("temperature", f"{metrics['temperature'].value:.4g}"),
            Fact("energy of the background", metrics["energy_background"]),
            Fact("energy of the mean image alone", f"{metrics['mse_mean_image'].value:.3g}"),
            Fact(f"energy of {latent_dimensions(config)} principal components",
                 f"{metrics['mse_components'].value:.3g}"),
            *([Fact("posterior", posterior_words(config))] if config.posteriors else []),
        ]  # fmt: skip
    return [
        *facts,
        Fact("device", f"{provenance['device']}, backend {provenance['backend']}"),
        Fact("wall time of the training", f"{provenance['wall_seconds']:.0f} s"),
        Fact("versions", f"normae {provenance['normae']}, torch {provenance['torch']}, Python {provenance['python']}"),
    ]


# --- health


def jet_health(config: Run, metrics: Metrics, provenance: dict[str, Any], history: list[dict[str, Any]]) -> list[Check]:
    """What a reader should know about the training before trusting its result."""
    lines = [line for line in history if line.get("phase") == "training" and "rollback" not in line]
    checks = [_reconstruction_check(config, metrics)]
    if lines and config.training.epochs:
        checks += [_gap_check(lines), *_chain_checks(lines, config), *_equilibrium_check(config, metrics)]
    rollbacks = int(provenance["rollbacks"])
    said = "The training never ran away." if rollbacks == 0 else f"It ran away and was rolled back {rollbacks} times."
    checks.append(Check("stability", "good" if rollbacks == 0 else "warning", said))
    return [*checks, _tagging_check(metrics)]


def _reconstruction_check(config: Run, metrics: Metrics) -> Check:
    energy, mean, best = (metrics[name].value for name in ("energy_background", "mse_mean_image", "mse_components"))
    kept = latent_dimensions(config)
    share = f"{energy:.2g}; the mean image alone has {mean:.2g}, {kept} principal components {best:.2g}"
    if energy > 0.9 * mean:
        return Check("reconstruction", "bad", f"It reconstructs no better than one image for all: E = {share}.")
    status: Status = "good" if energy < 1.5 * best else "warning"
    return Check("reconstruction", status, f"The energy of the jets it was trained on is {share}.")


def _gap_check(lines: list[dict[str, Any]]) -> Check:
    positive, negative = (late_mean(lines, f"{sign}_energy").value for sign in ("positive", "negative"))
    gap = (positive - negative) / max(positive, negative)
    status: Status = "good" if abs(gap) < 0.1 else "warning" if abs(gap) < 0.5 else "bad"
    return Check(
        "energies meet",
        status,
        f"(E⁺ − E⁻) is {100 * gap:+.0f} % of the larger one over the last tenth of the training; it vanishes where "
        "samples follow the data.",
    )


def _chain_checks(lines: list[dict[str, Any]], config: Run) -> list[Check]:
    accepted = lines[-1].get("latent_acceptance")
    if accepted is None:
        return [acceptance_check(lines, config)]
    status: Status = "good" if 0.3 < accepted <= 0.95 else "warning"
    exact = "exact" if config.sampling.latent.exact else "approximate"
    said = f"The latent chain accepts {100 * accepted:.1f} %; its test is {exact}."
    if accepted > 0.95:
        said += " Its steps are short: larger ones go further in as many."
    return [Check("latent chain", status, said), acceptance_check(lines, config)]


def _equilibrium_check(config: Run, metrics: Metrics) -> list[Check]:
    """Where negative samples are relaxed below T, so that they may not lie above the manifold that they came from."""
    negative, manifold = (metrics.get(f"{name}_energy") for name in ("negative", "manifold"))
    if negative is None or manifold is None or config.sampling.feature.metropolis == "exact":
        return []
    said = f"Negative samples ended at E = {negative}; samples at T on the decoder's manifold have {manifold}"
    if negative.value < 1.2 * manifold.value:
        return [Check("equilibrium", "good", f"{said}, and relaxing them lowers it.")]
    why = ": the chains are too short, or their steps too small, to reach equilibrium."
    return [Check("equilibrium", "warning", said + why)]


def _tagging_check(metrics: Metrics) -> Check:
    auc = metrics.get("auc_draws", metrics["auc"])
    if auc.value > 0.5 + 3 * auc.error:
        return Check("tagging", "good", f"What it was not trained on scores higher: AUC {auc}.")
    return Check(
        "tagging",
        "warning",
        f"What it was not trained on does not score higher: AUC {auc}. A plain autoencoder does so where the signal is "
        "simpler than the background; a normalized one should not.",
    )


def _calibration_check(metrics: Metrics) -> Check:
    found = metrics.get("ece_corrected", metrics["ece"])
    perfect = metrics["ece_perfect"]
    good = found.value < perfect.value + 3 * max(perfect.error, 1e-12)
    said = f"The expected calibration error is {found} after correction; a perfect score would have {perfect}."
    return Check("calibration", "good" if good else "warning", said)


# --- pictures


def _pictures(run: RunFolder, config: Run, metrics: Metrics) -> list[Picture]:
    background, signal = ("QCD", "top") if config.data.jets == "qcd" else ("top", "QCD")
    bands = "; bands are one standard deviation over weight draws" if config.posteriors else ""
    error = ", ± the standard deviation over weight draws" if config.posteriors else ""
    sentences = {
        "roc": ("ROC curve", f"The share of {signal} jets kept over that of {background} jets, and the rejection of "
                f"{background} jets{bands}. Dotted: a coin."),
        "energies": ("Energies", f"E/T of {background} jets, which it was trained on, and of {signal} jets{bands}. The "
                     "further the signal lies to the right, the better it is tagged."),
        "gallery-anomalous": (
            "The most anomalous jets",
            f"The eight highest scores among all test jets, with their true class and E/T{error}: input, what the "
            "network makes of it, and the difference (red: energy that it misses, blue: that it invents). η to the "
            "right, φ upwards. Inputs and reconstructions are on a logarithmic scale, differences on a linear one: E "
            "is the mean of their squares, so that a score is what the dark places add up to."),
        "gallery-typical": (
            "Typical jets",
            f"{background} jets with a score at the median. The scale of the differences is that of this picture "
            "alone; what is left in a jet that is well described is fine structure, at the size of a pixel."),
        "generated": (
            "Observables of generated jets",
            "Generated (dashed) and true jets (solid). W is the Wasserstein distance in standard deviations of the "
            "truth, in brackets that of two halves of the truth: a model that is right would have about as much."),
        "generated-jets": ("Generated jets", "Pictures of the first chains: do they look like the typical jets above?"),
        "pretraining": (
            "Course of the pretraining",
            "Reconstruction error on training and on validation jets, and what simpler models of the training jets "
            "reach on the validation jets: their mean image, and as many principal components as the latent sphere has "
            "dimensions."),
        "training": (
            "Course of the training",
            "Energies of jets and of chains, which should meet, and the share of accepted steps."),
    }  # fmt: skip
    optional = ("generated", "generated-jets", "pretraining", "training")
    shown = [name for name in sentences if name not in optional or (run.figures / f"{name}.svg").is_file()]
    if "wasserstein_mass" not in metrics:
        shown = [name for name in shown if not name.startswith("generated")]
    return [picture(run, name, *sentences[name]) for name in shown]


def _classifier_pictures(run: RunFolder) -> list[Picture]:
    sentences = {
        "roc": ("ROC curve", "Top jets kept over QCD jets kept, and the rejection of QCD jets. Dotted: a coin."),
        "reliability": (
            "Reliability",
            "Share of top jets among test jets over the score: on the diagonal the score is the probability."),
        "training": ("Course of the training", "The network with the lowest validation loss is kept."),
    }  # fmt: skip
    shown = [name for name in sentences if name != "training" or (run.figures / "training.svg").is_file()]
    return [picture(run, name, *sentences[name]) for name in shown]
