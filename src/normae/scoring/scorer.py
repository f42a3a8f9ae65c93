"""A model with all that is needed to score events of files: log Z, held-out background, the names of its columns.

**The p-value** of a score under a sample of background. Of n background events, k are at least as anomalous as the
event. If the event is background, it is one more of the same kind, so that its rank is uniform and

    p = (k + 1) / (n + 1)

is at most a with a probability of at most a: never 0, and valid for any n. The error is that of the share of a binomial
sample, sqrt(q (1 - q) / n) with q = (k + 1) / (n + 2), so that it does not vanish at either end. Weighted events
count as n = (sum w)^2 / sum w^2 of them, whose scores are quantiles of the weighted ones.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from normae import zoo
from normae.config import Run
from normae.coordinates import Coordinates, Range
from normae.errors import DataChanged, InputError, check_once, refuse
from normae.files import atomic_path
from normae.inference import Model, Rows
from normae.lattice import IMPOSSIBLE, cannot_occur
from normae.runs.folder import RunFolder, locked
from normae.runs.load import load_run
from normae.statistics.arrays import unweighted

Columns = dict[str, NDArray[Any]]
QUANTILES = {"q16": 0.16, "q50": 0.5, "q84": 0.84}  # over weight draws, of log p where it is known, else of the score
SIDE = 64
NAMED = 3  # columns that are named where rows lie outside the range of the training sample
TABLE_BLOCK, JETS_BLOCK = 1 << 13, 512  # events that the network sees at once


@dataclass(frozen=True)
class Scorer:
    """A model with what is needed to read files for it and to score them.

    Args:
        columns: the names of the features of a table; None where they have none.
        jets: whether files hold jets.
        log_z: of the model, with shape (1,), or of each weight draw; None where it is not known.
        background: scores of held-out background in rising order; empty where there is none.
        digest, weights: stand for all that scores depend on, and for the weights and the kind of device.
        run: where the model is: a run folder, as an absolute path, or a name of the zoo.
        block, part: events that the network sees at once, and rows of a part, which is whole blocks.
        notes: what the user should know.
        explain: whether the part of every column in the score is a column of the result.
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
    explain: bool = False

    @cached_property
    def coordinates(self) -> Coordinates:
        """Of the model, on the CPU, where rows are read."""
        return self.model.coordinates.to("cpu")

    def outside(self, x: NDArray[Any]) -> "Outside":
        """Which of rows with shape (N, d) lie outside the range of the training sample; of no column without one."""
        return Outside.of(torch.from_numpy(x), self.coordinates)

    def said_of(self, files: Mapping[str, "Outside"]) -> list[str]:
        """What the user should know of rows outside, a sentence a column; a file in other units is named."""
        seen = self.coordinates.range
        other = {name: found for name, found in files.items() if found.rows in found.counts and len(files) > 1}
        first = list(other.items())[:NAMED]
        said = [f"{name}: {sentence}" for name, found in first for sentence in found.sentences(seen, self.columns)]
        if len(other) > NAMED:
            said.append(f"and ALL rows of {len(other) - NAMED} more files")
        rest = [found for name, found in files.items() if name not in other]
        return said + (reduce(Outside.joined, rest).sentences(seen, self.columns) if rest else [])

    def score(self, x: NDArray[Any]) -> Columns:
        """The columns of the result for events with shape (N, *event), block after block."""
        blocks = []
        for piece in (x[start : start + self.block] for start in range(0, len(x), self.block)):
            found = columns_of(self.model.rows(piece, log_z=self.log_z))
            if len(self.background):
                found["p_value"], found["p_value_error"] = tail_probability(found["score"], self.background)
            if self.explain:
                names = self.columns or range(x.shape[1])
                found |= {f"part_{name}": part for name, part in zip(names, self.model.explain(piece).T, strict=True)}
            blocks.append(found)
        return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


