"""A trained model from a run folder or from the zoo."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normae import zoo
from normae.components import read_components
from normae.conditional import read_conditional
from normae.config import Run, choose_device, read
from normae.coordinates import Coordinates, read_coordinates
from normae.errors import InputError, refuse
from normae.inference import BayesianModel, LogZ, Model
from normae.inference.members import MembersModel
from normae.inference.model import CELLS
from normae.networks import Autoencoder, build_autoencoder
from normae.networks.lattice import read_with_cells
from normae.networks.own import EnergyNetwork, copied, own_network
from normae.networks.reconstruction import all_tensors, fill, prefixed
from normae.posterior.draw import Ensemble, MeanField, Modes, Posterior, widening
from normae.runs.folder import BASE, CHAINS, COORDINATES, HALF, RunFolder, is_number, read_stored
from normae.sampling import ChainConfig
from normae.tensors import stream

PREFIX = {"bayesian": "rho.", "ensemble": "member."}  # of the tensors of each posterior in model.safetensors
FREE = ("name", "seed", "start", "device", "threads")  # settings in which seeds of one training may differ


class Loaded(NamedTuple):
    """A model with the run that it is from, whose files were read once; `digest` stands for model.safetensors."""

    model: Model
    folder: RunFolder
    config: Run
    digest: str


def run_of(name: str | Path) -> RunFolder:
    """The run folder called `name`, a path or else a name of the zoo; one sentence where there is none."""
    if Path(name).is_dir():
        return RunFolder.existing(name)
    refuse(str(name) not in zoo.names(), zoo.unknown(str(name)))
    return RunFolder(zoo.path(str(name)))


def load(
    name: str | Path, device: str = "cpu", *, encoder: nn.Module | None = None, decoder: nn.Module | None = None,
    energy: nn.Module | None = None,
) -> Model:  # fmt: skip
    """The model called `name`: a name of the zoo or a run folder.

    Args:
        device: "cpu", "cuda" or "auto".
        encoder, decoder, energy: of a run with networks of one's own, modules as it was trained with; they get the
            trained weights.

    >>> import normae
    >>> normae.load("toy-1gauss-nae").log_prob([[0.0, 0.0]]).round(1)  # the truth is -log 2 pi = -1.84
    array([-1.8], dtype=float32)
    """
    return load_run(name, device, own_network(encoder=encoder, decoder=decoder, energy=energy)).model


def load_run(name: str | Path, device: str = "cpu", own: Autoencoder | None = None) -> Loaded:
    """As `load`, with the run that the model is from; networks `own` get the trained weights."""
    folder = run_of(name)
    config = read(folder.config)
    refuse(config.classifier, f"{name}: a classifier, which has no energy; load it with normae.load_classifier")
    check_own(config, own, str(name))
    tensors, header, digest = read_stored(folder.model)
    model = build_model(config, tensors, header, str(name), own).to(choose_device(device))
    if own is not None:
        fill(own, all_tensors(model.autoencoder))
    return Loaded(model, folder, config, digest)


def check_own(config: Run, own: Autoencoder | None, name: str) -> None:
    """One sentence where a run has networks of one's own and they were not given, or the other way round."""
    expected = "encoder= and decoder=" if config.network.latent else "energy="
    asked, given = config.network.kind == "own", own is not None
    refuse(given and not asked, f"{name}: has its network with it; leave out encoder, decoder and energy")
    how = f"which are Python code; give them to load, in Python, as {expected}"
    refuse(asked and not given, f"{name}: was trained with networks of your own, {how}")
    other = given and isinstance(own, EnergyNetwork) != (config.network.latent == 0)
    refuse(other, f"{name}: expected {expected} as it was trained with")


def untrained(config: Run, event: Sequence[int], own: Autoencoder | None = None) -> Autoencoder:
    """The network of a run before its training; networks `own` are copied."""
    if own is not None:
        return copied(own, config.network)
    return build_autoencoder(config.network, tuple(event), stream(config.seed, "init"))


