"""What we compare with: the plain implementations in the folder `bench/` of the repository, and torchebm."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from normae.energy import Energy


class Missing(Exception):
    """Something to compare with is not installed; one line that says so."""


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
    """torchebm's Langevin sampler on an energy.

    Args:
        energy: E.
        temperature: T; torchebm samples exp(-U), so U = E/T.
        step_size: the paper's lambda, with noise sqrt(2 lambda).
        bounds: to which torchebm clamps.
    """

    def __init__(
        self,
        energy: Energy,
        temperature: float,
        step_size: float,
        bounds: tuple[float, float] | None,
        device: torch.device,
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
