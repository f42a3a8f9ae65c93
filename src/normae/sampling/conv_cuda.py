"""Chains of the convolutional autoencoder with eight channels in a CUDA kernel, `conv_chain.cu`.

The same chains as those of `conv_kernels` with `precision` "fp16", with the same random numbers, several times as fast:
all of an image's activations stay in the shared memory of one multiprocessor, where Triton cannot keep them. Other
shapes, and devices with less shared memory, are left to Triton.
"""

import ctypes
import logging
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from normae.sampling.config import ChainConfig
from normae.sampling.conv_packing import ConvShape
from normae.sampling.cuda_source import CudaSourceError, Kernel, compile_kernel

log = logging.getLogger(__name__)

THREADS = 512
BOUNDS = {"none": 0, "clamp": 1, "reject": 2, "geodesic": 3, "project": 4}
CLIPS = {"none": 0, "value": 1, "row": 2, "norm": 3}


def serves(shape: ConvShape) -> bool:
    """Whether the kernel is made for this network; whether the device can run it shows when it is compiled."""
    return shape.channels == 8 and shape.side % 8 == 0 and shape.hp <= 256 and shape.zp <= 32


def defines(shape: ConvShape, config: ChainConfig, latent: bool) -> tuple[tuple[str, int], ...]:
    """What the kernel is compiled with."""
    on = config.sphere or ("none" if config.bounds is None else config.bounds_rule)
    return (
        ("SIDE", shape.side), ("Z", shape.latent), ("HP", shape.hp), ("ZP", shape.zp), ("SPHERE", int(shape.sphere)),
        ("SIGMOID", int(shape.sigmoid)), ("LATENT", int(latent)), ("METROPOLIS", int(config.metropolis == "exact")),
        ("ON", BOUNDS[on]), ("CLIP", CLIPS["none" if config.clip is None else config.clip_rule]),
        ("ANNEAL", int(config.anneal)),
    )  # fmt: skip


def source() -> str:
    """The kernel's text."""
    return (files("normae.sampling") / "conv_chain.cu").read_text(encoding="utf-8")


@lru_cache(maxsize=64)
def kernel(chosen: tuple[tuple[str, int], ...], device: int) -> Kernel | None:
    """Compiled once for each device and all batch sizes; None, with one log line, where the device cannot run it."""
    try:
        with torch.cuda.device(device):
            return compile_kernel(source(), "chain", chosen)
    except CudaSourceError as error:
        log.warning("the CUDA chain cannot serve: %s; using Triton's", error)
        return None


def arguments(tensors: Sequence[Tensor], n: int, strides: tuple[int, int, int, int], config: ChainConfig) -> list[Any]:
    """In the order of the kernel.

    Args:
        tensors: start, position, energies, gradients, accepted, seeds, temperatures, sizes, weights in half precision
            and in float32; contiguous, on one device, float32 where nothing else is said.
        n: images of each model.
        strides: of seeds, temperatures, sizes and weights.
    """
    noise_ratio = 2.0 if config.noise is None else config.noise**2 / config.step_size
    low, high = config.bounds or (0.0, 0.0)
    numbers = (noise_ratio, float(low), float(high), float(config.clip or 0.0))
    counts = (n, config.steps, *strides)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    return [*pointers, *map(ctypes.c_int, counts), *map(ctypes.c_float, numbers)]
