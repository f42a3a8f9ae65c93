"""What a linear model reconstructs: the two lines that the error of an autoencoder is held against.

With the mean m and the covariance C of a training sample, the best affine model of k dimensions keeps the k leading
eigenvectors V_k of C. Its error at an event x of d features is, mean over features as the energy is,

    e_k(x) = (|x - m|^2 - |V_k^T (x - m)|^2) / d,

k = 0 being the mean event alone. Sums run over blocks of events, so that sparse images are never dense all at once.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from scipy.linalg import eigh
from scipy.sparse.linalg import eigsh
from torch import Tensor

from normae.data.images import SparseEvents
from normae.errors import InputError

ROWS = 4096


def linear_errors(
    train: Tensor | SparseEvents,
    held: Tensor | SparseEvents,
    components: Sequence[int],
    device: torch.device | str = "cpu",
) -> list[Tensor]:
    """e_k of the events `held`, float64 with shape (N,), for each k of `components`; mean and axes are of `train`.

    Args:
        train, held: with shape (M, *event) and (N, *event).
        device: where the products are made.
    """
    mean, covariance = moments(train, device)
    if max(components) > len(mean):
        raise InputError(f"expected at most {len(mean)} components of events of {len(mean)} features")
    axes = leading(covariance, max(components))
    pieces: list[list[Tensor]] = [[] for _ in components]
    for block in _blocks(held, device):
        centred = block - mean
        total, along = centred.square().sum(1), (centred @ axes).square()
        for piece, k in zip(pieces, components, strict=True):
            piece.append((total - along[:, :k].sum(1)) / len(mean))
    return [torch.cat(piece).cpu() for piece in pieces]


def leading(covariance: Tensor, k: int) -> Tensor:
    """The k leading eigenvectors with shape (d, k), the first first."""
    d, matrix = len(covariance), covariance.cpu().numpy()
    if k == 0:
        return covariance[:, :0]
    if k < d // 8:  # few of many: Lanczos, from a fixed vector
        values, vectors = eigsh(matrix, k, v0=np.ones(d))
    else:
        values, vectors = eigh(matrix, subset_by_index=(d - k, d - 1))
    return torch.from_numpy(vectors[:, np.argsort(-values)].copy()).to(covariance.device)


def moments(
    events: Tensor | SparseEvents,
    device: torch.device | str = "cpu",
    function: Callable[[Tensor], Tensor] = lambda x: x,
) -> tuple[Tensor, Tensor]:
    """Mean with shape (d,) and covariance with shape (d, d), float64, of a `function` of events (n, d)."""
    shift: Tensor | None = None
    total, products, n = torch.zeros(()), torch.zeros(()), len(events)
    for block in map(function, _blocks(events, device)):
        if shift is None:  # near the mean, so that the products keep their digits
            shift = block.mean(0)
            total, products = torch.zeros_like(shift), torch.zeros_like(torch.outer(shift, shift))
        centred = (block - shift).float()
        total += centred.double().sum(0)
        products += (centred.T @ centred).double()
    if shift is None:
        raise InputError("expected at least one event")
    offset = total / n
    return shift + offset, products / n - torch.outer(offset, offset)


def _blocks(events: Tensor | SparseEvents, device: torch.device | str) -> Iterator[Tensor]:
    """Dense events as float64 with shape (n, d)."""
    for rows in torch.split(torch.arange(len(events), device=events.device), ROWS):
        yield events[rows].to(device).flatten(1).double()
