"""The toy with the paper's settings over several seeds: the last weights, and what their average would give.

    python bench/toy_seeds.py OUT [--seeds 0-7] [--set section.key=value ...] [--jobs 2] [--numbers FILE]

Trains `toy-paper` for all seeds side by side and keeps an average of the weights beside them, which changes nothing in
the training. OUT/seed-K are the runs with averaged weights, OUT/last/seed-K those with the last ones: the paper's. Both
are judged as `normae evaluate` does. What is finished is not made again. FILE, of docs/numbers, gets the table.
"""

import argparse
import json
import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from normae.config import read
from normae.evaluation.evaluate import evaluate
from normae.inference.log_z import choose_log_z
from normae.networks import build_autoencoder
from normae.networks.reconstruction import ReconstructionEnergy, fill
from normae.runs.folder import RunFolder, read_tensors, write_tensors
from normae.runs.session import train
from normae.tensors import stream
from normae.training import Happening, Record, Trainer

AVERAGE = 0.998
"""Of the weights: a mean over some 500 updates."""
QUANTITIES = {
    "pearson_grid": ("Pearson of log p, grid", "min"),
    "pearson_test": ("Pearson of log p, test set", "min"),
    "share_within_10_percent": ("test points with abs(Delta) < 10 %", "min"),
    "kl": ("KL(true, model)", "max"),
    "auc_ideal": ("AUC of the ideal classifier", "max"),
    "auc_classifier_recipe": ("classifier AUC, samples by the paper's recipe", "max"),
    "auc_classifier_long": ("classifier AUC, samples of chains ten times as long", "max"),
    "auc_classifier_exact": ("classifier AUC, exact draws of the density", "max"),
}


def trained(out: Path, seeds: list[int], changes: list[str]) -> None:
    """The runs of all seeds, averaged and last."""
    config, last = read("toy-paper", [f"training.average={AVERAGE}", *changes]), {}

    def watch(trainer: Trainer, happening: Happening) -> None:
        ends = isinstance(happening, Record) and happening.phase == "training"
        if ends and happening.iteration == trainer.length("training"):
            weights, temperatures, _ = trainer.models.result(True)
            for k, seed in enumerate(seeds):
                last[seed] = trainer.setup.noise.tensors(weights[k]), float(temperatures[k])

    train(config, out, seeds, resume=out.exists(), watch=watch)
    for seed, (tensors, temperature) in last.items():
        given, folder = RunFolder(out / f"seed-{seed}"), RunFolder(out / "last" / f"seed-{seed}")
        shutil.copytree(given.path, folder.path)
        config, header = read(given.config), read_tensors(given.model)[1]
        network = build_autoencoder(config.network, (2,), stream(seed, "init"))
        fill(network, {name: tensor.cpu() for name, tensor in tensors.items()})
        energy = ReconstructionEnergy(network.requires_grad_(False))
        bounds, cells = config.sampling.feature.bounds, config.evaluation.log_z_cells
        header |= {"temperature": temperature, "log_z": choose_log_z(energy, temperature, (2,), bounds, cells)}
        write_tensors(folder.model, tensors, header)


def judged(folder: Path) -> dict[str, float]:
    """The metrics of a run, made where they are not there."""
    torch.set_num_threads(1)
    if not RunFolder(folder).metrics.is_file():
        evaluate(folder, figures=False)
    found = json.loads(RunFolder(folder).metrics.read_text())
    return {name: one["value"] for name, one in found.items()}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", default="0-7", help="first-last")
    parser.add_argument("--set", action="append", default=[], help="section.key=value of the preset")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--numbers", type=Path, help="a file of docs/numbers, whose table is replaced")
    given = parser.parse_args()
    first, last = (int(one) for one in given.seeds.split("-"))
    seeds = list(range(first, last + 1))
    if not all((given.out / "last" / f"seed-{seed}").exists() for seed in seeds):
        trained(given.out, seeds, given.set)
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("spawn")) as pool:
        kinds = {"last": given.out / "last", "average": given.out}
        found = {
            kind: list(pool.map(judged, [folder / f"seed-{seed}" for seed in seeds])) for kind, folder in kinds.items()
        }
    rows: list[list[object]] = []
    for key, (words, worst) in QUANTITIES.items():
        values = {kind: [round(one[key], 6) for one in each if key in one] for kind, each in found.items()}
        print(words, json.dumps(values))
        rows.append([words, *({"seeds": each, "worst": worst} for each in values.values())])
    if given.numbers is not None:
        content = json.loads(given.numbers.read_text()) | {"rows": rows}
        given.numbers.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
