"""A whole Langevin chain of MLP autoencoders in one Triton kernel.

A step of `langevin.step` is some 45 small kernels, whose launches take longer than their arithmetic. Here one program
keeps a block of samples of one model for all steps: proposal, encoder and decoder, pullback, Metropolis test and random
numbers happen where the samples are, and only the end points leave the chip. The mathematics is that of `langevin`,
`energy` and `networks.mlp`, and the tests hold it against them.

Inside a program everything stands as (feature, sample), so that a layer is h = W x + b with the weight as left factor
and, for the pullback, v -> W^T v with the same weight transposed: a tall weight times a narrow block of samples is the
shape in which few samples fill a Hopper tensor core. Events and latent points are padded to a power of two; padded rows
have zero weights and stay zero. `_pack_kernel` writes the weights of a call in that form; it is the one other launch.

Numbers. Energies, gradients and the log acceptance ratio are in float32, where `run_chain` takes the ratio in float64.
`precision` is the arithmetic of the H x H products: "ieee" is float32; "tf32" and "fp16" round both factors to 10 bits
of mantissa. "fp16" halves the memory, so that the paper's weights stay in shared memory; activations must then stay
below 65504, and the vectors pulled back are scaled to be of order one. The first and last layers, which see the events
themselves, are summed in float32 always. The Metropolis test takes the rounded energy with any deterministic gradient,
so the chain is exact for exp(-E/T) of the rounded E, up to the float32 ratio.

Random numbers are Philox streams, counted by sample, step and feature, with a key that each call draws on the device
from the model's generator. So a replayed CUDA graph gets new numbers, and nothing waits for the host.
"""

from __future__ import annotations  # triton's types in signatures, where triton may be absent

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from normae.energy import LatentEnergy, ReconstructionEnergy
from normae.errors import InputError
from normae.networks.autoencoder import Autoencoder
from normae.networks.mlp import MLP
from normae.random import Generators
from normae.sampling.chain import Chain, run_chain
from normae.sampling.config import ChainConfig, SamplingConfig
from normae.sampling.langevin import Scalar

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

Precision = Literal["tf32", "tf32x3", "ieee", "fp16"]

MOST_DIMENSIONS = 16
"""Of events and latent points, whose layers are sums over them rather than matrix products."""
RESIDENT_BYTES = 128 * 1024
"""Most memory of H x H matrices that a program keeps in shared memory; a Hopper multiprocessor has 227 KiB."""


def _jit(function: Callable[..., Any]) -> Any:
    return function if triton is None else triton.jit(function)


