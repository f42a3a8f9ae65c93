"""The figures of a file of jets or images, written beside their numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normae.errors import InputError
from normae.files import atomic_path
from normae.jets.container import BadJet, Jets
from normae.jets.imaging import SIDE, images
from normae.jets.pipeline import bad_row, file_observables, in_frame, parts_of_file, write_columns
from normae.jets.reader import Rows
from normae.jets.show import image_page, observables_page


def _pictures(path: str | Path, rows: Rows, options: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """(labels, images without filter, images with it) of a file, piece by piece; of sparse images both are filtered."""
    done = 0
    for labels, part, _ in parts_of_file(path, rows, **options):
        if not isinstance(part, Jets):
            yield labels, part, part
            continue
        good = in_frame(part) if options.get("skip_bad") else np.ones(len(part), dtype=bool)
        jets = part if good.all() else part[good]
        try:
            yield labels[good], images(jets, sigma=0), images(jets)
        except BadJet as error:
            raise bad_row(path, rows, done + error.jet, error.problem) from error
        done += len(part)


def mean_images(path: str | Path, rows: Rows = None, **options: Any) -> tuple[dict[int, Any], dict[int, Any]]:
    """For each label that is there: the mean image without filter, and the first jet's with it, shape (40, 40).

    A file of sparse images is filtered when it is read, so its mean is filtered too.
    """
    sums: dict[int, NDArray[np.float64]] = {}
    firsts: dict[int, NDArray[np.float32]] = {}
    counts: dict[int, int] = {}
    for labels, sharp, smooth in _pictures(path, rows, options):
        for label in np.unique(labels).tolist():
            chosen = labels == label
            sums[label] = sums.get(label, np.zeros((SIDE, SIDE))) + sharp[chosen, 0].sum(axis=0, dtype=np.float64)
            counts[label] = counts.get(label, 0) + int(chosen.sum())
            firsts.setdefault(label, smooth[np.argmax(chosen), 0])
    return {label: sums[label] / counts[label] for label in sums}, firsts


def _save(figure: Any, stem: Path) -> list[Path]:
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".pdf")]
    for path in paths:
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=130)
    return paths


def save_figures(path: str | Path, folder: str | Path, rows: Rows = None, **options: Any) -> list[Path]:
    """Write images and observables of a file as PNG and PDF, and their numbers as CSV; the paths written."""
    folder = Path(folder)
    means, firsts = mean_images(path, rows, **options)
    if not means:
        raise InputError(f"{path}: no jets to show")
    columns, _ = file_observables(path, rows, **options)
    paths = _save(image_page(means, firsts), folder / "images")
    _, part, _ = next(iter(parts_of_file(path, rows, **options)))
    unit = "GeV" if isinstance(part, Jets) else "share of $p_T$"
    paths += _save(observables_page(columns["label"], columns, unit), folder / "observables")
    pixels = {f"{kind}_{label}": m[label].ravel() for kind, m in (("mean", means), ("one", firsts)) for label in m}
    write_columns(folder / "images.csv", pixels)
    write_columns(folder / "observables.csv", columns)
    return [*paths, folder / "images.csv", folder / "observables.csv"]
