"""The training samples of S models, from which an iteration takes its batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from normae.data import SparseEvents
from normae.errors import InputError


class Samples:
    """S samples of equal size N, on the device, model after model.

    Args:
        samples: S tensors with shape (N, *event), or S sets of N sparse images.
        device: where batches are taken.
    """

    def __init__(self, samples: Sequence[Tensor] | Sequence[SparseEvents], device: torch.device) -> None:
        if len({tuple(sample.shape) for sample in samples}) != 1:
            raise InputError(f"expected training samples of one shape, got {[tuple(s.shape) for s in samples]}")
        self.size = len(samples[0])
        self.event = tuple(samples[0].shape[1:])
        self._events = _joined(samples).to(device)
        self._first = torch.arange(len(samples), device=device)[:, None] * self.size

    def take(self, index: Tensor) -> Tensor:
        """The events at `index`, int64 with shape (S, B): dense, with shape (S * B, *event)."""
        return self._events[(index + self._first).flatten()]


def _joined(samples: Sequence[Tensor] | Sequence[SparseEvents]) -> Tensor | SparseEvents:
    sparse = [sample for sample in samples if isinstance(sample, SparseEvents)]
    if sparse:
        return SparseEvents.joined(sparse)
    return torch.cat([sample for sample in samples if isinstance(sample, Tensor)])
