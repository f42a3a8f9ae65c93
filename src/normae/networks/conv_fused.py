"""The convolutional autoencoder in Triton: whole chains, energies, and gradients of the weights, in one kernel each.

Libraries for convolutions are made for many channels; with eight, a step of a chain is some fifty kernels that are
mostly launches and traffic. Here one program takes one image through all steps, or through forward and backward, with
its activations in scratch memory that stays in the caches. See `conv_layers` and `conv_kernels`; the mathematics is
that of `langevin`, `energy` and `networks.conv`, and the tests hold it against them.

Numbers. Planes (images, residuals, gradients of images) and everything at the dense layers' hidden vectors are float32.
With `precision` "fp16", the maps of C channels and the dense matrices are rounded to 10 bits of mantissa, sums are in
float32, and vectors pulled back are scaled to be of order one; "tf32" rounds the factors of matrix products alike and
stores float32; "ieee" is float32. Random numbers are as in `fused`.
"""

from __future__ import annotations  # triton's types in signatures, where triton may be absent

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from normae.errors import InputError
from normae.networks import conv_cuda
from normae.networks.autoencoder import Autoencoder
from normae.networks.conv_kernels import (
    LARGE_MAPS,
    LARGE_PLANES,
    SMALL_MAPS,
    SMALL_PLANES,
    chain_kernel,
    energy_kernel,
    gradient_kernel,
)
from normae.networks.conv_packing import ConvShape, conv_shape, dense_gradients, pack, packing, unpacking
from normae.networks.cuda_source import Kernel
from normae.networks.mlp_chain import _seeds, _spread
from normae.networks.mlp_kernels import triton
from normae.networks.parameters import Layout
from normae.networks.reconstruction import LatentEnergy, ReconstructionEnergy
from normae.random import Generators
from normae.sampling.chain import Chain, run_chain
from normae.sampling.config import ChainConfig
from normae.sampling.langevin import Scalar

Precision = Literal["fp16", "tf32", "ieee"]


class Tuning(NamedTuple):
    """How the kernels are computed.

    Args:
        precision: see the module's docstring.
        tile: pixels at a time, a power of two of at least 16.
        rows: pixels at a time in dense layers, a power of two.
        num_warps: warps per program.
        programs: most programs of a launch, all models together; 0 for as many as there are images.
    """

    precision: Precision = "fp16"
    tile: int = 512
    rows: int = 64
    num_warps: int = 16
    programs: int = 1056


CHAIN = Tuning()
"""One program for each image of a batch, with all of a multiprocessor for itself; memory for 1056 images at most.

On an H200 the paper's chains of 128 images take 5.5 and 3.8 ms; with 8 warps and tiles of 256 pixels, 6.3 and 4.5.
"""
BULK = Tuning(tile=128, num_warps=4, programs=528)
"""Four small programs for each multiprocessor, which take many images one after the other.

On an H200 3.5 million energies a second; with 8 warps, tiles of 256 and 264 programs, 2.4 million.
"""


