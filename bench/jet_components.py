"""Jets in components: what K, noise, power and training size do to the likelihood ratio of two densities.

    python bench/jet_components.py basis JETS                        the components that ship with the package
    python bench/jet_components.py map JETS OUT POINT ... [--test]   train and judge pairs of densities
    python bench/jet_components.py show OUT [--map] [--figure FILE] [--numbers FILE]   the table, the rule, the picture
    python bench/jet_components.py bars JETS OUT NAME [--test] [--figure FILE]   error bars of log r, over all seeds

JETS is a folder with train, val and test. A POINT is NAME=SEED[,section.key=value...], changes of the presets
jets-components-qcd and jets-components-top; both classes are trained into OUT/NAME-KIND-SEED, and OUT/NAME-SEED.json
has the numbers of the pair at validation jets. With --test they are of test jets, and in OUT/test, so that nothing is
chosen on them; `show OUT/test` has their table. A point that has its numbers is left as it is. With --map a table has
a line for each point, and says how many seeds its AUC has; a cell with an error has several. With --tagging only the
density of QCD jets is trained, and only its top-tagging is judged.

    auc, logistic       of log r = log p_top - log p_qcd: the AUC, and the slope of a logistic fit of the labels on it
    m, r (_qcd, _top)   slope and Pearson against classifiers on the same rows, in each class; _error: that of the
                        reference itself, the spread over its members
    m_pixels, r_pixels  the same against the pixel classifier of the zoo
    told_qcd, told_top  AUC of a classifier that tells samples from held-out rows
    agree_qcd, ...      the slope of log p of one training on that of another, trained on the other half of the sample,
                        at held-out rows twice as far from the mean (--halves for QCD): background alone
    bounds_qcd, ...     upper less lower bound on log Z
    loss                cross-entropy of the labels with log r
    made, made_loss     the same two of log b - log p_qcd: b is a density of jets that are made of QCD jets alone, with
                        the same settings (jet_made.py), and labels say which of held-out jets are made

Rows are scored as `model.log_prob` does, without noise; samples are told from rows with their noise. The densities are
of rows with noise, and so the classifiers of the reference learn from such rows, each from a random half, are corrected
where held-out rows with noise ask for it, and are asked at the rows that the densities are asked at.

The rule takes the point with the least `made_loss`. It needs no jet of another class, and rows of any coordinates can
be compared by it, as held-out log p can not: the jets that are told apart are the same. It falls where components see
more, and rises where a density is wrong outside its own sample. How well two trainings agree there says less: with 24
components they agree, and are wrong together.
"""

import argparse
import hashlib
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import normae
from jet_made import made_file
from normae.components import SHIPPED, ComponentsCoordinates, principal
from normae.config import Run, read
from normae.coordinates import MOST_COMPONENTS
from normae.data import SparseEvents
from normae.data.labelled import Labelled
from normae.errors import LogZUnknown
from normae.figures import figure_style, new_figure
from normae.inference import Model
from normae.inference.log_z import Based, mean_weight, weighted
from normae.posterior.draw import bar_of_halves
from normae.runs.session import train
from normae.sources import KINDS, file_in, halved, load_events, pieces, read_sparse
from normae.statistics import auc, within_classes
from normae.statistics.calibration import logistic_slope
from normae.tensors import stream
from normae.training.two_sample import (
    RatioSettings,
    classifier_reference,
    classifier_test,
)

CLASSIFIER = RatioSettings(hidden=(96, 96, 96), batch=1024, max_epochs=8, patience=3)
NOISES = 2
"""Copies of the rows that it learns from, each with its own noise."""
TOLD = 10_000
"""Samples, and rows, of the classifier that tells them apart."""
WIDE, UNSEEN = 2.0, ("validation", "test")


def basis(jets: Path) -> None:
    """Write the components of QCD jets that ship with the package."""
    centre, vectors, width = principal(read_sparse(file_in(jets, "train"), "qcd"), 0.5, MOST_COMPONENTS)
    arrays = {"centre": centre.numpy(), "basis": vectors.flatten(1).numpy(), "width": width.numpy()}
    kinds = {"centre": np.float32, "basis": np.float16, "width": np.float32}
    np.savez_compressed(SHIPPED, **{name: array.astype(kinds[name]) for name, array in arrays.items()})


# --- one point


def results(out: Path, test: bool) -> Path:
    """Where the numbers of points are."""
    return out / "test" if test else out


