"""The components models of the zoo on the public jets, beside our test jets: a last look, on which nothing is chosen.

    python bench/jet_public.py [JETS] [--numbers FILE]

JETS is a folder with the file `test`; without it the AUCs that the models' own metrics.json have stand beside. Errors
count jets; the last column says how many errors of the difference the two are apart.
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


def numbers(path: Path) -> dict[str, Estimate]:
    """What the pair of the zoo reaches on the jets of a file."""
    samples = [read_sparse(path, kind) for kind in KINDS]
    labels = np.repeat([0, 1], [len(sample) for sample in samples])

    def asked(function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        return np.concatenate([function(x) for sample in samples for x in pieces(sample)]).astype(np.float64)

    log_p = {kind: asked(normae.load(f"jets-{kind}-components").log_prob) for kind in KINDS}
    reference = asked(normae.load_classifier("jets-classifier").log_ratio)
    ratio, top = log_p["top"] - log_p["qcd"], labels == 1
    within = within_classes(reference, ratio, labels)
    return {
        "tags tops, AUC of -log p": auc(-log_p["qcd"][top], -log_p["qcd"][~top]),
        "tags QCD, AUC of -log p": auc(-log_p["top"][~top], -log_p["top"][top]),
        "AUC of log r": auc(ratio[top], ratio[~top]),
        "factor b by labels": logistic_slope(ratio, labels),
        "slope m of the pixel classifier on log r": fit_line(
            reference, ratio, labels, generator=stream(0, "bench/public")
        ).slope,
        **{f"the same, {words}": one.slope for words, one in zip(("QCD only", "tops only"), within, strict=True)},
        **{f"Pearson, {words}": one.pearson for words, one in zip(("QCD only", "tops only"), within, strict=True)},
        "the pixel classifier itself, AUC": auc(reference[top], reference[~top]),
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
    parser.add_argument("--numbers", type=Path, help="a file of docs/numbers, whose table is replaced")
    given = parser.parse_args()
    torch.set_num_threads(1)
    public, own = numbers(PUBLIC), numbers(file_in(given.jets, "test")) if given.jets else known()
    rows: list[list[object]] = []
    for words, one in public.items():
        both = [e for e in (one, own.get(words)) if e is not None]
        cells: list[object] = [{"value": round(e.value, 5), "error": round(e.error, 5)} for e in both]
        if words in own:
            apart = (one.value - own[words].value) / np.hypot(one.error, own[words].error)
            cells.append(f"{apart:+.1f}")
        rows.append([words, *cells, *[None] * (3 - len(cells))])
    table(["", "public jets", "our test jets", "errors apart"], rows, given.numbers)


if __name__ == "__main__":
    main()
