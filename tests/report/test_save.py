"""A saved figure: three whole files, small, and the same bytes each time."""

import csv
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from normae.errors import InputError
from normae.figures import figure_style, new_figure
from normae.figures.densities import deviation_map, likelihood_correlation
from normae.report import save_figure
from normae.statistics import regions

pytestmark = pytest.mark.usefixtures("pdf_with_fonts")


def small() -> Figure:
    figure, axes = new_figure()
    axes[0, 0].plot([0, 1], [0, 1])
    return figure


def test_three_files_and_the_numbers(tmp_path: Path) -> None:
    paths = save_figure(small(), tmp_path / "figures", "line", {"x": np.array([0, 1]), "y": np.array([0.1, 1 / 3])})
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["line.csv", "line.pdf", "line.svg"]
    assert paths.csv.read_text(encoding="utf-8") == "x,y\n0,0.1\n1,0.333333333\n"
    assert paths.pdf.read_bytes().startswith(b"%PDF")
    assert b"/FontFile2" in paths.pdf.read_bytes(), "letters that an editor of the paper can change"


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (save_figure(small(), tmp_path / folder, "line", {"x": np.zeros(2)}) for folder in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert "<dc:date>" not in first.svg.read_text(encoding="utf-8")


def test_many_points_stay_small(tmp_path: Path) -> None:
    points = 1.5 * np.random.default_rng(0).normal(size=(250_000, 2))
    log_true = -0.5 * (points**2).sum(1) - 1.8
    with figure_style():
        figure, axes = new_figure(1, 2)
        likelihood_correlation(axes[0, 0], log_true, log_true + 0.1 * np.sin(points[:, 0]), regions(log_true))
        deviation_map(axes[0, 1], points, log_true < -8)
        paths = save_figure(figure, tmp_path, "many", {"log_true": log_true, "x": points[:, 0]})
    assert paths.svg.stat().st_size < 600_000
    lines = paths.csv.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# rows 1, 14, 27, ... (every 13th) of 250000"
    rows = list(csv.reader(lines[1:]))
    assert rows[0] == ["log_true", "x"]
    assert len(rows) - 1 == 19_231
    assert [float(row[1]) for row in rows[1:4]] == pytest.approx(points[:39:13, 0])


def test_columns_of_different_lengths_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one length"):
        save_figure(small(), tmp_path, "line", {"x": np.zeros(2), "y": np.zeros(3)})
    assert list(tmp_path.iterdir()) == []
