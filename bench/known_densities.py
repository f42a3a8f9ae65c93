"""The estimator on densities that are known: how far log p is from the truth, and whether its error bars say so.

    python bench/known_densities.py --rows 10000,100000 --seeds 0-2 --jobs 2 -o results.json

Six densities of 2 to 10 columns: `gauss` and `ring` are smooth, `banana` is curved in ten columns, `clusters` has four
separate groups in eight, `skewed` spans powers of ten, and `events` looks like dijet events of a collider, with hard
edges. Two more, `funnel` and `tails`, were never looked at while methods were chosen. `--bars` trains with error bars
too. The pull of a row is (log p - truth)/error bar; its width is the root of its mean square, and the coverage is the
share of rows within one error bar. Every seed is another sample of rows and another training. Errors are over 5,000
rows that nothing was trained on, with the normalization as the model states it.

    python bench/known_densities.py --log-z --densities clusters,wide --rows 10000 --seeds 0-9

judges log Z instead: the integral of the model is the mean of p/p_true over 20,000 rows of the true density, and should
be 1, or the share of the model's samples that the true density can have. `wide` has four groups in 64 columns. `off` is
log Z as stated minus log Z by that integral, `error` the error of the two together, and `bounds` the difference of the
two bounds of an annealing from the base.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score

from normae import NormalizedAutoencoder
from normae.errors import LogZDisagreement
from normae.files import write_json
from normae.inference import ais_log_z
from normae.inference.ais import Proposed
from normae.runs.automatic import LOG_Z

TEST, SIGNAL, INTEGRAL = 5000, 1000, 20_000
ROTATION = stats.ortho_group.rvs(10, random_state=7)
FACTOR = np.array([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [-0.3, 0.5, 0.4]])
CENTRES = 2.0 * np.random.RandomState(5).standard_normal((4, 8))
SHAPES = np.linalg.cholesky(np.stack([np.cov(np.random.RandomState(k).standard_normal((8, 20))) for k in range(4)]))
WIDE_CENTRES = 0.7 * np.random.RandomState(6).standard_normal((4, 64))


class Density(NamedTuple):
    """A density with its own generator: rows (n, d), and log p of rows (N,)."""

    rows: Callable[[int, np.random.RandomState], np.ndarray]
    log_p: Callable[[np.ndarray], np.ndarray]


def gauss_rows(n: int, random: np.random.RandomState) -> np.ndarray:
    return random.standard_normal((n, 3)) @ FACTOR.T


def gauss_log_p(x: np.ndarray) -> np.ndarray:
    return stats.multivariate_normal(np.zeros(3), FACTOR @ FACTOR.T).logpdf(x)


def ring_rows(n: int, random: np.random.RandomState) -> np.ndarray:
    """A ring of radius 3 and width 0.3, with twice as much on one side as on the other."""
    radius, angle = 3 + 0.3 * random.standard_normal(n), random.vonmises(0.0, 0.35, n)
    return radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])


def ring_log_p(x: np.ndarray) -> np.ndarray:
    radius, angle = np.hypot(*x.T), np.arctan2(x[:, 1], x[:, 0])
    return stats.norm(3, 0.3).logpdf(radius) + stats.vonmises(0.35).logpdf(angle) - np.log(radius)


def banana_rows(n: int, random: np.random.RandomState) -> np.ndarray:
    z = random.standard_normal((n, 10))
    z[:, 1::2] += 0.5 * (z[:, ::2] ** 2 - 1)
    return z @ ROTATION.T


def banana_log_p(x: np.ndarray) -> np.ndarray:
    z = x @ ROTATION
    z[:, 1::2] -= 0.5 * (z[:, ::2] ** 2 - 1)
    return stats.norm.logpdf(z).sum(1)


def clusters_rows(n: int, random: np.random.RandomState) -> np.ndarray:
    which = random.randint(4, size=n)
    return CENTRES[which] + 0.6 * np.einsum("nij,nj->ni", SHAPES[which], random.standard_normal((n, 8)))


def clusters_log_p(x: np.ndarray) -> np.ndarray:
    each = [stats.multivariate_normal(c, 0.36 * s @ s.T).logpdf(x) for c, s in zip(CENTRES, SHAPES, strict=True)]
    return np.logaddexp.reduce(each, axis=0) - np.log(4)


def wide_rows(n: int, random: np.random.RandomState) -> np.ndarray:
    """Four groups in 64 columns, each of which is correlated with the next, the more the higher the group's number."""
    which, z = random.randint(4, size=n), random.standard_normal((n, 64))
    z[:, 1:] += 0.3 * which[:, None] * z[:, :-1]
    return WIDE_CENTRES[which] + z


