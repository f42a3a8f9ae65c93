"""How many jets become filtered 40x40 images a second, against a loop over jets."""

import torch

from normae.bench.jet_files import synthetic
from normae.bench.others import Missing, plain
from normae.bench.rows import Report
from normae.bench.timing import interleaved, median
from normae.jets.imaging import images as make_images

GROUP = "jet images"


def images(device: torch.device, quick: bool, rounds: int) -> Report:  # noqa: ARG001
    """Measure both; images are made on the CPU."""
    report = Report()
    jets = synthetic(200 if quick else 20_000)
    some = jets[: 20 if quick else 500]
    works = {"ours": lambda: make_images(jets)}
    try:
        theirs = plain("plain_images")
        works["plain"] = lambda: theirs.images(some.pt, some.eta, some.phi, some.offsets)
    except Missing as missing:
        report.skipped.append(str(missing))
    times = interleaved(works, rounds)
    for name, n in (("ours", len(jets)), ("plain", len(some))):
        if name in times:
            report.times[f"{GROUP}: {name}"] = times[name]
            report.add(f"{GROUP}: {name}", median(n / times[name]), "1/s")
            times[name] = times[name] / n
    if "plain" in times:
        report.faster(GROUP, times, "ours", "plain")
    return report
