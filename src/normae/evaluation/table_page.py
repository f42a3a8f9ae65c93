"""The report of a run on a table."""

from collections.abc import Mapping

from normae.config import Run
from normae.errors import InputError
from normae.evaluation.toy_page import Status, acceptance_check, energy_check, picture, posterior_words, stability_check
from normae.report import Check, Fact, Picture, Report
from normae.runs.folder import RunFolder
from normae.statistics import Estimate

Metrics = Mapping[str, Estimate]
NEEDED = ("mean_score_training", "mean_score_held_out", "auc_overtraining", "auc_samples")


def table_report(run: RunFolder, config: Run, metrics: Metrics) -> Report:
    """What ran, whether the model has learned the table, and where it has not."""
    for name in NEEDED:
        if name not in metrics:
            raise InputError(f"{run.metrics}: lacks {name}; run `normae evaluate {run.path}` again")
    provenance = run.read_provenance()
    kind = "Bayesian normalized" if config.posteriors else "normalized"
    return Report(
        title=f"{config.name}: a {kind} autoencoder on a table, seed {config.seed}",
        summary=_summary(metrics),
        facts=_facts(config, metrics, provenance),
        checks=_checks(run, config, metrics),
        comparisons=[],
        pictures=_pictures(run),
        footer=f"normae {provenance['normae']}, commit {provenance['commit'] or 'unknown'}; made again by "
        f"normae evaluate {run.path} and normae report {run.path}",
    )


def _summary(metrics: Metrics) -> str:
    known = "mean_log_prob_held_out" in metrics
    return (
        "The score of a row is E/T, its reconstruction error over the temperature: the negative log-likelihood of the "
        f"row, up to {'log Z, which is known' if known else 'a constant, log Z, which is not known'}. Nobody knows the "
        "density of this table, so the model is judged by rows that were held out: a classifier tells samples of the "
        f"model from them with AUC {metrics['auc_samples']} (0.5: not at all)."
    )


def _facts(config: Run, metrics: Metrics, provenance: Mapping[str, object]) -> list[Fact]:
    network = config.network
    known = [Fact("mean log p, held out", metrics["mean_log_prob_held_out"])] if "log_z" in metrics else []
    return [
        Fact("data", f"{config.data.file}, {config.data.test:,} rows held out"),
        Fact("network", f"MLP {list(network.hidden)}, {network.activation}, {network.latent}-dimensional latent space"),
        Fact("feature chain", config.sampling.feature.describe()),
        Fact("temperature", f"{metrics['temperature'].value:.4g}"),
        Fact("mean score, training", metrics["mean_score_training"]),
        Fact("mean score, held out", metrics["mean_score_held_out"]),
        Fact("mean score, sampled", metrics["mean_score_sampled"]),
        *known,
        *([Fact("posterior", posterior_words(config))] if config.posteriors else []),
        Fact("device", f"{provenance['device']}, backend {provenance['backend']}"),
        Fact("seed", str(config.seed)),
        Fact("versions", f"normae {provenance['normae']}, torch {provenance['torch']}, Python {provenance['python']}"),
    ]


def _checks(run: RunFolder, config: Run, metrics: Metrics) -> list[Check]:
    lines = [line for line in run.read_history() if line.get("phase") == "training" and "rollback" not in line]
    return [
        *([energy_check(lines), acceptance_check(lines, config)] if lines else []),
        stability_check(run.read_provenance()),
        _overtraining_check(metrics["auc_overtraining"]),
        _samples_check(metrics["auc_samples"]),
    ]


def _overtraining_check(told: Estimate) -> Check:
    excess = told.value - 0.5
    status: Status = "good" if excess < max(0.01, 2 * told.error) else "warning" if excess < 0.05 else "bad"
    return Check(
        "overtraining",
        status,
        f"By their scores rows held out are told from rows of the training with AUC {told}; 0.5 is no overtraining.",
    )


def _samples_check(told: Estimate) -> Check:
    status: Status = "good" if told.value < 0.55 else "warning" if told.value < 0.7 else "bad"
    return Check(
        "samples look like the table",
        status,
        f"A classifier that sees all columns tells samples from rows held out with AUC {told}. Where it is far from "
        "0.5 the score orders rows, but is not the likelihood of this table.",
    )


def _pictures(run: RunFolder) -> list[Picture]:
    sentences = {
        "scores": (
            "Scores",
            "Rows of the training and rows held out lie on each other where nothing is overtrained; samples lie on "
            "them where the model has the density of the table.",
        ),
        "columns": (
            "Columns",
            "Rows held out and samples of the model, for the columns that differ most; the distance is the Wasserstein "
            "distance in standard deviations, and what two halves of the rows held out have is what cannot be told.",
        ),
        "training": (
            "Course of the training",
            "Energies of data and of samples in units of T, which meet; the temperature; the share of accepted steps.",
        ),
    }
    drawn = [name for name in sentences if name != "training" or (run.figures / "training.svg").is_file()]
    return [picture(run, name, *sentences[name]) for name in drawn]