class Scratch:
    """Memory of programs, with borders that are zero and stay zero."""

    def __init__(self, shape: ConvShape, programs: int, precision: Precision, device: torch.device) -> None:
        large, small = (shape.side + 2) ** 2, (shape.side // 2 + 2) ** 2
        slack = 64  # the last row of a stencil reads one pixel beyond
        maps = (LARGE_MAPS * large + SMALL_MAPS * small) * shape.channels + slack
        planes = LARGE_PLANES * large + SMALL_PLANES * small + slack
        dtype = torch.float16 if precision == "fp16" else torch.float32
        self.maps = torch.zeros(programs, maps + -maps % 64, dtype=dtype, device=device)
        self.planes = torch.zeros(programs, planes + -planes % 64, device=device)


class Workspace:
    """What launches share and a captured graph must find again: scratch memory and gather indices, made once.

    Launches that share a workspace must follow each other in one stream.
    """

    def __init__(self, layout: Layout, shape: ConvShape, device: torch.device) -> None:
        self.shape, self.device = shape, device
        self.packing = packing(layout, shape).to(device)
        self.unpacking = unpacking(layout, shape).to(device)
        self._scratch: dict[tuple[int, Precision], Scratch] = {}

    def scratch(self, programs: int, precision: Precision) -> Scratch:
        """The memory of a launch."""
        key = (programs, precision)
        if key not in self._scratch:
            self._scratch[key] = Scratch(self.shape, programs, precision, self.device)
        return self._scratch[key]


def why_not(architecture: Autoencoder) -> str | None:
    """Why these kernels cannot serve, or None where they can."""
    if triton is None:
        return "triton is not installed"
    shape = conv_shape(architecture)
    if shape is None:
        return "encoder and decoder are not the convolutional ones of networks.conv"
    if shape.channels not in (8, 16, 32):
        return f"{shape.channels} channels are not 8, 16 or 32"
    return None


class FusedConvEnergy(ReconstructionEnergy):
    """E(x) of S convolutional autoencoders; a drop-in for `ReconstructionEnergy`.

    Args:
        autoencoder: the architecture, for which `why_not` finds nothing.
        layout: of its weights.
        weights: with shape (S, P).
        tuning: of the chains.
        bulk: of energies and gradients of many images; as `tuning`, where only that is given.
        workspace: of earlier energies of this architecture; a new one by default.
    """

    def __init__(
        self,
        autoencoder: Autoencoder,
        layout: Layout,
        weights: Tensor,
        tuning: Tuning | None = None,
        bulk: Tuning | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        super().__init__(autoencoder, layout.views(weights), explicit=False)
        shape = conv_shape(autoencoder)
        if shape is None:
            raise InputError(f"the fused kernels cannot serve: {why_not(autoencoder)}")
        self.shape, self.layout, self.weights = shape, layout, weights
        self.tuning = tuning or CHAIN
        self.bulk = bulk or (BULK if tuning is None else tuning)
        self.workspace = workspace or Workspace(layout, shape, weights.device)
        self._packed: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return self.with_latent(x)[0]

    def with_latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (N,) and the latent points (N, d_z) that they went through."""
        if x.requires_grad:
            return super().with_latent(x)
        both: tuple[Tensor, Tensor] = _WeightsToEnergy.apply(self.weights, x, self)  # type: ignore[no-untyped-call]
        return both

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (N,) and gradients (N, 1, side, side)."""
        return _at_rest(self, x)

    def latent(self) -> LatentEnergy:
        """The energy over latent space, E~(z) = E(f_d(z))."""
        return FusedLatentEnergy(self)

    def packed(self) -> tuple[Tensor, Tensor]:
        """The weights in packed order, in the format of products and in float32, (S, Q) each; made once."""
        if self._packed is None:
            full = pack(self.weights.detach(), self.workspace.packing)
            self._packed = (full.half() if self.tuning.precision == "fp16" else full, full)
        return self._packed

    def constants(self, tuning: Tuning) -> Mapping[str, Any]:
        """Compile-time arguments that all kernels share."""
        s = self.shape
        return {
            "SIDE": s.side, "C": s.channels, "Z": s.latent, "HP": s.hp, "ZP": s.zp, "SPHERE": s.sphere,
            "SIGMOID": s.sigmoid, "PRECISION": tuning.precision, "TILE": tuning.tile, "ROWS": tuning.rows,
            "num_warps": tuning.num_warps, "num_stages": 1,
        }  # fmt: skip

    def programs(self, n: int, tuning: Tuning) -> int:
        """Programs of each model for n images of each."""
        return max(1, min(n, tuning.programs // self.members if tuning.programs else n))

    def block(self, x: Tensor) -> int:
        """Images of each model."""
        event = (1, self.shape.side, self.shape.side)
        if tuple(x.shape[1:]) != event or len(x) % self.members:
            raise InputError(f"expected {self.members} equal blocks of events of shape {event}, got {tuple(x.shape)}")
        return len(x) // self.members


class FusedLatentEnergy(LatentEnergy):
    """E~(z) = E(f_d(z)) of a `FusedConvEnergy`."""

    def value_and_grad(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (N,) and gradients (N, d_z)."""
        return _at_rest(self, z)


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
    n, tuning, x = energy.block(x), energy.bulk, x.detach().contiguous()
    programs = energy.programs(n, tuning)
    w, w32 = energy.packed()
    scratch = energy.workspace.scratch(energy.members * programs, tuning.precision)
    value, latent = x.new_empty(len(x)), x.new_empty(len(x), energy.shape.latent)
    energy_kernel[(energy.members, programs)](
        x, value, latent, w, w32, scratch.maps, scratch.planes, n, programs, w.stride(0), scratch.maps.stride(0),
        scratch.planes.stride(0), **energy.constants(tuning),
    )  # fmt: skip
    return value, latent


def _gradients(energy: FusedConvEnergy, x: Tensor, v_energy: Tensor, v_latent: Tensor) -> Tensor:
    """d/dweights of sum_i (v_energy_i E_i + v_latent_i z_i), with shape (S, P)."""
    n, tuning, shape, members, x = energy.block(x), energy.bulk, energy.shape, energy.members, x.detach().contiguous()
    kernel = _cuda_kernel(energy, "gradient", conv_cuda.gradient_defines(shape), x)
    programs = energy.programs(n, tuning) if kernel is None else min(n, conv_cuda.blocks(x.device))
    w, w32 = energy.packed()
    out = x.new_zeros(members * programs, shape.gathered)
    vectors = x.new_empty(members, n, 2 * shape.small + 4 * shape.hp + 2 * shape.zp)
    tensors = (x, v_energy.contiguous(), v_latent.contiguous(), out, vectors, w, w32)
    if kernel is not None:
        counts = (n, w.stride(0), out.stride(0))
        kernel.launch((programs, members), conv_cuda.THREADS, conv_cuda.values(tensors, counts))
    else:
        scratch = energy.workspace.scratch(members * programs, tuning.precision)
        gradient_kernel[(members, programs)](
            *tensors, scratch.maps, scratch.planes, n, programs, w.stride(0), scratch.maps.stride(0),
            scratch.planes.stride(0), out.stride(0), **energy.constants(tuning),
        )  # fmt: skip
    return assembled(out, vectors, shape, energy.workspace.unpacking)


def assembled(out: Tensor, vectors: Tensor, shape: ConvShape, unpacking: Tensor) -> Tensor:
    """Gradients (S, P) from what programs gathered, (S * programs, ...), and vectors at dense layers, (S, n, ...)."""
    pieces = [out.unflatten(0, (len(vectors), -1)).sum(1), *dense_gradients(vectors, shape)]
    return torch.cat(pieces, 1).index_select(1, unpacking)


def _at_rest(energy: FusedConvEnergy | FusedLatentEnergy, x: Tensor) -> tuple[Tensor, Tensor]:
    """Energies and gradients at x, as a chain sees them."""
    seeds = torch.zeros(1, dtype=torch.int64, device=x.device)
    _, value, grad, _ = _launch(energy, x, ChainConfig(steps=0), 1.0, 1.0, seeds)
    return value, grad


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
    seeds = _seeds(generators, start.device)
    position, value, _, accepted = _launch(energy, start, config, temperature, size, seeds)
    share = accepted.sum(2, dtype=torch.float64).mul_(members / len(start))
    return Chain(position, value, share, None)


def _cuda_kernel(energy: FusedConvEnergy, name: str, chosen: conv_cuda.Defines, x: Tensor) -> Kernel | None:
    """The kernel in CUDA, where it serves."""
    suitable = x.is_cuda and x.dtype == torch.float32 and energy.tuning.precision == "fp16"
    if not suitable or not conv_cuda.serves(energy.shape):
        return None
    return conv_cuda.kernel(name, chosen, x.device.index or 0)


def _launch(
    energy: FusedConvEnergy | FusedLatentEnergy,
    start: Tensor,
    config: ChainConfig,
    temperature: Scalar,
    size: Scalar,
    seeds: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """End points, their energies and gradients, and which steps were taken, int32 with shape (steps, S, n)."""
    latent = isinstance(energy, FusedLatentEnergy)
    of = energy.energy if isinstance(energy, FusedLatentEnergy) else energy
    assert isinstance(of, FusedConvEnergy)
    start, tuning = start.detach().contiguous(), of.tuning
    n = len(start) // of.members if latent else of.block(start)
    programs = of.programs(n, tuning)
    w, w32 = of.packed()
    position, grad, value = torch.empty_like(start), torch.empty_like(start), start.new_empty(len(start))
    accepted = torch.empty((config.steps, of.members, n), dtype=torch.int32, device=start.device)
    t, t_stride = _spread(temperature, start)
    s, s_stride = _spread(size, start)
    numbers = conv_cuda.chain_numbers(config)
    kernel = _cuda_kernel(of, "chain", conv_cuda.chain_defines(of.shape, config, latent), start)
    if kernel is not None:
        tensors = (start, position, value, grad, accepted, seeds, t.float(), s.float(), w, w32)
        counts = (n, config.steps, int(len(seeds) > 1), t_stride, s_stride, w.stride(0))
        kernel.launch((n, of.members), conv_cuda.THREADS, conv_cuda.values(tensors, counts, numbers))
        return position, value, grad, accepted
    scratch = of.workspace.scratch(of.members * programs, tuning.precision)
    on = config.sphere or ("none" if config.bounds is None else config.bounds_rule)
    chain_kernel[(of.members, programs)](
        start, position, value, grad, accepted, seeds, t, s, w, w32, scratch.maps, scratch.planes, n, programs,
        int(len(seeds) > 1), t_stride, s_stride, w.stride(0), scratch.maps.stride(0), scratch.planes.stride(0),
        *numbers, STEPS=config.steps, LATENT=latent,
        METROPOLIS=config.metropolis == "exact", ON=on, CLIP="none" if config.clip is None else config.clip_rule,
        ANNEAL=config.anneal, COLUMNS=1 << (of.shape.side - 1).bit_length(), **of.constants(tuning),
    )  # fmt: skip
    return position, value, grad, accepted
