"""The report of a run: what ran, the health of the training, each figure with a sentence, paper beside ours."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from normae.config import Run, read
from normae.errors import InputError
from normae.files import write_text
from normae.report import Check, Comparison, Fact, Picture, Report, render
from normae.report.paper import BAYES, TOY
from normae.runs.folder import RunFolder
from normae.statistics import Estimate

Metrics = Mapping[str, Estimate]
NEEDED = ("kl", "share_within_10_percent", "auc_ideal", "temperature", "log_z", "pearson_grid", "pearson_test",
          "auc_classifier_exact")  # fmt: skip
ALONE = ("log_z_paper_grid", "auc_classifier_long")
"""Needed of a deterministic run besides."""
POSTERIOR = ("pull_width", "coverage_quantile_68", "coverage_quantile_95", "sigma_log_p", "relative_density_ratio")
"""Needed of a Bayesian run besides."""
Status = Literal["good", "warning", "bad"]


def report(path: str | Path) -> Path:
    """Write report.html of the evaluated run at `path` and return where it is."""
    run = RunFolder.existing(path)
    config = read(run.config)
    metrics = {name: Estimate(m["value"], m["error"]) for name, m in run.read_metrics().items()}
    if config.data.jets is not None:
        from normae.evaluation.jet_page import jet_report

        write_text(run.report, render(jet_report(run, config, metrics)))
        return run.report
    if config.data.file is not None:
        from normae.evaluation.table_page import table_report

        write_text(run.report, render(table_report(run, config, metrics)))
        return run.report
    needed = NEEDED + (POSTERIOR if config.posteriors else ALONE)
    missing = [name for name in needed if name not in metrics]
    if missing:
        raise InputError(f"{run.metrics}: lacks {missing[0]}; run `normae evaluate {run.path}` again")
    provenance = run.read_provenance()
    history = run.read_history()
    kind = "Bayesian normalized" if config.posteriors else "normalized"
    page = Report(
        title=f"{config.name}: a {kind} autoencoder on {config.data.density}, seed {config.seed}",
        summary=_summary(config, metrics),
        facts=_facts(config, metrics, provenance, history),
        checks=health(config, metrics, provenance, history),
        comparisons=comparisons(config, metrics),
        pictures=_pictures(run, config, metrics),
        footer=f"normae {provenance['normae']}, commit {provenance['commit'] or 'unknown'}; made again by "
        f"normae evaluate {run.path} and normae report {run.path}",
    )
    write_text(run.report, render(page))
    return run.report


def comparisons(config: Run, metrics: Metrics) -> list[Comparison]:
    """The paper's values beside ours, for every metric that is there."""
    notes = {
        "auc_classifier_long": f"feature chain {config.evaluation.long_factor} times as long",
        "auc_classifier_generation": f"feature chain of {config.sampling.generation_steps} steps",
    }
    of_the_paper = config.data.density == "two-gaussians"
    return [
        Comparison(v.title, v.value if of_the_paper else "—", metrics[v.metric], notes.get(v.metric, v.note))
        for v in (BAYES if config.posteriors else TOY)
        if v.metric in metrics
    ]


def _summary(config: Run, metrics: Metrics) -> str:
    share = metrics["share_within_10_percent"]
    return (
        "The reconstruction error of this autoencoder, divided by its temperature, is a negative log-likelihood up to "
        f"a constant. Trained on {config.data.train:,} points of a known density, it reproduces that density to KL = "
        f"{metrics['kl']}: |Δ| < 10 % holds for {100 * share.value:.3f} % of the test set, and an ideal classifier "
        f"that knows both densities reaches an AUC of {metrics['auc_ideal']} (0.5 is a coin)."
        + (_posterior_words(metrics) if config.posteriors else "")
    )


def _posterior_words(metrics: Metrics) -> str:
    return (
        f" Its error bar of log p is {metrics['sigma_log_p'].value:.4f} where the error is "
        f"{metrics['error_log_p'].value:.4f} (root mean squares over the test set); the 68 and 95 % intervals hold the "
        f"truth for {100 * metrics['coverage_quantile_68'].value:.0f} and "
        f"{100 * metrics['coverage_quantile_95'].value:.0f} % of the test set. One training's coverage scatters, since "
        "its errors are correlated: `normae coverage` judges it over several."
    )


