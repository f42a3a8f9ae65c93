"""Chains and weight gradients of the convolutional autoencoder with eight channels, in CUDA (`conv_*.cu`).

The same as `conv_kernels` with `precision` "fp16", chains with the same random numbers; but all of an image's
activations stay in the shared memory of one multiprocessor, where Triton cannot keep them. Other shapes, and devices
with less shared memory, are left to Triton.
"""

import ctypes
import logging
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from normae.networks.conv_packing import ConvShape
from normae.networks.cuda_source import CudaSourceError, Kernel, compile_kernel
from normae.sampling.config import ChainConfig

log = logging.getLogger(__name__)

Defines = tuple[tuple[str, int], ...]
THREADS = 512
BOUNDS = {"none": 0, "clamp": 1, "reject": 2, "geodesic": 3, "project": 4}
CLIPS = {"none": 0, "value": 1, "row": 2, "norm": 3}


def serves(shape: ConvShape) -> bool:
    """Whether the kernel is made for this network; whether the device can run it shows when it is compiled."""
    return shape.channels == 8 and shape.side % 8 == 0 and shape.hp <= 256 and shape.zp <= 32


def chain_defines(shape: ConvShape, config: ChainConfig, latent: bool) -> Defines:
    """What the kernel of a chain is compiled with."""
    on = config.sphere or ("none" if config.bounds is None else config.bounds_rule)
    return (
        *_of_network(shape),
        ("GRADIENT", 0),
        ("LATENT", int(latent)),
        ("METROPOLIS", int(config.metropolis == "exact")),
        ("ON", BOUNDS[on]),
        ("CLIP", CLIPS["none" if config.clip is None else config.clip_rule]),
        ("ANNEAL", int(config.anneal)),
    )


def gradient_defines(shape: ConvShape) -> Defines:
    """What the kernel of the weights' gradients is compiled with."""
    return (*_of_network(shape), ("GRADIENT", 1), ("LATENT", 0))


def _of_network(shape: ConvShape) -> Defines:
    return (
        ("SIDE", shape.side),
        ("Z", shape.latent),
        ("H", shape.hidden),
        ("HP", shape.hp),
        ("ZP", shape.zp),
        ("SPHERE", int(shape.sphere)),
        ("SIGMOID", int(shape.sigmoid)),
    )


@lru_cache(maxsize=64)
def kernel(name: str, chosen: Defines, device: int) -> Kernel | None:
    """Compiled once for each device and all batch sizes; None, with one log line, where the device cannot run it.

    Args:
        name: "chain" or "gradient".
    """
    texts = [(files("normae.sampling") / f"conv_{part}.cu").read_text(encoding="utf-8") for part in ("network", name)]
    try:
        with torch.cuda.device(device):
            return compile_kernel("\n".join(texts), name, chosen)
    except CudaSourceError as error:
        log.warning("the CUDA kernel %r cannot serve: %s; using Triton's", name, error)
        return None


def values(tensors: Sequence[Tensor], counts: Sequence[int], numbers: Sequence[float] = ()) -> list[Any]:
    """Arguments of a launch: tensors that are contiguous and on one device, then integers, then floats."""
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    return [*pointers, *map(ctypes.c_int, counts), *map(ctypes.c_float, numbers)]


def chain_numbers(config: ChainConfig) -> tuple[float, float, float, float]:
    """Squared noise over step size, bounds, and the limit of the gradient, as a chain's kernel takes them."""
    noise_ratio = 2.0 if config.noise is None else config.noise**2 / config.step_size
    low, high = config.bounds or (0.0, 0.0)
    return noise_ratio, float(low), float(high), float(config.clip or 0.0)


def blocks(device: torch.device) -> int:
    """Of a launch in which a block takes many images: one for each multiprocessor."""
    return torch.cuda.get_device_properties(device).multi_processor_count