def wide_log_p(x: np.ndarray) -> np.ndarray:
    each = []
    for k, centre in enumerate(WIDE_CENTRES):
        mixing = np.eye(64) + 0.3 * k * np.eye(64, k=-1)  # of determinant 1
        each.append(stats.norm.logpdf(np.linalg.solve(mixing, (x - centre).T)).sum(0))
    return np.logaddexp.reduce(each, axis=0) - np.log(4)


def skewed_rows(n: int, random: np.random.RandomState) -> np.ndarray:
    """Two lognormal columns, sigma 2 and 1, with correlated logarithms."""
    z = random.standard_normal((n, 2))
    return np.exp(np.column_stack([2 * z[:, 0], 0.6 * z[:, 0] + 0.8 * z[:, 1]]))


def skewed_log_p(x: np.ndarray) -> np.ndarray:
    log = np.log(np.maximum(x, 1e-300))
    z = np.column_stack([log[:, 0] / 2, (log[:, 1] - 0.3 * log[:, 0]) / 0.8])
    return stats.norm.logpdf(z).sum(1) - np.log(2 * 0.8) - log.sum(1)


def events_rows(n: int, random: np.random.RandomState) -> np.ndarray:
    """Mass of two jets from 2 TeV on, the mass of the lighter one, the difference to the other, tau_21 of both."""
    mjj = 2 + random.exponential(0.45, n)
    light = random.gamma(2.2, 0.035 * (mjj / 2) ** 0.5)
    more = random.exponential(0.10 + 0.5 * light)
    one, two = (random.beta(5 * a, 5 * (1 - a)) for a in _subjets(light, light + more))
    return np.column_stack([mjj, light, more, one, two])


def events_log_p(x: np.ndarray) -> np.ndarray:
    mjj, light, more, one, two = x.T
    found = stats.expon(2, 0.45).logpdf(mjj) + stats.gamma(2.2, scale=0.035 * (mjj / 2) ** 0.5).logpdf(light)
    found = found + stats.expon(0, 0.10 + 0.5 * light).logpdf(more)
    for tau, a in zip((one, two), _subjets(light, light + more), strict=True):
        found = found + stats.beta(5 * a, 5 * (1 - a)).logpdf(tau)
    return found


def _subjets(light: np.ndarray, heavy: np.ndarray) -> list[np.ndarray]:
    return [0.75 - 0.25 * mass / (mass + 0.15) for mass in (light, heavy)]


def signal_rows(n: int, random: np.random.RandomState) -> np.ndarray:
    """A resonance at 3.5 TeV into two particles of 100 and 300 GeV, each with two prongs."""
    mjj, light = random.normal(3.5, 0.1, n), np.abs(random.normal(0.10, 0.02, n))
    more = np.abs(random.normal(0.20, 0.03, n))
    return np.column_stack([mjj, light, more, *random.beta(3.0, 8.0, (2, n))])


def funnel_rows(n: int, random: np.random.RandomState) -> np.ndarray:
    """Three columns whose width is the exponential of half a fourth."""
    z = random.standard_normal((n, 4))
    return np.column_stack([z[:, 0], z[:, 1:] * np.exp(0.5 * z[:, :1])])


def funnel_log_p(x: np.ndarray) -> np.ndarray:
    width = np.exp(0.5 * x[:, 0])
    return stats.norm.logpdf(x[:, 0]) + stats.norm.logpdf(x[:, 1:] / width[:, None]).sum(1) - 3 * np.log(width)


TAILS = stats.multivariate_t(np.zeros(3), FACTOR @ FACTOR.T, df=5)
"""Student's t of five degrees of freedom."""


DENSITIES = {
    "gauss": Density(gauss_rows, gauss_log_p), "ring": Density(ring_rows, ring_log_p),
    "banana": Density(banana_rows, banana_log_p), "clusters": Density(clusters_rows, clusters_log_p),
    "skewed": Density(skewed_rows, skewed_log_p), "events": Density(events_rows, events_log_p),
}  # fmt: skip
NEW = {
    "funnel": Density(funnel_rows, funnel_log_p),
    "tails": Density(lambda n, random: TAILS.rvs(n, random_state=random), TAILS.logpdf),
}
WIDE = {"wide": Density(wide_rows, wide_log_p)}


