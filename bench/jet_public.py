"""The components models of the zoo on the public jets, beside our test jets: a last look, on which nothing is chosen.

    python bench/jet_public.py [JETS] [--simulated QCD TOP] [--numbers FILE]

JETS is a folder with the file `test`; without it the AUCs that the models' own metrics.json have stand beside. QCD and
TOP are files of jets that are simulated as the public ones were. Errors count jets; "errors apart" are those of the
difference to the public jets.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import normae
from jet_components import table
from normae import zoo
from normae.jets.reader import PUBLIC
from normae.sources import KINDS, file_in, pieces, read_sparse
from normae.statistics import Estimate, auc, fit_line, within_classes
from normae.statistics.calibration import logistic_slope
from normae.tensors import stream


def numbers(qcd: Path, top: Path) -> dict[str, Estimate]:
    """What the pair of the zoo reaches on the jets of two files, or of one that is given twice."""
    samples = [read_sparse(path, kind) for path, kind in zip((qcd, top), KINDS, strict=True)]
    labels = np.repeat([0, 1], [len(sample) for sample in samples])

    def asked(function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        return np.concatenate([function(x) for sample in samples for x in pieces(sample)]).astype(np.float64)

    log_p = {kind: asked(normae.load(f"jets-{kind}-components").log_prob) for kind in KINDS}
    reference = asked(normae.load_classifier("jets-classifier").log_ratio)
    ratio, tops = log_p["top"] - log_p["qcd"], labels == 1
    within = within_classes(reference, ratio, labels)
    return {
        "tags tops, AUC of -log p": auc(-log_p["qcd"][tops], -log_p["qcd"][~tops]),
        "tags QCD, AUC of -log p": auc(-log_p["top"][~tops], -log_p["top"][tops]),
        "AUC of log r": auc(ratio[tops], ratio[~tops]),
        "factor b by labels": logistic_slope(ratio, labels),
        "slope m of the pixel classifier on log r": fit_line(
            reference, ratio, labels, generator=stream(0, "bench/public")
        ).slope,
        **{f"the same, {words}": one.slope for words, one in zip(("QCD only", "tops only"), within, strict=True)},
        **{f"Pearson, {words}": one.pearson for words, one in zip(("QCD only", "tops only"), within, strict=True)},
        "the pixel classifier itself, AUC": auc(reference[tops], reference[~tops]),
    }


def known() -> dict[str, Estimate]:
    """What the models' metrics.json say of our test jets."""
    found = {}
    for words, kind in (("tags tops, AUC of -log p", "qcd"), ("tags QCD, AUC of -log p", "top")):
        content = json.loads((zoo.path(f"jets-{kind}-components") / "metrics.json").read_text())["auc"]
        found[words] = Estimate(content["value"], content["error"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jets", type=Path, nargs="?")
    parser.add_argument("--simulated", type=Path, nargs=2, help="files of QCD jets and of tops")
    parser.add_argument("--numbers", type=Path, help="a file of docs/numbers, whose table is replaced")
    given = parser.parse_args()
    torch.set_num_threads(1)
    public = numbers(PUBLIC, PUBLIC)
    beside = {"our test jets": numbers(*[file_in(given.jets, "test")] * 2) if given.jets else known()}
    if given.simulated:
        beside["simulated like the public ones"] = numbers(*given.simulated)
    rows: list[list[object]] = []
    for words, one in public.items():
        rows.append([words, cell(one)])
        for other in (found.get(words) for found in beside.values()):
            apart = None if other is None else (one.value - other.value) / np.hypot(one.error, other.error)
            rows[-1] += [None, None] if other is None else [cell(other), f"{apart:+.1f}"]
    header = ["", "public jets", *(title for name in beside for title in (name, "errors apart"))]
    table(header, rows, given.numbers)


def cell(one: Estimate) -> dict[str, float]:
    """As a file of docs/numbers holds it."""
    return {"value": round(one.value, 5), "error": round(one.error, 5)}


if __name__ == "__main__":
    main()
