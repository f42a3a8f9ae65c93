"""The convolutional autoencoder with eight channels in CUDA: whole chains, energies, and gradients of the weights.

Libraries for convolutions are made for many channels; with eight, a step of a chain is some fifty kernels that are
mostly launches and traffic. Here one block of threads takes an image through all steps, or through forward and
backward, with all of its activations in the shared memory of a multiprocessor (`conv_*.cu`). The mathematics is that of
`sampling.langevin`, `reconstruction` and `networks.conv`, and the tests hold it against them.

Numbers. Planes (images, residuals, gradients of images) and everything at the dense layers' hidden vectors are float32.
Maps of eight channels and the dense matrices are rounded to 10 bits of mantissa, sums are in float32, and vectors
pulled back are scaled to be of order one.
"""

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from normae.errors import InputError
from normae.networks.autoencoder import Autoencoder
from normae.networks.conv_packing import ConvShape, conv_shape, dense_gradients, pack, packing, unpacking
from normae.networks.cuda_source import CudaSourceError, Kernel, compile_kernel
from normae.networks.fused_chain import ended, keys, numbers, spread
from normae.networks.reconstruction import LatentEnergy, Layout, ReconstructionEnergy
from normae.random import Generators
from normae.sampling.chain import Chain, run_chain
from normae.sampling.langevin import ChainConfig, Scalar

Defines = tuple[tuple[str, int], ...]
THREADS = 512
BOUNDS = {"none": 0, "clamp": 1, "reject": 2, "geodesic": 3, "project": 4}
CLIPS = {"none": 0, "value": 1, "row": 2, "norm": 3}


# --- which networks and devices


def why_not(architecture: Autoencoder, device: torch.device, name: str) -> str | None:
    """Why the kernel "energies" or "gradient" cannot serve, or None where it can.

    A block of the gradient needs the most shared memory: where it can be loaded, all kernels can.
    """
    shape = conv_shape(architecture)
    if shape is None:
        return "encoder and decoder are not the convolutional ones of networks.conv"
    if shape.channels != 8:
        return f"{shape.channels} channels are not 8"
    if shape.side % 8:
        return f"the side of {shape.side} pixels is not a multiple of 8"
    if shape.hidden > 256 or shape.latent > 32:
        return f"{shape.hidden} hidden or {shape.latent} latent dimensions are more than 256 or 32"
    return _why_not_device(shape, device.index or 0, name)


@lru_cache(maxsize=64)
def _why_not_device(shape: ConvShape, device: int, name: str) -> str | None:
    try:
        kernel(name, network_defines(shape, gradient=name == "gradient"), device)
    except CudaSourceError as error:
        return str(error)
    return None


def network_defines(shape: ConvShape, gradient: bool = False, latent: bool = False) -> Defines:
    """What all kernels are compiled with; a chain of latent points with `latent`."""
    return (
        ("SIDE", shape.side),
        ("Z", shape.latent),
        ("H", shape.hidden),
        ("HP", shape.hp),
        ("ZP", shape.zp),
        ("SPHERE", int(shape.sphere)),
        ("SIGMOID", int(shape.sigmoid)),
        ("GRADIENT", int(gradient)),
        ("LATENT", int(latent)),
    )


def chain_defines(shape: ConvShape, config: ChainConfig, latent: bool) -> Defines:
    """What the kernel of a chain is compiled with."""
    on = config.sphere or ("none" if config.bounds is None else config.bounds_rule)
    return (
        *network_defines(shape, latent=latent),
        ("METROPOLIS", int(config.metropolis == "exact")),
        ("ON", BOUNDS[on]),
        ("CLIP", CLIPS["none" if config.clip is None else config.clip_rule]),
        ("ANNEAL", int(config.anneal)),
    )


@lru_cache(maxsize=64)
def kernel(name: str, chosen: Defines, device: int) -> Kernel:
    """ "chain", "energies" or "gradient", compiled once for each device and all batch sizes.

    Raises `CudaSourceError` where the device cannot run it.
    """
    folder = files("normae.networks")
    texts = [(folder / f"conv_{part}.cu").read_text(encoding="utf-8") for part in ("network", name)]
    with torch.cuda.device(device):
        return compile_kernel("\n".join(texts), name, chosen)


def multiprocessors(device: torch.device) -> int:
    """Of the device: as many blocks that take many images run side by side, or twice as many."""
    return torch.cuda.get_device_properties(device).multi_processor_count


# --- energies