def build_model(
    config: Run, tensors: dict[str, Tensor], header: dict[str, Any], name: str, own: Autoencoder | None = None
) -> Model:
    """The model with the weights `tensors` and what the header of its file says; networks `own` are copied."""
    if config.halves:
        return _members(config, tensors, header, name)
    try:
        event, temperature = tuple(int(n) for n in header["event"]), float(header["temperature"])
        latent_size, feature_size = (float(s) for s in header["step_sizes"])
        given, names = header.get("log_z"), header.get("columns")
        columns = None if names is None else tuple(str(name) for name in names)
        log_z = None if given is None else LogZ(float(given[0]), float(given[1]), (given[2][0], given[2][1]))
        _check_numbers(event, temperature, (latent_size, feature_size), log_z)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name}: the header of model.safetensors lacks or garbles {error}") from None
    autoencoder = untrained(config, event, own)
    prefixes, chains = (*PREFIX.values(), COORDINATES, BASE), tensors.get(CHAINS)
    parts = {prefix: prefixed(tensors, prefix) for prefix in prefixes}
    parts[""] = {key: t for key, t in tensors.items() if key != CHAINS and not key.startswith(prefixes)}
    _check_shapes(config, parts, autoencoder, name)
    if chains is not None and (tuple(chains.shape[1:]) != event or not len(chains)):
        raise InputError(f"{name}: the chains in model.safetensors do not belong to events of shape {event}")
    fill(autoencoder, parts[""])
    latent, feature = _resized(config.sampling.latent, latent_size), _resized(config.sampling.feature, feature_size)
    sampling = replace(config.sampling, latent=latent, feature=feature)
    coordinates = _coordinates(str(header.get("coordinates", "identity")), parts[COORDINATES], event, name)
    if parts[BASE]:
        autoencoder.base = read_with_cells(parts[BASE], coordinates, event[0], name)
    more: Any = {"coordinates": coordinates, "columns": columns, "chains": chains}
    more["categories"] = config.data.categories
    if not config.posteriors:
        return Model(autoencoder, temperature, event, sampling, log_z, name, **more)
    more["posterior"] = _posterior(config, autoencoder, parts, temperature, header, name)
    more["cells"] = min(config.evaluation.log_z_cells, CELLS)
    return BayesianModel(autoencoder, temperature, event, sampling, log_z, name, **more)


def _coordinates(kind: str, tensors: dict[str, Tensor], event: tuple[int, ...], name: str) -> Coordinates:
    """What `Coordinates.tensors` gave, by the reader of its kind."""
    own = {"components": read_components, "conditional": read_conditional}.get(kind, partial(read_coordinates, kind))
    return own(tensors, event, name)


def _check_numbers(event: tuple[int, ...], temperature: float, steps: tuple[float, float], log_z: LogZ | None) -> None:
    """What no training writes: an event of no size, T or a step that is not positive, log Z that is not a number."""
    for what, given in {"event": event or (0,), "temperature": (temperature,), "step_sizes": steps}.items():
        if not all(0 < number < math.inf for number in given):
            raise ValueError(f"{what} {given}, expected finite numbers above zero")
    if log_z is not None and not (math.isfinite(log_z.value) and 0 <= log_z.error < math.inf):
        raise ValueError(f"log_z {log_z.value}, expected a finite number with its error")


def _members(config: Run, tensors: dict[str, Tensor], header: dict[str, Any], name: str) -> Model:
    """The model whose members have coordinates and bases of their own."""
    headers = header.get("members")
    if not isinstance(headers, list) or len(headers) != config.halves:
        raise InputError(f"{name}: the header of model.safetensors lacks or garbles members, expected {config.halves}")
    alone, parts = config.alone(config.seed), [prefixed(tensors, f"{HALF}{k}.") for k in range(len(headers))]
    models = [build_model(alone, part, own, name) for part, own in zip(parts, headers, strict=True)]
    whole = prefixed(tensors, COORDINATES)
    kind, bar = str(header.get("coordinates", "table")), header.get("bar", widening(len(models)))
    if not (is_number(bar) and 0 < bar < math.inf):
        raise InputError(f"{name}: the header of model.safetensors garbles bar, expected a positive number, got {bar}")
    return MembersModel(models, _coordinates(kind, whole, models[0].seen_event, name), name, float(bar))


