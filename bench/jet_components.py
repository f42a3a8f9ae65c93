"""Jets in components: what K, noise, power and training size do to the likelihood ratio of two densities.

    python bench/jet_components.py basis JETS                        the components that ship with the package
    python bench/jet_components.py map JETS OUT POINT ... [--test]   train and judge pairs of densities
    python bench/jet_components.py show OUT [--figure FILE]          the table, and the picture

JETS is a folder with train, val and test. A POINT is NAME=SEED[,section.key=value...], changes of the presets
jets-components-qcd and jets-components-top; both classes are trained into OUT/NAME-KIND-SEED, and OUT/NAME-SEED.json
has the numbers of the pair at validation jets, with --test at test jets:

    auc, logistic       of log r = log p_top - log p_qcd: the AUC, and the slope of a logistic fit of the labels on it
    m, r (_qcd, _top)   slope and Pearson against a classifier that is trained on the same rows, in each class
    m_pixels, r_pixels  the same against the pixel classifier of the zoo
    told_qcd, told_top  AUC of a classifier that tells samples from held-out rows
    apart_qcd, ...      how far two trainings on other halves differ in log p, in standard deviations of log p, at
                        rows twice as far from the mean as those of the sample: this needs background alone (--halves)

Rows are scored as `model.log_prob` does, without noise; samples are told from rows with their noise.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import normae
from normae.components import MOST, SHIPPED, ComponentsCoordinates, principal
from normae.config import Run, read
from normae.data import SparseEvents
from normae.figures import figure_style, new_figure
from normae.inference import Model
from normae.random import stream
from normae.runs.session import train
from normae.sources import KINDS, file_in, halved, load_events, pieces, read_sparse
from normae.statistics import auc, within_classes
from normae.statistics.calibration import logistic_slope
from normae.training.reference import RatioSettings, train_ratio_classifier
from normae.training.two_sample import classifier_test

CLASSIFIER = RatioSettings(hidden=(96, 96, 96), batch=1024, max_epochs=14, patience=4)
TOLD = 10_000
"""Samples, and rows, of the classifier that tells them apart."""
WIDE = 2.0


def basis(jets: Path) -> None:
    """Write the components of QCD jets that ship with the package."""
    centre, vectors, width = principal(read_sparse(file_in(jets, "train"), "qcd"), 0.5, MOST)
    arrays = {"centre": centre.numpy(), "basis": vectors.flatten(1).numpy(), "width": width.numpy()}
    kinds = {"centre": np.float32, "basis": np.float16, "width": np.float32}
    np.savez_compressed(SHIPPED, **{name: array.astype(kinds[name]) for name, array in arrays.items()})


# --- one point


def settings(kind: str, jets: Path, seed: int, changes: list[str]) -> Run:
    return read(f"jets-components-{kind}", [f"data.path={jets}", f"seed={seed}", "device=cpu", *changes])


def trained(run: Run, folder: Path, half: int | None = None) -> Model:
    """The model of a run, trained where it is not there yet, on all events or on one half of a random cut."""
    if not (folder / "model.safetensors").is_file():
        events = load_events(run.data, run.seed)
        train(run, folder, resume=folder.exists(), events=events if half is None else halved(events, run.seed)[half])
    return normae.load(folder)


def log_prob(model: Model, rows: Tensor) -> np.ndarray:
    """log p of rows of components (N, K), as float64."""
    return model.in_components().log_prob(rows.float().numpy()).astype(np.float64)


def judged(jets: Path, name: str, seed: int, changes: list[str], out: Path, test: bool, halves: bool) -> dict:
    """Train both densities, and judge them."""
    runs = {kind: settings(kind, jets, seed, changes) for kind in KINDS}
    models = {kind: trained(run, out / f"{name}-{kind}-{seed}") for kind, run in runs.items()}
    coordinates = models["qcd"].coordinates
    assert isinstance(coordinates, ComponentsCoordinates)
    where = file_in(jets, "test" if test else "val")
    held = {kind: read_sparse(where, kind) for kind in KINDS}
    rows = {kind: coordinates.rows(sample) for kind, sample in held.items()}
    labels = np.repeat([0, 1], [len(rows[kind]) for kind in KINDS])
    both = torch.cat([rows[kind] for kind in KINDS])
    log_p = {kind: log_prob(model, both) for kind, model in models.items()}
    ratio = log_p["top"] - log_p["qcd"]
    found: dict[str, object] = {"name": name, "seed": seed, "changes": changes, "test": test}
    found["auc"] = auc(ratio[labels == 1], ratio[labels == 0]).value
    found["logistic"] = logistic_slope(ratio, labels).value
    found["top_tagging"] = auc(-log_p["qcd"][labels == 1], -log_p["qcd"][labels == 0]).value
    found["qcd_tagging"] = auc(-log_p["top"][labels == 0], -log_p["top"][labels == 1]).value
    references = {"": row_classifier(jets, coordinates, both, runs["qcd"].data.train), "_pixels": pixels(held)}
    for end, reference in references.items():
        found |= compared(reference, ratio, labels, end)
    for kind, model in models.items():
        found[f"log_z_error_{kind}"] = model.log_z.error
        noisy = coordinates.noisy(rows[kind], 1, stream(seed, f"bench/{kind}")).float()
        found[f"log_prob_{kind}"] = float(log_prob(model, noisy).mean())
        found[f"told_{kind}"] = told(model, noisy, seed)
        if halves:
            found[f"apart_{kind}"] = apart(runs[kind], out / f"{name}-{kind}-{seed}", noisy)
    np.savez(out / f"{name}-{seed}.npz", **log_p, labels=labels)
    return found


def compared(reference: np.ndarray, ratio: np.ndarray, labels: np.ndarray, end: str) -> dict[str, float]:
    """Pearson and slope of a reference on log r, in all and in each class."""
    found = {f"r{end}": float(np.corrcoef(reference, ratio)[0, 1])}
    found[f"m{end}"] = float(np.cov(reference, ratio)[0, 1] / ratio.var(ddof=1))
    for kind, one in zip(KINDS, within_classes(reference, ratio, labels), strict=True):
        found |= {f"r{end}_{kind}": one.pearson.value, f"m{end}_{kind}": one.slope.value}
    return found


KNOWN: dict[str, np.ndarray] = {}


def row_classifier(jets: Path, coordinates: ComponentsCoordinates, rows: Tensor, size: int) -> np.ndarray:
    """log r of a classifier on rows without noise, at `rows`."""
    key = f"{coordinates.basis.sum():.6f} {len(coordinates.width)} {coordinates.power} {size} {len(rows)}"
    if key not in KNOWN:
        seen = [coordinates.rows(read_sparse(file_in(jets, "train"), kind).first(size)) for kind in KINDS]
        labels = np.repeat([0, 1], [len(part) for part in seen])
        found = train_ratio_classifier(torch.cat(seen).float(), labels, CLASSIFIER, generator=stream(0, "bench"))
        KNOWN[key] = found(rows.float())
    return KNOWN[key]


def pixels(held: dict[str, SparseEvents]) -> np.ndarray:
    """log r of the pixel classifier of the zoo."""
    key = "pixels" + "".join(sample.sha256() for sample in held.values())
    if key not in KNOWN:
        classifier = normae.load_classifier("jets-classifier")
        KNOWN[key] = np.concatenate([classifier.log_ratio(x) for one in held.values() for x in pieces(one)])
    return KNOWN[key]


def told(model: Model, rows: Tensor, seed: int) -> float:
    """AUC of a classifier that tells samples of the model from rows (N, K)."""
    made = model.in_components().sample(TOLD, seed)
    true = rows[:TOLD].numpy()
    centre, width = true.mean(0), true.std(0)
    generator = stream(seed, "bench/told")
    return classifier_test((true - centre) / width, (made - centre) / width, generator=generator).auc.value


def apart(run: Run, folder: Path, rows: Tensor) -> float:
    """How far two trainings on other halves are apart at rows far out, over the spread of log p there."""
    pair = [trained(run, folder.with_name(f"{folder.name}-half{k}"), half=k) for k in (0, 1)]
    wide = rows.mean(0) + WIDE * (rows - rows.mean(0))
    one, other = (log_prob(model, wide) for model in pair)
    return float((one - other).std() / (2**0.5 * (0.5 * (one + other)).std()))


# --- table and picture

COLUMNS = (
    "auc", "logistic", "m", "m_qcd", "m_top", "r", "r_qcd", "r_top", "m_pixels", "r_pixels", "told_qcd", "told_top",
    "apart_qcd", "apart_top", "top_tagging", "qcd_tagging",
)  # fmt: skip


def show(out: Path, figure: Path | None) -> None:
    """Means over seeds as a Markdown table, with the scatter where there are several, and resolution over K."""
    found: dict[str, list[dict]] = {}
    for path in sorted(out.glob("*.json")):
        one = json.loads(path.read_text())
        found.setdefault(one["name"], []).append(one)
    print("| point | seeds | " + " | ".join(COLUMNS) + " |")
    print("| --- " * (len(COLUMNS) + 2) + "|")
    for name, seeds in found.items():
        print(f"| {name} | {len(seeds)} | " + " | ".join(cell([s[c] for s in seeds if c in s]) for c in COLUMNS) + " |")
    if figure is not None:
        with figure_style():
            draw(found, figure)


def cell(values: list[float]) -> str:
    if not values:
        return "—"
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


def draw(found: dict[str, list[dict]], path: Path) -> None:
    """Calibration against resolution, a point for each setting."""
    picture, axes = new_figure(panel=(5.6, 4.2))
    ax = axes[0, 0]
    for name, seeds in found.items():
        x, y = ([s[key] for s in seeds] for key in ("auc", "logistic"))
        ax.errorbar(np.mean(x), np.mean(y), np.std(y), np.std(x), fmt="o", ms=4, color="tab:blue")
        ax.annotate(name, (np.mean(x), np.mean(y)), textcoords="offset points", xytext=(5, 3), fontsize=7)
    ax.axhline(1.0, ls=":", color="0.5")
    ax.set_xlabel("AUC of log r (resolution)")
    ax.set_ylabel("logistic slope of log r (1: calibrated)")
    picture.savefig(path, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["basis", "map", "show"])
    parser.add_argument("folders", nargs="+", help="JETS, OUT and points")
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--halves", action="store_true")
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    first = Path(given.folders[0])
    if given.command == "basis":
        basis(first)
    elif given.command == "show":
        show(first, given.figure)
    else:
        out = Path(given.folders[1])
        out.mkdir(parents=True, exist_ok=True)
        for point in given.folders[2:]:
            name, text = point.split("=", 1)
            seed, *changes = text.split(",")
            found = judged(first, name, int(seed), changes, out, given.test, given.halves)
            (out / f"{name}-{seed}.json").write_text(json.dumps(found, indent=1))
            print(name, seed, {key: round(value, 4) for key, value in found.items() if isinstance(value, float)})


if __name__ == "__main__":
    main()
