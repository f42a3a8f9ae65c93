"""The course of a training: energies in units of the temperature, the temperature, and the acceptance.

At the maximum of the likelihood E+ (data) and E- (chains) have the same mean: their curves meet and stay together. The
temperature settles, and a chain that samples neither freezes (acceptance near 0) nor crawls (near 1).
Below, scores of tables and of distilled networks, and the bars of a benchmark.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from normae.errors import InputError, refuse
from normae.figures import density_in, even_edges
from normae.statistics.arrays import Array

Values = NDArray[np.floating]
KIND_COLOURS = {"training": "tab:gray", "held out": "tab:blue", "sampled": "tab:red"}
SAMPLE_COLOURS = ("0.45", "tab:blue", "tab:red")
MOST_POINTS, SMALLEST_RATE = 2000, 1e-3
Records = Sequence[Mapping[str, Any]]  # lines of a metrics.jsonl


def training_curves(axes: Sequence[Axes], records: Records) -> Sequence[Axes]:
    """Three axes for energies, temperature and acceptance, from those lines of a metrics.jsonl that have energies.

    These are `iteration`, `positive_energy`, `negative_energy` and `temperature` of a line; it may have
    `latent_acceptance` and `feature_acceptance`.
    """
    used = training_energies((axes[0], axes[2]), records, "data")
    iteration = _column(used, "iteration")
    _line(axes[1], iteration, _column(used, "temperature"), "tab:orange")
    _dress(axes[1], iteration, "temperature $T$")
    return axes


def training_energies(axes: Sequence[Axes], records: Records, events: str = "jets") -> Records:
    """Two axes: E+/T of events and E-/T of chains, and the acceptance of both chains; the lines that were used."""
    used = [record for record in records if {"positive_energy", "negative_energy", "temperature"} <= record.keys()]
    refuse(not used, "no line of the metrics holds positive_energy, negative_energy and temperature")
    iteration, temperature = _column(used, "iteration"), _column(used, "temperature")
    for sign, name, colour, of in (("+", "positive", "tab:blue", events), ("-", "negative", "tab:red", "chains")):
        _line(axes[0], iteration, _column(used, f"{name}_energy") / temperature, colour, f"$E^{sign}/T$, {of}")
    for chain, colour in (("latent", "tab:green"), ("feature", "tab:purple")):
        accepted = _column(used, f"{chain}_acceptance")
        if not np.isnan(accepted).all():
            _line(axes[1], iteration, accepted, colour, f"{chain} chain")
    _dress(axes[0], iteration, "energy / temperature")
    _dress(axes[1], iteration, "acceptance")
    axes[1].set_ylim(0, 1.03)
    return used


def pretraining_curve(ax: Axes, epoch: Array, train: Array, held: Array, levels: Mapping[str, float]) -> Axes:
    """Errors over `epoch` of the events `train` and `held`, (N,) each, and `levels` of simpler models by name."""
    if not len(epoch) == len(train) == len(held) > 0:
        raise InputError(f"expected errors of one length, got {len(epoch)}, {len(train)} and {len(held)}")
    ax.plot(epoch, train, color="#9ecae1", linewidth=3.0, marker="o" if len(epoch) < 3 else None, label="training")
    _line(ax, epoch, held, "tab:red", "validation")  # thinner, on top: the two mostly agree
    for (name, value), style in zip(levels.items(), (":", "--", "-."), strict=False):
        ax.axhline(value, color="0.35", linestyle=style, linewidth=1.2, label=name)
    ax.set(xlabel="epoch of the pretraining", ylabel="mean squared error $E$", yscale="log", xlim=(0, float(epoch[-1])))
    ax.legend(frameon=True, framealpha=0.9, edgecolor="none")  # wherever it goes, a level may run behind it
    return ax


def loss_curves(ax: Axes, epoch: Array, train: Array, validation: Array, unit: str = "epoch") -> Axes:
    """A classifier's cross-entropy on `train` and `validation`, (N,) each, over `epoch` in `unit`, and the one kept."""
    _line(ax, epoch, train, "tab:gray", "training")
    _line(ax, epoch, validation, "tab:blue", "validation")
    best = int(np.argmin(validation))
    ax.plot(epoch[best], validation[best], "o", color="tab:red", markersize=5, label="kept")
    ax.set(xlabel=unit, ylabel="cross-entropy")
    ax.legend()
    return ax


def _column(records: Records, name: str) -> Array:
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


def score_histograms(ax: Axes, scores: Mapping[str, Values]) -> Axes:
    """Distributions of E/T for kinds of rows, each with shape (N,), on a logarithmic axis."""
    everything = np.concatenate(list(scores.values()))
    edges = np.linspace(everything.min(), np.quantile(everything, 0.9995), 61)
    for kind, values in scores.items():
        ax.stairs(density_in(values, edges), edges, color=KIND_COLOURS[kind], label=kind, linewidth=1.3)
    ax.set(xlabel="score $E/T$", ylabel="normalized", yscale="log", xlim=(edges[0], edges[-1]))
    ax.legend()
    return ax