@_jit
def _round(x: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """x in the format of a product's factors; tensor cores cut tf32 off, so it is rounded to nearest before."""
    if PRECISION == "fp16":
        rounded = x.to(tl.float16)
    elif PRECISION == "tf32":
        rounded = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    else:
        rounded = x
    return rounded


@_jit
def _product(w: tl.tensor, x: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """W x with shape (H, samples), for rounded factors."""
    if PRECISION == "fp16":
        y = tl.dot(w, x)
    else:
        y = tl.dot(w, x, input_precision=PRECISION)
    return y


@_jit
def _widen(w: tl.tensor, x: tl.tensor) -> tl.tensor:
    """W x with shape (H, samples) of a first layer, for W^T with shape (IO, H) and x with shape (IO, samples)."""
    return tl.sum(x[:, None, :] * w[:, :, None], 0)


@_jit
def _narrow(w: tl.tensor, x: tl.tensor) -> tl.tensor:
    """W x with shape (IO, samples) of a last layer, for W with shape (IO, H) and x with shape (H, samples).

    With the factors the other way round, the compiler would find a matrix product here and take it in tf32.
    """
    return tl.sum(x[None, :, :] * w[:, :, None], 1)


@_jit
def _activate(h: tl.tensor, SILU: tl.constexpr) -> tl.tensor:
    if SILU:
        a = h * tl.sigmoid(h)
    else:
        a = tl.where(h <= 0.0, 0.0, h)
    return a


@_jit
def _slope(h: tl.tensor, SILU: tl.constexpr) -> tl.tensor:
    """The derivative of the nonlinearity at h, as `_activate_back` wants it."""
    if SILU:
        s = tl.sigmoid(h)
        slope = s * (1.0 + h * (1.0 - s))
    else:
        slope = h > 0.0
    return slope


@_jit
def _activate_back(v: tl.tensor, slope: tl.tensor, SILU: tl.constexpr) -> tl.tensor:
    if SILU:
        back = v * slope
    else:
        back = tl.where(slope, v, 0.0)
    return back


@_jit
def _tile(
    pointer: tl.tensor, k: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, H: tl.constexpr, PASS: tl.constexpr
) -> tl.tensor:
    """The first COLUMNS of the k-th of a row of matrices with shape (ROWS, H).

    The compiler would merge the loads of one matrix in the several passes of a step and keep the matrix in between, for
    which there is no room. Loads that differ in their cache hints are not merged, so each PASS has its own.
    """
    tile = pointer + k * ROWS * H + tl.arange(0, ROWS)[:, None] * H + tl.arange(0, COLUMNS)[None, :]
    cache: tl.constexpr = ".ca" if PASS == 1 else ""
    evict: tl.constexpr = "evict_last" if PASS == 2 else "evict_first" if PASS == 3 else ""
    return tl.load(tile, cache_modifier=cache, eviction_policy=evict)


@_jit
def _streamed(
    pointer: tl.tensor, k: tl.constexpr, x: tl.tensor, H: tl.constexpr, PRECISION: tl.constexpr, PASS: tl.constexpr
) -> tl.tensor:
    """W x with shape (H, samples), for the k-th matrix at `pointer`; in two halves where it exceeds shared memory."""
    if H == 256 and PRECISION != "fp16":
        lower, upper = tl.split(tl.permute(tl.reshape(x, (2, H // 2, x.shape[1])), (1, 2, 0)))
        y = _product(_tile(pointer, k, H, H // 2, H, PASS), lower, PRECISION)
        y += _product(_tile(pointer + H // 2, k, H, H // 2, H, PASS), upper, PRECISION)
    else:
        y = _product(_tile(pointer, k, H, H, H, PASS), x, PRECISION)
    return y


@_jit
def _tiles(pointer: tl.tensor, N: tl.constexpr, H: tl.constexpr, RESIDENT: tl.constexpr) -> tl.tuple:
    """The N matrices (H, H) of a network, loaded once, where they are to stay."""
    tiles: tl.tuple = ()
    if RESIDENT:
        for k in tl.static_range(N):
            tiles = tiles + (_tile(pointer, k, H, H, H, 0),)  # noqa: RUF005
    return tiles


@_jit
def _forward(
    net: tl.tuple,
    x: tl.tensor,
    N: tl.constexpr,
    SILU: tl.constexpr,
    H: tl.constexpr,
    IO: tl.constexpr,
    PRECISION: tl.constexpr,
    RESIDENT: tl.constexpr,
    PASS: tl.constexpr,
) -> tl.tuple:
    """The output (IO, samples) of a network with N hidden layers, and the inputs (H, samples) of its nonlinearities."""
    tiles, hidden, _, thin, bias = net
    rows = tl.arange(0, H)
    h = _widen(_tile(thin, 0, IO, H, H, PASS), x) + tl.load(bias + rows)[:, None]
    saved: tl.tuple = (_slope(h, SILU),)
    for k in tl.static_range(1, N):
        a = _round(_activate(h, SILU), PRECISION)
        if RESIDENT:
            h = _product(tiles[k - 1], a, PRECISION)
        else:
            h = _streamed(hidden, k - 1, a, H, PRECISION, PASS)
        h += tl.load(bias + k * H + rows)[:, None]
        saved = saved + (_slope(h, SILU),)  # noqa: RUF005
    out = _narrow(_tile(thin, 1, IO, H, H, PASS), _activate(h, SILU))
    return out + tl.load(bias + N * H + tl.arange(0, IO))[:, None], saved


@_jit
def _pullback(
    net: tl.tuple,
    saved: tl.tuple,
    v: tl.tensor,
    N: tl.constexpr,
    SILU: tl.constexpr,
    H: tl.constexpr,
    IO: tl.constexpr,
    PRECISION: tl.constexpr,
    RESIDENT: tl.constexpr,
    PASS: tl.constexpr,
) -> tl.tensor:
    """v^T J with shape (IO, samples) for v with shape (IO, samples)."""
    tiles, _, transposed, thin, _ = net
    if PRECISION == "fp16":
        scale = tl.max(tl.abs(v), 0) + 1e-30
        v = v / scale[None, :]
    v = _activate_back(_widen(_tile(thin, 1, IO, H, H, PASS), v), saved[N - 1], SILU)
    for j in tl.static_range(1, N):
        v = _round(v, PRECISION)
        if RESIDENT:
            v = _product(tl.trans(tiles[N - 1 - j]), v, PRECISION)
        else:
            v = _streamed(transposed, N - 1 - j, v, H, PRECISION, PASS)
        v = _activate_back(v, saved[N - 1 - j], SILU)
    v = _narrow(_tile(thin, 0, IO, H, H, PASS), v)
    if PRECISION == "fp16":
        v = v * scale[None, :]
    return v


@_jit
def _value_and_grad(
    encoder: tl.tuple,
    decoder: tl.tuple,
    x: tl.tensor,
    clip: tl.tensor,
    LATENT: tl.constexpr,
    CLIP: tl.constexpr,
    D: tl.constexpr,
    NE: tl.constexpr,
    ND: tl.constexpr,
    E_SILU: tl.constexpr,
    D_SILU: tl.constexpr,
    H: tl.constexpr,
    IO: tl.constexpr,
    PRECISION: tl.constexpr,
    RESIDENT: tl.constexpr,
) -> tl.tuple:
    """Energies (samples,) and clipped gradients (IO, samples) at x, a point of feature or of latent space."""
    if LATENT:
        x, start = _forward(decoder, x, ND, D_SILU, H, IO, PRECISION, RESIDENT, 2)
    z, e_saved = _forward(encoder, x, NE, E_SILU, H, IO, PRECISION, RESIDENT, 0)
    out, d_saved = _forward(decoder, z, ND, D_SILU, H, IO, PRECISION, RESIDENT, 0)
    residual = x - out
    energy = tl.sum(residual * residual, 0) / D
    back = _pullback(decoder, d_saved, residual, ND, D_SILU, H, IO, PRECISION, RESIDENT, 1)
    back = _pullback(encoder, e_saved, back, NE, E_SILU, H, IO, PRECISION, RESIDENT, 1)
    grad = (residual - back) * (2.0 / D)
    if LATENT:
        grad = _pullback(decoder, start, grad, ND, D_SILU, H, IO, PRECISION, RESIDENT, 3)
    if CLIP == "value":
        grad = tl.minimum(tl.maximum(grad, -clip), clip)
    elif CLIP == "norm":
        grad = grad * (clip / tl.maximum(tl.sqrt(tl.sum(grad * grad, 0)), clip))[None, :]
    return energy, grad


@_jit
def _normal(seed: tl.tensor, event: tl.tensor, t: tl.tensor) -> tl.tensor:
    """Standard normal numbers, one for each (event, t)."""
    r0, r1, _, _ = tl.philox(seed, event, t, 0, 0)
    eps, _ = tl.pair_uniform_to_normal(tl.uint_to_uniform_float(r0), tl.uint_to_uniform_float(r1))
    return eps


@_jit
def _uniform(seed: tl.tensor, sample: tl.tensor, t: tl.tensor) -> tl.tensor:
    """Numbers uniform in [0, 1), one for each (sample, t)."""
    r0, _, _, _ = tl.philox(seed, sample, t, 1, 0)
    return tl.uint_to_uniform_float(r0)


@_jit
def _chain_kernel(
    start_ptr: tl.tensor,
    position_ptr: tl.tensor,
    energy_ptr: tl.tensor,
    grad_ptr: tl.tensor,
    accepted_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    temperature_ptr: tl.tensor,
    size_ptr: tl.tensor,
    hidden_ptr: tl.tensor,
    thin_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    n: tl.tensor,
    seed_stride: tl.tensor,
    temperature_stride: tl.tensor,
    size_stride: tl.tensor,
    weight_stride: tl.tensor,
    noise_ratio: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    clip: tl.tensor,
    STEPS: tl.constexpr,
    LATENT: tl.constexpr,
    METROPOLIS: tl.constexpr,
    BOUNDS: tl.constexpr,
    CLIP: tl.constexpr,
    ANNEAL: tl.constexpr,
    D: tl.constexpr,
    DIMENSION: tl.constexpr,
    NE: tl.constexpr,
    ND: tl.constexpr,
    E_SILU: tl.constexpr,
    D_SILU: tl.constexpr,
    H: tl.constexpr,
    IO: tl.constexpr,
    PRECISION: tl.constexpr,
    RESIDENT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """All steps of BLOCK samples of model `program_id(0)`; see the module's docstring."""
    member = tl.program_id(0)
    weights = member * weight_stride
    copies: tl.constexpr = 1 if RESIDENT else 2
    matrices: tl.constexpr = NE + ND - 2
    hidden = hidden_ptr + weights * (copies * matrices * H * H)
    transposed = hidden + (copies - 1) * matrices * H * H
    thin = thin_ptr + weights * (4 * IO * H)
    bias = bias_ptr + weights * ((NE + ND + 2) * H)
    encoder = (_tiles(hidden, NE - 1, H, RESIDENT), hidden, transposed, thin, bias)
    hidden, transposed, thin, bias = (
        hidden + (NE - 1) * H * H,
        transposed + (NE - 1) * H * H,
        thin + 2 * IO * H,
        bias + (NE + 1) * H,
    )
    decoder = (_tiles(hidden, ND - 1, H, RESIDENT), hidden, transposed, thin, bias)

    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n
    sample = member * n + column
    feature = tl.arange(0, IO)
    real = (feature < DIMENSION)[:, None] & inside[None, :]
    event = sample[None, :] * DIMENSION + feature[:, None]
    temperature = tl.load(temperature_ptr + sample * temperature_stride, mask=inside, other=1.0).to(tl.float32)
    size = tl.load(size_ptr + sample * size_stride, mask=inside, other=1.0).to(tl.float32)
    seed = tl.load(seed_ptr + member * seed_stride)
    rate = size / temperature
    noise = tl.sqrt(noise_ratio * size)
    x = tl.load(start_ptr + event, mask=real, other=0.0).to(tl.float32)
    energy = tl.zeros((BLOCK,), tl.float32)
    grad = tl.zeros((IO, BLOCK), tl.float32)

    # Turn 0 stays in place and fetches energy and gradient of the start, so that the passes stand here once.
    for t in range(STEPS + 1):
        if ANNEAL:
            sigma = noise / tl.maximum(t, 1)
        else:
            sigma = noise
        kick = tl.where(real & (t > 0), _normal(seed, event, t) * sigma[None, :], 0.0)
        drift = -rate[None, :] * grad
        move = drift + kick
        y = x + move
        allowed = inside
        if BOUNDS == "clamp":
            y = tl.where(real & (t > 0), tl.minimum(tl.maximum(y, low), high), y)
            move = y - x
            kick = move - drift
        elif BOUNDS == "reject":
            outside = real & ((y < low) | (y > high))
            allowed = inside & (tl.sum(outside.to(tl.int32), 0) == 0)
        y_energy, y_grad = _value_and_grad(
            encoder, decoder, y, clip, LATENT, CLIP, D, NE, ND, E_SILU, D_SILU, H, IO, PRECISION, RESIDENT
        )
        if METROPOLIS:
            back = rate[None, :] * y_grad - move
            squares = tl.sum(kick * kick - back * back, 0)
            log_ratio = (energy - y_energy) / temperature + squares / (2.0 * sigma * sigma)
            accepted = allowed & (tl.log(_uniform(seed, sample, t)) < log_ratio)
            taken = accepted | (t == 0)
            x = tl.where(taken[None, :], y, x)
            energy = tl.where(taken, y_energy, energy)
            grad = tl.where(taken[None, :], y_grad, grad)
        else:
            accepted = inside
            x = y
            energy = y_energy
            grad = y_grad
        counter = ((t - 1) * tl.num_programs(0) + member) * tl.num_programs(1) + tl.program_id(1)
        tl.store(accepted_ptr + counter, tl.sum(accepted.to(tl.int32), 0), mask=t > 0)

    tl.store(position_ptr + event, x, mask=real)
    tl.store(energy_ptr + sample, energy, mask=inside)
    tl.store(grad_ptr + event, grad, mask=real)


@_jit
def _pack_kernel(
    flat_ptr: tl.tensor,
    hidden_ptr: tl.tensor,
    thin_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    stride: tl.tensor,
    D: tl.constexpr,
    Z: tl.constexpr,
    NE: tl.constexpr,
    ND: tl.constexpr,
    H: tl.constexpr,
    IO: tl.constexpr,
    PRECISION: tl.constexpr,
    COPIES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Write ROWS rows of layer `program_id(1)` of model `program_id(0)`, padded and rounded, where the chain reads."""
    member, layer = tl.program_id(0), tl.program_id(1)
    rows, columns, thin = tl.program_id(2) * ROWS + tl.arange(0, ROWS), tl.arange(0, H), tl.arange(0, IO)
    decoder = (layer > NE).to(tl.int32)
    k = layer - decoder * (NE + 1)
    n_in, n_out = tl.where(decoder == 1, Z, D), tl.where(decoder == 1, D, Z)
    first, last = k == 0, k == tl.where(decoder == 1, ND, NE)
    n_rows, n_columns = tl.where(last, n_out, H), tl.where(first, n_in, H)
    before = decoder * (H * D + NE * H + (NE - 1) * H * H + Z * H + Z)
    before += tl.where(first, 0, H * n_in + H + (k - 1) * (H * H + H))
    source = flat_ptr + member.to(tl.int64) * stride + before

    bias = tl.load(source + n_rows * n_columns + rows, mask=rows < n_rows, other=0.0)
    tl.store(bias_ptr + (member * (NE + ND + 2) + layer) * H + rows, bias)
    if first | last:
        offset = tl.where(first, rows[None, :] * n_in + thin[:, None], thin[:, None] * H + rows[None, :])
        exists = thin[:, None] < tl.where(first, n_in, n_out)
        slot = member * 4 + 2 * decoder + last.to(tl.int32)
        weight = tl.load(source + offset, mask=exists, other=0.0)
        tl.store(thin_ptr + slot * IO * H + thin[:, None] * H + rows[None, :], weight)
    else:
        matrix = _round(tl.load(source + rows[:, None] * H + columns[None, :]), PRECISION)
        target = hidden_ptr + (member * COPIES * (NE + ND - 2) + decoder * (NE - 1) + k - 1) * H * H
        tl.store(target + rows[:, None] * H + columns[None, :], matrix)
        if COPIES == 2:
            target += (NE + ND - 2) * H * H
            tl.store(target + columns[:, None] * H + rows[None, :], tl.trans(matrix))


class Shape(NamedTuple):
    """What the kernels must know of an autoencoder: d, d_z, numbers of hidden layers, their width, activations."""

    features: int
    latent: int
    encoder: int
    decoder: int
    width: int
    encoder_silu: bool
    decoder_silu: bool

    @property
    def io(self) -> int:
        """Rows to which events and latent points are padded."""
        return max(2, 1 << (max(self.features, self.latent) - 1).bit_length())


class Tuning(NamedTuple):
    """How the chain is computed; see `fused_runner`."""

    precision: Precision
    block: int
    num_warps: int
    resident: bool | None


class Packed(NamedTuple):
    """Weights as the chain reads them.

    Args:
        hidden: H x H matrices of encoder and decoder, rounded, with shape (S, copies, matrices, H, H); the second
            copy, where there is one, is transposed.
        thin: transposed first weight and last weight of encoder and decoder, with shape (S, 4, IO, H).
        bias: of all layers, padded with zeros, with shape (S, layers, H).
    """

    hidden: Tensor
    thin: Tensor
    bias: Tensor


def why_not(architecture: Autoencoder, sampling: SamplingConfig) -> str | None:
    """Why the fused chain cannot serve, or None where it can."""
    reason = _why_not_network(architecture)
    if reason is None and (sampling.latent.sphere is not None or sampling.feature.sphere is not None):
        reason = "the chain moves on a sphere"
    return reason


def _why_not_network(architecture: Autoencoder) -> str | None:
    encoder, decoder = architecture.encoder, architecture.decoder
    if triton is None:
        return "triton is not installed"
    if not isinstance(encoder, MLP) or not isinstance(decoder, MLP):
        return "encoder and decoder are not both MLPs"
    if architecture.sphere:
        return "the latent space is a sphere"
    for network in (encoder, decoder):
        if network.activation not in ("relu", "silu"):
            return f"the activation is {network.activation}, not relu or silu"
        if len(network.sizes) < 3:
            return "a network has no hidden layer"
    widths = sorted({*encoder.sizes[1:-1], *decoder.sizes[1:-1]})
    if len(widths) > 1:
        return f"the hidden widths {widths} differ"
    if widths[0] not in (16, 32, 64, 128, 256):
        return f"the hidden width {widths[0]} is not a power of two between 16 and 256"
    if encoder.sizes[0] != decoder.sizes[-1] or encoder.sizes[-1] != decoder.sizes[0]:
        return "encoder and decoder do not mirror each other's dimensions"
    if max(encoder.sizes[0], encoder.sizes[-1]) > MOST_DIMENSIONS:
        return f"events or latent points have more than {MOST_DIMENSIONS} dimensions"
    return None


def _shape(architecture: Autoencoder) -> Shape:
    reason = _why_not_network(architecture)
    if reason is not None:
        raise InputError(f"the fused chain cannot serve: {reason}")
    e, d = architecture.encoder, architecture.decoder
    assert isinstance(e, MLP)
    assert isinstance(d, MLP)
    silu = (e.activation == "silu", d.activation == "silu")
    return Shape(e.sizes[0], e.sizes[-1], len(e.sizes) - 2, len(d.sizes) - 2, e.sizes[1], *silu)


def _flat(energy: ReconstructionEnergy, shape: Shape) -> Tensor:
    """The weights with shape (S, P) in the order of the layers: the storage itself, or a copy where they are apart."""
    sides = ((energy.encoder_parameters, shape.encoder), (energy.decoder_parameters, shape.decoder))
    pieces = [
        parameters[f"layers.{k}.{kind}"].detach()
        for parameters, hidden in sides
        for k in range(hidden + 1)
        for kind in ("weight", "bias")
    ]
    base, members, total, together = pieces[0], energy.members, 0, True
    for piece in pieces:
        together &= piece.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
        together &= piece.storage_offset() == base.storage_offset() + total and piece[0].is_contiguous()
        together &= members == 1 or piece.stride(0) == base.stride(0)
        total += piece[0].numel()
    if together and base.dtype == torch.float32:
        return base.as_strided((members, total), (total if members == 1 else base.stride(0), 1))
    return torch.cat([piece.reshape(members, -1) for piece in pieces], 1).float()


def _pack(energy: ReconstructionEnergy, shape: Shape, precision: Precision, copies: int) -> Packed:
    """The weights in the form that the chain reads, by one launch."""
    flat = _flat(energy, shape)
    members, h, layers = energy.members, shape.width, shape.encoder + shape.decoder + 2
    dtype = torch.float16 if precision == "fp16" else torch.float32
    packed = Packed(
        flat.new_empty((members, copies, layers - 4, h, h), dtype=dtype),
        flat.new_empty((members, 4, shape.io, h)),
        flat.new_empty((members, layers, h)),
    )
    _pack_kernel[(members, layers, h // 16)](
        flat, *packed, flat.stride(0), D=shape.features, Z=shape.latent, NE=shape.encoder, ND=shape.decoder, H=h,
        IO=shape.io, PRECISION=precision, COPIES=copies, ROWS=16,
    )  # fmt: skip
    return packed


def fused_runner(
    energy: ReconstructionEnergy | LatentEnergy,
    start: Tensor,
    config: ChainConfig,
    temperature: Scalar,
    generators: Generators,
    step_size: Scalar | None = None,
    trace: int | None = None,
    members: int = 1,
    *,
    precision: Precision = "tf32",
    block: int = 16,
    num_warps: int = 8,
    resident: bool | None = None,
) -> Chain:
    """`run_chain` in one kernel, for the energy of MLP autoencoders over feature or latent space.

    Args:
        energy, start, config, temperature, generators, step_size, members: as in `run_chain`.
        trace: where positions are to be recorded, `run_chain` itself runs.
        precision: arithmetic of the H x H products, see the module's docstring.
        block: samples per program, a power of two of at least 16.
        num_warps: warps per program.
        resident: keep the weights in shared memory; by default where they fit.
    """
    if trace is not None:
        return run_chain(energy, start, config, temperature, generators, step_size, trace, members)
    if config.sphere is not None:
        raise InputError("the fused chain cannot serve: the chain moves on a sphere")
    seeds, tuning = _seeds(generators, start.device), Tuning(precision, block, num_warps, resident)
    size = config.step_size if step_size is None else step_size
    position, value, _, accepted = _launch(energy, start, config, temperature, size, seeds, members, tuning)
    share = accepted.sum(2, dtype=torch.float64).mul_(members / len(start))
    return Chain(position, value, share, None)


def fused_value_and_grad(
    energy: ReconstructionEnergy | LatentEnergy,
    x: Tensor,
    *,
    precision: Precision = "tf32",
    block: int = 16,
    num_warps: int = 8,
    resident: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Energies (N,) and gradients (N, d) at x, with shape (N, d), as the chain sees them."""
    members = _reconstruction(energy).members
    seeds, tuning = torch.zeros(1, dtype=torch.int64, device=x.device), Tuning(precision, block, num_warps, resident)
    _, value, grad, _ = _launch(energy, x, ChainConfig(steps=0), 1.0, 1.0, seeds, members, tuning)
    return value, grad


def _fits(shape: Shape, precision: Precision) -> bool:
    """Whether the hidden matrices stay in shared memory; those in float32 stand there both ways round."""
    matrices = shape.encoder + shape.decoder - 2
    return matrices * shape.width**2 * (2 if precision == "fp16" else 8) <= RESIDENT_BYTES


def _reconstruction(energy: ReconstructionEnergy | LatentEnergy) -> ReconstructionEnergy:
    return energy.energy if isinstance(energy, LatentEnergy) else energy


def _seeds(generators: Generators, device: torch.device) -> Tensor:
    """A key for each generator, int64 with shape (generators,), drawn and kept on the device."""
    each: Sequence[torch.Generator] = [generators] if isinstance(generators, torch.Generator) else generators
    keys = [torch.randint(2**62, (1,), generator=g, device=g.device) for g in each]
    return (keys[0] if len(keys) == 1 else torch.cat(keys)).to(device)


def _spread(value: Scalar, like: Tensor) -> tuple[Tensor, int]:
    """A number, or numbers with shape (N,), with the stride from sample to sample."""
    if not isinstance(value, Tensor):
        return like.new_full((1,), value, dtype=torch.float32), 0
    if value.numel() not in (1, len(like)):
        raise InputError(f"expected one number or {len(like)}, one for each sample, got shape {tuple(value.shape)}")
    return value.contiguous(), int(value.numel() > 1)


def _launch(
    energy: ReconstructionEnergy | LatentEnergy,
    start: Tensor,
    config: ChainConfig,
    temperature: Scalar,
    size: Scalar,
    seeds: Tensor,
    members: int,
    tuning: Tuning,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """End points, their energies and gradients, and accepted counts with shape (steps, members, programs)."""
    of = _reconstruction(energy)
    shape = _shape(of.autoencoder)
    latent = isinstance(energy, LatentEnergy)
    dimension = shape.latent if latent else shape.features
    if start.ndim != 2 or start.shape[1] != dimension or len(start) % members:
        raise InputError(f"expected {members} equal blocks of points of shape ({dimension},), got {tuple(start.shape)}")
    if of.members not in (1, members) or len(seeds) not in (1, members):
        raise InputError(
            f"expected one model and one generator, or {members} of each for {members} blocks of samples, "
            f"got {of.members} and {len(seeds)}"
        )
    resident = _fits(shape, tuning.precision) if tuning.resident is None else tuning.resident
    packed = _pack(of, shape, tuning.precision, copies=1 if resident else 2)
    start = start.detach().contiguous()
    n = len(start) // members
    programs = -(-n // tuning.block)
    position, grad, value = torch.empty_like(start), torch.empty_like(start), start.new_empty(len(start))
    accepted = torch.empty((config.steps, members, programs), dtype=torch.int32, device=start.device)
    t, t_stride = _spread(temperature, start)
    s, s_stride = _spread(size, start)
    noise_ratio = 2.0 if config.noise is None else config.noise**2 / config.step_size
    low, high = config.bounds or (0.0, 0.0)
    clip_rule = "none" if config.clip is None else "value" if config.clip_rule == "value" else "norm"
    _chain_kernel[(members, programs)](
        start, position, value, grad, accepted, seeds, t, s, *packed, n, int(len(seeds) > 1), t_stride, s_stride,
        int(of.members > 1), noise_ratio, float(low), float(high), float(config.clip or 0.0),
        STEPS=config.steps, LATENT=latent, METROPOLIS=config.metropolis == "exact",
        BOUNDS="none" if config.bounds is None else config.bounds_rule, CLIP=clip_rule, ANNEAL=config.anneal,
        D=shape.features, DIMENSION=dimension, NE=shape.encoder, ND=shape.decoder, E_SILU=shape.encoder_silu,
        D_SILU=shape.decoder_silu, H=shape.width, IO=shape.io, PRECISION=tuning.precision, RESIDENT=resident,
        BLOCK=tuning.block, num_warps=tuning.num_warps, num_stages=1,
    )  # fmt: skip
    return position, value, grad, accepted
