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
from jet_made import HELD, made_file
from normae.components import ComponentsCoordinates
from normae.data import SparseEvents
from normae.sources import KINDS, file_in, read_sparse
from normae.statistics import auc
from normae.tensors import stream
from normae.training.two_sample import RatioClassifier, train_ratio_classifier


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
            file = made_file(file_in(jets, "train"), kind, run.data.train, seed, out)
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