def column_histograms(
    axes: Sequence[Axes], names: Sequence[str], held_out: Values, sampled: Values, texts: Sequence[str]
) -> Sequence[Axes]:
    """An axis for each of d columns: `held_out` (N, d), `sampled` (M, d), and `texts`; powers of ten as a logarithm."""
    for k, (ax, name, text) in enumerate(zip(axes, names, texts, strict=True)):
        low, high = np.quantile(held_out[:, k], (0.01, 0.99))
        wide = bool(held_out[:, k].min() > 0 and high > 100 * low)
        seen, drawn = ((np.log10(part[:, k].clip(low / 100)) if wide else part[:, k]) for part in (held_out, sampled))
        edges = even_edges(seen, 0.002, 40, 1.0)
        for values, kind in ((seen, "held out"), (drawn, "sampled")):
            ax.stairs(density_in(values, edges), edges, color=KIND_COLOURS[kind], label=kind, linewidth=1.3)
        label = "".join(letter if letter.isprintable() else "?" for letter in wide * "log10 of " + name)
        ax.ticklabel_format(axis="x", scilimits=(-3, 4))
        ax.set(xlabel=label.replace("$", r"\$"), ylabel="normalized", xlim=(edges[0], edges[-1]))
        ax.set_ylim(0, 1.3 * ax.get_ylim()[1])
        ax.text(0.03, 0.97, text, transform=ax.transAxes, va="top", fontsize=8)
    axes[0].legend(loc="upper right", fontsize=8)
    return axes


def score_agreement(
    ax: Axes, original: Mapping[str, ArrayLike], fixed: Mapping[str, ArrayLike]
) -> list[dict[str, NDArray[np.float64]]]:
    """Fixed-point against original score for each sample, with shape (N,); what was drawn, sample by sample."""
    parts = []
    for k, name in reversed(list(enumerate(original))):
        x, y = (np.asarray(values[name], dtype=np.float64)[:MOST_POINTS] for values in (original, fixed))
        ax.plot(x, y, ".", markersize=2, alpha=0.5, color=SAMPLE_COLOURS[k], label=name, rasterized=True)
        parts.append({"sample": np.full(len(x), float(k)), "original": x, "fixed": y})
    end = max(float(np.max(np.asarray(values))) for values in original.values())
    ax.plot([0, end], [0, end], color="0.15", linewidth=0.8)
    ax.set(xlabel=r"original score $\log(1 + E/T)$", ylabel="distilled, fixed point")
    ax.legend(markerscale=5)
    return parts


def trigger_rates(ax: Axes, original: Mapping[str, ArrayLike], fixed: Mapping[str, ArrayLike]) -> Axes:
    """Share of anomalies kept against share of background kept, of the original and of the fixed-point score."""
    names = list(original)
    rates = np.geomspace(SMALLEST_RATE, 1, 200)
    for k, name in list(enumerate(names))[1:]:
        for scores, style, kind in ((original, "-", "original"), (fixed, "--", "fixed point")):
            cuts = np.quantile(np.asarray(scores[names[0]]), 1 - rates)
            kept = [(np.asarray(scores[name]) > cut).mean() for cut in cuts]
            ax.plot(rates, kept, style, color=SAMPLE_COLOURS[k], label=f"{name}, {kind}")
    ax.set_xscale("log")
    ax.set(xlabel="share of background kept", ylabel="share of anomalies kept", xlim=(SMALLEST_RATE, 1), ylim=(0, 1.02))
    ax.legend(loc="lower right")
    return ax


def speed_bars(ax: Axes, labels: Sequence[str], values: ArrayLike, errors: ArrayLike) -> Axes:
    """A bar for each of n positive `values`, with `errors` and `labels`, the first on top; grey where it is below 1."""
    ratios, widths = np.asarray(values, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    if not len(labels) == len(ratios) == len(widths) or not (ratios > 0).all():
        raise InputError(f"expected a positive ratio and an error for each of {len(labels)} labels")
    places = np.arange(len(labels))[::-1]
    ax.barh(places, ratios - 1, left=1, color=["tab:blue" if r >= 1 else "0.6" for r in ratios], height=0.62)
    ax.errorbar(ratios, places, xerr=widths, fmt="none", ecolor="0.15", elinewidth=1, capsize=2)
    for place, r in zip(places, ratios, strict=True):
        ax.annotate(f"{r:.2g}", (max(r, 1), place), xytext=(8, 0), textcoords="offset points", va="center")
    ax.axvline(1, color="0.15", linewidth=0.8)
    ax.set(xscale="log", xlabel="times as fast")
    ax.set_xlim(min(0.5, 0.8 * float(ratios.min())), 2.2 * max(1.0, float(ratios.max())))
    ax.set_yticks(places, labels)
    ax.tick_params(axis="y", length=0)
    return ax
