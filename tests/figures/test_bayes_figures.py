"""The figures of uncertainties, coverage, likelihood ratios and calibration draw what they were given."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.legend import Legend

from normae.errors import InputError
from normae.figures import REGION_COLOURS, figure_style, new_figure
from normae.figures.densities import (
    Curve,
    colour_limits,
    coverage_curves,
    marginal,
    pull_histogram,
    region_coverage,
    uncertainty_maps,
)
from normae.figures.ratios import ratio_correlation, ratio_histograms, ratio_outside_map, reliability_diagram
from normae.statistics.calibration import Reliability

GRID = np.linspace(-4, 4, 31)
LEVELS = np.linspace(0.02, 0.98, 49)


def gaussian() -> np.ndarray:
    return np.exp(-0.5 * (GRID[:, None] ** 2 + GRID[None, :] ** 2)) / (2 * np.pi)


def texts(legend: Legend) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def axis():
    return new_figure()[1][0, 0]


def test_the_six_maps_share_the_scale_of_what_should_agree() -> None:
    before = dict(plt.rcParams)
    with figure_style():
        figure, axes = new_figure(2, 3)
        p = gaussian()
        width = 0.01 + 0.1 * (1 - p / p.max())
        assert uncertainty_maps(axes, GRID, GRID, (1 - np.log(p), width), (p, width * p)) is axes
        figure.draw_without_rendering()
    images = [ax.images[0] for ax in axes.ravel()]
    assert images[1].get_clim() == images[5].get_clim()
    assert np.asarray(images[1].get_array()) == pytest.approx(np.asarray(images[5].get_array()))
    assert np.asarray(images[2].get_array()) == pytest.approx((width / (1 - np.log(p))).T)
    assert all(image.get_rasterized() for image in images)
    assert dict(plt.rcParams) == before


def test_a_width_of_zero_has_the_lowest_colour() -> None:
    figure, axes = new_figure(2, 3)
    p, width = gaussian(), np.full((31, 31), 0.1)
    width[0, 0] = 0.0
    uncertainty_maps(axes, GRID, GRID, (1 - np.log(p), width), (p, width * p))
    figure.draw_without_rendering()
    image = axes[0, 1].images[0]
    assert np.asarray(image.get_array())[0, 0] == image.get_clim()[0] == pytest.approx(0.05)
    with pytest.raises(InputError, match="positive values, got none"):
        colour_limits(np.zeros(3))


def test_pulls_name_their_mean_and_width() -> None:
    t = np.random.default_rng(0).normal(0.5, 2.0, 20_000)
    ax = pull_histogram(axis(), {"log p": t, "p": t / 2})
    words = texts(ax.get_legend())
    assert words[1].startswith(rf"log p: $\mu={t.mean():.2f}$, $\sigma={t.std():.2f}$, ")
    assert words[1].endswith("% outside")
    assert not words[2].endswith("outside")
    inside = ax.patches[0].get_data()
    assert inside.values.sum() * (inside.edges[1] - inside.edges[0]) == pytest.approx(np.mean(np.abs(t) <= 5))


@pytest.mark.parametrize(("observed", "corner"), [(LEVELS**2, "upper left"), (np.sqrt(LEVELS), "lower right")])
def test_coverage_curves(observed: np.ndarray, corner: str) -> None:
    curves = [Curve("log p", observed, observed, np.full(49, 0.05)), Curve("p", observed, observed)]
    ax = coverage_curves(axis(), LEVELS, curves)
    assert ax.lines[0].get_ydata() == pytest.approx(observed)
    assert [line.get_linestyle() for line in ax.lines] == ["-", "--", "-", "--", ":"]
    assert texts(ax.get_legend()) == ["log p", "p", "quantile", "Gaussian"]
    assert ax.get_legend()._loc == {"upper left": 2, "lower right": 4}[corner]
    vertices = ax.collections[0].get_paths()[0].vertices
    assert vertices[:, 1].min() >= 0
    assert vertices[:, 1].max() <= 1


def test_coverage_by_region_leaves_out_regions_without_events() -> None:
    quantile = np.tile(LEVELS, (5, 1))
    quantile[3] = np.nan
    ax = region_coverage(axis(), LEVELS, quantile, quantile, text="log p")
    colours = [to_rgba(line.get_color()) for line in ax.lines[:-1:2]]
    assert colours == [to_rgba(colour) for band, colour in enumerate(REGION_COLOURS) if band != 3]
    legends = [artist for artist in ax.get_children() if isinstance(artist, Legend)]
    assert sorted(map(len, map(texts, legends))) == [2, 4]


def test_coverage_by_region_with_its_bands() -> None:
    by_region = np.tile(LEVELS, (5, 1))
    ax = region_coverage(axis(), LEVELS, by_region, by_region, 0.1 * by_region, legend=False)
    assert len(ax.lines) == 11
    assert len(ax.collections) == 5
    assert len(texts(ax.get_legend())) == 2


def test_lists_are_as_good_as_arrays() -> None:
    share = [[0.2, 0.6]] * 5
    ax = region_coverage(axis(), [0.1, 0.5], share, share, share)
    assert len(ax.collections) == 5
    ax = coverage_curves(axis(), [0.1, 0.5], [Curve("p", [0.2, 0.6], [0.2, 0.6], [0.1, 0.1])])
    assert ax.lines[0].get_ydata() == pytest.approx([0.2, 0.6])
    _, axes = new_figure(2, 1, height_ratios=(3, 1), sharex=True)
    marginal(axes[:, 0], centres=[0, 1, 2], true=[1, 2, 1], learned=[2, 2, 1], band=[1, 1, 1])
    assert axes[1, 0].lines[1].get_ydata() == pytest.approx([2, 1, 1])
    _, axes = new_figure(2, 3)
    map_ = [[1.0, 2.0], [2.0, 3.0]]
    uncertainty_maps(axes, [0, 1], [0, 1], (map_, map_), (map_, map_))


def test_ratio_correlation_with_its_boundaries() -> None:
    log_ratio = np.random.default_rng(1).normal(size=500)
    ax = ratio_correlation(axis(), log_ratio, log_ratio + 0.1, np.arange(500) % 2, reference_name="class")
    shifts = [np.polyfit(*line.get_data(), 1) for line in ax.lines]
    assert np.array(shifts) == pytest.approx(np.array([[1, 0], [1, -1], [1, 1]]), abs=1e-9)
    assert ax.texts[0].get_text() == "Pearson 1.0000"
    assert "class" in ax.get_xlabel()
    assert ax.get_xlim() == ax.get_ylim()
    assert ax.collections[0].get_rasterized()


def test_points_outside_under_their_contours() -> None:
    points = np.random.default_rng(2).normal(size=(1000, 2))
    ax = ratio_outside_map(axis(), points, np.arange(1000) < 12, GRID, [gaussian(), gaussian()])
    assert [len(dots.get_offsets()) for dots in ax.collections[:2]] == [988, 12]
    assert all(dots.get_rasterized() for dots in ax.collections[:2])
    for contour, radius in zip(ax.collections[2:4], (1, 3), strict=True):
        assert np.hypot(*contour.get_paths()[0].vertices.T) == pytest.approx(radius, abs=0.03)
    assert len(ax.collections) == 6
    assert texts(ax.get_legend())[0].endswith("12 of 1,000")


def test_ratio_histograms() -> None:
    edges = np.linspace(-1, 1, 6)
    density = np.array([0.1, 0.5, 1.0, 0.5, 0.0])
    both = np.stack([density, density])
    figure, axes = new_figure()
    ax = ratio_histograms(axes[0, 0], edges, both, both, 0.1 * both)
    figure.draw_without_rendering()
    assert len(ax.patches) == 8
    assert texts(ax.get_legend()) == ["events of A", "events of B", "true", "learned"]
    assert len(ratio_histograms(axis(), edges, both, both).patches) == 6
    assert ax.get_ylim()[1] == pytest.approx(1.35 * 1.1), "the band is within the frame"
    assert ax.patches[2].get_data().values == pytest.approx(density)


def test_reliability_of_two_classifiers_on_the_same_axes() -> None:
    figure, axes = new_figure(2, 1, height_ratios=(3, 1), sharex=True)
    x = np.array([0.1, np.nan, 0.9])
    for name, off in (("before", 0.1), ("after", 0.01)):
        bins = Reliability(np.linspace(0, 1, 4), x, x + off, 0.02 + 0 * x, np.array([9, 0, 9]))
        reliability_diagram(axes[:, 0], bins, name, "ECE 0")
    figure.draw_without_rendering()
    assert len(axes[0, 0].containers) == len(axes[1, 0].containers) == 2
    assert axes[1, 0].get_ylim()[1] == pytest.approx(1.15 * 0.12)
    assert texts(axes[0, 0].get_legend()) == ["before", "after"]
    assert axes[0, 0].texts[0].get_text() == "ECE 0"
    assert axes[1, 0].get_xlabel() == "mean predicted probability"


def test_bad_arrays() -> None:
    ax = axis()
    with pytest.raises(InputError, match=r"p: expected coverages of shape \(49,\)"):
        coverage_curves(ax, LEVELS, [Curve("p", LEVELS[1:], LEVELS[1:])])
    with pytest.raises(InputError, match=r"shape \(3, 2\), got \(4, 2\)"):
        ratio_outside_map(ax, np.zeros((4, 2)), np.zeros(3))
    with pytest.raises(InputError, match=r"density of shape \(31, 31\), got \(31, 30\)"):
        ratio_outside_map(ax, np.zeros((3, 2)), np.zeros(3), GRID, [gaussian()[:, 1:]])
    with pytest.raises(InputError, match=r"expected densities of shape \(2, 2\), got \(2, 2\), \(2, 3\)"):
        ratio_histograms(ax, np.arange(3.0), np.ones((2, 2)), np.ones((2, 3)))
    with pytest.raises(InputError, match="one shape"):
        ratio_correlation(ax, [0.0, 1.0], [0.0])
