"""The card of a model of jets: what it is, what was chosen where the paper is silent, its numbers and the paper's."""

from typing import Any

from normae.config import Run, read
from normae.evaluation.jet_page import PAPER_LATENT, jet_names
from normae.evaluation.toy_page import posterior_words
from normae.jets.substructure import NAMES
from normae.report.paper import markdown_table, tagging_values
from normae.runs.folder import RunFolder
from normae.statistics import Estimate

OWN = {
    "energy_background": "mean energy of the jets that it was trained on",
    "mse_mean_image": "the same of their mean image",
    "mse_components": "the same of principal components, as many as latent dimensions",
    "negative_energy": "energy of negative samples at the end of the training",
    "manifold_energy": "the same of samples at T on the decoder's manifold: what chains in equilibrium do not exceed",
    "ece": "expected calibration error",
    "ece_perfect": "the same of a perfect classifier",
    "ece_corrected": "the same after correction",
}
"""Metrics without a value in the paper that a card states, with their words."""
GENERATED = {
    "generated_jets": "generated jets",
    **{
        f"wasserstein_{name}": f"Wasserstein distance of {name} from the truth's, in its standard deviations"
        for name in NAMES
    },
    "auc_generated_observables": "AUC of a classifier, generated against true jets, six observables",
    "auc_generated_images": "the same, pictures",
}
"""Metrics of generated jets that a card states."""
BAYESIAN = {"last": "the last layer's weights", "decoder": "the decoder's weights", "all": "all weights"}
"""What a mean-field posterior is of, by its `layers`."""


def jet_card(name: str, run: RunFolder, members: list[RunFolder]) -> str:
    """The model card in Markdown."""
    config, facts = read(run.config), run.read_provenance()
    seeds = [read(m.config).seed for m in members]
    spread = "" if len(seeds) == 1 else f" Seeds {seeds} were trained; seed {config.seed} ships, all are below."
    return f"""# {name}

{_what(config)}

## Data

Images of 40 × 40 pixels as in appendix A of the paper: {_sample(config)}
(SHA-256 of the training images {_hash(facts)}...). The jets are not part of the package.

## Settings

{_settings(config)}

## Chosen where the paper is silent

{_choices(config)}

## Training

{facts["wall_seconds"]:.0f} s on {facts["device"]} (backend `{facts["backend"]}`, torch {facts["torch"]},
commit `{facts["commit"]}`), {facts["rollbacks"]} rollbacks.{spread}{_acceptance(run)}

## Metrics

On the test jets. The paper's values are for the public TopTagging sample and its own training.

{metrics_table(config, members)}

## Limits

{_limits(config)}
"""


def _what(config: Run) -> str:
    task, network = jet_names(config)
    if config.classifier is not None:
        return f"A supervised classifier of top and QCD jets, the reference of section 4.2; run `{config.name}`."
    trained = {"qcd": "QCD", "top": "top"}[str(config.data.jets)]
    return f"The {network} of section 4 trained on {trained} jets ({task}); run `{config.name}`."


def _sample(config: Run) -> str:
    kind = {"both": "jets of each class", "qcd": "QCD jets", "top": "top jets"}[str(config.data.jets)]
    return f"{config.data.train:,} {kind} for the training, {config.data.test:,} test jets of each class"


def _hash(facts: dict[str, Any]) -> str:
    found = facts.get("data_sha256", "unknown")
    return str(found if isinstance(found, str) else found[0])[:16]


