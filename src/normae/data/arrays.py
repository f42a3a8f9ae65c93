"""Events from array files, checked before anything is trained or scored on them."""

import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normae.errors import InputError
from normae.files import check_file


def read_events(path: str | Path, dtype: type[np.floating[Any]] = np.float32) -> Tensor:
    """The events of a `.npy` file, or of the array `x` of a `.npz` file, with shape (N, *event)."""
    path = Path(path)
    check_file(path, "; give a .npy file or a .npz file with an array x")
    with path.open("rb") as stream:
        try:
            content = _array(np.load(stream, allow_pickle=False), path)
        except InputError:
            raise
        except (ValueError, OSError, EOFError, KeyError, SyntaxError, struct.error, zipfile.BadZipFile) as error:
            raise InputError(f"{path}: expected a .npy or .npz file without pickled objects ({error})") from None
    if not np.issubdtype(content.dtype, np.number) or np.issubdtype(content.dtype, np.complexfloating):
        raise InputError(f"{path}: expected real numbers, got dtype {content.dtype}")
    with np.errstate(over="ignore"):  # what does not fit into float32 becomes infinite, and is refused as such
        narrow = np.ascontiguousarray(content, dtype=dtype)
    return check_events(torch.from_numpy(narrow), str(path))


def _array(content: Any, path: Path) -> np.ndarray:
    if not isinstance(content, np.lib.npyio.NpzFile):
        return np.asarray(content)
    with content:
        if "x" not in content:
            raise InputError(f"{path}: expected an array named x, got {sorted(content)}")
        return np.asarray(content["x"])


def check_events(x: Tensor, name: str, event: tuple[int, ...] | None = None) -> Tensor:
    """`x` itself if it is a finite, non-empty sample of events of shape `event`; otherwise one clear sentence."""
    if x.ndim < 2:
        raise InputError(f"{name}: expected events of shape (N, *event), got shape {tuple(x.shape)}")
    if x.numel() == 0:
        raise InputError(f"{name}: expected at least one event of at least one feature, got shape {tuple(x.shape)}")
    if event is not None and tuple(x.shape[1:]) != tuple(event):
        raise InputError(f"{name}: expected events of shape {tuple(event)}, got {tuple(x.shape[1:])}")
    finite = torch.isfinite(x).flatten(1).all(dim=1)
    if not bool(finite.all()):
        first = int((~finite).nonzero()[0])
        count = int((~finite).sum())
        raise InputError(
            f"{name}: NaN or infinity in {count} of {len(x)} events, the first at row {first}; remove them"
        )
    return x