class Outside(NamedTuple):
    """Of `rows` those outside the range of the training sample, and of each column its smallest and largest value.

    `counts` and `impossible` are, for each column, of rows outside and of rows with a value that cannot occur.
    """

    rows: int
    counts: list[int]
    low: list[float]
    high: list[float]
    impossible: list[int]

    @staticmethod
    def of(rows: torch.Tensor, coordinates: Coordinates) -> "Outside":
        """Of rows with shape (N, d), of no column where there is no range; one pass where none is outside."""
        seen, lattice = coordinates.range, coordinates.lattice
        if (seen is None and lattice is None) or rows.ndim > 2:
            return Outside(len(rows), [], [], [], [])
        low, high = _extremes(rows)
        some = seen is not None and bool(seen.outside(torch.stack([low, high])).any())
        none = torch.zeros(1, len(low), dtype=torch.bool)
        all_may = lattice is None or not bool((lattice[1].any() | (low < lattice[2]) | (high > lattice[3])).any())
        never = none if lattice is None or all_may else cannot_occur(rows.double(), lattice)
        counts = (seen.outside(rows) & ~never if some and seen else none).sum(0)
        return Outside(len(rows), counts.tolist(), low.tolist(), high.tolist(), never.sum(0).tolist())

    def joined(self, other: "Outside") -> "Outside":
        """Of the rows of both."""
        counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        low, high = list(map(min, self.low, other.low)), list(map(max, self.high, other.high))
        never = [a + b for a, b in zip(self.impossible, other.impossible, strict=True)]
        return Outside(self.rows + other.rows, counts, low, high, never)

    def sentences(self, seen: Range | None, columns: Sequence[str] | None) -> list[str]:
        """One for each column with values that cannot occur, for each of those most outside, and for the others."""
        names = [f"`{name}`" for name in columns] if columns else [f"feature {k}" for k in range(len(self.counts))]
        never = [
            f"{count:,} of {self.rows:,} rows have a value in {name} that cannot occur, such as one between whole "
            "numbers, beyond the bounds of the chain, or a category that the training had not; their probability is "
            f"0, and each such value adds {IMPOSSIBLE:,.0f} to the score"
            for name, count in zip(names, self.impossible, strict=True)
            if count
        ]
        places = sorted((k for k, count in enumerate(self.counts) if count), key=lambda k: -self.counts[k])
        found = never + [self._sentence(k, seen, names[k]) for k in places[:NAMED] if seen]
        more = len(places) - NAMED
        return found if more <= 0 else [*found, f"and {more} more column{'s' if more > 1 else ''}"]

    def _sentence(self, k: int, seen: Range, name: str) -> str:
        count = self.counts[k]
        many = f"ALL {count:,} rows lie" if count == self.rows else f"{count:,} of {self.rows:,} rows lie"
        ranges = f"{seen.low[k]:.6g} to {seen.high[k]:.6g} there, {self.low[k]:.6g} to {self.high[k]:.6g} here"
        question = "; is it in the same units?" if count == self.rows else ""
        return f"{many} outside the range of the training sample in {name} ({ranges}){question}"


