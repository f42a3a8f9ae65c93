"""The convolutional autoencoder with eight channels in CUDA: whole chains, energies, and gradients of the weights.

Libraries for convolutions are made for many channels; with eight, a step of a chain is some fifty kernels that are
mostly launches and traffic. Here one block of threads takes an image through all steps, or through forward and
backward, with all of its activations in the shared memory of a multiprocessor (`conv_*.cu`). The mathematics is that of
`sampling.langevin`, `reconstruction` and `networks.autoencoder`, and the tests hold it against them.

Numbers. Planes (images, residuals, gradients of images) and everything at the dense layers' hidden vectors are float32.
Maps of eight channels and the dense matrices are rounded to 10 bits of mantissa, sums are in float32, and vectors
pulled back are scaled to be of order one.
"""

import ctypes
from collections.abc import Sequence
from functools import cache, cached_property, lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from normae.errors import InputError
from normae.networks.autoencoder import Autoencoder
from normae.networks.reconstruction import ConvShape, LatentEnergy, Layout, ReconstructionEnergy, conv_shape
from normae.sampling.chain import numbers, run_chain, strided
from normae.sampling.config import ChainConfig
from normae.sampling.langevin import Scalar

Defines = tuple[tuple[str, int], ...]
THREADS = 512
_LARGEST_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_SHARED_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in percent
BOUNDS = {"none": 0, "clamp": 1, "reject": 2, "geodesic": 3, "project": 4}
CLIPS = {"none": 0, "value": 1, "row": 2, "norm": 3}
MIXING = ("encoder.2", "encoder.5", "encoder.7", "decoder.7", "decoder.10")
SINGLE = ("encoder.0", "encoder.9", "decoder.5", "decoder.12")
CONVOLUTIONS = [f"encoder.{k}" for k in (0, 2, 5, 7, 9)] + [f"decoder.{k}" for k in (5, 7, 10, 12)]
SLOPES = [f"encoder.{k}" for k in (1, 3, 6, 8, 10, 13)] + [f"decoder.{k}" for k in (1, 3, 6, 8, 11)]


# --- CUDA source compiled at run time: NVRTC, which comes with PyTorch, and the driver, through their C interface


class CudaSourceError(Exception):
    """The source cannot be compiled or loaded here."""


