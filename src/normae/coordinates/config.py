"""Which coordinates a run has: chosen in its configuration, fitted to its training sample, stored in its model."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from torch import Tensor

from normae.coordinates.base import Coordinates, Identity, Range
from normae.coordinates.table import TableCoordinates
from normae.errors import InputError


@dataclass(frozen=True)
class CoordinatesConfig:
    """The coordinates of a run.

    Args:
        kind: "identity" takes events as they are; "table" whitens the columns of a table and softens their tails.
        noise: of "table", the variance that is added to the training rows, in units of a column's variance; from the
            rows where it is None.
        copies: of "table", how often a training sees each row, each time with its own noise.
    """

    kind: Literal["identity", "table"] = "identity"
    noise: float | None = None
    copies: int = 1

    def __post_init__(self) -> None:
        if self.noise is not None and not 0 < self.noise < 100:
            raise InputError(f"coordinates.noise: expected a variance between 0 and 100, got {self.noise}")
        if not 1 <= self.copies <= 1_000_000:
            raise InputError(f"coordinates.copies: expected 1 to a million, got {self.copies}")
        if (self.noise is not None or self.copies > 1) and self.kind != "table":
            raise InputError('coordinates: expected kind = "table" with noise and copies')


def fit_coordinates(config: CoordinatesConfig, rows: Tensor | None) -> Coordinates:
    """The coordinates of a run, fitted to training rows with shape (N, d); None for events that are no table."""
    if config.kind == "identity":
        return Identity(None if rows is None else Range.of(rows))
    if rows is None:
        raise InputError('coordinates.kind: expected a table, data.file, for "table"')
    return TableCoordinates.of(rows, config.noise)


def read_coordinates(kind: str, tensors: Mapping[str, Tensor], event: tuple[int, ...], source: str) -> Coordinates:
    """The coordinates that `Coordinates.tensors` gave; `source` names the file in messages."""
    vector, matrix = event, (*event, *event)
    shapes: dict[str, tuple[int, ...]] = {"low": vector, "high": vector} if tensors or kind == "table" else {}
    if kind == "table":
        shapes = {field.name: vector for field in fields(TableCoordinates)}
        shapes |= {"whitening": matrix, "colouring": matrix, "noise": ()}
    if kind not in ("identity", "table") or {name: tuple(t.shape) for name, t in tensors.items()} != shapes:
        raise InputError(f"{source}: the coordinates do not belong to the model (kind {kind!r}); train it again")
    if kind == "table":
        return TableCoordinates(**tensors)
    return Identity(Range(tensors["low"], tensors["high"]) if tensors else None)
