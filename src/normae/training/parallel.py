"""One training on several processes, for samples that outgrow one device; started with `torchrun`.

Each process keeps a part of the events, runs its own chains on its own network with its own buffer and generators, and
takes an equal part of the batch. Their gradients are averaged, and since they began with the same weights and make the
same update, the weights stay the same, bit for bit. All losses are means over events, so the average of the gradients
is the gradient of the whole batch.

This is the arithmetic of DistributedDataParallel. Its wrapper is not used, because what it adds is already here: all
weights of all models are one tensor, so that one all-reduce takes the whole gradient, and the chains, which must run on
the unwrapped network, find nothing to unwrap.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor


class Group:
    """The processes of one training: by itself one process, to which there is nothing to say."""

    rank = 0
    size = 1

    def named(self, name: str) -> str:
        """The random stream `name` of this process; the first one has the streams of a training by itself."""
        return name if self.rank == 0 else f"{name}/process/{self.rank}"

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean of all processes' tensors."""
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        return flag

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, in their order."""
        return [tensor]


class Processes(Group):
    """All processes of `torch.distributed`, which must be initialized."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean of all processes' tensors."""
        tensor = tensor.contiguous()
        dist.all_reduce(tensor)
        return tensor.div_(self.size)

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        votes = torch.tensor(int(flag))
        dist.all_reduce(votes)
        return bool(votes > 0)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, in their order."""
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous())
        return parts


@contextmanager
def processes() -> Iterator[Group]:
    """The processes that torchrun started, connected for as long as the context lasts, or this one alone."""
    if dist.is_available() and dist.is_initialized():
        yield Processes()
        return
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield Group()
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    try:
        yield Processes()
    finally:
        dist.destroy_process_group()
