"""The replay buffer: end points of earlier chains, in one tensor on the device.

Position and fill are tensors too, so that an iteration captured in a CUDA graph moves them.
"""

import torch
from torch import Tensor

from normae.random import Generators, uniform


class ReplayBuffer:
    """Ring of `capacity` points for each of S models.

    Args:
        storage: with shape (S, capacity, *point).
        written: number of points ever written, int64, shape (); the oldest points leave first.
    """

    def __init__(self, storage: Tensor, written: Tensor) -> None:
        self.storage = storage
        self.written = written

    @classmethod
    def empty(cls, members: int, capacity: int, point: tuple[int, ...], device: torch.device) -> "ReplayBuffer":
        """An empty buffer for points of shape `point`."""
        storage = torch.zeros(members, capacity, *point, device=device)
        return cls(storage, torch.zeros((), dtype=torch.int64, device=device))

    @property
    def capacity(self) -> int:
        return int(self.storage.shape[1])

    def slots(self, n: int) -> Tensor:
        """The next `n` places of the ring, shape (n,)."""
        offsets = torch.arange(n, device=self.storage.device)
        return (self.written + offsets) % self.capacity

    def draw(self, noise: Tensor, replay: float, generators: Generators) -> Tensor:
        """Starting points with shape (S * B, *point): from the buffer with probability `replay`, otherwise `noise`.

        Drawn with replacement from what has been written; an empty buffer gives noise.
        """
        members = self.storage.shape[0]
        fill = self.written.clamp_max(self.capacity)
        u = uniform((len(noise), 2), generators, noise)
        index = (u[:, 0] * fill).long().clamp_max(self.capacity - 1).reshape(members, -1)
        rows = torch.arange(members, device=noise.device)[:, None]
        stored = self.storage[rows, index].flatten(0, 1)
        use = (u[:, 1] < replay) & (fill > 0)
        return torch.where(use.reshape(-1, *[1] * (noise.ndim - 1)), stored, noise)

    def read(self, slots: Tensor) -> Tensor:
        """The points at `slots` of every model, with shape (S * n, *point)."""
        return self.storage[:, slots].flatten(0, 1)

    def push(self, points: Tensor) -> None:
        """Write points with shape (S * B, *point), the oldest leave. More points than places: the last ones stay."""
        blocks = points.unflatten(0, (self.storage.shape[0], -1))[:, -self.capacity :]
        n = blocks.shape[1]
        self.storage.index_copy_(1, self.slots(n), blocks)
        self.written += n
