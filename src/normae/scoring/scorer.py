"""A model with all that is needed to score events of files: log Z, held-out background, the names of its columns."""

import hashlib
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from normae import zoo
from normae.config import Run
from normae.errors import InputError
from normae.files import atomic_path
from normae.inference import Model, Rows
from normae.runs.folder import RunFolder
from normae.runs.load import load_run
from normae.sources import load_events
from normae.statistics.tail import tail_probability

Columns = dict[str, NDArray[Any]]
QUANTILES = {"q16": 0.16, "q50": 0.5, "q84": 0.84}
"""Over weight draws, of log p where it is known and otherwise of the score."""
TABLE_BLOCK, JETS_BLOCK = 1 << 13, 512
"""Events that the network sees at once."""


@dataclass(frozen=True)
class Scorer:
    """A model with what is needed to read files for it and to score them.

    Args:
        model: the model.
        columns: the names of the features of a table; None where they have none.
        jets: whether files hold jets.
        log_z: of the model, with shape (1,), or of each weight draw; None where it is not known.
        background: scores of held-out background in rising order; empty where there is none.
        digest: stands for all that the scores of an event depend on.
        run: where the model is: a run folder, as an absolute path, or a name of the zoo.
        weights: stands for the weights and the kind of device.
        block: events that the network sees at once.
        part: rows of a part; whole blocks.
        notes: what the user should know.
    """

    model: Model
    columns: tuple[str, ...] | None
    jets: bool
    log_z: NDArray[np.float64] | None
    background: NDArray[np.float32]
    digest: str
    run: str
    weights: str
    block: int = TABLE_BLOCK
    part: int = 64 * TABLE_BLOCK
    notes: list[str] = field(default_factory=list)

    def score(self, x: NDArray[np.float32]) -> Columns:
        """The columns of the result for events with shape (N, *event), block after block."""
        blocks = [self._block(x[start : start + self.block]) for start in range(0, len(x), self.block)]
        return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}

    def _block(self, x: NDArray[np.float32]) -> Columns:
        found = columns_of(self.model.rows(x, log_z=self.log_z))
        if len(self.background):
            found["p_value"], found["p_value_error"] = tail_probability(found["score"], self.background)
        return found


def columns_of(rows: Rows) -> Columns:
    """What the weight draws say together and, where there are several, their spread and quantiles; (N,) each."""
    draws, name, spread = rows.scores, "score", rows.spread()
    found = {"score": rows.score()} | ({} if spread is None else {"score_std": spread})
    if rows.log_z is not None:
        draws, name = rows.log_prob_draws(), "log_prob"
        found["log_prob"] = rows.log_prob()
    if spread is not None:
        shares = list(QUANTILES.values())
        quantiles = np.quantile(np.ascontiguousarray(draws.T), shares, axis=1, method="weibull")
        found |= {f"{name}_{q}": values for q, values in zip(QUANTILES, quantiles, strict=True)}
    return {column: values.astype(np.float32) for column, values in found.items()}


# --- the model and its background


def open_scorer(run: str | Path, columns: Sequence[str] | None = None, device: str = "auto") -> Scorer:
    """The scorer of a run folder or a model of the zoo; `columns` are instead of the run's own names."""
    model, folder, config, digest = load_run(run, device)
    names = columns if columns is not None else model.columns
    jets = config.data.jets is not None
    if names is not None and (jets or model.event != (len(names),)):
        raise InputError(f"{run}: expected columns for events of shape {model.event}, got {len(names)}: {list(names)}")
    weights = weights_of(digest, model)
    notes: list[str] = []
    background = np.zeros(0, dtype=np.float32)
    try:
        background = _background(folder, config, model, weights)
    except InputError as error:
        notes.append(f"no p_value: the held-out background cannot be scored ({error})")
    if not len(background) and not notes:
        notes.append("no p_value: the run held no background out (data.test = 0)")
    log_z = model.normalization()
    digest = hashlib.sha256(weights.encode() + background.tobytes()).hexdigest()
    block = JETS_BLOCK if jets else TABLE_BLOCK
    part = (32 if jets or not model.posterior.certain else 64) * block
    chosen = None if names is None else tuple(names)
    place = str(run) if str(run) in zoo.names() else str(Path(run).absolute())
    return Scorer(model, chosen, jets, log_z, background, digest, place, weights, block, part, notes)


def weights_of(digest: str, model: Model) -> str:
    """Stands for the weights of a run, whose file has the hash `digest`, and the kind of device of the model."""
    return f"{digest}/{model.device.type}"


def _background(folder: RunFolder, config: Run, model: Model, weights: str) -> NDArray[np.float32]:
    """Scores of the run's test sample in rising order; kept in the run folder where that can be written."""
    if (kept := _kept_background(folder, weights)) is not None:
        return kept
    if config.data.test == 0 and config.data.jets is None:
        return np.zeros(0, dtype=np.float32)
    test = load_events(config.data, config.seed).test
    score = np.concatenate([model.score(piece.numpy()) for piece in torch.split(test, 1 << 13)])
    score.sort()
    if folder.path not in map(zoo.path, zoo.names()):
        with suppress(OSError), atomic_path(folder.background) as temporary:  # where the folder can be written
            np.savez(temporary, score=score, weights=weights)
    return score


def _kept_background(folder: RunFolder, weights: str) -> NDArray[np.float32] | None:
    if not folder.background.is_file():
        return None
    try:
        with folder.background.open("rb") as stream, np.load(stream, allow_pickle=False) as kept:
            score = np.asarray(kept["score"], dtype=np.float32)
            return score if str(kept["weights"]) == weights and np.all(score[:-1] <= score[1:]) else None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # not one of ours: it is made again
        return None
