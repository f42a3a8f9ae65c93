"""What is timed: iterations of a training as `normae train` runs them, and what we compare with.

That is the plain implementations in the folder `bench/` of the repository, and torchebm.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from normae.bench.timing import Missing, Work
from normae.config import Run
from normae.data import SparseEvents
from normae.energy import Energy
from normae.networks import Autoencoder, build_autoencoder
from normae.random import stream
from normae.training import Schedules, Trainer
from normae.training.backends import choose_backend

BACKENDS = {"cpu": ("reference", "explicit"), "cuda": ("reference", "explicit", "graph", "fused")}
ENDLESS = 1_000_000
Bounds = tuple[float, float]


def network(run: Run, event: Sequence[int]) -> Autoencoder:
    """The untrained network of a run."""
    return build_autoencoder(run.network, tuple(event), stream(run.seed, "init"))


def backends(run: Run, event: Sequence[int], device: torch.device) -> list[str]:
    """The backends that serve this network on this device, the fastest last."""
    model = network(run, event)
    return [n for n in BACKENDS[device.type] if choose_backend(n, model, run.sampling, device).name == n]


def iterations(
    run: Run, events: Tensor | SparseEvents, backend: str, device: torch.device, block: int, pretraining: bool = False
) -> Work:
    """`block` iterations of a training that has just begun."""
    guard = replace(run.guard, log_every=block, checkpoint_every=ENDLESS * block)
    first = replace(run.pretraining, epochs=ENDLESS if pretraining else 0)
    second = replace(run.training, epochs=ENDLESS)
    schedules = Schedules(first, second, run.temperature, guard, run.bayesian)
    sampling = replace(run.sampling, backend=backend)  # type: ignore[arg-type]
    models = [network(run, events.shape[1:])]
    samples = [events] if isinstance(events, Tensor) else [events.to(device)]
    trainer = Trainer(models, samples, schedules, sampling, [0], device)  # type: ignore[arg-type]
    happenings = trainer.run()
    next(happenings)
    while not pretraining and trainer.place[0] == "pretraining":
        next(happenings)
    return lambda: next(happenings)


def repeated(work: Work, n: int) -> Work:
    """`work` n times."""

    def several() -> None:
        for _ in range(n):
            work()

    return several


@torch.no_grad()
def plain_energies(energy: Energy, x: Tensor, batch: int, device: torch.device) -> Tensor:
    """Energies of events on the CPU, by the device and with their way to it and back."""
    return torch.cat([energy(piece.to(device)).cpu() for piece in x.split(batch)])


def plain(name: str) -> ModuleType:
    """The module `name` of the repository's folder `bench/`."""
    package = Path(__file__).parent
    places = [package / f"{name}.py", package.parents[2] / "bench" / f"{name}.py"]
    found = next((path for path in places if path.is_file()), None)
    spec = None if found is None else importlib.util.spec_from_file_location(f"normae_bench_{name}", found)
    if spec is None or spec.loader is None:
        raise Missing(f"bench/{name}.py is not here; run from a clone of the repository")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TorchEBM:
    """torchebm's Langevin sampler of exp(-U) with U = E/T; its noise is sqrt(2 lambda), and it clamps to the bounds."""

    def __init__(
        self, energy: Energy, temperature: float, step_size: float, bounds: Bounds | None, device: torch.device
    ) -> None:
        try:
            core: Any = importlib.import_module("torchebm.core")
            samplers: Any = importlib.import_module("torchebm.samplers")
        except ImportError:
            raise Missing("torchebm is not installed; install the extra normae[bench] to compare with it") from None

        class Potential(core.BaseModel):  # type: ignore[misc,name-defined]
            def forward(self, x: Tensor) -> Tensor:
                return energy(x) / temperature

        model = Potential(device=device)
        self.sampler = samplers.LangevinDynamics(model, step_size=step_size, clamp=bounds, device=device)

    def __call__(self, start: Tensor, steps: int, generator: torch.Generator) -> Tensor:
        """End points with shape (N, d) of `steps` steps from `start`."""
        end: Tensor = self.sampler.sample(start, n_steps=steps, generator=generator)
        return end