class Kernel:
    """A function of a compiled module, with the dynamic shared memory that its `shared_bytes` asks for."""

    def __init__(self, binary: bytes, name: str) -> None:
        self._driver = _library("libcuda.so.1")
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._driver.cuModuleLoadData(ctypes.byref(module), binary), "load the module")
        self._check(self._driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), f"find {name}")
        self._function, self.shared = function, self._shared_bytes(module)
        wanted = (function, _LARGEST_DYNAMIC_SHARED, self.shared)
        self._check(self._driver.cuFuncSetAttribute(*wanted), f"have {self.shared} bytes of shared memory")
        # A wish that may fail: what a block leaves of a multiprocessor's memory is for a second block, not its cache.
        self._driver.cuFuncSetAttribute(function, _SHARED_CARVEOUT, 100)

    def _shared_bytes(self, module: ctypes.c_void_p) -> int:
        place, size, value = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_int()
        found = self._driver.cuModuleGetGlobal_v2(ctypes.byref(place), ctypes.byref(size), module, b"shared_bytes")
        self._check(found, "find shared_bytes")
        self._check(self._driver.cuMemcpyDtoH_v2(ctypes.byref(value), place, 4), "read shared_bytes")
        return value.value

    def _check(self, code: int, what: str) -> None:
        if code:
            words = ctypes.c_char_p()
            self._driver.cuGetErrorString(code, ctypes.byref(words))
            raise CudaSourceError(f"could not {what}: {(words.value or b'unknown error').decode()}")

    def launch(self, grid: tuple[int, int], threads: int, arguments: Sequence[Any]) -> None:
        """Queue the function in the current stream, for ctypes values as `arguments`."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(value) for value in arguments))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        shape = (*grid, 1, threads, 1, 1)
        self._check(self._driver.cuLaunchKernel(self._function, *shape, self.shared, stream, pointers, None), "launch")


def _binary(source: str, options: Sequence[str]) -> bytes:
    compiler, program = _nvrtc(), ctypes.c_void_p()
    if compiler.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"normae.cu", 0, None, None):
        raise CudaSourceError("NVRTC takes no program")
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed, size = compiler.nvrtcCompileProgram(program, len(options), given), ctypes.c_size_t()
    if failed:
        compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        words = ctypes.create_string_buffer(size.value)
        compiler.nvrtcGetProgramLog(program, words)
        first = words.value.decode(errors="replace").strip().partition("\n")[0]
        raise CudaSourceError(f"NVRTC says {first!r}")
    compiler.nvrtcGetCUBINSize(program, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    compiler.nvrtcGetCUBIN(program, binary)
    compiler.nvrtcDestroyProgram(ctypes.byref(program))
    return binary.raw


def _library(*names: str) -> ctypes.CDLL:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaSourceError(f"none of {', '.join(names)} can be loaded")


@lru_cache
def _nvrtc() -> ctypes.CDLL:
    """The compiler of PyTorch's CUDA version: known to the loader, or beside the package."""
    version = str(torch.version.cuda).partition(".")[0]
    beside = sorted((Path(torch.__file__).parents[1] / "nvidia").glob(f"*/lib/libnvrtc.so.{version}*"))
    return _library(f"libnvrtc.so.{version}", *map(str, beside), "libnvrtc.so")


# --- which networks and devices


def why_not(architecture: Autoencoder, device: torch.device, name: str) -> str | None:
    """Why the kernel "energies", or "gradient" and with it all others, cannot be used; None where it can."""
    shape = conv_shape(architecture)
    if shape is None:
        return "encoder and decoder are not the convolutional ones of networks.autoencoder"
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
    sizes = {"SIDE": shape.side, "Z": shape.latent, "H": shape.hidden, "HP": shape.hp, "ZP": shape.zp}
    flags = {"SPHERE": shape.sphere, "SIGMOID": shape.sigmoid, "GRADIENT": gradient, "LATENT": latent}
    return tuple((name, int(value)) for name, value in (sizes | flags).items())


def chain_defines(shape: ConvShape, config: ChainConfig, latent: bool) -> Defines:
    """What the kernel of a chain is compiled with."""
    on = config.sphere or ("none" if config.bounds is None else config.bounds_rule)
    clip = CLIPS["none" if config.clip is None else config.clip_rule]
    rules = (("METROPOLIS", int(config.metropolis == "exact")), ("ON", BOUNDS[on]), ("CLIP", clip))
    return (*network_defines(shape, latent=latent), *rules, ("ANNEAL", int(config.anneal)))


@lru_cache(maxsize=64)
def kernel(name: str, chosen: Defines, device: int) -> Kernel:
    """ "chain", "energies" or "gradient", compiled once for each device; `CudaSourceError` where it cannot run."""
    folder = files("normae.networks")
    texts = [(folder / f"conv_{part}.cu").read_text(encoding="utf-8") for part in ("network", name)]
    with torch.cuda.device(device):
        torch.empty(1, device="cuda")  # where nothing is on the device yet, a module has no context to be loaded in
        major, minor = torch.cuda.get_device_capability()
        options = [f"--gpu-architecture=sm_{major}{minor}", "--std=c++17", "-diag-suppress=128"]
        return Kernel(_binary("\n".join(texts), [*options, *(f"-D{key}={value}" for key, value in chosen)]), name)


def multiprocessors(device: torch.device) -> int:
    """Of the device: as many blocks that take many images run side by side, or twice as many."""
    return torch.cuda.get_device_properties(device).multi_processor_count