def _extremes(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and the largest value of each column of (N, d); rows side by side make it 25 times as fast."""
    whole = len(rows) - len(rows) % SIDE
    if whole == 0:
        return rows.amin(0), rows.amax(0)
    wide = rows[:whole].reshape(-1, SIDE * rows.shape[1])
    low, high = (torch.cat([part.view(SIDE, -1), rows[whole:]]) for part in (wide.amin(0), wide.amax(0)))
    return low.amin(0), high.amax(0)


def columns_of(rows: Rows) -> Columns:
    """What the weight draws say together and, where there are several, their spread and quantiles; (N,) each."""
    draws, name, spread = rows.scores, "score", rows.spread()
    found = {"score": rows.score()} | ({} if spread is None else {"score_std": spread})
    if rows.log_z is not None:
        draws, name = rows.log_prob_draws(), "log_prob"
        found["log_prob"] = rows.log_prob()
    if spread is not None:
        quantiles = np.quantile(np.ascontiguousarray(draws.T), list(QUANTILES.values()), axis=1, method="weibull")
        found |= {f"{name}_{q}": values for q, values in zip(QUANTILES, quantiles, strict=True)}
    return {column: values.astype(np.float32) for column, values in found.items()}


def tail_probability(score: NDArray[Any], background: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """p-values and their errors, two arrays with shape (N,).

    Args:
        score: higher is more anomalous, with shape (N,).
        background: scores of background events in rising order, with shape (n,), at least one.

    >>> import numpy as np, normae.scoring.scorer
    >>> normae.scoring.scorer.tail_probability(np.array([0.5, 3.0]), background=np.array([0.0, 1.0, 2.0]))[0]
    array([0.75, 0.25])
    """
    n, order = len(background), np.argsort(score)
    above = np.empty(len(score), dtype=np.int64)
    above[order] = n - np.searchsorted(background, score[order], side="left")  # in order it is three times as fast
    share = (above + 1) / (n + 2)
    return (above + 1) / (n + 1), np.sqrt(share * (1 - share) / n)


# --- the model and its background


def open_scorer(
    run: str | Path, columns: Sequence[str] | None = None, device: str = "auto", explain: bool = False
) -> Scorer:
    """The scorer of a run folder or a model of the zoo; `columns` are instead of the run's own names."""
    check_once(columns or (), "--columns")
    model, folder, config, digest = load_run(run, device)
    names = columns if columns is not None else model.columns
    jets = config.data.jets is not None
    if names is not None and (jets or model.event != (len(names),)):
        raise InputError(f"{run}: expected columns for events of shape {model.event}, got {len(names)}: {list(names)}")
    arrays = explain and len(model.event) != 1
    refuse(arrays, f"--explain: expected a model of a table, got events of shape {model.event}; use model.explain")
    weights, background = weights_of(digest, model), np.zeros(0, dtype=np.float32)
    reason = "the run held out no background (data.test = 0)"
    try:
        background = _background(folder, config, model, digest)
    except DataChanged:
        raise
    except InputError as error:
        reason = f"the held-out background cannot be scored ({error})"
    notes = [] if len(background) else [f"no p_value: {reason}"]
    log_z = model.normalization()
    digest = hashlib.sha256(weights.encode() + background.tobytes() + b"explain" * explain).hexdigest()
    block = JETS_BLOCK if jets else TABLE_BLOCK
    part = (32 if jets or not model.posterior.certain else 64) * block
    chosen = None if names is None else tuple(names)
    place = str(Path(run).absolute() if Path(run).is_dir() else run)
    return Scorer(model, chosen, jets, log_z, background, digest, place, weights, block, part, notes, explain)


def weights_of(digest: str, model: Model) -> str:
    """Stands for the weights of a run, whose file has the hash `digest`, and the kind of device of the model."""
    return f"{digest}/{model.device.type}"


def _background(folder: RunFolder, config: Run, model: Model, weights: str) -> NDArray[np.float32]:
    """Scores of the run's test sample in rising order; kept in the run folder where that can be written.

    Models of the zoo have theirs with them. `weights` is the hash of the run's.
    """
    # a parser of damaged bytes may raise anything
    with suppress(Exception), folder.background.open("rb") as stream, np.load(stream, allow_pickle=False) as kept:
        score = np.asarray(kept["score"], dtype=np.float32)
        if str(kept["weights"]) == weights and np.all(score[:-1] <= score[1:]):
            return score
    if config.data.test == 0 and config.data.jets is None:
        return np.zeros(0, dtype=np.float32)
    events = folder.events(config)
    score = np.concatenate([model.score(piece.numpy()) for piece in torch.split(events.test, 1 << 13)])
    if events.weights is not None:
        score = unweighted(score, events.weights.test)
    score = np.sort(score.astype(np.float32))  # as those of files, and as it is read again
    if folder.path.parent != zoo.FOLDER:
        with suppress(OSError, InputError), locked(folder.path), atomic_path(folder.background) as temporary:
            # where the folder can be written, and nobody else is at it
            np.savez(temporary, score=score, weights=weights)
    return score