def _facts(config: Run, metrics: Metrics, provenance: dict[str, Any], history: list[dict[str, Any]]) -> list[Fact]:
    iterations = history[-1]["iteration"] if history else 0
    network, training = config.network, config.training
    kind = "trained" if config.temperature.trained else "fixed"
    return [
        Fact("preset", config.name),
        Fact("data", f"{config.data.density}, {config.data.train:,} training and {config.data.test:,} test points"),
        Fact("network", f"MLP {list(network.hidden)}, {network.activation}, {network.latent}-dimensional latent space"),
        Fact("pretraining", f"{config.pretraining.epochs} epochs, batch {config.pretraining.batch}"),
        Fact("training", f"{training.epochs} epochs, batch {training.batch}, {iterations} iterations"),
        Fact("latent chain", config.sampling.latent.describe()),
        Fact("feature chain", config.sampling.feature.describe()),
        Fact("replay buffer", f"{config.sampling.buffer:,} {config.sampling.buffer_space} points, "
             f"replay {config.sampling.replay:g}"),
        Fact("temperature", f"{metrics['temperature'].value:.4f} ({kind})"),
        Fact("log Z over the chain's bounds", metrics["log_z"]),
        *([Fact("log Z over the paper's grid", metrics["log_z_paper_grid"])] if "log_z_paper_grid" in metrics else []),
        *([Fact("posterior", posterior_words(config))] if config.posteriors else []),
        Fact("device", f"{provenance['device']}, backend {provenance['backend']}"),
        Fact("wall time of the training", f"{provenance['wall_seconds']:.0f} s"),
        Fact("seed", str(config.seed)),
        Fact("versions", f"normae {provenance['normae']}, torch {provenance['torch']}, Python {provenance['python']}"),
    ]  # fmt: skip


EVENTS = {
    "all": "all on the same events",
    "bootstrap": "each on its own bootstrap of the events",
    "split": "each on its own part of the events",
}
"""How the members of an ensemble share them."""


def posterior_words(config: Run) -> str:
    """What the posterior of a Bayesian run is."""
    if config.laplace is not None:
        return f"of the linearized network, {config.laplace.layers} weights, prior width {config.laplace.prior_width:g}"
    if config.modes and config.ensemble is not None:
        mean_field = posterior_words(replace(config, ensemble=None))
        return f"mixture of {config.ensemble.members} trainings, {EVENTS[config.ensemble.events]}, each a {mean_field}"
    if config.ensemble is not None:
        return f"ensemble of {config.ensemble.members} models, {EVENTS[config.ensemble.events]}"
    assert config.bayesian is not None
    return (
        f"mean field, {config.bayesian.layers} weights, prior width {config.bayesian.prior_width:g}, "
        f"{config.bayesian.training} draws"
    )


def health(config: Run, metrics: Metrics, provenance: dict[str, Any], history: list[dict[str, Any]]) -> list[Check]:
    """What a reader should know about the training before trusting its result."""
    lines = [line for line in history if line.get("phase") == "training" and "rollback" not in line]
    checks = [energy_check(lines), acceptance_check(lines, config)] if lines else []
    checks.append(stability_check(provenance))
    chains = [_chain_check(metrics)] if "auc_classifier_long" in metrics else []
    if config.posteriors:
        return [*checks, *chains, _coverage_check(metrics)]
    return [*checks, *chains, _normalization_check(metrics)]


def _coverage_check(metrics: Metrics) -> Check:
    width = metrics["pull_width"].value
    status: Status = "good" if 0.7 < width < 1.4 else "warning"
    return Check(
        "error bars",
        status,
        f"The pulls of log p have the width {width:.2f} on the test set; one is right, more is too narrow a posterior.",
    )


def stability_check(provenance: Mapping[str, Any]) -> Check:
    """Whether the training ran away."""
    rollbacks = int(provenance["rollbacks"])
    said = "The training never ran away." if rollbacks == 0 else f"It ran away and was rolled back {rollbacks} times."
    return Check("stability", "good" if rollbacks == 0 else "warning", said)