class FusedConvEnergy(ReconstructionEnergy):
    """E(x) of S convolutional autoencoders; a drop-in for `ReconstructionEnergy`.

    Args:
        autoencoder: the architecture, for which `why_not` finds nothing.
        layout: of its weights.
        weights: with shape (S, P).
    """

    def __init__(self, autoencoder: Autoencoder, layout: Layout, weights: Tensor) -> None:
        super().__init__(autoencoder, layout.views(weights), explicit=False)
        shape = conv_shape(autoencoder)
        if shape is None:
            raise InputError("the fused kernels cannot serve: encoder and decoder are not those of networks.conv")
        self.shape, self.layout, self.weights = shape, layout, weights
        self._packed: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return self.with_latent(x)[0]

    def with_latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (N,) and the latent points (N, d_z) that they went through."""
        if x.requires_grad:
            return super().with_latent(x)
        both: tuple[Tensor, Tensor] = _WeightsToEnergy.apply(self.weights, x, self)  # type: ignore[no-untyped-call]
        return both

    def packed(self) -> tuple[Tensor, Tensor]:
        """The weights in packed order, in half precision and in float32, (S, Q) each; made once."""
        if self._packed is None:
            full = pack(self.weights.detach().float(), packing(self.layout, self.shape, self.weights.device))
            self._packed = (full.half(), full)
        return self._packed

    def blocks(self, x: Tensor, latent: bool = False) -> tuple[Tensor, int]:
        """Images, or latent points, as the kernels read them, and how many each model has."""
        event = (self.shape.latent,) if latent else (1, self.shape.side, self.shape.side)
        if tuple(x.shape[1:]) != event or len(x) % self.members:
            raise InputError(f"expected {self.members} equal blocks of events of shape {event}, got {tuple(x.shape)}")
        if x.device != self.weights.device:  # a kernel gets addresses, and would read elsewhere
            raise InputError(f"expected events on {self.weights.device}, got {x.device}")
        return x.detach().float().contiguous(), len(x) // self.members


class _WeightsToEnergy(torch.autograd.Function):
    """Energies and latent points of images as a function of the weights (S, P)."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, x: Tensor, energy: FusedConvEnergy) -> tuple[Tensor, Tensor]:
        ctx.x, ctx.energy = x, energy
        return _energies(energy, x)

    @staticmethod
    def backward(ctx: Any, v_energy: Tensor, v_latent: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return _gradients(ctx.energy, ctx.x, v_energy, v_latent), None, None


def _energies(energy: FusedConvEnergy, x: Tensor) -> tuple[Tensor, Tensor]:
    x, n = energy.blocks(x)
    half, full = energy.packed()
    value, latent = x.new_empty(len(x)), x.new_empty(len(x), energy.shape.latent)
    side_by_side = max(1, min(n, 2 * multiprocessors(x.device)))
    found = kernel("energies", network_defines(energy.shape), x.device.index or 0)
    arguments = _values((x, value, latent, half, full), (n, full.stride(0)))
    found.launch((side_by_side, energy.members), THREADS, arguments)
    return value, latent


def _gradients(energy: FusedConvEnergy, x: Tensor, v_energy: Tensor, v_latent: Tensor) -> Tensor:
    """d/dweights of sum_i (v_energy_i E_i + v_latent_i z_i), with shape (S, P)."""
    x, n = energy.blocks(x)
    half, full = energy.packed()
    shape, members, side_by_side = energy.shape, energy.members, max(1, min(n, multiprocessors(x.device)))
    out = x.new_zeros(members * side_by_side, shape.gathered)
    vectors = x.new_empty(members, n, 2 * shape.small + 4 * shape.hp + 2 * shape.zp)
    found = kernel("gradient", network_defines(shape, gradient=True), x.device.index or 0)
    tensors = (x, v_energy.contiguous(), v_latent.contiguous(), out, vectors, half, full)
    arguments = _values(tensors, (n, full.stride(0), out.stride(0)))
    found.launch((side_by_side, members), THREADS, arguments)
    pieces = [out.unflatten(0, (members, -1)).sum(1), *dense_gradients(vectors, shape)]
    return torch.cat(pieces, 1).index_select(1, unpacking(energy.layout, shape, x.device))


def _values(tensors: Sequence[Tensor], counts: Sequence[int], more: Sequence[float] = ()) -> list[Any]:
    """Arguments of a launch: tensors that are contiguous and on one device, then integers, then floats."""
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    return [*pointers, *map(ctypes.c_int, counts), *map(ctypes.c_float, more)]


# --- chains


def fused_conv_runner(
    energy: Any,
    start: Tensor,
    config: ChainConfig,
    temperature: Scalar,
    generators: Generators,
    step_size: Scalar | None = None,
    trace: int | None = None,
    members: int = 1,
) -> Chain:
    """`run_chain` in one kernel, for a `FusedConvEnergy` over images or over latent points.

    Where positions are to be recorded (`trace`), `run_chain` itself runs.
    """
    if trace is not None:
        return run_chain(energy, start, config, temperature, generators, step_size, trace, members)
    size = config.step_size if step_size is None else step_size
    position, value, _, accepted = launch_chain(
        energy, start, config, temperature, size, keys(generators, start.device)
    )
    return ended(position, value, accepted, members)


def launch_chain(
    energy: FusedConvEnergy | LatentEnergy,
    start: Tensor,
    config: ChainConfig,
    temperature: Scalar,
    size: Scalar,
    seeds: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """End points, their energies and gradients, and which steps were taken, int32 with shape (steps, S, n)."""
    latent = isinstance(energy, LatentEnergy)
    of = energy.energy if isinstance(energy, LatentEnergy) else energy
    assert isinstance(of, FusedConvEnergy)
    start, n = of.blocks(start, latent)
    half, full = of.packed()
    position, grad, value = torch.empty_like(start), torch.empty_like(start), start.new_empty(len(start))
    accepted = torch.empty((config.steps, of.members, n), dtype=torch.int32, device=start.device)
    t, t_stride = spread(temperature, start)
    s, s_stride = spread(size, start)
    tensors = (start, position, value, grad, accepted, seeds, t, s, half, full)
    counts = (n, config.steps, int(len(seeds) > 1), t_stride, s_stride, full.stride(0))
    found = kernel("chain", chain_defines(of.shape, config, latent), start.device.index or 0)
    found.launch((n, of.members), THREADS, _values(tensors, counts, numbers(config)))
    return position, value, grad, accepted
