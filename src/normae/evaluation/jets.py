"""Judge a run that was trained on one class of jets by how it tells the other class apart: section 4.1 of the paper.

The score is E/T: whoever was trained on QCD jets tags tops, and the other way round. Numbers without "_draws" are of
all weight draws together, with counting errors; those with it are the mean over draws of the same number of
each draw, with the standard deviation over draws as error, as in the paper's table for Bayesian networks.
The energies of the test sample are kept in scores.npz, with a key that stands for weights, jets and draws: drawing
again needs no new pass through the network.
"""

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from normae.config import Run
from normae.data import SparseEvents, linear_errors
from normae.files import atomic_path
from normae.inference import BayesianModel, Model
from normae.posterior.modes import ModeDraws, together
from normae.runs.baselines import latent_dimensions
from normae.runs.folder import RunFolder
from normae.runs.jet_sample import JetTest, held_out_jets, pieces
from normae.runs.load import load
from normae.statistics import Estimate, auc, background_efficiency, rejection
from normae.statistics.arrays import Array
from normae.temperature.latent import chain_metrics

Metrics = dict[str, Estimate]
EFFICIENCIES = {"rejection_20": 0.2, "rejection_30": 0.3}
"""Signal efficiencies of the paper's table."""
CURVE = np.concatenate([np.linspace(0.001, 0.05, 50, endpoint=False), np.linspace(0.05, 1.0, 191)])
"""Signal efficiencies of a ROC curve."""


@dataclass(frozen=True)
class JetScores:
    """E of every weight draw, one for a deterministic run: background with shape (n, N), signal with shape (n, M).

    `shift`: of a model whose density is the mean of those of the draws, the constant of each with shape (n,); E is then
    T times a score with its constant in it, of which the mean is not an energy.
    """

    background: NDArray[np.float32]
    signal: NDArray[np.float32]
    temperature: float
    shift: Array | None = None

    @property
    def mixture(self) -> bool:
        """Whether the density is the mean of those of the draws."""
        return self.shift is not None

    def mean_energy(self, energies: NDArray[np.float32]) -> Array:
        """Mean over draws of E, with shape (N,), without constants, of the signal's or the background's with them."""
        constant = 0.0 if self.shift is None else self.temperature * float(self.shift.mean())
        found: Array = energies.mean(axis=0, dtype=np.float64) + constant
        return found

    @property
    def bayesian(self) -> bool:
        """Whether there are several draws."""
        return len(self.background) > 1

    @property
    def central(self) -> tuple[Array, Array]:
        """E/T of signal and background, each with shape (N,): what the draws say together."""
        signal, background = (
            np.asarray(together(e.astype(np.float64) / self.temperature, self.mixture))
            for e in (self.signal, self.background)
        )
        return signal, background


def network_name(config: Run) -> str:
    """AE, NAE, BAE or BNAE."""
    return ("B" if config.posteriors else "") + ("NAE" if config.training.epochs else "AE")


def task_name(config: Run) -> str:
    """What a run on jets tags: the class that it was not trained on."""
    return "top-tagging" if config.data.jets == "qcd" else "QCD-tagging"


def evaluate_jets(
    run: RunFolder, config: Run, figures: bool = True, device: str = "auto", generated: int | None = None
) -> Metrics:
    """The metrics of a run on jets; draws its figures and keeps energies and observables in the run folder.

    Args:
        generated: jets to generate; if not given, `evaluation.generated` on a CUDA device and none on a CPU.
    """
    from normae.evaluation.jet_generation import generated_jets, generation_metrics

    model, test = load(run.path, device), held_out_jets(config)
    scores = jet_scores(run, model, test, config.evaluation.draws)
    metrics = tagging_metrics(scores) | simple_models(test.background, latent_dimensions(config), model.device)
    metrics |= chain_metrics(run, config, model)
    made = None
    if config.training.epochs:
        count = config.evaluation.generated if model.device.type == "cuda" else 0
        made = generated_jets(run, model, test.background, count if generated is None else generated, config.seed)
        metrics |= {} if made is None else generation_metrics(made, config.seed)
    if figures:
        from normae.evaluation.jet_drawing import draw_jets

        draw_jets(run, config, model, test, scores, metrics, made)
    return metrics


# --- energies


def jet_scores(run: RunFolder, model: Model, test: JetTest, draws: int) -> JetScores:
    """The energies of the test sample: those that scores.npz keeps, where they belong to this run and these jets."""
    count = draws if isinstance(model, BayesianModel) else 1
    key = digest(run, test.digest, str(count))
    mixture = isinstance(model, BayesianModel) and model.mixture
    kept = read_kept(run.scores, key, ("background", "signal", *(["shift"] if mixture else [])))
    if kept is None:
        kept = {name: energies(model, getattr(test, name), count) for name in ("background", "signal")}
        if mixture:
            kept["shift"] = shifts(model, count)
        write_kept(run.scores, key, kept)
    return JetScores(kept["background"], kept["signal"], model.temperature, kept.get("shift"))