def energy_check(lines: list[dict[str, Any]]) -> Check:
    """Whether the energies of data and samples meet."""
    tail = lines[-max(1, len(lines) // 10) :]
    gaps = [(line["positive_energy"] - line["negative_energy"]) / line["temperature"] for line in tail]
    gap = sum(gaps) / len(gaps)
    status: Status = "good" if abs(gap) < 0.02 else "warning" if abs(gap) < 0.1 else "bad"
    return Check(
        "energies meet",
        status,
        f"(E⁺ − E⁻)/T is {gap:+.4f} over the last tenth of the training; it vanishes where samples follow the data.",
    )


def acceptance_check(lines: list[dict[str, Any]], config: Run) -> Check:
    """Whether the feature chain samples, and by which test."""
    accepted = lines[-1]["feature_acceptance"]
    chain = config.sampling.feature
    if chain.metropolis == "off":
        return Check("acceptance", "warning", "The feature chain ran without a Metropolis test, so it is not exact.")
    status: Status = "good" if 0.3 <= accepted <= 0.95 else "warning"
    advice = (
        "its steps could be longer" if accepted > 0.95 else "its steps are long" if accepted < 0.3 else "as it should"
    )
    kind = "exact" if chain.exact else "approximate"
    return Check(
        "acceptance", status, f"The feature chain accepts {100 * accepted:.1f} % ({advice}); the test is {kind}."
    )


def _chain_check(metrics: Metrics) -> Check:
    longest = "auc_classifier_generation" if "auc_classifier_generation" in metrics else "auc_classifier_long"
    chain, exact = metrics[longest], metrics["auc_classifier_exact"]
    difference = chain.value - exact.value
    error = (chain.error**2 + exact.error**2) ** 0.5
    status: Status = "good" if abs(difference) < max(3 * error, 0.005) else "warning"
    return Check(
        "chains sample the model",
        status,
        f"A classifier tells long chains from the data with AUC {chain}, exact draws of the model with {exact}; "
        "the two agree where the chains have converged.",
    )


def _normalization_check(metrics: Metrics) -> Check:
    error = metrics["log_z"].error
    status: Status = "good" if error < 1e-3 else "warning"
    return Check("normalization", status, f"Halving the grid's cells changes log Z by {error:.1e}.")


def _pictures(run: RunFolder, config: Run, metrics: Metrics) -> list[Picture]:
    share = metrics["share_within_10_percent"].value
    outside = round((1 - share) * config.data.test)
    sentences = {
        "uncertainties": (
            "Energy, density and their uncertainties",
            "Above E/T, its uncertainty and its relative uncertainty; below the same of the density. σ(p)/⟨p⟩ and "
            "σ(E/T) behave alike: their ratio is "
            + (str(metrics["relative_density_ratio"]) if config.posteriors else "")
            + " on the test set.",
        ),
        "pulls": (
            "Pulls",
            "Deviation from the truth in units of the error bar, on the test set, beside the unit Gaussian.",
        ),
        "coverage": (
            "Coverage",
            "Share of the test set whose interval holds the truth, over the nominal level: above the diagonal the "
            "error bars are too large, below too small.",
        ),
        "coverage-regions": (
            "Coverage by region",
            "The regions, the coverage on the test set, and that of the grid points of each region for log p and p.",
        ),
        "density": ("Density", "True density on the left, learned density on the right, in the same colours."),
        "marginal-x1": (
            "Marginal density in x₁",
            "Learned and true density, integrated over x₂, with their ratio below.",
        ),
        "marginal-x2": (
            "Marginal density in x₂",
            "Learned and true density, integrated over x₁, with their ratio below.",
        ),
        "grid-correlation": (
            "Learned against true log-likelihood, grid",
            f"Points on the diagonal are right; Pearson is {metrics['pearson_grid'].value:.4f} over all of the grid, "
            "most of which holds no training point.",
        ),
        "grid-regions": ("The regions", "Bands of −log p_true on the grid, in the colours of the figure beside."),
        "test-correlation": (
            "Learned against true log-likelihood, test set",
            f"Where there are data: between the red lines |Δ| < 10 %; Pearson is {metrics['pearson_test']}.",
        ),
        "test-deviation": (
            "Where the model is off by 10 % or more",
            f"{outside:,} of {config.data.test:,} test points (red) have |Δ| ≥ 10 %.",
        ),
        "training": (
            "Course of the training",
            "Energies of data and of samples in units of T, which meet; the temperature; the share of accepted steps.",
        ),
    }
    left_out = ("density",) if config.posteriors else ("uncertainties", "pulls", "coverage", "coverage-regions")
    return [picture(run, name, *words) for name, words in sentences.items() if name not in left_out]


def picture(run: RunFolder, name: str, title: str, sentence: str) -> Picture:
    """A figure of the run, or an error that says how to make it."""
    path = run.figures / f"{name}.svg"
    if not path.is_file():
        raise InputError(f"{path}: missing; run `normae evaluate {run.path}` first")
    return Picture(title, path.read_text(encoding="utf-8"), sentence)
