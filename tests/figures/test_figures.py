"""Each figure draws what it was given, on the axes that it was given, and nowhere else."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from numpy.typing import NDArray

from normae.errors import InputError
from normae.figures import REGION_COLOURS, figure_style, new_figure
from normae.figures.curves import column_histograms, speed_bars, training_curves
from normae.figures.densities import (
    deviation_map,
    field_map,
    likelihood_correlation,
    marginal,
    region_labels,
    region_map,
)
from normae.figures.jets import picture_rows
from normae.figures.ratios import MARKERS, ComparedTemperatures, temperature_estimates, temperatures_compared
from normae.statistics import Estimate, regions

GRID = np.linspace(-4, 4, 41)
RECORDS = [
    {
        "iteration": 100 * k,
        "positive_energy": 0.4,
        "negative_energy": 0.2,
        "temperature": 0.1,
        "feature_acceptance": 0.9,
    }
    for k in range(1, 6)
]


def log_gaussian() -> NDArray[np.float64]:
    """log p of a unit Gaussian with shape (41, 41)."""
    return -0.5 * (GRID[:, None] ** 2 + GRID[None, :] ** 2) - np.log(2 * np.pi)


def texts(ax: object) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]  # type: ignore[attr-defined]


def test_nothing_touches_pyplot_or_the_global_settings() -> None:
    before = dict(plt.rcParams)
    with figure_style():
        ax = new_figure()[1][0, 0]
        assert field_map(ax, GRID, GRID, np.exp(log_gaussian()), "p") is ax
    assert dict(plt.rcParams) == before
    assert plt.get_fignums() == []


def test_no_file_of_the_room_imports_torch_or_pyplot() -> None:
    folder = Path(__file__).parents[2] / "src" / "normae" / "figures"
    sources = [path.read_text(encoding="utf-8") for path in folder.glob("*.py")]
    assert sources
    assert not any("import torch" in source or "import matplotlib.pyplot" in source for source in sources)


def test_marginal_with_band_and_ratio() -> None:
    figure, axes = new_figure(2, 1, height_ratios=(3, 1), sharex=True)
    true = np.exp(-(GRID**2))
    marginal(axes[:, 0], GRID, true, 1.1 * true, 0.1 * true, "$x_2$")
    ratio = axes[1, 0].lines[1].get_ydata()
    assert ratio[np.isfinite(ratio)] == pytest.approx(1.1)
    assert np.isnan(ratio[0])
    assert axes[1, 0].get_xlabel() == "$x_2$"
    assert len(axes[0, 0].collections) == len(axes[1, 0].collections) == 1
    figure.draw_without_rendering()


def test_correlation_by_region() -> None:
    log_true = log_gaussian()
    ax = likelihood_correlation(new_figure()[1][0, 0], log_true, 1.1 * log_true, regions(log_true))
    assert [len(points.get_offsets()) for points in ax.collections] == np.bincount(
        regions(log_true).ravel(), minlength=5
    ).tolist()
    assert all(points.get_rasterized() for points in ax.collections)
    colours = [tuple(points.get_facecolor()[0]) for points in ax.collections if len(points.get_offsets())]
    assert colours == [to_rgba(colour) for colour in REGION_COLOURS[: len(colours)]]
    assert texts(ax) == region_labels()[: len(colours)]
    assert ax.texts[0].get_text() == "Pearson 1.0000"
    assert ax.get_xlim() == ax.get_ylim()


def test_lines_of_ten_percent_pass_through_points_with_that_deviation() -> None:
    log_true = np.linspace(-9, -2, 50)
    log_model = np.r_[1.1 * log_true[:25], 0.9 * log_true[25:]]
    ax = likelihood_correlation(new_figure()[1][0, 0], log_true, log_model, limit=0.1, text="corner")
    _, below, above = (np.polyfit(*line.get_data(), 1) for line in ax.lines)
    assert below == pytest.approx([0.9, 0.0], abs=1e-9)
    assert above == pytest.approx([1.1, 0.0], abs=1e-9)
    assert np.polyval(above, -log_true[:25]) == pytest.approx(-log_model[:25])
    assert ax.texts[0].get_text() == "corner"


def test_correlation_leaves_out_points_outside_the_support() -> None:
    log_true = np.array([-1.0, -2.0, -3.0, -np.inf])
    ax = likelihood_correlation(new_figure()[1][0, 0], log_true, [-1.0, -2.1, -3.0, -5.0], [0, 0, 1, 4])
    assert [len(points.get_offsets()) for points in ax.collections] == [2, 1, 0, 0, 0]


def test_maps_put_the_first_index_on_the_horizontal_axis() -> None:
    bands = np.zeros((41, 21), dtype=int)
    bands[40, 0] = 4
    ax = region_map(new_figure()[1][0, 0], GRID, np.linspace(0, 1, 21), bands)
    image = ax.images[0]
    assert image.get_array()[0, 40] == 4
    assert image.get_extent() == pytest.approx([-4.1, 4.1, -0.025, 1.025])
    assert texts(ax) == ["< 3", "> 25"]


def test_density_map() -> None:
    figure, axes = new_figure()
    field_map(axes[0, 0], GRID, GRID, np.exp(log_gaussian()), "p", limits=(0.0, 0.2))
    assert axes[0, 0].images[0].norm.vmax == 0.2
    figure.draw_without_rendering()


def test_deviation_map_counts() -> None:
    points = np.random.default_rng(0).normal(size=(1000, 2))
    ax = deviation_map(new_figure()[1][0, 0], points, np.arange(1000) < 12)
    assert [len(dots.get_offsets()) for dots in ax.collections] == [988, 12]
    assert texts(ax)[1].endswith("12 of 1,000")
    assert all(dots.get_rasterized() for dots in ax.collections)


def test_training_curves() -> None:
    axes = new_figure(1, 3)[1][0]
    training_curves(axes, [{"iteration": 50, "loss": 1.0}, *RECORDS])
    assert axes[0].lines[0].get_ydata() == pytest.approx([4.0] * 5)
    assert axes[0].lines[1].get_ydata() == pytest.approx([2.0] * 5)
    assert axes[0].lines[0].get_xdata().tolist() == [100, 200, 300, 400, 500]
    assert texts(axes[2]) == ["feature chain"]


def test_bad_arrays() -> None:
    axes = new_figure(1, 3)[1][0]
    with pytest.raises(InputError, match=r"grid of shape \(41, 41\), got \(41, 40\)"):
        field_map(axes[0], GRID, GRID, np.zeros((41, 40)), "p")
    with pytest.raises(InputError, match="evenly spaced"):
        region_map(axes[0], GRID**3, GRID, np.zeros((41, 41)))
    with pytest.raises(InputError, match=r"shape \(3, 2\), got \(4, 2\)"):
        deviation_map(axes[0], np.zeros((4, 2)), np.zeros(3))
    with pytest.raises(InputError, match="no line of the metrics"):
        training_curves(axes, [{"iteration": 1}])


def test_speed_bars():
    _, axes = new_figure()
    ax = speed_bars(axes[0, 0], ["a", "b"], [3.0, 0.5], [0.1, 0.1])
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b"]
    widths = [patch.get_width() for patch in ax.patches]
    assert widths == [2.0, -0.5]
    assert ax.patches[0].get_y() > ax.patches[1].get_y(), "the first on top"
    with pytest.raises(InputError, match="positive ratio"):
        speed_bars(axes[0, 0], ["a"], [0.0], [0.1])


def test_a_temperature_without_an_error_is_an_open_point():
    _, axes = new_figure()
    ax = axes[0, 0]
    temperature_estimates(ax, {"sure": Estimate(2e-7, 1e-8), "latent": Estimate(1e-6, np.inf)}, 6e-7)
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "without an error" in words
    fills = {line.get_xdata()[0]: line.get_markerfacecolor() for line in ax.lines if line.get_marker() == "o"}
    assert fills[1e-6] == "white"
    assert fills[2e-7] != "white"


def test_compared_temperatures_are_ratios_and_leave_out_what_is_not_positive():
    rows = [
        ComparedTemperatures("jets", 6e-7, Estimate(8e-7, 1e-8), {"a": Estimate(4e-7, 1e-8), "b": Estimate(-1.0, 1.0)}),
        ComparedTemperatures(
            "toy", 0.5, Estimate(0.5, 0.0), {"a": Estimate(0.5, np.inf), "b": Estimate(np.nan, np.inf)}
        ),
    ]
    _, axes = new_figure()
    temperatures_compared(axes[0, 0], rows)
    points = sorted(
        (round(float(x), 6), line.get_markerfacecolor() == "white")
        for line in axes[0, 0].lines
        if line.get_marker() in MARKERS
        for x in line.get_xdata()
    )
    assert points == [(0.5, False), (1.0, True)]
    assert [text.get_text() for text in axes[0, 0].get_yticklabels()] == ["jets", "toy"]


def test_residuals_of_jets_have_a_linear_scale_of_both_signs():
    """One hot pixel does not set it, and the colour bar says that it lies beyond."""
    images = np.full((2, 40, 40), 1e-3)
    residual = np.tile(np.linspace(-1e-3, 1e-3, 1600), (2, 1)).reshape(2, 40, 40)
    residual[0, 20, 20] = 0.5
    _, axes = new_figure(2, 1)
    picture_rows(axes[:, 0], [images, residual], ["input", "residual"], ["a", "b"])
    norm = axes[1, 0].images[0].norm
    assert type(norm).__name__ == "Normalize"
    assert -norm.vmin == norm.vmax == pytest.approx(1e-3, rel=0.01)
    assert axes[1, 0].images[0].colorbar.extend == "both"
    assert axes[0, 0].images[0].colorbar.extend == "neither"


def test_parts_of_a_score_have_a_scale_of_their_own():
    """They are no shares of pT: neither do they set the scale of the pictures, nor are they drawn as its logarithm."""
    images, parts = np.full((2, 40, 40), 1e-3), np.tile(np.linspace(-5.0, 5.0, 1600), (2, 1)).reshape(2, 40, 40)
    _, axes = new_figure(2, 1)
    picture_rows(axes[:, 0], [images, parts], ["picture", "parts"], ["a", "b"])
    norms = [ax.images[0].norm for ax in axes[:, 0]]
    assert [type(norm).__name__ for norm in norms] == ["LogNorm", "Normalize"]
    assert norms[0].vmax == pytest.approx(1e-3)
    assert -norms[1].vmin == norms[1].vmax == pytest.approx(5, rel=0.01)
    assert axes[1, 0].images[0].colorbar.ax.get_ylabel() == "part of the score"


def test_a_column_over_powers_of_ten_is_drawn_as_its_logarithm():
    rows = np.random.default_rng(0).normal(size=(2000, 2))
    rows[:, 0] = 10 ** (3 * rows[:, 0] + 4)
    _, axes = new_figure(1, 2)
    column_histograms(axes[0], ["E", "x"], rows, rows, ["", ""])
    assert [ax.get_xlabel() for ax in axes[0]] == ["log10 of E", "x"]
    low, high = axes[0, 0].get_xlim()
    assert low == pytest.approx(4 - 3 * 2.88, abs=1)
    assert high == pytest.approx(4 + 3 * 2.88, abs=1)
    heights = axes[0, 0].patches[0].get_data().values
    assert heights.argmax() == pytest.approx(20, abs=5)  # in the middle, where on a linear axis all lies in one bin
