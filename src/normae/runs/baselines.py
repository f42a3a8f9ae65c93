"""Did the pretraining converge: the error of the autoencoder on the validation sample against two linear models.

The mean event alone, and as many principal components as the latent space has dimensions (five for the paper's sphere
of six). An autoencoder that does not reach the second line has not learned more than a matrix would.
"""

import numpy as np
import torch

from normae.config import Run
from normae.data import linear_errors
from normae.runs.folder import RunFolder
from normae.statistics import Estimate
from normae.sources import Events

Baselines = dict[str, dict[str, float]]


def latent_dimensions(config: Run) -> int:
    """Dimensions of the latent space: a sphere in d_z dimensions has one less."""
    return config.network.latent - (config.network.latent_space == "sphere")


def baselines(config: Run, events: Events, device: torch.device) -> Baselines:
    """Mean errors of the linear models on the validation sample, with their standard errors; nothing without one."""
    k = latent_dimensions(config)
    if events.validation is None or k >= int(np.prod(events.train.shape[1:])):
        return {}
    found = linear_errors(events.train, events.validation, (0, k), device)
    names = ("mse_mean_event", f"mse_{k}_components")
    return {
        name: {"value": float(e.mean()), "error": float(e.std() / len(e) ** 0.5)}
        for name, e in zip(names, found, strict=True)
    }


def pretraining_metrics(run: RunFolder) -> dict[str, Estimate]:
    """The last validation error of the pretraining and those of the linear models; nothing where none was watched."""
    lines = _watched(run)
    if not lines:
        return {}
    known = run.read_provenance().get("baselines", {})
    found = {name: Estimate(float(pair["value"]), float(pair["error"])) for name, pair in known.items()}
    return {"mse_pretrained": Estimate(float(lines[-1]["validation_energy"]), 0.0)} | found


def draw_pretraining(run: RunFolder) -> bool:
    """Write figures/pretraining, and say whether there was something to draw."""
    from normae.figures import figure_style, new_figure, pretraining_curve  # drawing needs matplotlib, numbers do not
    from normae.report import save_figure

    lines, known = _watched(run), pretraining_metrics(run)
    if not lines:
        return False
    epoch, train, held = (
        np.array([line[name] for line in lines]) for name in ("epoch", "positive_energy", "validation_energy")
    )
    levels = {name: metric.value for name, metric in known.items() if name != "mse_pretrained"}
    with figure_style():
        figure, axes = new_figure()
        pretraining_curve(axes[0, 0], epoch, train, held, {words(name): value for name, value in levels.items()})
        columns = {"epoch": epoch, "training": train, "validation": held}
        columns |= {name: np.full(len(epoch), value) for name, value in levels.items()}
        save_figure(figure, run.figures, "pretraining", columns)
    return True


def words(name: str) -> str:
    """What a linear model is called in a figure."""
    if name == "mse_mean_event":
        return "mean image"
    return f"{name.split('_')[1]} principal components"


def _watched(run: RunFolder) -> list[dict[str, float]]:
    """The lines of a pretraining that have a validation error; of a run that started elsewhere there are none."""
    wanted = {"epoch", "positive_energy", "validation_energy"}
    return [line for line in run.read_history() if line["phase"] == "pretraining" and wanted <= line.keys()]