# --- weights in the order of the kernels


@cache  # never given up: a captured graph reads it
def packing(layout: Layout, shape: ConvShape, device: torch.device) -> Tensor:
    """Columns of cat(row, 0) in the order that the kernels read, int64 with shape (Q,).

    The index comes from the operations (transpose, pad) that would pack the weights themselves, done once on the
    numbers of the columns: 5 convolutions C -> C as (9, C, C), tap, channel in, channel out; 4 convolutions with one
    channel on one side as (9, C); dense matrices (SMALL, HP) twice and (ZP, HP) twice; biases of convolutions (9, C);
    slopes (16,); biases (HP,) of the encoder, (HP,) of the decoder, (ZP,), (SMALL,). Padding points to the zero behind
    the row.
    """
    nothing = sum(layout.sizes)
    named = {name: view[0] for name, view in layout.views(torch.arange(nothing)[None]).items()}
    w, b = (
        {n.removesuffix(kind): view for n, view in named.items() if n.endswith(kind)} for kind in (".weight", ".bias")
    )

    def padded(weight: Tensor, columns: int, rows: int = 1) -> Tensor:
        weight = torch.atleast_2d(weight)
        return pad(weight, (0, columns - weight.shape[1], 0, rows - weight.shape[0]), value=nothing)

    pieces = [w[name].permute(2, 3, 1, 0) for name in (*MIXING, *SINGLE)]
    hp, zp, c = shape.hp, shape.zp, shape.channels
    pieces += [padded(w["encoder.12"].T, hp, shape.small), padded(w["decoder.2"], hp, shape.small)]
    pieces += [padded(w["encoder.14"], hp, zp), padded(w["decoder.0"].T, hp, zp)]
    pieces += [padded(b[name], c) for name in CONVOLUTIONS]
    pieces.append(padded(torch.cat([w[name] for name in SLOPES]), 16))
    lengths = (("encoder.12", hp), ("decoder.0", hp), ("encoder.14", zp), ("decoder.2", shape.small))
    pieces += [padded(b[name], length) for name, length in lengths]
    index = torch.cat([piece.reshape(-1) for piece in pieces])
    return pad(index, (0, -len(index) % 16), value=nothing).to(device)


def packed_gradients(gathered: Tensor, vectors: Tensor, shape: ConvShape) -> Tensor:
    """Gradients in packed order, with shape (S, Q or fewer).

    Args:
        gathered: of convolutions, their biases and slopes, in packed order, with shape (S, `ConvShape.gathered`).
        vectors: at both ends of the dense layers, with shape (S, N, LENGTH).
    """
    small, hp, zp = shape.small, shape.hp, shape.zp
    a5, v_e, a_e, v_z, z_in, v_d, a_d, v_9 = torch.split(vectors, [small, hp, hp, zp, zp, hp, hp, small], dim=2)
    dense = [(a.mT @ b).flatten(1) for a, b in ((a5, v_e), (v_9, a_d), (v_z, a_e), (z_in, v_d))]
    last = 9 * shape.channels + 16
    return torch.cat([gathered[:, :-last], *dense, gathered[:, -last:], *(v.sum(1) for v in (v_e, v_d, v_z, v_9))], 1)


# --- energies