def points(out: Path, name: str, test: bool) -> list[dict]:
    """The numbers of all seeds of a point."""
    return [json.loads(path.read_text()) for path in sorted(results(out, test).glob(f"{name}-[0-9]*.json"))]


def settings(kind: str, jets: Path, seed: int, changes: list[str], qcd: Path) -> Run:
    """The settings of a run; a basis of one's own is that of QCD jets, whose run is in the folder `qcd`."""
    if kind == "top":
        changes = [one.replace("basis=own", f"basis={qcd.resolve()}") for one in changes]
    return read(f"jets-components-{kind}", [f"data.path={jets}", f"seed={seed}", "device=cpu", *changes])


def between_commas(text: str) -> list[str]:
    """What commas separate, but for those within brackets, which are of a list."""
    return re.split(r",(?![^\[]*\])", text)


def trained(run: Run, folder: Path, half: int | None = None) -> Model:
    """The model of a run, trained where it is not there yet, on all events or on one half of a random cut."""
    if not (folder / "model.safetensors").is_file():
        events = load_events(run.data, run.seed)
        train(run, folder, resume=folder.exists(), events=events if half is None else halved(events, run.seed)[half])
    return normae.load(folder)


def log_prob(model: Model, rows: Tensor) -> np.ndarray:
    """log p of rows of components (N, K), as float64; but for log Z where that is not known."""
    inside, given = model.in_components(), rows.float().numpy()
    try:
        return inside.log_prob(given).astype(np.float64)
    except LogZUnknown:
        return -inside.score(given).astype(np.float64)


def judged(jets: Path, name: str, seed: int, changes: list[str], out: Path, test: bool, halves: bool) -> dict:
    """Train both densities, and judge them."""
    runs, models = {}, {}
    for kind in KINDS:
        runs[kind] = settings(kind, jets, seed, changes, out / f"{name}-qcd-{seed}")
        models[kind] = trained(runs[kind], out / f"{name}-{kind}-{seed}")
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
    found |= settings_of(runs["qcd"])
    found["auc"] = auc(ratio[labels == 1], ratio[labels == 0]).value
    found |= fitted("logistic", "loss", ratio, labels, models.values())
    found["top_tagging"] = auc(-log_p["qcd"][labels == 1], -log_p["qcd"][labels == 0]).value
    found["qcd_tagging"] = auc(-log_p["top"][labels == 0], -log_p["top"][labels == 1]).value
    rows_reference = row_reference(jets, coordinates, where, rows, runs["qcd"].data.train, out)
    found |= compared(rows_reference, ratio, labels)
    found |= of_one(pixels(where, held, out), ratio, labels, "_pixels")
    for kind, model in models.items():
        with suppress(LogZUnknown):
            found[f"log_z_error_{kind}"], found[f"bounds_{kind}"] = model.log_z.error, bounds(model, seed)
        noisy = coordinates.noisy(rows[kind], 1, stream(seed, f"bench/{kind}")).float()
        found[f"log_prob_{kind}"] = float(log_prob(model, noisy).mean())
        found[f"told_{kind}"] = told(model, noisy, seed)
    found |= made(jets, out, name, runs["qcd"], seed, changes, where)
    if halves:
        found["agree_qcd"] = agree(runs["qcd"], out / f"{name}-qcd-{seed}", coordinates.rows(held["qcd"]).float())
    np.savez(results(out, test) / f"{name}-{seed}.npz", **log_p, labels=labels, reference=rows_reference)
    return found


def tagged(jets: Path, name: str, seed: int, changes: list[str], out: Path, test: bool) -> dict:
    """Train the density of QCD jets alone, and judge how it tags tops."""
    folder = out / f"{name}-qcd-{seed}"
    run = settings("qcd", jets, seed, changes, folder)
    model = trained(run, folder)
    coordinates = model.coordinates
    assert isinstance(coordinates, ComponentsCoordinates)
    where = file_in(jets, "test" if test else "val")
    rows = [coordinates.rows(read_sparse(where, kind)).float().numpy() for kind in KINDS]
    scores = [model.in_components().score(one) for one in rows]  # -log p but for log Z, which need not be known here
    found = {"name": name, "seed": seed, "changes": changes, "test": test} | settings_of(run)
    return found | {"top_tagging": auc(scores[1], scores[0]).value}


def settings_of(run: Run) -> dict[str, float]:
    """K, noise, power and the number of jets."""
    given = run.coordinates.components
    assert given is not None
    return dict(zip(SETTINGS, (given.number, given.noise, given.power, run.data.train), strict=True))


