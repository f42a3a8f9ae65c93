"""Images that are stored by their filled pixels, and made dense and filtered only in the batch.

An image has at most K filled pixels; one with fewer is padded with pixel 0 and value 0. A dense batch is the sum of the
values at their pixels, then the filter F along each axis, x -> F x F^T. Filled pixels differ within an image, so the
sum adds one value and zeros, and does not depend on its order.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


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
        image = flat.unflatten(-1, (1, side, side))
        dense: Tensor = self.filter @ (image @ self.filter.T)
        return dense

    def dense(self) -> Tensor:
        """All images, with shape (N, 1, side, side)."""
        return self[torch.arange(len(self), device=self.device)]

    def to(self, device: torch.device | str) -> "SparseEvents":
        """The same images on `device`."""
        return SparseEvents(self.pixel.to(device), self.value.to(device), self.filter.to(device))

    @classmethod
    def joined(cls, parts: Sequence["SparseEvents"]) -> "SparseEvents":
        """All images of `parts`, in order; they have one filter."""
        widest = max(part.pixel.shape[1] for part in parts)
        pixel, value = (
            torch.cat([pad(getattr(part, name), (0, widest - part.pixel.shape[1])) for part in parts])
            for name in ("pixel", "value")
        )
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
