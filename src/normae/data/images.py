"""Images that are stored by their filled pixels, and made dense and filtered only in the batch.

An image has at most K filled pixels; one with fewer is padded with pixel 0 and value 0. A dense batch is the sum of the
values at their pixels, then the filter F along each axis, x -> F x F^T. Filled pixels differ within an image, so the
sum adds one value and zeros, and does not depend on its order.

**What a linear model reconstructs** is what the error of an autoencoder is held against. With the mean m and the
covariance C of a training sample, the best affine model of k dimensions keeps the k leading eigenvectors V_k of C. Its
error at an event x of d features is, mean over features as the energy is,

    e_k(x) = (|x - m|^2 - |V_k^T (x - m)|^2) / d,

k = 0 being the mean event alone. Sums run over blocks of events, so that sparse images are never dense all at once.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import eigh
from scipy.sparse.linalg import eigsh
from torch import Tensor
from torch.nn.functional import pad

from normae.errors import refuse
from normae.tensors import Device


@dataclass(frozen=True, eq=False)
class SparseEvents:
    """N images with shape (1, side, side).

    Args:
        pixel: flat index side * row + column of the filled pixels, int16 with shape (N, K).
        value: with shape (N, K), any floating type.
        filter: F with shape (side, side).
    """

    pixel: Tensor
    value: Tensor
    filter: Tensor

    def __len__(self) -> int:
        return len(self.pixel)

    @property
    def shape(self) -> tuple[int, ...]:
        """As of a dense tensor: (N, 1, side, side)."""
        side = len(self.filter)
        return len(self), 1, side, side

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self.pixel.device

    def __getitem__(self, index: Tensor) -> Tensor:
        """Dense, filtered images with shape (*index, 1, side, side), float32."""
        pixel, value = self.pixel[index].long(), self.value[index].to(self.filter.dtype)
        side = len(self.filter)
        flat = self.filter.new_zeros((*index.shape, side * side)).scatter_add_(-1, pixel, value)
        dense: Tensor = self.filter @ (flat.unflatten(-1, (1, side, side)) @ self.filter.T)
        return dense

    def dense(self) -> Tensor:
        """All images, with shape (N, 1, side, side)."""
        return self[torch.arange(len(self), device=self.device)]

    def to(self, device: Device) -> "SparseEvents":
        """The same images on `device`."""
        return SparseEvents(self.pixel.to(device), self.value.to(device), self.filter.to(device))

    @classmethod
    def joined(cls, parts: Sequence["SparseEvents"]) -> "SparseEvents":
        """All images of `parts`, in order; they have one filter."""
        widest = max(part.pixel.shape[1] for part in parts)
        wide = [[pad(x, (0, widest - x.shape[1])) for x in (part.pixel, part.value)] for part in parts]
        pixel, value = (torch.cat(some) for some in zip(*wide, strict=True))
        return cls(pixel, value, parts[0].filter)

    def rows(self, index: Tensor) -> "SparseEvents":
        """The images at `index`, int64 with shape (n,)."""
        return SparseEvents(self.pixel[index], self.value[index], self.filter)

    def first(self, n: int) -> "SparseEvents":
        """The first `n` images."""
        return SparseEvents(self.pixel[:n], self.value[:n], self.filter)

    def sha256(self) -> str:
        """SHA-256 of the bytes of pixels and values."""
        digest = hashlib.sha256(self.pixel.contiguous().numpy().tobytes())
        digest.update(self.value.contiguous().numpy().tobytes())
        return digest.hexdigest()


# --- linear models

ROWS = 4096
Sample = Tensor | SparseEvents


def linear_errors(train: Sample, held: Sample, components: Sequence[int], device: Device = "cpu") -> list[Tensor]:
    """e_k of the events `held`, float64 with shape (N,), for each k of `components`; mean and axes are of `train`.

    Args:
        train, held: with shape (M, *event) and (N, *event).
        device: where the products are made.
    """
    mean, covariance = moments(train, device)
    refuse(max(components) > len(mean), f"expected at most {len(mean)} components of events of {len(mean)} features")
    axes = leading(covariance, max(components))
    pieces = []
    for block in _blocks(held, device):
        centred = block - mean
        total, along = centred.square().sum(1), (centred @ axes).square()
        pieces.append(torch.stack([(total - along[:, :k].sum(1)) / len(mean) for k in components]))
    return list(torch.cat(pieces, dim=1).cpu())


def leading(covariance: Tensor, k: int) -> Tensor:
    """The k leading eigenvectors with shape (d, k), the first first."""
    d, matrix = len(covariance), covariance.cpu().numpy()
    if k == 0:
        return covariance[:, :0]
    few = k < d // 8  # of many: Lanczos, from a fixed vector
    values, vectors = eigsh(matrix, k, v0=np.ones(d)) if few else eigh(matrix, subset_by_index=(d - k, d - 1))
    return torch.from_numpy(vectors[:, np.argsort(-values)].copy()).to(covariance.device)


def moments(
    events: Sample, device: Device = "cpu", function: Callable[[Tensor], Tensor] = lambda x: x
) -> tuple[Tensor, Tensor]:
    """Mean with shape (d,) and covariance with shape (d, d), float64, of a `function` of events (n, d)."""
    refuse(not len(events), "expected at least one event")
    shift = function(next(_blocks(events, device))).mean(0)  # near the mean, so that the products keep their digits
    total, products = torch.zeros_like(shift), torch.zeros_like(torch.outer(shift, shift))
    for block in map(function, _blocks(events, device)):
        centred = (block - shift).float()
        total += centred.double().sum(0)
        products += (centred.T @ centred).double()
    offset = total / len(events)
    return shift + offset, products / len(events) - torch.outer(offset, offset)


def _blocks(events: Sample, device: Device) -> Iterator[Tensor]:
    """Dense events as float64 with shape (n, d)."""
    for rows in torch.split(torch.arange(len(events), device=events.device), ROWS):
        yield events[rows].to(device).flatten(1).double()
