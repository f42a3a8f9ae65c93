"""A search on the toy: two Gaussians as background, a bump between them as signal, p-values from pyhf.

    python docs/examples/toy_search.py                                   # one search, with and without a signal
    python docs/examples/toy_search.py --experiments 1000                # are p-values uniform under background only?
    python docs/examples/toy_search.py --run runs/bayes --quantity p_value --experiments 400 --data-from draw

In every pseudo-experiment background events are drawn anew from the true density, both the simulation behind the
template and the data, scored and binned. Data are scored as `normae score` does, or, with `--data-from draw`, with one
weight draw of a Bayesian run, another one in each experiment: the variation that its covariance describes.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from normae import zoo
from normae.data import DENSITIES
from normae.runs.folder import RunFolder
from normae.scoring.score import open_scorer
from normae.search import Templates
from normae.search.histogram import Binner, HistogramSettings
from normae.search.inference import discovery, uniformity
from normae.statistics.histogram import fill

BACKGROUND = DENSITIES["two-gaussians"]()
CENTRE, WIDTH = (0.0, 0.0), 0.3


class ToySearch:
    """Events, templates and data of the toy search.

    Args:
        run: a run folder or a model of the zoo, trained on the two Gaussians.
        expected: background events in data.
        signal: signal events for a strength of 1.
        simulated: events behind the template.
        from_draw: score data with one weight draw.
    """

    def __init__(
        self,
        run: str,
        quantity: str = "score",
        expected: int = 10_000,
        signal: int = 100,
        simulated: int = 40_000,
        from_draw: bool = False,
        quantiles: str = "0.5,0.75,0.875,0.9375,0.96875,0.985",
    ) -> None:
        self.expected, self.signal, self.simulated, self.from_draw = expected, signal, simulated, from_draw
        folder = RunFolder(zoo.path(run) if run in zoo.names() else Path(run))
        settings = HistogramSettings(quantity=quantity, quantiles=quantiles)
        self.binner = Binner(open_scorer(run, device="cpu"), folder, settings)
        self.edges = self.binner.edges()

    def background_events(self, count: int, random: np.random.Generator) -> np.ndarray:
        """With shape (count, 2)."""
        return BACKGROUND.sample(count, torch.Generator().manual_seed(int(random.integers(2**31)))).numpy()

    def signal_events(self, count: int, random: np.random.Generator) -> np.ndarray:
        """With shape (count, 2)."""
        return (np.array(CENTRE) + WIDTH * random.standard_normal((count, 2))).astype(np.float32)

    def templates(self, random: np.random.Generator) -> Templates:
        """From newly simulated events."""
        simulated = self.binner.sample(self.background_events(self.simulated, random), self.edges)
        bump = self.binner.sample(self.signal_events(self.simulated // 8, random), self.edges)
        scaled = simulated.scaled(self.expected / self.simulated)
        return Templates(
            self.binner.settings.quantity, self.edges, scaled, bump.scaled(self.signal / (self.simulated // 8))
        )

    def data(self, random: np.random.Generator, strength: float = 0.0) -> np.ndarray:
        """Counts with shape (B,) of one experiment."""
        x = self.background_events(int(random.poisson(self.expected)), random)
        x = np.concatenate([x, self.signal_events(int(random.poisson(strength * self.signal)), random)])
        nominal, draws = self.binner.values(x)
        if self.from_draw and draws is not None:
            nominal = draws[random.integers(len(draws))]
        return fill(nominal, self.edges)[0]

    def experiment(self, random: np.random.Generator) -> tuple[Templates, np.ndarray]:
        """New templates and new data, of background only."""
        return self.templates(random), self.data(random)


def experiments(
    draw: Callable[[np.random.Generator], tuple[Templates, np.ndarray]], count: int, seed: int = 0
) -> np.ndarray:
    """p-values with shape (count,) of whole experiments: `draw` gives new templates and new data each time."""
    random = np.random.default_rng(seed)
    return np.array([discovery(*draw(random)).p_value for _ in range(count)])


def main() -> None:
    parser = argparse.ArgumentParser(description="A search on the toy, and the calibration of its p-values.")
    parser.add_argument("--run", default="toy-2gauss-nae")
    parser.add_argument("--quantity", default="score")
    parser.add_argument("--experiments", type=int, default=0)
    parser.add_argument("--data-from", choices=["mean", "draw"], default="mean")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    search = ToySearch(given.run, given.quantity, from_draw=given.data_from == "draw")
    random = np.random.default_rng(given.seed)
    templates = search.templates(random)
    for strength in (0.0, 1.0):
        found = discovery(templates, search.data(random, strength))
        print(f"signal {strength:g}: p = {found.p_value:.3g} ({found.root:.2f} sigma), strength {found.strength:.2f}")
    if given.experiments:
        test = uniformity(experiments(search.experiment, given.experiments, given.seed))
        shares = ", ".join(f"{share:.3f} ± {error:.3f} below {at}" for at, (share, error) in test.share_below.items())
        print(f"{given.experiments} experiments of background only: KS probability {test.ks_p_value:.3f}; {shares}")


if __name__ == "__main__":
    main()
