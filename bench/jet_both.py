"""Jets in components: a score in both directions, log b - log p with a stated b.

    python bench/jet_both.py JETS OUT NAME [--test] [--third W] [--numbers FILE]

JETS and OUT are those of `bench/jet_components.py map`, NAME one of its points; all its seeds are judged, at validation
jets or at test jets. W is a file of jets of a third class.

b is a density too, of jets that are made from the training sample alone:
each is scaled in angle by a factor between 1/3 and 3, and half of them get a second one beside it, with 10 to 50 % of
the momentum, at a distance of 0.1 to 0.7. So b has jets of any width and with more prongs.
It learns with 4,000 updates. log b - log p is small beside the errors of two densities, so it is learned as one number
too, by a network that tells jets made anew from those of background.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from jet_components import CLASSIFIER, log_prob, of_seeds, points, settings, table, trained
from normae.components import ComponentsCoordinates
from normae.data import SparseEvents
from normae.jets import Jets, from_counts, read, write
from normae.jets.container import wrap
from normae.sources import KINDS, file_in, read_sparse
from normae.statistics import auc
from normae.tensors import stream
from normae.training.two_sample import RatioClassifier, train_ratio_classifier

PT, HELD = 600.0, 5000
"""GeV of a jet that is made anew, and how many of these are held out in each of two samples."""
SCALED, SHARE, DISTANCE, NEAR = 3.0, (0.1, 0.5), (0.1, 0.7), 0.5
"""Largest factor on angles; share of the momentum, and distance, of a second jet; what a picture holds for sure."""


def remade(jets: Jets, seed: int) -> Jets:
    """Jets of any width, half of them with a second one beside, of N jets of background; few are lost."""
    random, n = np.random.default_rng(seed), len(jets)
    jet, pt = np.repeat(np.arange(n), jets.counts), jets.pt.astype(np.float64)
    pt /= np.bincount(jet, pt)[jet]
    at = np.stack([jets.eta, wrap(jets.phi - jets.phi[jets.offsets[:-1]][jet])])
    at = at - np.stack([np.bincount(jet, pt * one)[jet] for one in at])
    at *= SCALED ** random.uniform(-1, 1, n)[jet]
    beside = random.permutation(n)[jet]  # the jet that each is put beside
    two = random.random(n) < 0.5
    share, distance = random.uniform(*SHARE, n), random.uniform(*DISTANCE, n)
    turn, angle = random.uniform(0, 2 * np.pi, (2, n))
    cos, sin = np.cos(turn[beside]), np.sin(turn[beside])
    moved = np.stack([cos * at[0] - sin * at[1], sin * at[0] + cos * at[1]])
    moved += distance[beside] * np.stack([np.cos(angle[beside]), np.sin(angle[beside])])
    kept = two[beside]
    jet, own = np.concatenate([jet, beside[kept]]), np.where(two, 1 - share, 1.0)[jet]
    pt = np.concatenate([pt * own, (pt * share[beside])[kept]])
    at = np.concatenate([at, moved[:, kept]], axis=1)
    order = np.lexsort((-pt, jet))
    made = from_counts(np.zeros(n), np.bincount(jet, minlength=n), PT * pt[order], *at[:, order])
    centre = np.stack([np.bincount(jet, pt * one)[jet] for one in at])
    near = np.bincount(jet, np.hypot(*(at - centre)) < NEAR)
    return made[near > 0]


def both(jets: Path, out: Path, name: str, test: bool, third: Path | None, numbers: Path | None) -> None:
    """AUC of -log p and of log b - log p, jets of the other class and of a third against held-out ones."""
    where, found = file_in(jets, "test" if test else "val"), {}
    held = {kind: read_sparse(where, kind) for kind in KINDS}
    if third is not None:
        held["third"] = read_sparse(third, "top")
    for point in points(out, name, test):
        seed, folder = point["seed"], out / f"{name}-qcd-{point['seed']}"
        for kind in KINDS:
            run = settings(kind, jets, seed, point["changes"], folder)
            model = trained(run, out / f"{name}-{kind}-{seed}")
            file = out / f"remade-{kind}-{seed}.h5"
            if not file.is_file():
                all_jets = read(file_in(jets, "train"))
                chosen = np.flatnonzero(all_jets.labels == KINDS.index(kind))[: run.data.train]
                write(file, remade(all_jets[chosen], seed), {})
            size = [f"data.train={run.data.train - 3 * HELD}", f"data.test={HELD}", f"data.validation={HELD}"]
            other = settings("qcd", file, seed, ["contrast.iterations=4000", *point["changes"], *size], folder)
            reference = trained(other, out / f"{name}-{kind}-{seed}-remade")
            coordinates = model.coordinates
            assert isinstance(coordinates, ComponentsCoordinates)
            rows = {one: coordinates.rows(sample) for one, sample in held.items()}
            log_p, log_b = ({one: log_prob(m, y) for one, y in rows.items()} for m in (model, reference))
            told = told_apart(coordinates, [read_sparse(file_in(jets, "train"), kind), read_sparse(file, "qcd")], seed)
            direct = {one: told(y.float()) for one, y in rows.items()}
            for one in (one for one in held if one != kind):
                plain = auc(-log_p[one], -log_p[kind]).value
                scored = auc(log_b[one] - log_p[one], log_b[kind] - log_p[kind]).value
                found.setdefault((kind, one), []).append((plain, scored, auc(direct[one], direct[kind]).value))
    names = {"qcd": "QCD jets", "top": "tops", "third": third.stem if third else ""}
    rows = [
        [f"{names[one]} among {names[kind]}", *(of_seeds(list(column)) for column in zip(*values, strict=True))]
        for (kind, one), values in found.items()
    ]
    table(["AUC", "-log p", "log b - log p", "log b/p, learned as one"], rows, numbers)


def told_apart(coordinates: ComponentsCoordinates, samples: list[SparseEvents], seed: int) -> RatioClassifier:
    """log b/p by one network, which tells rows of jets made anew from those of background, both with their noise."""
    generator = stream(seed, "bench/direct")
    rows = [coordinates.noisy(coordinates.rows(sample), 1, generator) for sample in samples]
    labels = np.repeat([0, 1], [len(part) for part in rows])
    return train_ratio_classifier(torch.cat(rows).float(), labels, CLASSIFIER, generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jets", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("name", help="a point of the map")
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--third", type=Path, help="a file of jets of another class, with label 1")
    parser.add_argument("--numbers", type=Path, help="a file of docs/numbers, whose table is replaced")
    given = parser.parse_args()
    torch.set_num_threads(1)
    both(given.jets, given.out, given.name, given.test, given.third, given.numbers)


if __name__ == "__main__":
    main()