class FusedConvEnergy(ReconstructionEnergy):
    """E(x) of S convolutional autoencoders with weights (S, P), for whose architecture `why_not` finds nothing."""

    def __init__(self, autoencoder: Autoencoder, layout: Layout, weights: Tensor) -> None:
        super().__init__(autoencoder, layout.views(weights), explicit=False)
        shape = conv_shape(autoencoder)
        if shape is None:
            raise InputError("fused kernels cannot be used: encoder and decoder are not those of networks.autoencoder")
        self.shape, self.layout, self.weights = shape, layout, weights

    def with_latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if x.requires_grad:
            return super().with_latent(x)
        both: tuple[Tensor, Tensor] = _WeightsToEnergy.apply(self.weights, x, self)  # type: ignore[no-untyped-call]
        return both

    @cached_property
    def places(self) -> Tensor:
        """`packing` of these weights."""
        return packing(self.layout, self.shape, self.weights.device)

    @cached_property
    def packed(self) -> tuple[Tensor, Tensor]:
        """The weights in packed order, in half precision and in float32, (S, Q) each."""
        full = pad(self.weights.detach().float(), (0, 1)).index_select(1, self.places)
        return full.half(), full

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
        x, n = energy.blocks(x)
        half, full = energy.packed
        value, latent = x.new_empty(len(x)), x.new_empty(len(x), energy.shape.latent)
        grid = (max(1, min(n, 2 * multiprocessors(x.device))), energy.members)
        _launch("energies", network_defines(energy.shape), grid, x, value, latent, half, full, n, full.stride(0))
        return value, latent

    @staticmethod
    def backward(ctx: Any, v_energy: Tensor, v_latent: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        """d/dweights of sum_i (v_energy_i E_i + v_latent_i z_i), with shape (S, P)."""
        energy: FusedConvEnergy = ctx.energy
        x, n = energy.blocks(ctx.x)
        half, full = energy.packed
        shape, members, side_by_side = energy.shape, energy.members, max(1, min(n, multiprocessors(x.device)))
        out = x.new_zeros(members * side_by_side, shape.gathered)
        vectors = x.new_empty(members, n, 2 * shape.small + 4 * shape.hp + 2 * shape.zp)
        tensors = (x, v_energy.contiguous(), v_latent.contiguous(), out, vectors, half, full)
        counts = (n, full.stride(0), out.stride(0))
        _launch("gradient", network_defines(shape, gradient=True), (side_by_side, members), *tensors, *counts)
        found = packed_gradients(out.unflatten(0, (members, -1)).sum(1), vectors, shape)
        rows = x.new_empty(members, energy.weights.shape[1] + 1)
        return rows.index_copy_(1, energy.places[: found.shape[1]], found)[:, :-1], None, None


def _launch(name: str, defines: Defines, grid: tuple[int, int], first: Tensor, *more: Tensor | int | float) -> None:
    """Queue a kernel with tensors that are contiguous and on one device, with integers, and with floats."""
    values = [_value(argument) for argument in (first, *more)]
    kernel(name, defines, first.device.index or 0).launch(grid, THREADS, values)


def _value(argument: Tensor | int | float) -> Any:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_int(argument) if isinstance(argument, int) else ctypes.c_float(argument)


# --- chains


def launch_chain(
    energy: FusedConvEnergy | LatentEnergy, start: Tensor, config: ChainConfig, temperature: Scalar, size: Scalar,
    seeds: Tensor, _: int = 1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """End points, their energies, which steps were taken, int32 with shape (steps, S, n), and gradients at the end."""
    latent = isinstance(energy, LatentEnergy)
    of = energy.energy if isinstance(energy, LatentEnergy) else energy
    assert isinstance(of, FusedConvEnergy)
    start, n = of.blocks(start, latent)
    half, full = of.packed
    position, grad, value = torch.empty_like(start), torch.empty_like(start), start.new_empty(len(start))
    accepted = torch.empty((config.steps, of.members, n), dtype=torch.int32, device=start.device)
    t, t_stride = strided(temperature, start)
    s, s_stride = strided(size, start)
    tensors = (start, position, value, grad, accepted, seeds, t, s, half, full)
    counts = (n, config.steps, int(len(seeds) > 1), t_stride, s_stride, full.stride(0))
    _launch("chain", chain_defines(of.shape, config, latent), (n, of.members), *tensors, *counts, *numbers(config))
    return position, value, accepted, grad


fused_conv_runner = partial(run_chain, launch=launch_chain)
"""`run_chain` in one kernel, for a `FusedConvEnergy` or its `latent`."""
