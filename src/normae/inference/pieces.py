"""Arrays through a function on a device, a piece at a time, so that memory stays bounded.

A copy to a GPU is fast only from pinned memory. Events go there through two pinned buffers, which take turns: one is
filled while the other one's events are copied and computed.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

CPU_PIECE = 1 << 11
"""Events at a time on a CPU, whose activations then stay in the cache."""
GPU_PIECE = 1 << 16
BUFFER = 1 << 26
"""Bytes of a pinned buffer; events that are large come in smaller pieces."""


def in_pieces(
    function: Callable[[Tensor], Tensor], events: np.ndarray, device: torch.device, most: int | None = None
) -> tuple[Tensor, Tensor]:
    """`function` of all events, with shape (..., N), and which events are finite, with shape (N,); both on the CPU.

    Args:
        function: from a tensor (n, *event) on the device to (..., n).
        events: with shape (N, *event), of any real type.
        most: events at a time.
    """
    values, finite = [], []
    with torch.no_grad():
        for piece in _on_device(events, device, most):
            finite.append(torch.isfinite(piece).flatten(1).all(dim=1))
            values.append(function(piece))
            if values[-1].dim() > 1:  # many values an event do not wait on the device
                values[-1] = values[-1].cpu()
    return torch.cat(values, dim=-1).cpu(), torch.cat(finite).cpu()


def _on_device(events: np.ndarray, device: torch.device, most: int | None) -> Iterator[Tensor]:
    """Float32 tensors on the device, at least one; a consumer has launched what it does before it asks for the next."""
    places = range(0, max(len(events), 1), most or CPU_PIECE)
    if device.type != "cuda":
        for start in places:
            with np.errstate(over="ignore"):
                piece = np.array(events[start : start + places.step], dtype=np.float32)
            yield torch.from_numpy(piece).to(device)
        return
    fit = max(1, BUFFER // (4 * math.prod(events.shape[1:])))
    size = min(most or GPU_PIECE, fit, max(len(events), 1))
    shape = (size, *events.shape[1:])
    buffers = [torch.empty(shape, dtype=torch.float32, device="cpu", pin_memory=True) for _ in range(2)]
    copied = [torch.cuda.Event() for _ in buffers]
    for k, start in enumerate(range(0, max(len(events), 1), size)):
        buffer, done = buffers[k % 2], copied[k % 2]
        done.synchronize()  # returns at once where nothing has been recorded
        piece = events[start : start + size]
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and found to be
            np.copyto(buffer.numpy()[: len(piece)], piece, casting="unsafe")
        there = buffer[: len(piece)].to(device, non_blocking=True)
        done.record(torch.cuda.current_stream(device))
        yield there