def measure(name: str, rows: int, seed: int, bars: bool, settings: dict[str, object]) -> dict[str, object]:
    """One training on `rows` rows, against the truth."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    random, density = np.random.RandomState(seed), (DENSITIES | NEW)[name]
    train, test = density.rows(rows, random), density.rows(TEST, random)
    begun = time.process_time()
    model = NormalizedAutoencoder(bayesian=bars, random_state=seed, **settings).fit(train)
    found: dict[str, object] = {"density": name, "rows": rows, "seed": seed, "seconds": time.process_time() - begun}
    found |= {"log_z_error": float(model.model_.log_z.error) if model.score_kind_ == "log_prob" else None}
    off = model.score_samples(test) - density.log_p(test)
    found |= {"rms": float(np.sqrt(np.mean(off**2))), "mean": float(off.mean()), "median": float(np.median(abs(off)))}
    if bars:
        width = model.score_std(test)
        found |= {"bar": float(np.median(width)), "off": float(np.median(abs(off)))}
        found |= {"pull": float(np.sqrt(np.mean((off / width) ** 2))), "covers": float(np.mean(abs(off) < width))}
    if name == "events":
        signal = signal_rows(SIGNAL, random)
        label = np.repeat([0, 1], [TEST, SIGNAL])
        both = np.concatenate([test, signal])
        found |= {"auc": float(roc_auc_score(label, -model.score_samples(both)))}
        found |= {"auc_truth": float(roc_auc_score(label, -np.maximum(density.log_p(both), -1e9)))}
    return found


def measure_log_z(name: str, rows: int, seed: int, settings: dict[str, object]) -> dict[str, object]:
    """log Z of one training, against the integral of its density, and the bounds of an annealing."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    random, density = np.random.RandomState(seed), (DENSITIES | NEW | WIDE)[name]
    model = NormalizedAutoencoder(random_state=seed, **settings).fit(density.rows(rows, random))
    found: dict[str, object] = {"density": name, "rows": rows, "seed": seed, "kind": model.score_kind_}
    if model.score_kind_ != "log_prob":
        return found
    points = density.rows(INTEGRAL, random)
    ratio = np.exp(model.score_samples(points) - density.log_p(points))
    inside = float(np.isfinite(density.log_p(model.sample(INTEGRAL, random_state=seed))).mean())  # of hard edges
    integral = float(ratio.mean()) / inside
    counted = float(np.hypot(ratio.std() / ratio.mean(), np.sqrt(1 / inside - 1)) / np.sqrt(INTEGRAL))
    inner, generator = model.model_, torch.Generator().manual_seed(seed)
    found |= {
        "off": -np.log(integral),
        "stated": inner.log_z.error,
        "error": float(np.hypot(inner.log_z.error, counted)),
    }
    starts = inner.coordinates.forward(torch.from_numpy(inner.sample(LOG_Z.chains, seed))).float()
    begin, bounds = Proposed(inner.autoencoder.base), inner.sampling.feature.bounds
    try:
        both = ais_log_z(inner.energy_function, inner.temperature, begin, starts, generator, LOG_Z, bounds)
    except LogZDisagreement as error:
        both = error.result
    return found | {"bounds": both.reverse - both.forward, "annealed": both.log_z.value - inner.log_z.value}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--densities", default=",".join(DENSITIES))
    parser.add_argument("--rows", default="1000,10000,100000")
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--bars", action="store_true", help="train with error bars")
    parser.add_argument("--log-z", action="store_true", help="judge log Z instead")
    parser.add_argument("--set", action="append", default=[], help="name=value of the estimator")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-o", "--out", type=Path)
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    settings = {name: json.loads(value) for name, value in (one.split("=", 1) for one in asked.set)}
    wanted = product(
        map(int, asked.rows.split(",")), asked.densities.split(","), range(int(first), int(last or first) + 1)
    )
    with ProcessPoolExecutor(asked.jobs) as pool:
        order = sorted(wanted, reverse=True)
        tasks = [
            pool.submit(measure_log_z, name, rows, seed, settings) if asked.log_z
            else pool.submit(measure, name, rows, seed, asked.bars, settings)
            for rows, name, seed in order
        ]  # fmt: skip
        results = []
        for task in tasks:
            results.append(task.result())
            print({key: round(v, 4) if isinstance(v, float) else v for key, v in results[-1].items()}, flush=True)
    if asked.log_z:
        known = [one for one in results if one["kind"] == "log_prob"]
        held = sum(abs(one["off"]) <= 2 * one["error"] for one in known)
        close = sum(abs(one["bounds"]) <= LOG_Z.tolerance for one in known)
        print(
            f"log Z is known for {len(known)} of {len(results)}, within two errors for {held}, bounds agree for {close}"
        )
    if asked.out is not None:
        write_json(asked.out, results)


if __name__ == "__main__":
    main()
