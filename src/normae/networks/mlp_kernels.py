"""The Triton kernels of the fused chain; `mlp_chain` says what they compute and launches them."""

from __future__ import annotations  # triton's types in signatures, where triton may be absent

from collections.abc import Callable
from typing import Any

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

__all__ = ["chain_kernel", "pack_kernel", "triton"]


def _jit(function: Callable[..., Any]) -> Any:
    return function if triton is None else triton.jit(function)


@_jit
def _round(x: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """x in the format of a product's factors."""
    return x.to(tl.float16) if PRECISION == "fp16" else x


@_jit
def _product(w: tl.tensor, x: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """W x with shape (H, samples), for rounded factors."""
    return tl.dot(w, x) if PRECISION == "fp16" else tl.dot(w, x, input_precision=PRECISION)


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
def _activate(h: tl.tensor, ACT: tl.constexpr) -> tl.tensor:
    if ACT == "gelu":
        a = 0.5 * h * (1.0 + tl.erf(h * 0.7071067811865476))
    else:
        a = h * tl.sigmoid(h) if ACT == "silu" else tl.where(h <= 0.0, 0.0, h)
    return a


@_jit
def _slope(h: tl.tensor, ACT: tl.constexpr) -> tl.tensor:
    """The derivative of the nonlinearity at h, as `_activate_back` wants it."""
    if ACT == "gelu":
        slope = 0.5 * (1.0 + tl.erf(h * 0.7071067811865476)) + h * tl.exp(-0.5 * h * h) * 0.3989422804014327
    elif ACT == "silu":
        s = tl.sigmoid(h)
        slope = s * (1.0 + h * (1.0 - s))
    else:
        slope = h > 0.0
    return slope


@_jit
def _activate_back(v: tl.tensor, slope: tl.tensor, ACT: tl.constexpr) -> tl.tensor:
    return tl.where(slope, v, 0.0) if ACT == "relu" else v * slope


@_jit
def _tile(pointer: tl.tensor, k: tl.constexpr, ROWS: tl.constexpr, H: tl.constexpr, PASS: tl.constexpr) -> tl.tensor:
    """The k-th of a row of matrices with shape (ROWS, H).

    The compiler would merge the loads of one matrix in the several passes of a step and keep the matrix in between, for
    which there is no room. Loads that differ in their cache hints are not merged, so each PASS has its own.
    """
    tile = pointer + k * ROWS * H + tl.arange(0, ROWS)[:, None] * H + tl.arange(0, H)[None, :]
    cache: tl.constexpr = ".ca" if PASS == 1 else ""
    evict: tl.constexpr = "evict_last" if PASS == 2 else "evict_first" if PASS == 3 else ""
    return tl.load(tile, cache_modifier=cache, eviction_policy=evict)


@_jit
def _tiles(pointer: tl.tensor, N: tl.constexpr, H: tl.constexpr, RESIDENT: tl.constexpr) -> tl.tuple:
    """The N matrices (H, H) of a network, loaded once, where they are to stay."""
    tiles: tl.tuple = ()
    if RESIDENT:
        for k in tl.static_range(N):
            tiles = tiles + (_tile(pointer, k, H, H, 0),)  # noqa: RUF005
    return tiles


@_jit
def _forward(
    net: tl.tuple, x: tl.tensor, N: tl.constexpr, ACT: tl.constexpr, H: tl.constexpr, IO: tl.constexpr,
    PRECISION: tl.constexpr, RESIDENT: tl.constexpr, PASS: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """The output (IO, samples) of a network with N hidden layers, the derivatives of its nonlinearities, and the input
    (H, samples) of its last layer."""
    tiles, hidden, _, thin, bias = net
    rows = tl.arange(0, H)
    h = _widen(_tile(thin, 0, IO, H, PASS), x) + tl.load(bias + rows)[:, None]
    saved: tl.tuple = (_slope(h, ACT),)
    for k in tl.static_range(1, N):
        a = _round(_activate(h, ACT), PRECISION)
        h = _product(tiles[k - 1] if RESIDENT else _tile(hidden, k - 1, H, H, PASS), a, PRECISION)
        h += tl.load(bias + k * H + rows)[:, None]
        saved = saved + (_slope(h, ACT),)  # noqa: RUF005
    last = _activate(h, ACT)
    out = _narrow(_tile(thin, 1, IO, H, PASS), last)
    return out + tl.load(bias + N * H + tl.arange(0, IO))[:, None], saved, last


@_jit
def _pullback(
    net: tl.tuple, saved: tl.tuple, v: tl.tensor, more: tl.tensor, MORE: tl.constexpr, N: tl.constexpr,
    ACT: tl.constexpr, H: tl.constexpr, IO: tl.constexpr, PRECISION: tl.constexpr, RESIDENT: tl.constexpr,
    PASS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """v^T J with shape (IO, samples) for v with shape (IO, samples), and with MORE for `more`, (H, samples), besides, a
    vector at the last layer's input."""
    tiles, _, transposed, thin, _ = net
    if PRECISION == "fp16":
        scale = tl.max(tl.abs(v), 0) + 1e-30
        if MORE:
            scale = tl.maximum(scale, tl.max(tl.abs(more), 0))
            more = more / scale[None, :]
        v = v / scale[None, :]
    v = _widen(_tile(thin, 1, IO, H, PASS), v)
    if MORE:
        v = v + more
    v = _activate_back(v, saved[N - 1], ACT)
    for j in tl.static_range(1, N):
        w = tl.trans(tiles[N - 1 - j]) if RESIDENT else _tile(transposed, N - 1 - j, H, H, PASS)
        v = _activate_back(_product(w, _round(v, PRECISION), PRECISION), saved[N - 1 - j], ACT)
    v = _narrow(_tile(thin, 0, IO, H, PASS), v)
    if PRECISION == "fp16":
        v = v * scale[None, :]
    return v


@_jit
def _value_and_grad(
    encoder: tl.tuple, decoder: tl.tuple, variance: tl.tensor, x: tl.tensor, clip: tl.tensor, LATENT: tl.constexpr,
    LOCAL: tl.constexpr, CLIP: tl.constexpr, D: tl.constexpr, NE: tl.constexpr, ND: tl.constexpr, E_ACT: tl.constexpr,
    D_ACT: tl.constexpr, H: tl.constexpr, IO: tl.constexpr, PRECISION: tl.constexpr, RESIDENT: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """Energies (samples,) and clipped gradients (IO, samples) at x, a point of feature or of latent space."""
    if LATENT:
        x, start, _ = _forward(decoder, x, ND, D_ACT, H, IO, PRECISION, RESIDENT, 2)
    z, e_saved, _ = _forward(encoder, x, NE, E_ACT, H, IO, PRECISION, RESIDENT, 0)
    out, d_saved, last = _forward(decoder, z, ND, D_ACT, H, IO, PRECISION, RESIDENT, 0)
    residual = x - out
    energy = tl.sum(residual * residual, 0) / D
    more = last
    if LOCAL:
        weighted = tl.load(variance + tl.arange(0, H))[:, None] * last
        energy += tl.sum(weighted * last, 0) + tl.load(variance + H)
        more = -D * weighted
    back = _pullback(decoder, d_saved, residual, more, LOCAL, ND, D_ACT, H, IO, PRECISION, RESIDENT, 1)
    back = _pullback(encoder, e_saved, back, last, False, NE, E_ACT, H, IO, PRECISION, RESIDENT, 1)
    grad = (residual - back) * (2.0 / D)
    if LATENT:
        grad = _pullback(decoder, start, grad, last, False, ND, D_ACT, H, IO, PRECISION, RESIDENT, 3)
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
def _propose(
    x: tl.tensor, drift: tl.tensor, kick: tl.tensor, real: tl.tensor, inside: tl.tensor, low: tl.tensor,
    high: tl.tensor, t: tl.tensor, BOUNDS: tl.constexpr,
) -> tl.tuple:  # fmt: skip
    """The proposal (IO, samples), the way to it, its part that is not drift, and whether it may be taken (samples,)."""
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
    return y, move, kick, allowed


@_jit
def chain_kernel(
    start_ptr: tl.tensor, position_ptr: tl.tensor, energy_ptr: tl.tensor, accepted_ptr: tl.tensor,
    seed_ptr: tl.tensor, temperature_ptr: tl.tensor, size_ptr: tl.tensor, hidden_ptr: tl.tensor, thin_ptr: tl.tensor,
    bias_ptr: tl.tensor, variance_ptr: tl.tensor, n: tl.tensor, seed_stride: tl.tensor, temperature_stride: tl.tensor,
    size_stride: tl.tensor, weight_stride: tl.tensor, noise_ratio: tl.tensor, low: tl.tensor, high: tl.tensor,
    clip: tl.tensor, STEPS: tl.constexpr, LATENT: tl.constexpr, LOCAL: tl.constexpr, METROPOLIS: tl.constexpr,
    BOUNDS: tl.constexpr, CLIP: tl.constexpr, ANNEAL: tl.constexpr, D: tl.constexpr, DIMENSION: tl.constexpr,
    NE: tl.constexpr, ND: tl.constexpr, E_ACT: tl.constexpr, D_ACT: tl.constexpr, H: tl.constexpr, IO: tl.constexpr,
    PRECISION: tl.constexpr, RESIDENT: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
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
    hidden, transposed = hidden + (NE - 1) * H * H, transposed + (NE - 1) * H * H
    thin, bias = thin + 2 * IO * H, bias + (NE + 1) * H
    decoder = (_tiles(hidden, ND - 1, H, RESIDENT), hidden, transposed, thin, bias)
    variance = variance_ptr + weights * (H + 1)

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
        sigma = noise / tl.maximum(t, 1) if ANNEAL else noise
        kick = tl.where(real & (t > 0), _normal(seed, event, t) * sigma[None, :], 0.0)
        y, move, kick, allowed = _propose(x, -rate[None, :] * grad, kick, real, inside, low, high, t, BOUNDS)
        y_energy, y_grad = _value_and_grad(
            encoder, decoder, variance, y, clip, LATENT, LOCAL, CLIP, D, NE, ND, E_ACT, D_ACT, H, IO, PRECISION,
            RESIDENT,
        )  # fmt: skip
        accepted = allowed
        if METROPOLIS:
            back = rate[None, :] * y_grad - move
            squares = tl.sum(kick * kick - back * back, 0)
            log_ratio = (energy - y_energy) / temperature + squares / (2.0 * sigma * sigma)
            accepted = allowed & (tl.log(_uniform(seed, sample, t)) < log_ratio)
        taken = accepted | (t == 0)
        x = tl.where(taken[None, :], y, x)
        energy = tl.where(taken, y_energy, energy)
        grad = tl.where(taken[None, :], y_grad, grad)
        counter = ((t - 1) * tl.num_programs(0) + member) * tl.num_programs(1) + tl.program_id(1)
        tl.store(accepted_ptr + counter, tl.sum(accepted.to(tl.int32), 0), mask=t > 0)

    tl.store(position_ptr + event, x, mask=real)
    tl.store(energy_ptr + sample, energy, mask=inside)


@_jit
def pack_kernel(
    flat_ptr: tl.tensor, hidden_ptr: tl.tensor, thin_ptr: tl.tensor, bias_ptr: tl.tensor, stride: tl.tensor,
    D: tl.constexpr, Z: tl.constexpr, NE: tl.constexpr, ND: tl.constexpr, H: tl.constexpr, IO: tl.constexpr,
    PRECISION: tl.constexpr, COPIES: tl.constexpr, ROWS: tl.constexpr,
) -> None:  # fmt: skip
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