def compared(members: np.ndarray, ratio: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Pearson and slope of the mean reference on log r, in all and each class; their spread over members (K, N)."""
    every = [of_one(one, ratio, labels, "") for one in (members.mean(0), *members)]
    spread = {f"{key}_error": float(np.std([one[key] for one in every[1:]], ddof=1)) for key in every[0]}
    return every[0] | spread


def of_one(reference: np.ndarray, ratio: np.ndarray, labels: np.ndarray, end: str) -> dict[str, float]:
    found = {f"r{end}": float(np.corrcoef(reference, ratio)[0, 1])}
    found[f"m{end}"] = float(np.cov(reference, ratio)[0, 1] / ratio.var(ddof=1))
    for kind, one in zip(KINDS, within_classes(reference, ratio, labels), strict=True):
        found |= {f"r{end}_{kind}": one.pearson.value, f"m{end}_{kind}": one.slope.value}
    return found


def kept(out: Path, key: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """What `make` gives, from a file in `out` where it was made before."""
    path = out / f"reference-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npy"
    if not path.is_file():
        np.save(path, make())
    return np.load(path)


def row_reference(
    jets: Path, coordinates: ComponentsCoordinates, where: Path, rows: dict[str, Tensor], size: int, out: Path
) -> np.ndarray:
    """log r of each of several classifiers that learned from rows with noise, at `rows`, with shape (members, N)."""
    noise = stream(0, "bench/noise")

    def seen(of: Iterable[Tensor], copies: int) -> Labelled:
        parts = [coordinates.noisy(part, copies, noise) if copies else part for part in of]
        labels = np.repeat([False, True], [len(part) for part in parts])
        return Labelled(torch.cat(parts).float().numpy(), labels)

    def make() -> np.ndarray:
        known = [coordinates.rows(read_sparse(file_in(jets, "train"), kind).first(size)) for kind in KINDS]
        ends = [len(part) * 7 // 8 for part in known]
        training = seen((part[:end] for part, end in zip(known, ends, strict=True)), NOISES)
        holdout = seen((part[end:] for part, end in zip(known, ends, strict=True)), 1)
        return classifier_reference(training, holdout, seen(rows.values(), 0), CLASSIFIER, 0).members

    key = f"{coordinates.basis.sum():.6f} {len(coordinates.width)} {coordinates.power} {coordinates.noise} {size}"
    return kept(out, f"{key} {where} {CLASSIFIER}", make)


def pixels(where: Path, held: dict[str, SparseEvents], out: Path) -> np.ndarray:
    """log r of the pixel classifier of the zoo."""

    def make() -> np.ndarray:
        classifier = normae.load_classifier("jets-classifier")
        return np.concatenate([classifier.log_ratio(x) for one in held.values() for x in pieces(one)])

    return kept(out, f"pixels {where}", make)


def told(model: Model, rows: Tensor, seed: int) -> float:
    """AUC of a classifier that tells samples of the model from rows (N, K)."""
    made = model.in_components().sample(TOLD, seed)
    true = rows[:TOLD].numpy()
    centre, width = true.mean(0), true.std(0)
    generator = stream(seed, "bench/told")
    return classifier_test((true - centre) / width, (made - centre) / width, generator=generator).auc.value


def bounds(model: Model, seed: int) -> float:
    """An upper bound on log Z less a lower one, by draws of the base and by samples of the model.

    With w = exp(-E/T)/q the log of a mean of w over draws of q is below log Z in the mean, and minus the log of a mean
    of 1/w over samples above it.
    """
    inside, of = model.in_components(), Based(model.energy_function, model.temperature, None)
    drawn = weighted(of, TOLD, stream(seed, "bench/bounds"))[1]
    made = torch.from_numpy(inside.sample(TOLD, seed + 1))
    inverse = torch.from_numpy(inside.score(made.numpy())).double() + of.base.both(made)[1].double()
    return -(mean_weight(inverse)[0] + mean_weight(drawn)[0])


def agree(run: Run, folder: Path, rows: Tensor) -> float:
    """The slope of log p of one training on that of another, on other halves, at rows far out; the mean of both."""
    pair = [trained(run, folder.with_name(f"{folder.name}-half{k}"), half=k) for k in (0, 1)]
    wide = rows.mean(0) + WIDE * (rows - rows.mean(0))
    covariance = np.cov([log_prob(model, wide) for model in pair])
    return float(2 * covariance[0, 1] / covariance.trace())


def made(jets: Path, out: Path, name: str, run: Run, seed: int, changes: list[str], where: Path) -> dict[str, float]:
    """How well log b - log p of a run tells held-out QCD jets from held-out jets that were made of such."""
    folder, count = out / f"{name}-qcd-{seed}", run.data.train
    file = made_file(file_in(jets, "train"), "qcd", count, seed, out)
    size = [f"data.train={count * 3 // 4}", *(f"data.{part}={count // 10}" for part in UNSEEN)]
    own = [one.replace("basis=own", f"basis={folder.resolve()}") for one in changes]
    other = trained(settings("qcd", file, seed, [*own, *size], folder), out / f"{name}-made-{seed}")
    model = trained(run, folder)
    coordinates = model.coordinates
    assert isinstance(coordinates, ComponentsCoordinates)
    held = [read_sparse(one, "qcd").first(TOLD) for one in (where, made_file(where, "qcd", TOLD, seed, out))]
    rows, labels = torch.cat([coordinates.rows(one) for one in held]), np.repeat([0, 1], [len(one) for one in held])
    return fitted("made", "made_loss", log_prob(other, rows) - log_prob(model, rows), labels, (model, other))


def fitted(slope: str, loss: str, ratio: np.ndarray, labels: np.ndarray, of: Iterable[Model]) -> dict[str, float]:
    """The factor on log r (N,) that suits labels, and where log Z of both models is known the cross-entropy."""
    found = {slope: logistic_slope(ratio, labels).value}
    with suppress(LogZUnknown):
        for model in of:
            model.log_z  # noqa: B018
        found[loss] = cross_entropy(ratio, labels)
    return found


def cross_entropy(ratio: np.ndarray, labels: np.ndarray) -> float:
    """In nats, of labels (N,) of which each class has as many."""
    return float(np.mean(np.logaddexp(0, np.where(labels == 1, -ratio, ratio))))


# --- tables


def table(header: list[str], rows: list[list[object]], numbers: Path | None) -> None:
    """Print a table, and put it into a file of docs/numbers."""
    for row in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(said(one) for one in row) + " |")
    if numbers is not None:
        content = json.loads(numbers.read_text()) | {"header": header, "rows": rows}
        numbers.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def said(one: object) -> str:
    """A cell of docs/numbers in words."""
    if not isinstance(one, dict):
        return "" if one is None else str(one)
    return cell(one["seeds"]) if "seeds" in one else f"{one['value']:.3f} ± {one['error']:.3f}"


def cell(values: list[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}" if values else "—"


def of_seeds(values: list[float], best: float = 1.0, scatter: bool = False) -> object:
    """As docs/numbers has it; the worst of several is the one furthest from what is best, or only their scatter."""
    if len(values) < 2:
        return cell(values)
    if scatter:
        return {"value": round(float(np.mean(values)), 5), "error": round(float(np.std(values, ddof=1)), 5)}
    worst = "max" if max(values) - best > best - min(values) else "min"
    return {"seeds": [round(value, 5) for value in values], "worst": worst}


# --- error bars


def bars(jets: Path, out: Path, name: str, test: bool, figure: Path | None, numbers: Path | None) -> None:
    """Error bars of log r from pairs of trainings on halves, a pair for each seed; how many cover the classifiers'."""
    where, ratios = file_in(jets, "test" if test else "val"), {}
    rows: dict[str, Tensor] = {}
    seeds = {one["seed"]: one["changes"] for one in points(out, name, test)}
    for seed, changes in seeds.items():
        for kind in KINDS:
            run, folder = settings(kind, jets, seed, changes, out / f"{name}-qcd-{seed}"), out / f"{name}-{kind}-{seed}"
            for end in ("", "-half0", "-half1"):
                model = trained(run, folder.with_name(folder.name + end), int(end[-1]) if end else None)
                if not rows:
                    assert isinstance(model.coordinates, ComponentsCoordinates)
                    coordinates, size = model.coordinates, run.data.train
                    rows = {one: coordinates.rows(read_sparse(where, one)) for one in KINDS}
                ratios[kind, seed, end] = log_prob(model, torch.cat(list(rows.values())))
    reference = row_reference(jets, coordinates, where, rows, size, out)
    labels = np.repeat([0, 1], [len(rows[kind]) for kind in KINDS])

    def log_r(ends: tuple[str, ...]) -> np.ndarray:
        return np.stack([ratios["top", seed, end] - ratios["qcd", seed, end] for seed in seeds for end in ends])

    whole, parts = log_r(("",)).mean(0), log_r(("-half0", "-half1"))
    spread = bar_of_halves(parts) * parts.std(0, ddof=1)
    off = reference.mean(0) - whole
    pulls = {
        "halves": off / spread,
        "halves, and the reference's own": off / np.hypot(spread, reference.std(0, ddof=1)),
    }
    lines: list[list[object]] = []
    for words, pull in pulls.items():
        inside = [np.mean(np.abs(pull[one]) < 1) for one in (labels >= 0, labels == 0, labels == 1)]
        lines.append([words, *(f"{share:.3f}" for share in (*inside, np.mean(np.abs(pull) < 2)))])
    table(["error bar", "within one, all", "QCD", "tops", "within two, all"], lines, numbers)
    if figure is not None:
        with figure_style():
            draw_pulls(pulls, labels, figure)


def draw_pulls(pulls: dict[str, np.ndarray], labels: np.ndarray, path: Path) -> None:
    """The share of jets within so many error bars, each class, and that of a Gaussian."""
    picture, axes = new_figure(panel=(5.6, 4.2))
    ax, x = axes[0, 0], np.linspace(0, 4, 81)
    for colour, (words, pull) in zip(("tab:gray", "tab:blue"), pulls.items(), strict=True):
        for k, line in enumerate(("-", "--")):
            share = np.searchsorted(np.sort(np.abs(pull[labels == k])), x) / np.sum(labels == k)
            ax.plot(x, share, line, color=colour, label=f"{words}, {KINDS[k]}")
    ax.plot(x, [math.erf(one / 2**0.5) for one in x], ":", color="0.3", label="Gaussian")
    ax.set_xlabel("error bars")
    ax.set_ylabel("share of jets whose log r of the classifiers is within")
    ax.legend(fontsize=7)
    picture.savefig(path, bbox_inches="tight")


# --- table and picture

SETTINGS = {"number": "K", "noise": "noise", "power": "power", "train": "jets"}
QUANTITIES = {
    "auc": "AUC of log r",
    "logistic": "slope of a logistic fit of the labels on log r",
    "loss": "cross-entropy of the labels with log r",
    "r": "Pearson with classifiers on the same rows",
    "r_qcd": "the same, QCD only",
    "r_top": "the same, tops only",
    "m": "slope m of these classifiers on log r",
    "m_qcd": "the same, QCD only",
    "m_top": "the same, tops only",
    "r_pixels": "Pearson with the pixel classifier",
    "m_pixels": "slope m of the pixel classifier on log r",
    "told_qcd": "samples told from held-out rows, AUC, QCD",
    "told_top": "the same, tops",
    "agree_qcd": "slope of one training on another far out, QCD",
    "made": "logistic slope against jets made of QCD jets",
    "made_loss": "cross-entropy of jets made of QCD jets",
    "bounds_qcd": "bounds on log Z, upper less lower, QCD",
    "bounds_top": "the same, tops",
    "top_tagging": "top-tagging AUC of -log p",
    "qcd_tagging": "QCD-tagging AUC of -log p",
}


IN_MAP = {
    "auc": "AUC of log r",
    "loss": "cross-entropy",
    "logistic": "logistic slope",
    "m": "m, rows",
    "m_qcd": "QCD",
    "m_top": "tops",
    "r": "Pearson, rows",
    "m_pixels": "m, pixels",
    "told_qcd": "samples told, QCD",
    "told_top": "tops",
    "agree_qcd": "agree far out",
    "made": "made jets: slope",
    "made_loss": "cross-entropy",
    "top_tagging": "tags tops",
    "qcd_tagging": "tags QCD",
}
"""What a line of the map has, by short names."""


def show(out: Path, in_map: bool, figure: Path | None, numbers: Path | None) -> None:
    """A column for each point, or a line, means over seeds with the scatter where there are several; the picture."""
    found: dict[str, list[dict]] = {}
    for path in sorted(out.glob("*.json")):
        one = json.loads(path.read_text())
        found.setdefault(one["name"], []).append(one)
    found = dict(sorted(found.items(), key=lambda item: (*(item[1][0][key] for key in SETTINGS), item[0])))
    rows: list[list[object]] = []
    if in_map:
        for seeds in found.values():
            values = [[one[key] for one in seeds if key in one] for key in IN_MAP]
            rows.append([*(f"{seeds[0][key]:,}" for key in SETTINGS), str(len(values[0]))])
            rows[-1] += [of_seeds(one, scatter=True) for one in values]
        table([*SETTINGS.values(), "seeds", *IN_MAP.values()], rows, numbers)
    else:
        for key, words in QUANTITIES.items():
            values = [[one[key] for one in seeds if key in one] for seeds in found.values()]
            best = 0.0 if key.endswith("loss") else {"told": 0.5, "boun": 0.0}.get(key[:4], 1.0)
            if any(values):
                rows.append([words, *(of_seeds(one, best) for one in values)])
        table(["", *found], rows, numbers)
    print(f"The rule takes {rule(found)}.")
    best_tagging = max(found, key=lambda name: mean_of(found[name], "top_tagging"))
    print(f"-log p tags tops best with {best_tagging}.")
    if figure is not None:
        with figure_style():
            draw(found, figure)


def mean_of(seeds: list[dict], key: str) -> float:
    """Of the seeds that have it; NaN where none has."""
    values = [one[key] for one in seeds if key in one]
    return float(np.mean(values)) if values else math.nan


def rule(found: dict[str, list[dict]]) -> str | None:
    """The point that is chosen with background alone."""
    known = {name: loss for name, seeds in found.items() if math.isfinite(loss := mean_of(seeds, "made_loss"))}
    return min(known, key=lambda name: known[name], default=None)


def draw(found: dict[str, list[dict]], path: Path) -> None:
    """Calibration against resolution: a line over K, which its points name, for each power (colour) and noise."""
    picture, axes = new_figure(panel=(6.4, 4.6))
    known = [some for seeds in found.values() if (some := [one for one in seeds if "auc" in one])]
    usual = statistics.mode(seeds[0]["train"] for seeds in known)  # points with other numbers of jets are in the table
    ax, lines = axes[0, 0], {}
    for seeds in (seeds for seeds in known if seeds[0]["train"] == usual):
        lines.setdefault((seeds[0]["power"], seeds[0]["noise"]), []).append(seeds)
    powers, noises = (sorted({key[k] for key in lines}) for k in (0, 1))
    for (power, noise), line in sorted(lines.items()):
        x, y = (np.array([np.mean([one[key] for one in seeds]) for seeds in line]) for key in ("auc", "logistic"))
        spread = [[np.std([one[key] for one in seeds]) for seeds in line] for key in ("logistic", "auc")]
        look = {"color": f"C{powers.index(power)}", "marker": "^osDv"[noises.index(noise) % 5], "ls": "-"}
        ax.errorbar(x, y, *spread, ms=4, lw=1, label=f"power {power:g}, noise {noise:g}", **look)
        for seeds, *at in zip(line, x, y, strict=True):
            ax.annotate(f"{seeds[0]['number']}", at, textcoords="offset points", xytext=(5, 3), fontsize=7)
    ax.axhline(1.0, ls=":", color="0.5")
    ax.set_xlabel("AUC of log r (resolution)")
    ax.set_ylabel("logistic slope of log r (1: calibrated)")
    ax.legend(fontsize=7)
    picture.savefig(path, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["basis", "map", "show", "bars"])
    parser.add_argument("folders", nargs="+", help="JETS, OUT and points")
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--halves", action="store_true")
    parser.add_argument("--tagging", action="store_true", help="map: top-tagging alone")
    parser.add_argument("--map", action="store_true", help="show: a line for each point")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--numbers", type=Path, help="a file of docs/numbers, whose table is replaced")
    given = parser.parse_args()
    torch.set_num_threads(1)
    first = Path(given.folders[0])
    if given.command == "basis":
        basis(first)
    elif given.command == "show":
        show(first, given.map, given.figure, given.numbers)
    elif given.command == "bars":
        bars(first, Path(given.folders[1]), given.folders[2], given.test, given.figure, given.numbers)
    else:
        out = Path(given.folders[1])
        results(out, given.test).mkdir(parents=True, exist_ok=True)
        for point in given.folders[2:]:
            name, text = point.split("=", 1)
            seed, *changes = between_commas(text)
            path = results(out, given.test) / f"{name}-{seed}.json"
            found = json.loads(path.read_text()) if path.is_file() else {}
            wanted = "agree_qcd" if given.halves else "top_tagging" if given.tagging else "auc"
            if found.get("changes") != changes or wanted not in found:
                whole = (first, name, int(seed), changes, out, given.test)
                found = tagged(*whole) if given.tagging else judged(*whole, given.halves)
                path.write_text(json.dumps(found, indent=1))
            print(name, seed, {key: round(value, 4) for key, value in found.items() if isinstance(value, float)})


if __name__ == "__main__":
    main()
