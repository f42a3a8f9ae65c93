"""Jets in components: where log r of two densities and the classifiers on the same rows differ, which is right?

    python bench/jet_references.py JETS OUT [POINT ...] [--references N] [--test] [--numbers FILE]

JETS, OUT and a POINT are those of `bench/jet_components.py map`; the pair of the zoo and each of its trainings come
first. Densities and classifiers are of rows with noise, so labels can judge both at held-out rows *with* noise: there
the right log r has the least cross-entropy, the factor b = 1 in a logistic fit of the labels, and beside it no other
log r counts. At rows without noise, where pictures are scored, the right one has another b, since labels then know
more. Validation jets, with --test test jets. A line has

    AUC, cross-entropy, b      by labels, at rows with noise
    weight                     of a pair: that of its log r in a fit of the labels on it and the last reference together
                               (0: the reference knows all that it knows, 1: it knows all that the reference does)
    m                          slope of the last reference on a pair's log r; of a reference on that of the zoo's pair;
                               at rows with noise, in all and each class, and at rows without it

A reference is the mean of classifiers, corrected where held-out rows ask for it, and is kept in OUT. There are three,
each with more to learn from than the one before; --references takes the first N.
"""

import argparse
import hashlib
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

import normae
from jet_components import CLASSIFIER, between_commas, cross_entropy, log_prob, of_one, settings, table, trained
from normae.components import ComponentsCoordinates
from normae.inference import Model
from normae.sources import KINDS, file_in, read_sparse
from normae.statistics import auc
from normae.statistics.calibration import choose_correction, logistic_slope
from normae.tensors import stream
from normae.training.two_sample import RatioSettings, train_ratio_classifier

HELD = 0.125
"""Share of the jets that the correction is found with."""


@dataclass(frozen=True)
class Reference:
    """Classifiers: how many, the jets of each class, the share that one sees, copies with noise, and epochs."""

    words: str
    members: int = 4
    jets: int = 100_000
    share: float = 0.5
    copies: int = 2
    epochs: int = CLASSIFIER.max_epochs


REFERENCES = (
    Reference("half the jets", jets=50_000),
    Reference("as in the map"),
    Reference("all jets for each, four copies", members=2, share=1.0, copies=4, epochs=4),
)


def answers(
    of: Reference, rows: list[Tensor], coordinates: ComponentsCoordinates, asked: list[Tensor]
) -> list[np.ndarray]:
    """log r of the mean of classifiers at each of several samples, of training rows of both classes, (N, K) each."""
    known = [part[: of.jets] for part in rows]
    ends = [round(len(part) * (1 - HELD)) for part in known]
    noise, said = stream(0, "bench/references"), []
    held = torch.cat([coordinates.noisy(part[end:], 1, noise) for part, end in zip(known, ends, strict=True)]).float()
    labels = np.repeat([False, True], [len(part) - end for part, end in zip(known, ends, strict=True)])
    schedule = RatioSettings(hidden=CLASSIFIER.hidden, batch=CLASSIFIER.batch, max_epochs=of.epochs, patience=3)
    for k in range(of.members):
        generator = stream(k, "bench/references/member")
        parts = []
        for part, end in zip(known, ends, strict=True):
            chosen = torch.randperm(end, generator=generator)[: round(end * of.share)]
            parts.append(coordinates.noisy(part[chosen], of.copies, generator).float())
        marks = np.repeat([0, 1], [len(part) for part in parts])
        network = train_ratio_classifier(torch.cat(parts), marks, schedule, generator=generator)
        said.append([network(one) for one in (held, *asked)])
    means = [np.mean(one, axis=0) for one in zip(*said, strict=True)]
    correct = choose_correction(means[0], labels, 0)[1]
    return [correct(one) for one in means[1:]]