def _settings(config: Run) -> str:
    network, training = config.network, config.training
    if config.classifier is not None:
        given = config.classifier
        return (
            f"- network: the encoder, {network.channels} channels, one output\n- training: {given.epochs} epochs, "
            f"batch {given.batch}, learning rate {given.learning_rate:g} ({given.schedule}), best validation loss kept"
        )
    lines = [
        f"- network: convolutional, {network.channels} channels, {network.latent} latent dimensions "
        f"({network.latent_space}), {network.output} output{', spectral normalization' * network.spectral_norm}",
        f"- temperature: {config.temperature.initial:g}" + (", trained" if config.temperature.trained else ", fixed"),
        f"- pretraining: {config.pretraining.epochs} epochs, batch {config.pretraining.batch}, learning rate "
        f"{config.pretraining.learning_rate:g}" + (f"; started from {config.start}" if config.start else ""),
    ]
    if training.epochs:
        lines += [
            f"- training: {training.epochs} epochs, batch {training.batch}, learning rate {training.learning_rate:g} "
            f"({training.schedule}), {'averaged weights, ' if training.average else ''}"
            f"negative-energy penalty {training.negative_penalty:g}, L2 penalty {training.l2_penalty:g}",
            f"- latent chain: {config.sampling.latent.describe()}",
            f"- feature chain: {config.sampling.feature.describe()}",
            f"- buffer: {config.sampling.buffer:,} points in {config.sampling.buffer_space} space, "
            f"replay {config.sampling.replay:g}",
        ]
    return "\n".join(lines + ([f"- posterior: {posterior_words(config)}"] if config.posteriors else []))


def _choices(config: Run) -> str:
    if config.classifier is not None:
        return (
            "Images are divided by the root mean square pixel of the training sample; the score is corrected on the "
            "validation\njets where it is not calibrated there."
        )
    scale = {"temperature": "energies divided by T", "plain": "energies as they are"}
    lines = [
        "- the energy is the mean over pixels of squared differences",
        f"- loss of the pretraining: {scale[config.pretraining.loss_scale]}"
        + (f"; the output starts near {config.network.output_start:g}" if config.network.output_start else ""),
    ]
    if config.training.epochs:
        chain = config.sampling.feature
        test = "no Metropolis test, which accepts nothing at the paper's step" if chain.metropolis == "off" else (
            "an exact Metropolis test" if chain.exact else "a Metropolis test")  # fmt: skip
        lines += [
            f"- loss of the training: {scale[config.training.loss_scale]}",
            f"- feature chain: {test}; the gradient is clipped by the rule `{chain.clip_rule}`",
            f"- latent chain on the sphere: `{config.sampling.latent.sphere}` proposal",
        ]
    return "\n".join(lines)


def _acceptance(run: RunFolder) -> str:
    lines = [line for line in run.read_history() if line.get("latent_acceptance") is not None]
    if not lines:
        return ""
    last = lines[-1]
    return f"\nAcceptance at the end: latent {last['latent_acceptance']:.3f}, feature {last['feature_acceptance']:.3f}."


def metrics_table(config: Run, members: list[RunFolder]) -> str:
    """The paper's values beside those of every member, and what was measured besides."""
    metrics = [m.read_metrics() for m in members]
    header = ["quantity", "paper", *[f"seed {read(m.config).seed}" for m in members]]
    names = jet_names(config)
    of_the_paper = config.classifier is not None or config.network.latent == PAPER_LATENT
    values = tagging_values(*names, of_the_paper, config.modes)
    rows = [(value.metric, value.title, value.value) for value in values]
    rows += [(name, title, "—") for name, title in (OWN | GENERATED).items()]
    cells = [
        [title, printed, *[_cell(metric, found.get(metric)) for found in metrics]]
        for metric, title, printed in rows
        if any(metric in found for found in metrics)
    ]
    return markdown_table([header, *cells])


def _cell(metric: str, found: dict[str, float] | None) -> str:
    if found is None:
        return "—"
    return f"{found['value']:,.0f}" if metric == "generated_jets" else str(Estimate(found["value"], found["error"]))


def _limits(config: Run) -> str:
    if config.classifier is not None:
        return "Its log odds are a likelihood ratio only where both classes have jets and for jets made like these."
    said = "E/T is a score; log Z is not known for images, so that there is no log p.\nTrained on simulated jets only."
    if config.bayesian is not None and not config.modes:
        return said + f" Its error bars are those of {BAYESIAN[config.bayesian.layers]},\nnot of another training."
    if config.posteriors:
        return said + f" Its error bars are of this posterior: {posterior_words(config)}."
    return said + " The model is deterministic: its scores have no error bars."