def _check_shapes(config: Run, parts: dict[str, dict[str, Tensor]], autoencoder: Autoencoder, name: str) -> None:
    """The weights, and those of the posterior that the configuration names, and no others."""
    own = config.network.kind == "own"
    named = all_tensors(autoencoder).items() if own else autoencoder.named_parameters()
    expected = {key: tuple(p.shape) for key, p in named}
    right = expected == {key: tuple(t.shape) for key, t in parts[""].items()}
    for table, prefix in PREFIX.items():
        right &= (table in config.posteriors) == bool(parts[prefix])
        lead = 0 if table == "bayesian" and config.ensemble is None else 1
        right &= all(expected.get(key) == tuple(t.shape[lead:]) for key, t in parts[prefix].items())
        if config.ensemble is not None and table in ("bayesian", "ensemble"):
            right &= all(len(t) == config.ensemble.members for t in parts[prefix].values())
    if config.ensemble is not None:
        right &= set(parts["member."]) == set(expected)
    right &= (config.base is None) == (not parts[BASE])
    right &= bool(config.coordinates.condition) == ("offset" in parts[BASE])
    if not right:
        others = "the networks given" if own else "config.toml"
        raise InputError(f"{name}: the weights do not belong to {others} (other names or shapes)")


def _posterior(
    config: Run, network: Autoencoder, parts: dict[str, dict[str, Tensor]], temperature: float, header: Any, name: str
) -> Posterior:
    """Of weights by prefix; a header has numbers for each member of an ensemble."""
    if config.ensemble is None:
        return MeanField(network, parts["rho."], temperature)
    for key in ("temperatures", "constants") if config.modes else ("temperatures",):
        given, least = header.get(key), 0.0 if key == "temperatures" else -math.inf
        numbers = isinstance(given, list) and all(is_number(n) and least < n < math.inf for n in given)
        wrong, count = not numbers or len(given) != config.ensemble.members, config.ensemble.members
        expected = f"expected {count} numbers, one of each member"
        refuse(wrong, f"{name}: the header of model.safetensors lacks or garbles {key}, {expected}")
    temperatures = torch.tensor(header["temperatures"])
    if config.modes:
        return Modes.of(network, parts["member."], parts["rho."], temperatures, torch.tensor(header["constants"]))
    return Ensemble(network, parts["member."], temperatures, config.ensemble.events == "split")


def _resized(chain: ChainConfig, size: float) -> ChainConfig:
    """With the step size that the training ended with."""
    noise = None if chain.noise is None else chain.noise * (size / chain.step_size) ** 0.5
    return chain if chain.adapt is None else replace(chain, step_size=size, noise=noise)


# --- runs that differ in their seeds


def seed_folders(runs: Sequence[str | Path]) -> list[RunFolder]:
    """Run folders, or else models of the zoo, or the runs in one folder of seeds."""
    if len(runs) == 1 and (members := RunFolder(runs[0]).members()):
        return members
    return [run_of(run) for run in runs]


def shared_settings(folders: Sequence[RunFolder]) -> Run:
    """Those of the first run, which all others must have; runs that began with an autoencoder have no pretraining."""
    first = read(folders[0].config)
    for folder in folders[1:]:
        config = read(folder.config)
        free = (*FREE, "pretraining") if first.start and config.start else FREE
        same = replace(config, **{name: getattr(first, name) for name in free})
        if others := [name for name in vars(first) if getattr(same, name) != getattr(first, name)]:
            expected = f"the settings of {folders[0].path} with another seed"
            raise InputError(f"{folder.path}: expected {expected}, got another {others[0]}")
    return first