def shifts(model: Model, draws: int) -> NDArray[np.float64]:
    """The constant of every draw of a mixture, with shape (n,)."""
    assert isinstance(model, BayesianModel)
    found = model.draw_set(draws, 0)
    assert isinstance(found, ModeDraws)
    return np.asarray(found.shift.double().cpu().numpy())


def energies(model: Model, events: SparseEvents, draws: int) -> NDArray[np.float32]:
    """E of every draw, with shape (n, N), in pieces of bounded memory; all draws of an event at once.

    Draws of a mixture may differ in T: theirs is the score times the T of the model.
    """
    found = np.empty((draws, len(events)), dtype=np.float32)
    start = 0
    for x in pieces(events):
        if not isinstance(model, BayesianModel):
            part = model.energy(x)[None]
        elif model.mixture:
            part = model.temperature * model.score_draws(x, draws)
        else:
            part = model.energy_draws(x, draws)
        found[:, start : start + len(x)] = part
        start += len(x)
    return found


def digest(run: RunFolder, *parts: str) -> str:
    """Stands for a run's weights and for `parts`."""
    return hashlib.sha256("\n".join([hashlib.sha256(run.model.read_bytes()).hexdigest(), *parts]).encode()).hexdigest()


def read_kept(path: Path, key: str, names: tuple[str, ...]) -> dict[str, NDArray[Any]] | None:
    """The arrays of a file that was kept with this key; None where there is none, or a damaged or another one."""
    try:
        with np.load(path, allow_pickle=False) as content:
            return {name: content[name] for name in names} if str(content["key"]) == key else None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def write_kept(path: Path, key: str, arrays: dict[str, NDArray[Any]]) -> None:
    """Keep arrays with a key that says what they belong to."""
    with atomic_path(path) as temporary:
        np.savez_compressed(temporary, key=np.array(key), **arrays)  # type: ignore[arg-type]


# --- numbers


def tagging_metrics(scores: JetScores) -> Metrics:
    """AUC and background rejections, mean scores, and what the draws say of all of them."""
    signal, background = scores.central
    metrics = {"auc": auc(signal, background)}
    metrics |= {name: rejection(signal, background, share) for name, share in EFFICIENCIES.items()}
    metrics |= {"score_background": _mean(background), "score_signal": _mean(signal)}
    metrics |= {"energy_background": _mean(scores.mean_energy(scores.background))}
    metrics |= {"temperature": Estimate(scores.temperature, 0.0)}
    if not scores.bayesian:
        return metrics
    rows = list(zip(scores.signal, scores.background, strict=True))
    metrics["auc_draws"] = _over([auc(s, b).value for s, b in rows])
    for name, share in EFFICIENCIES.items():
        metrics[f"{name}_draws"] = _over([rejection(s, b, share).value for s, b in rows])
    for name, energy in (("background", scores.background), ("signal", scores.signal)):
        relative = energy.std(axis=0, ddof=1, dtype=np.float64) / scores.mean_energy(energy)
        metrics[f"relative_sigma_{name}"] = Estimate(float(np.median(relative)), 0.0)
    return metrics


def _mean(values: Array) -> Estimate:
    return Estimate(float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size)))


def _over(values: list[float]) -> Estimate:
    return Estimate(float(np.mean(values)), float(np.std(values, ddof=1)))


def simple_models(events: SparseEvents, components: int, device: torch.device) -> Metrics:
    """What an autoencoder must beat: E of the mean image, and of as many principal components as it has dimensions.

    Mean and components are those of the test jets themselves; `figures/pretraining` has them of the training jets.
    """
    found = linear_errors(events, events, (0, components), device)
    return {name: _mean(e.numpy()) for name, e in zip(("mse_mean_image", "mse_components"), found, strict=True)}


# --- curves


def roc_band(scores: JetScores) -> tuple[Array, Array | None]:
    """eps_B of the central score at the efficiencies of `CURVE`, and the spread over draws of eps_B and log eps_B."""
    signal, background = scores.central
    central = background_efficiency(signal, background, CURVE)
    if not scores.bayesian:
        return central, None
    rows = [background_efficiency(s, b, CURVE) for s, b in zip(scores.signal, scores.background, strict=True)]
    shares = np.maximum(np.stack(rows), 0.5 / scores.background.shape[1])
    return central, np.stack([shares.std(axis=0, ddof=1), np.log(shares).std(axis=0, ddof=1)])
