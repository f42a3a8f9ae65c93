"""An ensemble out of finished runs: models that were trained apart, one after the other or on several machines.

Of deterministic runs it is what `[ensemble]` trains side by side. Of Bayesian runs it is a posterior with several
modes, whose density is the mean of theirs; the constants that this needs come from validation events.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from normae import zoo
from normae.config import Run, read, to_toml
from normae.data import SparseEvents
from normae.errors import InputError, refuse
from normae.files import Place, check_new, new_folder, write_json, write_text
from normae.runs.folder import CHAINS, COORDINATES, HALF, RunFolder, read_stored, write_tensors
from normae.runs.load import PREFIX, load, seed_folders, shared_settings
from normae.sources import pieces
from normae.statistics import mixture_constants
from normae.training import EnsembleConfig

Part = tuple[dict[str, Tensor], dict[str, Any]]  # the tensors and the header of a model


def gather(runs: Sequence[Place], out: Place, data: Place | None = None, force: bool = False) -> RunFolder:
    """Write to the new folder `out` the ensemble of finished runs that differ in their seeds.

    Args:
        runs: run folders or models of the zoo, deterministic or with mean-field layers, or one folder of seeds.
        data: jets, a folder or a file, for Bayesian runs on jets that are no longer where the runs found them.
        force: replace what is there.
    """
    folders = seed_folders(runs)
    if data is not None and any(read(f.config).data.jets is None or not read(f.config).posteriors for f in folders):
        raise InputError("--jets: expected Bayesian runs on jets with it")
    check_new(out, force, folder=True)
    for folder in folders:
        config = read(folder.config)
        if config.posteriors not in ([], ["bayesian"]) or config.classifier is not None:
            kind = "a classifier" if config.classifier is not None else f"[{config.posteriors[-1]}]"
            raise InputError(f"{folder.path}: expected a run without error bars or with [bayesian] alone, got {kind}")
        refuse(not folder.model.is_file(), f"{folder.path}: not finished; go on with `normae train ... --resume`")
    first = shared_settings(folders)
    parts, digests = _models(folders)
    facts = [folder.read_provenance() for folder in folders]
    config = replace(first, ensemble=EnsembleConfig(len(folders), _events(first, facts)))
    tensors, header = (_joined if first.base is None else _as_members)(folders, parts)
    if config.modes:
        known = zoo.mixture_constants(digests) if data is None else None
        header["constants"] = known or _constants(config, folders, parts, data)
        header["log_z"] = None  # each draw has its own
    sums = {name: sum(fact[name] for fact in facts) for name in ("rollbacks", "wall_seconds")}
    every = zip(folders, facts, digests, strict=True)
    members = [{"run": one.path.name, "seed": fact["seed"], "sha256": digest} for one, fact, digest in every]
    with new_folder(out, force) as temporary:
        part = RunFolder(temporary)
        write_text(part.config, to_toml(config))
        write_json(part.provenance, facts[0] | sums | {"members": members})
        _write_history(part, folders)
        write_tensors(part.model, tensors, header)
    return RunFolder(out)


def made_of(run: RunFolder, members: Sequence[RunFolder]) -> bool:
    """Whether a run is the ensemble of these members, as they are now."""
    if not run.model.is_file():
        return False
    return [member.get("sha256") for member in run.read_provenance().get("members", [])] == _models(list(members))[1]


def _models(folders: list[RunFolder]) -> tuple[list[Part], list[str]]:
    """Tensors and headers of the models, and what stands for them, of which no two are the same."""
    found = [read_stored(folder.model) for folder in folders]
    digests = [digest for *_, digest in found]
    for folder, digest in zip(folders, digests, strict=True):
        other = folders[digests.index(digest)]
        refuse(other is not folder, f"{folder.path}: the same model as {other.path}; expected another training")
    return [(tensors, header) for tensors, header, _ in found], digests


def _events(config: Run, facts: list[dict[str, Any]]) -> Literal["all", "split"]:
    """What the members were trained on, in the words of `EnsembleConfig.events`.

    Only of a known density does another seed give independent events: it cuts a file another way, and then each member
    has seen what the others keep for their tests.
    """
    hashes = {str(fact.get("data_sha256")) for fact in facts}
    if len(hashes) == 1:
        return "all"
    got = "seeds that cut one sample in different ways, so that none of it is unseen by all"
    alone = config.data.density is None
    refuse(alone, f"expected runs on the same events, got {got}; train them together with [ensemble]")
    refuse(len(hashes) < len(facts), "expected runs on the same events or each on events of its own, got some of both")
    return "split"


def _joined(folders: list[RunFolder], parts: list[Part]) -> Part:
    """Weights and header as an ensemble that was trained side by side has them; its centre is the first run."""
    (first, header), headers = parts[0], [header for _, header in parts]
    for folder, other in zip(folders, headers, strict=True):
        if any(other.get(name) != header.get(name) for name in ("event", "columns")):
            raise InputError(f"{folder.path}: expected the events of {folders[0].path}, got others")
    prefix, widths = PREFIX["ensemble"], PREFIX["bayesian"]
    names = {name: name if name.startswith(widths) else f"{prefix}{name}" for name in first}
    stacked = {given: torch.stack([tensors[name] for tensors, _ in parts]) for name, given in names.items()}
    sizes = np.mean([other["step_sizes"] for other in headers], axis=0).tolist()
    return first | stacked, header | {"step_sizes": sizes, "temperatures": [other["temperature"] for other in headers]}


def _as_members(folders: list[RunFolder], parts: list[Part]) -> Part:
    """Weights and header of runs with bases of their own, as a run on halves has them; coordinates are shared."""
    shared = {name: tensor for name, tensor in parts[0][0].items() if name.startswith(COORDINATES)}
    for folder, (own, _) in zip(folders, parts, strict=True):
        if any(not torch.equal(own[name], tensor) for name, tensor in shared.items()):
            raise InputError(f"{folder.path}: expected the components of {folders[0].path}, got others")
    for k, (own, _) in enumerate(parts):
        shared |= {f"{HALF}{k}.{name}": tensor for name, tensor in own.items() if name != CHAINS}
    headers = [header for _, header in parts]
    return shared, headers[0] | {"members": headers}


def _constants(config: Run, folders: list[RunFolder], parts: list[Part], path: Place | None) -> list[float]:
    """-log Z where all members know theirs, of mean weights; else those that give them equal shares of validation."""
    known = [header.get("log_z") for _, header in parts]
    if all(known):
        log_z = np.array([one[0] for one in known if one])
        return list((log_z.min() - log_z).tolist())
    where = config if path is None else replace(config, data=replace(config.data, path=str(path)))
    held = folders[0].events(where).validation
    if held is None:
        raise InputError("data.validation: expected events there, from which the constants of the members follow")
    scores = []
    for centre in (load(folder.path, "auto").centre for folder in folders):
        some = pieces(held) if isinstance(held, SparseEvents) else [held.numpy()]
        scores.append(np.concatenate([centre.score(x) for x in some]))
    return list(mixture_constants(np.stack(scores).astype(np.float64)).tolist())


def _write_history(target: RunFolder, folders: list[RunFolder]) -> None:
    """Means over the runs, as of an ensemble that was trained side by side; at the places that all of them have."""
    every = (folder.read_history(None) for folder in folders)
    kept = [{(one["phase"], one["iteration"]): one for one in lines if "rollback" not in one} for lines in every]
    for place, first in kept[0].items():
        lines = [lines[place] for lines in kept if place in lines]
        if len(lines) == len(kept):
            numbers = [name for name, value in first.items() if isinstance(value, float)]
            target.append(first | {name: float(np.mean([line[name] for line in lines])) for name in numbers})
