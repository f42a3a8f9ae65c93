"""Jets that a model generates, against true ones: the observables of appendix C.2, and a classifier.

The paper's recipe: latent chains of 240 steps from noise, without the buffer, decoded, then the feature chain of the
training. A picture is divided by its sum before observables are made of it, true or generated, so that masses are in
units of the jet's pT and do not depend on how well a model learned the sum.

Two classifiers try to tell generated from true jets, one from the six observables, one from the pictures; their inputs
are centred and scaled by the mean and the standard deviation of the truth (of all pixels together, for pictures).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normae.data import SparseEvents
from normae.evaluation.jets import Metrics, digest, read_kept, write_kept
from normae.inference import Model
from normae.jets.substructure import NAMES, THRESHOLD, observables, usable
from normae.random import stream
from normae.runs.folder import RunFolder
from normae.runs.jet_sample import pieces
from normae.statistics import Estimate, wasserstein, wasserstein_halves
from normae.training.two_sample import classifier_test

CPU_CHAINS, CUDA_CHAINS = 256, 4096
"""Chains that run side by side."""
SHOWN = 8
"""Generated jets of which the pictures are kept."""
FEWEST = 60
"""Jets that a classifier test can be made with."""

OTHERS = ("pictures", "auc", "counts", "acceptance")
"""What generated.npz holds beside observables, in the order of `GeneratedJets`."""


class GeneratedJets(NamedTuple):
    """Observables by name, generated and true, each with shape (N,); pictures of a few generated jets (K, 40, 40).

    `auc` is the classifier's on pictures, value and error with shape (2,), NaN where there were too few jets; `counts`
    the jets that were generated and those of them that have observables; `acceptance` that of the feature chain.
    """

    generated: dict[str, NDArray[np.float64]]
    truth: dict[str, NDArray[np.float64]]
    pictures: NDArray[np.float32]
    auc: NDArray[np.float64]
    counts: NDArray[np.int64]
    acceptance: NDArray[np.float64]


def generated_jets(run: RunFolder, model: Model, truth: SparseEvents, n: int, seed: int) -> GeneratedJets | None:
    """`n` jets of the model beside as many true ones; those that generated.npz keeps, where n is 0 or the same."""
    names = [f"{kind}_{name}" for kind in ("generated", "truth") for name in NAMES]
    key = digest(run, truth.sha256(), str(seed))
    kept = read_kept(run.generated, key, (*names, *OTHERS))
    if kept is None or (n and int(kept["counts"][0]) != n):
        if n == 0:
            return None
        kept = _generate(model, truth, n, seed)
        write_kept(run.generated, key, kept)
    generated, true = ({name: kept[f"{kind}_{name}"] for name in NAMES} for kind in ("generated", "truth"))
    return GeneratedJets(generated, true, *(kept[name] for name in OTHERS))


def _generate(model: Model, truth: SparseEvents, n: int, seed: int) -> dict[str, NDArray[Any]]:
    images, acceptance = sample_jets(model, n, seed)
    true = np.concatenate(list(pieces(truth.first(n))))
    found = {f"generated_{name}": values for name, values in observables_of(images).items()}
    found |= {f"truth_{name}": values for name, values in observables_of(true).items()}
    auc = Estimate(np.nan, np.nan)
    if min(n, len(true)) >= FEWEST:
        centre, width = true.mean(axis=0), true.std()
        auc = classifier_test(
            (true - centre) / width, (images - centre) / width, generator=stream(seed, "classifier/pictures"),
            device=model.device,
        ).auc  # fmt: skip
    counts = np.array([n, len(found["generated_mass"])])
    return found | {
        "pictures": images[:SHOWN, 0], "auc": np.array(auc), "counts": counts, "acceptance": np.array(acceptance)
    }  # fmt: skip


def sample_jets(model: Model, n: int, seed: int) -> tuple[NDArray[np.float32], float]:
    """`n` pictures with shape (n, 1, 40, 40) by the paper's recipe, and the share of accepted feature steps."""
    size = CPU_CHAINS if model.device.type == "cpu" else CUDA_CHAINS
    generator = stream(seed, "evaluation/chain", model.device)
    found, accepted = [], []
    for start in range(0, n, size):
        chain = model.sample_chain(min(size, n - start), generator)
        found.append(chain.position.cpu().numpy())
        accepted.append(float(chain.acceptance.mean()) * len(found[-1]))
    return np.concatenate(found), sum(accepted) / n


def observables_of(images: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
    """Observables of pictures that are divided by their sum; empty ones are left out."""
    total = images.sum(axis=(1, 2, 3), keepdims=True)
    scaled = images / np.maximum(total, THRESHOLD)
    return observables(scaled[usable(scaled)])


def generation_metrics(made: GeneratedJets, seed: int) -> Metrics:
    """A Wasserstein distance for each observable, that of halves of the truth, and the AUC of both classifiers."""
    metrics = {"generated_jets": Estimate(float(made.counts[0]), 0.0)}
    metrics["generated_usable"] = Estimate(float(made.counts[1] / made.counts[0]), 0.0)
    metrics["acceptance_generated"] = Estimate(float(made.acceptance), 0.0)
    for name in NAMES:
        generator = stream(seed, f"wasserstein/{name}")
        metrics[f"wasserstein_{name}"] = wasserstein(made.generated[name], made.truth[name], generator=generator)
        metrics[f"wasserstein_{name}_truth"] = wasserstein_halves(made.truth[name], generator=generator)
    if min(len(made.generated["mass"]), len(made.truth["mass"])) >= FEWEST:
        generated, truth = (np.stack([kind[name] for name in NAMES], axis=1) for kind in (made.generated, made.truth))
        centre, width = truth.mean(axis=0), truth.std(axis=0)
        found = classifier_test(
            (truth - centre) / width, (generated - centre) / width, generator=stream(seed, "classifier/observables")
        )
        metrics["auc_generated_observables"] = found.auc
    if np.isfinite(made.auc).all():
        metrics["auc_generated_images"] = Estimate(*map(float, made.auc))
    return metrics