def joint(first: np.ndarray, second: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Weight of `first` in a logistic fit of the labels on both and a constant, with its error."""
    design = np.stack([first, second, np.ones(len(labels))])
    found = np.array([0.5, 0.5, 0.0])
    for _ in range(30):  # Newton
        p = expit(found @ design)
        inverse = np.linalg.inv((design * (p * (1 - p))) @ design.T)
        found = found + inverse @ (design @ (labels - p))
    return float(found[0]), float(np.sqrt(inverse[0, 0]))


def pairs(jets: Path, out: Path, points: list[str]) -> dict[str, dict[str, Model]]:
    """Densities of both classes by name: the zoo's, its members, and those of points."""
    zoo = {kind: normae.load(f"jets-{kind}-components") for kind in KINDS}
    found = {"zoo, mean of three": zoo}
    for k in range(len(zoo["qcd"].members)):
        found[f"zoo, training {k}"] = {kind: model.members[k] for kind, model in zoo.items()}
    for point in points:
        name, text = point.split("=", 1)
        seed, *changes = between_commas(text)
        folders = {kind: out / f"{name}-{kind}-{seed}" for kind in KINDS}
        runs = {kind: settings(kind, jets, int(seed), changes, folders["qcd"]) for kind in KINDS}
        found[f"{name}, seed {seed}"] = {kind: trained(run, folders[kind]) for kind, run in runs.items()}
    return found


def judge(jets: Path, out: Path, points: list[str], count: int, test: bool, numbers: Path | None) -> None:
    """The table of the module's head."""
    models = pairs(jets, out, points)
    coordinates = models["zoo, training 0"]["qcd"].coordinates
    assert isinstance(coordinates, ComponentsCoordinates)
    where = file_in(jets, "test" if test else "val")
    bare = [coordinates.rows(read_sparse(where, kind)) for kind in KINDS]
    noise = stream(0, "bench/judged")
    asked = [torch.cat([coordinates.noisy(one, 1, noise) for one in bare]), torch.cat(bare)]
    labels = np.repeat([0, 1], [len(one) for one in bare])
    said: dict[str, list[np.ndarray]] = {}
    known: list[Tensor] = []
    for of in REFERENCES[:count]:
        key = f"{astuple(of)} {where} {coordinates.noise} {coordinates.basis.sum():.6f}"
        path = out / f"answers-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npy"
        if not path.is_file():
            known = known or [coordinates.rows(read_sparse(file_in(jets, "train"), kind)) for kind in KINDS]
            np.save(path, answers(of, known, coordinates, [rows.float() for rows in asked]))
        said[of.words] = list(np.load(path))
    last = list(said.values())[-1]
    for name, pair in models.items():
        log_p = [[log_prob(pair[kind], rows) for rows in asked] for kind in KINDS]
        said[name] = [top - qcd for qcd, top in zip(*log_p, strict=True)]
    rows: list[list[object]] = []
    for name, (ratio, without) in said.items():
        b = logistic_slope(ratio, labels)
        line: list[object] = [name, f"{auc(ratio[labels == 1], ratio[labels == 0]).value:.4f}"]
        line += [f"{cross_entropy(ratio, labels):.4f}", {"value": round(b.value, 4), "error": round(b.error, 4)}]
        if name in models:
            weight, error = joint(ratio, last[0], labels)
            line.append({"value": round(weight, 4), "error": round(error, 4)})
            slopes = [of_one(one, own, labels, "") for one, own in zip(last, (ratio, without), strict=True)]
        else:
            line.append(None)
            both = zip((ratio, without), said["zoo, mean of three"], strict=True)
            slopes = [of_one(one, own, labels, "") for one, own in both]
        line += [f"{slopes[0][key]:.3f}" for key in ("m", "m_qcd", "m_top")] + [f"{slopes[1]['m']:.3f}"]
        rows.append(line)
    header = ["log r of", "AUC", "cross-entropy", "b", "weight", "m, noise", "QCD", "tops", "m, no noise"]
    table(header, rows, numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jets", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("points", nargs="*")
    parser.add_argument("--references", type=int, default=len(REFERENCES), choices=range(1, len(REFERENCES) + 1))
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--numbers", type=Path, help="a file of docs/numbers, whose table is replaced")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    judge(given.jets, given.out, given.points, given.references, given.test, given.numbers)


if __name__ == "__main__":
    main()
