"""What a training leaves in the end: weights with their posterior, log Z, and where they come from."""

import os
import platform
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normae.config import Run, to_toml
from normae.data import linear_errors
from normae.errors import InputError, LogZDisagreement
from normae.files import write_json, write_text
from normae.inference import LogZ, annealed_log_z, choose_log_z, loosened
from normae.networks import Autoencoder, build_autoencoder
from normae.networks.own import EnergyNetwork, OwnEnergy, copied
from normae.networks.reconstruction import ReconstructionEnergy, all_tensors, fill
from normae.posterior.laplace import fit_laplace
from normae.random import stream
from normae.runs.folder import CHAINS, RunFolder, stored, write_tensors
from normae.runs.start import Prepared, pretrained_config, write_start
from normae.runs.writing import Journal
from normae.sources import Events
from normae.training import Checkpoint, Happening, Trainer
from normae.version import __version__

Baselines = dict[str, dict[str, float]]
BASE_EVENTS = 100_000
"""Most events that the base of annealed importance sampling is fitted to."""


class Finish:
    """Turns what a trainer holds into the models of its run folders.

    Args:
        journal: of the training, with folders and configurations.
        runs: coordinates and events of each run.
    """

    def __init__(self, trainer: Trainer, journal: Journal, runs: list[Prepared]) -> None:
        self.trainer, self.journal = trainer, journal
        self.coordinates, self.events = [run.coordinates for run in runs], [run.events for run in runs]
        self.configs, self.device = journal.configs, trainer.setup.device
        self.event = trainer.setup.data.event
        self.own = trainer.setup.architecture if self.configs[0].network.kind == "own" else None
        self.annealing: dict[int, dict[str, Any]] = {}
        self.linear: dict[int, Baselines] = {}

    def keep_pretrained(self, happening: Happening) -> None:
        """The autoencoder that the NAE phase begins with, as a run folder of its own."""
        first = self.configs[0]
        begins = isinstance(happening, Checkpoint) and happening == ("training", 0)
        if not begins or first.start or first.contrast or not first.training.epochs or not first.pretraining.epochs:
            return
        for k, folder in enumerate(self.journal.folders):
            inner = RunFolder(folder.pretrained)
            config = pretrained_config(self.configs[k])
            tensors, header = self._model(config, k, last=True)
            write_text(inner.config, to_toml(config))
            write_text(inner.history, folder.history.read_text(encoding="utf-8") if folder.history.exists() else "")
            write_start(inner, self.trainer.models.start(), self.journal.of(k))
            write_json(inner.provenance, self._provenance(k))
            write_tensors(inner.model, tensors, header | {"log_z": None})

    def write(self) -> None:
        """The finished models."""
        for k, folder in enumerate(self.journal.folders):
            tensors, header = self._model(self.configs[k], k)
            tensors = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
            header["log_z"] = self._log_z(k, tensors, header)
            if not self.configs[k].training.epochs:
                write_start(folder, self.trainer.models.start(), self.journal.of(k))
            write_json(folder.provenance, self._provenance(k))
            write_tensors(folder.model, tensors, header)
        for k, found in self.annealing.items():
            settings = self.configs[k].log_z
            if "failed" in found and settings is not None and settings.required:
                path = self.journal.folders[k].path
                raise LogZDisagreement(f"{path}: {found['failed']}. The model is written without log Z")

    def _model(self, config: Run, k: int, last: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights by name with their posterior, and the header, of run k, before log Z."""
        weights, temperatures, sizes = self.trainer.models.result(last)
        members = self.journal.of(k)
        header: dict[str, Any] = {
            "event": list(self.event),
            "temperature": float(temperatures[members.start]),
            "step_sizes": [float(size) for size in sizes[:, members].mean(1)],
        }
        if self.coordinates[k].kind != "identity":
            header["coordinates"] = self.coordinates[k].kind
        if (columns := self.events[k].columns) is not None:
            header["columns"] = list(columns)
        if self.journal.replicas > 1:
            header["temperatures"] = temperatures[members].tolist()
        tensors = self.trainer.setup.noise.tensors(weights[members.start])
        tensors |= {} if self.own is None else dict(self.own.named_buffers())
        tensors |= self._posterior(config, k, weights[members], tensors, header["temperature"])
        return tensors | stored(self.coordinates[k]) | ({} if last else self._chains(k)), header

    def _chains(self, k: int) -> dict[str, Tensor]:
        """The persistent chains of run k that began at its events: samples of the model, where others can begin."""
        if self.configs[k].sampling.chains_from != "data":
            return {}
        return {CHAINS: self.trainer.models.buffer.storage[self.journal.of(k).start].clone()}

    def _posterior(
        self, config: Run, k: int, weights: Tensor, tensors: dict[str, Tensor], temperature: float
    ) -> dict[str, Tensor]:
        """What the posterior of `config` adds to the weights of run k, which are mean-field or deterministic."""
        if config.ensemble is not None:
            return {f"member.{name}": view for name, view in self.trainer.setup.layout.views(weights).items()}
        if config.laplace is None:
            return {}
        network = self._network(config)
        network.load_state_dict(tensors)
        generator = stream(config.seed, "laplace")
        network, events = network.to(self.device), self.events[k].train
        assert isinstance(events, Tensor)
        copies = config.coordinates.copies
        return fit_laplace(network, temperature, events, config.laplace, generator, copies).tensors()

    def _network(self, config: Run) -> Autoencoder:
        """A network of the run, whatever its weights."""
        if self.own is not None:
            return copied(self.own, config.network)
        return build_autoencoder(config.network, self.event, stream(config.seed, "init"))

    def _log_z(self, k: int, tensors: dict[str, Tensor], header: dict[str, Any]) -> list[Any] | None:
        """log Z where it can be had; annealed where no grid serves and the configuration asks for it."""
        config, temperature = self.configs[k], float(header["temperature"])
        network = self._network(config)
        fill(network, {name: tensors[name] for name in all_tensors(network) if name in tensors})
        network = network.to(self.device).requires_grad_(False)
        energy = OwnEnergy(network) if isinstance(network, EnergyNetwork) else ReconstructionEnergy(network)
        size = header["step_sizes"][1]

        def annealed() -> LogZ | None:
            events = self._samples(k, energy, temperature, size, tensors.get(CHAINS))
            return self._annealed_log_z(k, energy, temperature, events)

        found = choose_log_z(
            energy, temperature, self.event, config.sampling.feature.bounds, config.evaluation.log_z_cells,
            self.device, None if config.log_z is None else annealed,
        )  # fmt: skip
        return None if found is None else list(found)

    def _samples(
        self, k: int, energy: ReconstructionEnergy, temperature: float, size: float, chains: Tensor | None
    ) -> Tensor:
        """Persistent chains, which are samples of the model, or else training events, within the bounds."""
        feature, events = self.configs[k].sampling.feature, self.events[k].train
        assert isinstance(events, Tensor)
        if chains is not None:
            small = stream(self.configs[k].seed, "log_z/small", self.device)
            return loosened(energy, chains.to(self.device), replace(feature, step_size=size), temperature, small)
        if feature.bounds is not None:
            events = events[((events >= feature.bounds[0]) & (events <= feature.bounds[1])).all(dim=1)]
        return events[:BASE_EVENTS].to(self.device)

    def _annealed_log_z(self, k: int, energy: ReconstructionEnergy, temperature: float, events: Tensor) -> LogZ | None:
        """log Z from chains between a Gaussian and events; None where the bounds on it disagree."""
        settings, bounds = self.configs[k].log_z, self.configs[k].sampling.feature.bounds
        assert settings is not None
        runs = settings.runs()
        names = [f"log_z/{n}" if n else "log_z" for n in range(len(runs))]
        streams = [stream(self.configs[k].seed, name, self.device) for name in names]
        try:
            found = annealed_log_z(energy, temperature, events, events, streams, runs, bounds)
        except (LogZDisagreement, InputError) as error:  # a finished training is kept, whatever comes of its log Z
            self.annealing[k] = {"failed": str(error)}
            return None
        self.annealing[k] = {name: value for name, value in found._asdict().items() if name != "log_z"}
        return found.log_z

    def _baselines(self, k: int) -> Baselines:
        """What linear models reach on the validation sample; found once."""
        if k not in self.linear:
            self.linear[k] = baselines(self.configs[k], self.events[k], self.device)
        return self.linear[k]

    def _provenance(self, k: int) -> dict[str, Any]:
        journal = self.journal
        facts = machine_facts(self.device) | {
            "seed": self.configs[k].seed,
            "data_sha256": journal.hashes[k],
            "backend": self.trainer.setup.backend.name,
            "side_by_side": len(journal.folders),
            "processes": journal.team.size,
            "rollbacks": int(self.trainer.rollbacks[journal.of(k)].sum()),
            "wall_seconds": round(journal.seconds, 2),
        }
        facts |= {"baselines": self._baselines(k)} if self.configs[k].start is None else {}
        facts |= {} if journal.start is None else {"start": journal.start[k]}
        return facts | ({"log_z": self.annealing[k]} if k in self.annealing else {})


def machine_facts(device: torch.device) -> dict[str, Any]:
    """Versions, commit, device and threads."""
    return {
        "normae": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})",
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """The commit of the source tree; NORMAE_COMMIT names it where a tree was copied without its history."""
    if "NORMAE_COMMIT" in os.environ:
        return os.environ["NORMAE_COMMIT"]
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None


def latent_dimensions(config: Run) -> int:
    """Dimensions of the latent space: a sphere in d_z dimensions has one less."""
    return config.network.latent - (config.network.latent_space == "sphere")


def baselines(config: Run, events: Events, device: torch.device) -> Baselines:
    """Mean errors of the linear models on the validation sample, with their standard errors; nothing without one."""
    k = latent_dimensions(config)
    if events.validation is None or not k or k >= int(np.prod(events.train.shape[1:])):
        return {}
    found = linear_errors(events.train, events.validation, (0, k), device)
    names = ("mse_mean_event", f"mse_{k}_components")
    return {
        name: {"value": float(e.mean()), "error": float(e.std() / len(e) ** 0.5)}
        for name, e in zip(names, found, strict=True)
    }
