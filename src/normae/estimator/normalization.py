"""log Z of a fitted table: a grid in one or two columns, annealed importance sampling in more.

The annealing begins at a Gaussian fitted to the persistent chains of the training, and the reverse chains begin at
these chains, which walk on because the weights kept are averages of those that they walked with. Small steps come
first: a chain that the training began at an outlier overshoots with steps that suit the bulk, is rejected, and stays
where it is. A cheap run serves where the model is near a Gaussian; where its bounds disagree a longer one follows,
whose cost is still a fraction of the training's, and where those disagree too there is no number.
"""

import copy
from dataclasses import replace

import torch
from torch import Tensor

from normae.inference import AISConfig, LogZ, Model, annealed_log_z, choose_log_z
from normae.networks.reconstruction import ReconstructionEnergy
from normae.random import stream
from normae.sampling.chain import run_chain

GRID_CELLS = {1: 20_000, 2: 300}
"""Cells along each axis of the grid for log Z."""
RUNS = (
    AISConfig(chains=256, steps=100, widen=1.1, burn_in=100, tolerance=0.2, least_ess=50),
    AISConfig(chains=512, steps=500, widen=1.1, burn_in=1000, tolerance=0.2, least_ess=50),
)
"""The annealings, one after the other until the bounds of one agree: log Z is then known to about 0.1."""


SMALL, SMALL_STEPS = 0.1, 100
"""Of the small steps: their size in units of the training's, and their number."""


def loosened(model: Model, energy: ReconstructionEnergy, chains: Tensor, generator: torch.Generator) -> Tensor:
    """Chains with shape (M, d) after small steps, which free those that are stuck; the model's density stays."""
    feature = model.sampling.feature
    small = replace(feature, step_size=SMALL * feature.step_size, steps=SMALL_STEPS)
    end: Tensor = run_chain(energy, chains, small, model.temperature, generator).position
    return end


def log_z_of(model: Model, chains: Tensor, seed: int) -> LogZ:
    """log Z over the bounds of the feature chain.

    Args:
        chains: samples of the model, or rows near them, with shape (M, d); not used for a grid.
        seed: of the annealing.

    Raises:
        LogZDisagreement: the bounds of the longest annealing differ.
        InputError: the model is too far from a Gaussian for any annealing.
    """
    bounds, energy = model.sampling.feature.bounds, model.energy_function
    cells = GRID_CELLS.get(model.event[0], 0)

    def annealed() -> LogZ:
        # in float32: twice as fast, and its rounding is far below the error of the annealing
        fast, walkers = ReconstructionEnergy(copy.deepcopy(model.autoencoder).float()), chains.float()
        some = walkers[torch.randperm(len(walkers), generator=stream(seed, "log Z starts"))[: RUNS[-1].chains]]
        start = loosened(model, fast, some, stream(seed, "log Z small steps"))
        streams = [stream(seed, f"log Z {k}") for k in range(len(RUNS))]
        return annealed_log_z(fast, model.temperature, walkers, start, streams, RUNS, bounds).log_z

    found = choose_log_z(lambda x: energy(x.double()), model.temperature, model.event, bounds, cells, annealed=annealed)
    assert found is not None
    return found
