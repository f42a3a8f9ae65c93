"""The course of a training: energies in units of the temperature, the temperature, and the acceptance.

At the maximum of the likelihood E+ (data) and E- (chains) have the same mean: their curves meet and stay together. The
temperature settles, and a chain that samples neither freezes (acceptance near 0) nor crawls (near 1).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from normae.errors import InputError
from normae.statistics.arrays import Array

ACCEPTANCES = {
    "latent_acceptance": ("latent chain", "tab:green"),
    "feature_acceptance": ("feature chain", "tab:purple"),
}


def training_curves(axes: Sequence[Axes], records: Sequence[Mapping[str, Any]]) -> Sequence[Axes]:
    """Three axes for the energies, the temperature and the acceptance, from the lines of a metrics.jsonl.

    Args:
        axes: three of them, in this order.
        records: each with `iteration`, `positive_energy`, `negative_energy` and `temperature`, and where there is one
            `latent_acceptance` and `feature_acceptance`. Lines without energies, as of a pretraining, are left out.
    """
    used = training_energies((axes[0], axes[2]), records, "data")
    iteration = _column(used, "iteration")
    _line(axes[1], iteration, _column(used, "temperature"), "tab:orange")
    _dress(axes[1], iteration, "temperature $T$")
    return axes


def training_energies(
    axes: Sequence[Axes], records: Sequence[Mapping[str, Any]], events: str = "jets"
) -> Sequence[Mapping[str, Any]]:
    """Two axes: E+/T of events and E-/T of chains over iterations, and the acceptance of both chains.

    Returns:
        The lines that were used, as in `training_curves`.
    """
    used = [record for record in records if {"positive_energy", "negative_energy", "temperature"} <= record.keys()]
    if not used:
        raise InputError("no line of the metrics holds positive_energy, negative_energy and temperature")
    iteration, temperature = _column(used, "iteration"), _column(used, "temperature")
    for sign, name, colour, of in (("+", "positive", "tab:blue", events), ("-", "negative", "tab:red", "chains")):
        _line(axes[0], iteration, _column(used, f"{name}_energy") / temperature, colour, f"$E^{sign}/T$, {of}")
    for name, (label, colour) in ACCEPTANCES.items():
        if any(record.get(name) is not None for record in used):
            _line(axes[1], iteration, _column(used, name), colour, label)
    _dress(axes[0], iteration, "energy / temperature")
    _dress(axes[1], iteration, "acceptance")
    axes[1].set_ylim(0, 1.03)
    return used


LEVEL_STYLES = (("0.35", ":"), ("0.35", "--"), ("0.35", "-."))


def pretraining_curve(ax: Axes, epoch: Array, train: Array, held: Array, levels: Mapping[str, float]) -> Axes:
    """The reconstruction error of an autoencoder during its pretraining, against that of simpler models.

    Args:
        epoch, train, held: with shape (N,) each; the errors are those of training events and of validation events.
        levels: errors of other models by name, drawn as horizontal lines.
    """
    if not len(epoch) == len(train) == len(held) > 0:
        raise InputError(f"expected errors of one length, got {len(epoch)}, {len(train)} and {len(held)}")
    ax.plot(epoch, train, color="#9ecae1", linewidth=3.0, marker="o" if len(epoch) < 3 else None, label="training")
    _line(ax, epoch, held, "tab:red", "validation")  # thinner, on top: the two mostly agree
    for (name, value), (colour, style) in zip(levels.items(), LEVEL_STYLES, strict=False):
        ax.axhline(value, color=colour, linestyle=style, linewidth=1.2, label=name)
    ax.set(xlabel="epoch of the pretraining", ylabel="mean squared error $E$", yscale="log", xlim=(0, float(epoch[-1])))
    ax.legend(frameon=True, framealpha=0.9, edgecolor="none")  # wherever it goes, a level may run behind it
    return ax


def loss_curves(ax: Axes, epoch: Array, train: Array, validation: Array, unit: str = "epoch") -> Axes:
    """The cross-entropy of a classifier on both samples over epochs, each with shape (N,), and the epoch kept."""
    _line(ax, epoch, train, "tab:gray", "training")
    _line(ax, epoch, validation, "tab:blue", "validation")
    best = int(np.argmin(validation))
    ax.plot(epoch[best], validation[best], "o", color="tab:red", markersize=5, label="kept")
    ax.set(xlabel=unit, ylabel="cross-entropy")
    ax.legend()
    return ax


def _column(records: Sequence[Mapping[str, Any]], name: str) -> Array:
    """The values of `name` with shape (N,), NaN where a record has none."""
    values = (record.get(name) for record in records)
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _line(ax: Axes, x: Array, y: Array, colour: str, label: str | None = None) -> None:
    ax.plot(x, y, color=colour, label=label, linewidth=1.2, marker="." if len(x) < 3 else None)


def _dress(ax: Axes, iteration: Array, label: str) -> None:
    ax.set(xlabel="iteration", ylabel=label)
    if iteration[-1] > iteration[0]:
        ax.set_xlim(iteration[0], iteration[-1])
    if ax.get_legend_handles_labels()[0]:
        ax.legend()
