"""The Triton kernels of the convolutional autoencoder: chains, energies, and gradients with respect to the weights.

`conv_fused` says what they compute and launches them, `conv_layers` has the layers. Scratch memory of a program:

    maps, large    0 A1  1 H1  2 H2  3 U   4 A8  5 H8  6 and 7 vectors pulled back  8 H8 of a chain's first decoding
    maps, small    0 A2  1 A3  2 H3  3 A4  4 H4  5 A6  6 H6  7 A7  8 H7  9 and 10 pulled back
                   11 and 12 H6 and H7 of the first decoding
    planes, large  0 x   1 residual   2 v at the output   3 derivative of the first output   4 gradient at x
                   5 position of the chain   6 gradient there
    planes, small  0 A5  1 H5  2 A9  3 H9  4 vector pulled back  5 H9 of the first decoding

with the convolutions numbered 1 to 5 (encoder), 6 to 8 and the output (decoder), and 9 for the plane that the
decoder's convolutions begin with.
"""

from __future__ import annotations  # triton's types in signatures, where triton may be absent

from collections.abc import Callable
from typing import Any

from normae.networks.conv_layers import (
    back,
    back_pooled,
    forward,
    forward_pooled,
    from_rows,
    narrow,
    place_of,
    prelu,
    slope_of,
    spread,
    spread_back,
    to_rows,
    weight_gradient,
    weight_gradient_plane,
    widen,
    widen_back,
)
from normae.networks.mlp_kernels import _jit, _normal, _uniform, triton

try:
    import triton.language as tl
except ImportError:
    tl = None

__all__ = ["chain_kernel", "energy_kernel", "gradient_kernel"]

_VARYING = ["n", "programs", "seed_stride", "temperature_stride", "size_stride"]


def _jit_kernel(function: Callable[..., Any]) -> Any:
    """Compiled once for all numbers of images, programs and models."""
    return function if triton is None else triton.jit(function, do_not_specialize=_VARYING)


LARGE_MAPS, SMALL_MAPS, LARGE_PLANES, SMALL_PLANES = 9, 13, 7, 6


@_jit
def _large(k: tl.constexpr, SIDE: tl.constexpr, C: tl.constexpr) -> tl.constexpr:
    """Offset of the k-th large map (or plane, with C = 1)."""
    return k * (SIDE + 2) * (SIDE + 2) * C


@_jit
def _small(k: tl.constexpr, LARGE: tl.constexpr, SIDE: tl.constexpr, C: tl.constexpr) -> tl.constexpr:
    """Offset of the k-th small map (or plane) behind LARGE large ones."""
    return (LARGE * (SIDE + 2) * (SIDE + 2) + k * (SIDE // 2 + 2) * (SIDE // 2 + 2)) * C


@_jit
def _mixing(w: tl.tensor, k: tl.constexpr, BACK: tl.constexpr, C: tl.constexpr) -> tl.tensor:
    """Weights of the k-th convolution C -> C, forward or for the pullback."""
    return w + (2 * k + BACK) * 12 * C * C


@_jit
def _single(w: tl.tensor, k: tl.constexpr, BACK: tl.constexpr, C: tl.constexpr) -> tl.tensor:
    """Weights of the k-th convolution with one channel on one side."""
    return w + 120 * C * C + (2 * k + BACK) * 16 * C


@_jit
def _dense(w: tl.tensor, k: tl.constexpr, SIDE: tl.constexpr, C: tl.constexpr, HP: tl.constexpr) -> tl.tensor:
    """The two matrices with shape (SIDE^2/4, HP), then the two with shape (ZP, HP)."""
    return w + 120 * C * C + 128 * C + k * (SIDE // 2) * (SIDE // 2) * HP


@_jit
def _vectors(w: tl.tensor, SIDE: tl.constexpr, C: tl.constexpr, HP: tl.constexpr, ZP: tl.constexpr) -> tl.tensor:
    """The convolutions' biases (9, C), then slopes (16,), then biases (HP,), (HP,), (ZP,), (SIDE^2/4,)."""
    return _dense(w, 2, SIDE, C, HP) + 2 * ZP * HP


@_jit
def _encode(
    maps: tl.tensor,
    planes: tl.tensor,
    w: tl.tensor,
    w32: tl.tensor,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    HP: tl.constexpr,
    ZP: tl.constexpr,
    SPHERE: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tuple:
    """From plane x: latent point (ZP,), its length before the projection, input of the hidden nonlinearity (HP,)."""
    HALF: tl.constexpr = SIDE // 2
    bias = _vectors(w32, SIDE, C, HP, ZP)
    alpha = bias + 9 * C
    a1, h1 = maps + _large(0, SIDE, C), maps + _large(1, SIDE, C)
    h2, a2 = maps + _large(2, SIDE, C), maps + _small(0, 9, SIDE, C)
    a3, h3 = maps + _small(1, 9, SIDE, C), maps + _small(2, 9, SIDE, C)
    a4, h4 = maps + _small(3, 9, SIDE, C), maps + _small(4, 9, SIDE, C)
    widen(planes, h1, a1, _single(w32, 0, 0, C), bias, tl.load(alpha), SIDE, C, TILE)
    forward_pooled(a1, h2, a2, _mixing(w, 0, 0, C), bias + C, tl.load(alpha + 1), SIDE, C, TILE, PRECISION)
    forward(a2, h3, a3, _mixing(w, 1, 0, C), bias + 2 * C, tl.load(alpha + 2), HALF, C, TILE, PRECISION)
    forward(a3, h4, a4, _mixing(w, 2, 0, C), bias + 3 * C, tl.load(alpha + 3), HALF, C, TILE, PRECISION)
    b, slope = tl.load(bias + 4 * C), tl.load(alpha + 4)
    a5 = planes + _small(0, 7, SIDE, 1)
    h5 = planes + _small(1, 7, SIDE, 1)
    for start in range(0, HALF * HALF, TILE):
        place, inside = place_of(start, HALF, TILE)
        h = narrow(a4, _single(w32, 1, 0, C), place, HALF + 2, C, TILE) + b
        tl.store(h5 + place, h, mask=inside)
        tl.store(a5 + place, prelu(h, slope), mask=inside)
    tl.debug_barrier()
    hidden = from_rows(_dense(w, 0, SIDE, C, HP), a5, HALF, HP, ROWS) + tl.load(alpha + 16 + tl.arange(0, HP))
    a = prelu(hidden, tl.load(alpha + 5))
    at = tl.arange(0, ZP)[:, None] * HP + tl.arange(0, HP)[None, :]
    z = tl.sum(tl.load(_dense(w32, 2, SIDE, C, HP) + at) * a[None, :], 1)
    z += tl.load(alpha + 16 + 2 * HP + tl.arange(0, ZP))
    length = 1.0
    if SPHERE:
        length = tl.sqrt(tl.sum(z * z, 0))
        z = z / tl.maximum(length, 1e-30)
    return z, length, hidden


@_jit
def _decode(
    z: tl.tensor,
    maps: tl.tensor,
    planes: tl.tensor,
    w: tl.tensor,
    w32: tl.tensor,
    FIRST: tl.constexpr,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    HP: tl.constexpr,
    ZP: tl.constexpr,
    SIGMOID: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tuple:
    """From z (ZP,): the sum of squared residuals, largest abs(v), input of the hidden nonlinearity (HP,).

    The output goes to plane x and its derivative to plane 3 if FIRST; else the residual to plane 1 and v to plane 2.
    """
    HALF: tl.constexpr = SIDE // 2
    alpha = _vectors(w32, SIDE, C, HP, ZP) + 9 * C
    bias = alpha - 4 * C
    at = tl.arange(0, ZP)[:, None] * HP + tl.arange(0, HP)[None, :]
    matrix = _dense(w32, 2, SIDE, C, HP) + ZP * HP
    hidden = tl.sum(tl.load(matrix + at) * z[:, None], 0) + tl.load(alpha + 16 + HP + tl.arange(0, HP))
    a = prelu(hidden, tl.load(alpha + 6))
    slope = tl.load(alpha + 7)
    a9 = planes + _small(2, 7, SIDE, 1)
    if FIRST:
        h9 = planes + _small(5, 7, SIDE, 1)
        h6, h7, h8 = maps + _small(11, 9, SIDE, C), maps + _small(12, 9, SIDE, C), maps + _large(8, SIDE, C)
    else:
        h9 = planes + _small(3, 7, SIDE, 1)
        h6, h7, h8 = maps + _small(6, 9, SIDE, C), maps + _small(8, 9, SIDE, C), maps + _large(5, SIDE, C)
    for start in range(0, HALF * HALF, ROWS):
        place, inside = place_of(start, HALF, ROWS)
        b = tl.load(alpha + 16 + 2 * HP + ZP + start + tl.arange(0, ROWS), mask=inside, other=0.0)
        h = to_rows(_dense(w, 1, SIDE, C, HP), a, start, inside, HP, ROWS) + b
        tl.store(h9 + place, h, mask=inside)
        tl.store(a9 + place, prelu(h, slope), mask=inside)
    tl.debug_barrier()
    a6, a7 = maps + _small(5, 9, SIDE, C), maps + _small(7, 9, SIDE, C)
    u, a8 = maps + _large(3, SIDE, C), maps + _large(4, SIDE, C)
    widen(a9, h6, a6, _single(w32, 2, 0, C), bias, tl.load(alpha + 8), HALF, C, TILE)
    forward(a6, h7, a7, _mixing(w, 3, 0, C), bias + C, tl.load(alpha + 9), HALF, C, TILE, PRECISION)
    spread(a7, u, SIDE, C, TILE)
    forward(u, h8, a8, _mixing(w, 4, 0, C), bias + 2 * C, tl.load(alpha + 10), SIDE, C, TILE, PRECISION)
    b = tl.load(bias + 3 * C)
    squares, largest = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
    for start in range(0, SIDE * SIDE, TILE):
        place, inside = place_of(start, SIDE, TILE)
        out = narrow(a8, _single(w32, 3, 0, C), place, SIDE + 2, C, TILE) + b
        derivative = tl.full((TILE,), 1.0, tl.float32)
        if SIGMOID:
            out = tl.sigmoid(out)
            derivative = out * (1.0 - out)
        if FIRST:
            tl.store(planes + place, out, mask=inside)
            tl.store(planes + _large(3, SIDE, 1) + place, derivative, mask=inside)
        else:
            residual = tl.where(inside, tl.load(planes + place) - out, 0.0)
            v = residual * derivative
            squares += residual * residual
            largest = tl.maximum(largest, tl.abs(v))
            tl.store(planes + _large(1, SIDE, 1) + place, residual, mask=inside)
            tl.store(planes + _large(2, SIDE, 1) + place, v, mask=inside)
    tl.debug_barrier()
    return tl.sum(squares, 0), tl.max(largest, 0), hidden


@_jit
def _decode_back(
    hidden: tl.tensor,
    largest: tl.tensor,
    factor: tl.tensor,
    maps: tl.tensor,
    planes: tl.tensor,
    w: tl.tensor,
    w32: tl.tensor,
    out: tl.tensor,
    FIRST: tl.constexpr,
    WEIGHTS: tl.constexpr,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    HP: tl.constexpr,
    ZP: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tuple:
    """Pull plane 2 back through the decoder: v at z (ZP,), and at the input of the hidden nonlinearity (HP,).

    Narrow formats hold `scale` times the vectors, which are then of order one. If WEIGHTS, `factor` times the gradients
    of the weights are added to what `out` holds.
    """
    HALF: tl.constexpr = SIDE // 2
    alpha = _vectors(w32, SIDE, C, HP, ZP) + 9 * C
    scale = 16.0 / tl.maximum(largest, 1e-30)
    v = planes + _large(2, SIDE, 1)
    g1, g2 = maps + _large(6, SIDE, C), maps + _large(7, SIDE, C)
    s1, s2 = maps + _small(9, 9, SIDE, C), maps + _small(10, 9, SIDE, C)
    if FIRST:
        h9 = planes + _small(5, 7, SIDE, 1)
        h6, h7, h8 = maps + _small(11, 9, SIDE, C), maps + _small(12, 9, SIDE, C), maps + _large(8, SIDE, C)
    else:
        h9 = planes + _small(3, 7, SIDE, 1)
        h6, h7, h8 = maps + _small(6, 9, SIDE, C), maps + _small(8, 9, SIDE, C), maps + _large(5, SIDE, C)
    t10 = widen_back(v, scale, h8, g1, _single(w32, 3, 1, C), tl.load(alpha + 10), SIDE, C, TILE)
    back(g1, h8, g2, _mixing(w, 4, 1, C), 1.0, False, SIDE, C, TILE, PRECISION)
    t9 = spread_back(g2, h7, s1, tl.load(alpha + 9), SIDE, C, TILE)
    t8 = back(s1, h6, s2, _mixing(w, 3, 1, C), tl.load(alpha + 8), True, HALF, C, TILE, PRECISION)
    v9 = planes + _small(4, 7, SIDE, 1)
    slope = tl.load(alpha + 7)
    t7 = tl.zeros((TILE,), tl.float32)
    for start in range(0, HALF * HALF, TILE):
        place, inside = place_of(start, HALF, TILE)
        pulled = narrow(s2, _single(w32, 2, 1, C), place, HALF + 2, C, TILE) / scale
        h = tl.load(h9 + place)
        tl.store(v9 + place, pulled * slope_of(h, slope), mask=inside)
        t7 += tl.where(inside, pulled * tl.minimum(h, 0.0), 0.0)
    tl.debug_barrier()
    pulled = from_rows(_dense(w, 1, SIDE, C, HP), v9, HALF, HP, ROWS)
    v_hidden = pulled * slope_of(hidden, tl.load(alpha + 6))
    at = tl.arange(0, ZP)[:, None] * HP + tl.arange(0, HP)[None, :]
    v_z = tl.sum(tl.load(_dense(w32, 2, SIDE, C, HP) + ZP * HP + at) * v_hidden[None, :], 1)
    if WEIGHTS:
        f = factor / scale
        bias = out + 60 * C * C + 64 * C + 5 * C
        slopes = bias + 4 * C
        a6, u, a8 = maps + _small(5, 9, SIDE, C), maps + _large(3, SIDE, C), maps + _large(4, SIDE, C)
        single = out + 60 * C * C
        weight_gradient_plane(v, scale, a8, f, single + 48 * C, bias + 3 * C, True, SIDE, C, TILE, PRECISION)
        weight_gradient(u, g1, f, out + 48 * C * C, bias + 2 * C, SIDE, C, TILE, PRECISION)
        weight_gradient(a6, s1, f, out + 36 * C * C, bias + C, HALF, C, TILE, PRECISION)
        a9 = planes + _small(2, 7, SIDE, 1)
        weight_gradient_plane(a9, 1.0, s2, f, single + 32 * C, bias, False, HALF, C, TILE, PRECISION)
        _gather(slopes + 6, tl.sum(pulled * tl.minimum(hidden, 0.0), 0) * factor)
        _gather(slopes + 7, tl.sum(t7, 0) * factor)
        _gather(slopes + 8, tl.sum(tl.sum(t8, 1), 0) * f)
        _gather(slopes + 9, tl.sum(tl.sum(t9, 1), 0) * f)
        _gather(slopes + 10, tl.sum(tl.sum(t10, 1), 0) * f)
        tl.debug_barrier()
    return v_z, v_hidden


@_jit
def _gather(pointer: tl.tensor, value: tl.tensor) -> None:
    tl.store(pointer, tl.load(pointer) + value)


@_jit
def _encode_back(
    v_z: tl.tensor,
    z: tl.tensor,
    length: tl.tensor,
    hidden: tl.tensor,
    maps: tl.tensor,
    planes: tl.tensor,
    w: tl.tensor,
    w32: tl.tensor,
    out: tl.tensor,
    WEIGHTS: tl.constexpr,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    HP: tl.constexpr,
    ZP: tl.constexpr,
    SPHERE: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tuple:
    """Pull v at the latent point back to the first convolution's output, map 7, with the scale that it has there.

    Returns that scale, v before the projection to the sphere (ZP,), and v at the hidden nonlinearity's input (HP,).
    """
    HALF: tl.constexpr = SIDE // 2
    alpha = _vectors(w32, SIDE, C, HP, ZP) + 9 * C
    if SPHERE:
        v_z = (v_z - z * tl.sum(z * v_z, 0)) / tl.maximum(length, 1e-30)
    at = tl.arange(0, ZP)[:, None] * HP + tl.arange(0, HP)[None, :]
    pulled = tl.sum(tl.load(_dense(w32, 2, SIDE, C, HP) + at) * v_z[:, None], 0)
    v_hidden = pulled * slope_of(hidden, tl.load(alpha + 5))
    t5 = tl.sum(pulled * tl.minimum(hidden, 0.0), 0)
    h5, v5 = planes + _small(1, 7, SIDE, 1), planes + _small(4, 7, SIDE, 1)
    slope = tl.load(alpha + 4)
    t4, largest = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    for start in range(0, HALF * HALF, ROWS):
        place, inside = place_of(start, HALF, ROWS)
        row = to_rows(_dense(w, 0, SIDE, C, HP), v_hidden, start, inside, HP, ROWS)
        h = tl.load(h5 + place)
        v = row * slope_of(h, slope)
        tl.store(v5 + place, v, mask=inside)
        t4 += tl.where(inside, row * tl.minimum(h, 0.0), 0.0)
        largest = tl.maximum(largest, tl.where(inside, tl.abs(v), 0.0))
    tl.debug_barrier()
    scale = 16.0 / tl.maximum(tl.max(largest, 0), 1e-30)
    h1, h2 = maps + _large(1, SIDE, C), maps + _large(2, SIDE, C)
    h3, h4 = maps + _small(2, 9, SIDE, C), maps + _small(4, 9, SIDE, C)
    s1, s2 = maps + _small(9, 9, SIDE, C), maps + _small(10, 9, SIDE, C)
    g1, g2 = maps + _large(6, SIDE, C), maps + _large(7, SIDE, C)
    t3 = widen_back(v5, scale, h4, s1, _single(w32, 1, 1, C), tl.load(alpha + 3), HALF, C, TILE)
    t2 = back(s1, h3, s2, _mixing(w, 2, 1, C), tl.load(alpha + 2), True, HALF, C, TILE, PRECISION)
    if WEIGHTS:
        f = 1.0 / scale
        bias = out + 60 * C * C + 64 * C
        slopes = bias + 9 * C
        single = out + 60 * C * C
        a2, a3, a4 = maps + _small(0, 9, SIDE, C), maps + _small(1, 9, SIDE, C), maps + _small(3, 9, SIDE, C)
        weight_gradient_plane(v5, scale, a4, f, single + 16 * C, bias + 4 * C, True, HALF, C, TILE, PRECISION)
        weight_gradient(a3, s1, f, out + 24 * C * C, bias + 3 * C, HALF, C, TILE, PRECISION)
        weight_gradient(a2, s2, f, out + 12 * C * C, bias + 2 * C, HALF, C, TILE, PRECISION)
        _gather(slopes + 5, t5)
        _gather(slopes + 4, tl.sum(t4, 0))
        _gather(slopes + 3, tl.sum(tl.sum(t3, 1), 0) * f)
        _gather(slopes + 2, tl.sum(tl.sum(t2, 1), 0) * f)
    t1 = back_pooled(s2, h2, g1, _mixing(w, 1, 1, C), tl.load(alpha + 1), SIDE, C, TILE, PRECISION)
    t0 = back(g1, h1, g2, _mixing(w, 0, 1, C), tl.load(alpha), True, SIDE, C, TILE, PRECISION)
    if WEIGHTS:
        a1 = maps + _large(0, SIDE, C)
        weight_gradient(a1, g1, f, out, bias + C, SIDE, C, TILE, PRECISION)
        weight_gradient_plane(planes, 1.0, g2, f, single, bias, False, SIDE, C, TILE, PRECISION)
        _gather(slopes + 1, tl.sum(tl.sum(t1, 1), 0) * f)
        _gather(slopes, tl.sum(tl.sum(t0, 1), 0) * f)
        tl.debug_barrier()
    return scale, v_z, v_hidden


@_jit
def _image_gradient(
    scale: tl.tensor,
    maps: tl.tensor,
    planes: tl.tensor,
    w32: tl.tensor,
    LATENT: tl.constexpr,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """grad E = 2/D (r - J^T r) to plane 4; if LATENT, times the first output's derivative to plane 2; its largest."""
    g2 = maps + _large(7, SIDE, C)
    largest = tl.zeros((TILE,), tl.float32)
    for start in range(0, SIDE * SIDE, TILE):
        place, inside = place_of(start, SIDE, TILE)
        pulled = narrow(g2, _single(w32, 0, 1, C), place, SIDE + 2, C, TILE) / scale
        grad = (tl.load(planes + _large(1, SIDE, 1) + place) - pulled) * (2.0 / (SIDE * SIDE))
        if LATENT:
            v = grad * tl.load(planes + _large(3, SIDE, 1) + place)
            largest = tl.maximum(largest, tl.where(inside, tl.abs(v), 0.0))
            tl.store(planes + _large(2, SIDE, 1) + place, v, mask=inside)
        else:
            tl.store(planes + _large(4, SIDE, 1) + place, grad, mask=inside)
    tl.debug_barrier()
    return tl.max(largest, 0)


@_jit
def _clip_image(
    grad: tl.tensor, clip: tl.tensor, CLIP: tl.constexpr, SIDE: tl.constexpr, COLUMNS: tl.constexpr
) -> None:
    """Limit the gradient in a plane by value, by the norm of each row, or by its norm."""
    total = 0.0
    if CLIP == "norm":
        squares = tl.zeros((8, COLUMNS), tl.float32)
        for start in range(0, SIDE, 8):
            at, inside = _row_places(start, SIDE, COLUMNS)
            g = tl.load(grad + at, mask=inside, other=0.0)
            squares += g * g
        total = tl.sum(tl.sum(squares, 1), 0)
    for start in range(0, SIDE, 8):
        at, inside = _row_places(start, SIDE, COLUMNS)
        g = tl.load(grad + at, mask=inside, other=0.0)
        if CLIP == "value":
            g = tl.minimum(tl.maximum(g, -clip), clip)
        elif CLIP == "row":
            g = g * (clip / tl.maximum(tl.sqrt(tl.sum(g * g, 1)), clip))[:, None]
        else:
            g = g * (clip / tl.maximum(tl.sqrt(total), clip))
        tl.store(grad + at, g, mask=inside)
    tl.debug_barrier()


@_jit
def _row_places(start: tl.tensor, SIDE: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tuple:
    row, column = start + tl.arange(0, 8), tl.arange(0, COLUMNS)
    inside = (row < SIDE)[:, None] & (column < SIDE)[None, :]
    return (row[:, None] + 1) * (SIDE + 2) + column[None, :] + 1, inside


@_jit
def _clip_vector(grad: tl.tensor, clip: tl.tensor, CLIP: tl.constexpr) -> tl.tensor:
    if CLIP == "value":
        grad = tl.minimum(tl.maximum(grad, -clip), clip)
    elif CLIP != "none":
        grad = grad * (clip / tl.maximum(tl.sqrt(tl.sum(grad * grad, 0)), clip))
    return grad


@_jit
def _value_and_grad(
    z0: tl.tensor,
    maps: tl.tensor,
    planes: tl.tensor,
    w: tl.tensor,
    w32: tl.tensor,
    clip: tl.tensor,
    LATENT: tl.constexpr,
    CLIP: tl.constexpr,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    HP: tl.constexpr,
    ZP: tl.constexpr,
    SPHERE: tl.constexpr,
    SIGMOID: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tuple:
    """Energy and clipped gradient: at the latent point z0, returned; or at plane x, left in plane 4."""
    grad = z0
    if LATENT:
        _, _, hidden0 = _decode(z0, maps, planes, w, w32, True, SIDE, C, HP, ZP, SIGMOID, PRECISION, TILE, ROWS)
    z, length, e_hidden = _encode(maps, planes, w, w32, SIDE, C, HP, ZP, SPHERE, PRECISION, TILE, ROWS)
    squares, largest, d_hidden = _decode(
        z, maps, planes, w, w32, False, SIDE, C, HP, ZP, SIGMOID, PRECISION, TILE, ROWS
    )
    v_z, _ = _decode_back(
        d_hidden, largest, 1.0, maps, planes, w, w32, w32, False, False, SIDE, C, HP, ZP, PRECISION, TILE, ROWS
    )
    scale, _, _ = _encode_back(
        v_z, z, length, e_hidden, maps, planes, w, w32, w32, False, SIDE, C, HP, ZP, SPHERE, PRECISION, TILE, ROWS
    )
    largest = _image_gradient(scale, maps, planes, w32, LATENT, SIDE, C, TILE)
    if LATENT:
        grad, _ = _decode_back(
            hidden0, largest, 1.0, maps, planes, w, w32, w32, True, False, SIDE, C, HP, ZP, PRECISION, TILE, ROWS
        )
        grad = _clip_vector(grad, clip, CLIP)
    elif CLIP != "none":
        _clip_image(planes + _large(4, SIDE, 1), clip, CLIP, SIDE, COLUMNS)
    return squares / (SIDE * SIDE), grad


# --- a chain of images


@_jit
def _propose(
    planes: tl.tensor,
    rate: tl.tensor,
    sigma: tl.tensor,
    seed: tl.tensor,
    first: tl.tensor,
    t: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    BOUNDS: tl.constexpr,
    SIDE: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """The proposal, to plane x; the number of pixels that left the bounds."""
    outside = tl.zeros((TILE,), tl.int32)
    for start in range(0, SIDE * SIDE, TILE):
        place, inside = place_of(start, SIDE, TILE)
        x = tl.load(planes + _large(5, SIDE, 1) + place)
        grad = tl.load(planes + _large(6, SIDE, 1) + place)
        kick = _normal(seed, first + start + tl.arange(0, TILE), t) * sigma
        y = tl.where(t > 0, x - rate * grad + kick, x)
        if BOUNDS == "clamp":
            y = tl.where(t > 0, tl.minimum(tl.maximum(y, low), high), y)
        elif BOUNDS == "reject":
            outside += (inside & ((y < low) | (y > high))).to(tl.int32)
        tl.store(planes + place, y, mask=inside)
    tl.debug_barrier()
    return tl.sum(outside, 0)


@_jit
def _squares(planes: tl.tensor, rate: tl.tensor, SIDE: tl.constexpr, TILE: tl.constexpr) -> tl.tensor:
    """|kick there|^2 - |kick back|^2, summed over the image."""
    total = tl.zeros((TILE,), tl.float32)
    for start in range(0, SIDE * SIDE, TILE):
        place, inside = place_of(start, SIDE, TILE)
        move = tl.load(planes + place) - tl.load(planes + _large(5, SIDE, 1) + place)
        there = move + rate * tl.load(planes + _large(6, SIDE, 1) + place)
        back_again = rate * tl.load(planes + _large(4, SIDE, 1) + place) - move
        total += tl.where(inside, there * there - back_again * back_again, 0.0)
    tl.debug_barrier()
    return tl.sum(total, 0)


@_jit
def _take(planes: tl.tensor, taken: tl.tensor, SIDE: tl.constexpr, TILE: tl.constexpr) -> None:
    """The proposal and its gradient become the chain's, if taken."""
    for start in range(0, SIDE * SIDE, TILE):
        place, inside = place_of(start, SIDE, TILE)
        tl.store(planes + _large(5, SIDE, 1) + place, tl.load(planes + place), mask=inside & taken)
        tl.store(planes + _large(6, SIDE, 1) + place, tl.load(planes + _large(4, SIDE, 1) + place), mask=inside & taken)
    tl.debug_barrier()


@_jit
def _copy_in(image: tl.tensor, plane: tl.tensor, SIDE: tl.constexpr, TILE: tl.constexpr) -> None:
    for start in range(0, SIDE * SIDE, TILE):
        place, inside = place_of(start, SIDE, TILE)
        pixel = start + tl.arange(0, TILE)
        tl.store(plane + place, tl.load(image + pixel, mask=inside, other=0.0).to(tl.float32), mask=inside)
    tl.debug_barrier()


@_jit
def _copy_out(plane: tl.tensor, image: tl.tensor, SIDE: tl.constexpr, TILE: tl.constexpr) -> None:
    for start in range(0, SIDE * SIDE, TILE):
        place, inside = place_of(start, SIDE, TILE)
        tl.store(image + start + tl.arange(0, TILE), tl.load(plane + place), mask=inside)


# --- steps of a latent chain


@_jit
def _latent_move(
    z: tl.tensor, drift: tl.tensor, kick: tl.tensor, low: tl.tensor, high: tl.tensor, ON: tl.constexpr, real: tl.tensor
) -> tl.tuple:
    """The proposal from z, the displacement to it and back from it, and whether it may be taken, as in `langevin`."""
    v = drift + kick
    allowed = tl.sum(v, 0) == tl.sum(v, 0)
    if ON == "geodesic":
        v = v - tl.sum(v * z, 0) * z
        length = tl.sqrt(tl.sum(v * v, 0))
        direction = v / tl.maximum(length, 1e-30)
        y = tl.cos(length) * z + tl.sin(length) * direction
        y = y / tl.sqrt(tl.sum(y * y, 0))
        back_again = -length * (tl.cos(length) * direction - tl.sin(length) * z)
        allowed = allowed & (length < 3.141592653589793)
    elif ON == "project":
        y = z + v
        y = y / tl.maximum(tl.sqrt(tl.sum(y * y, 0)), 1e-30)
        v = y - z
        back_again = -v
    else:
        y = z + v
        if ON == "clamp":
            y = tl.where(real, tl.minimum(tl.maximum(y, low), high), y)
            v = y - z
        elif ON == "reject":
            allowed = allowed & (tl.sum((real & ((y < low) | (y > high))).to(tl.int32), 0) == 0)
        back_again = -v
    return y, v, back_again, allowed


@_jit
def _tangent(z: tl.tensor, v: tl.tensor, ON: tl.constexpr) -> tl.tensor:
    if ON == "geodesic":
        v = v - tl.sum(v * z, 0) * z
    return v


@_jit_kernel
def chain_kernel(
    start_ptr: tl.tensor,
    position_ptr: tl.tensor,
    energy_ptr: tl.tensor,
    grad_ptr: tl.tensor,
    accepted_ptr: tl.tensor,
    seed_ptr: tl.tensor,
    temperature_ptr: tl.tensor,
    size_ptr: tl.tensor,
    w_ptr: tl.tensor,
    w32_ptr: tl.tensor,
    maps_ptr: tl.tensor,
    planes_ptr: tl.tensor,
    n: tl.tensor,
    programs: tl.tensor,
    seed_stride: tl.tensor,
    temperature_stride: tl.tensor,
    size_stride: tl.tensor,
    weight_stride: tl.tensor,
    maps_stride: tl.tensor,
    planes_stride: tl.tensor,
    noise_ratio: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    clip: tl.tensor,
    STEPS: tl.constexpr,
    LATENT: tl.constexpr,
    METROPOLIS: tl.constexpr,
    ON: tl.constexpr,
    CLIP: tl.constexpr,
    ANNEAL: tl.constexpr,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    Z: tl.constexpr,
    HP: tl.constexpr,
    ZP: tl.constexpr,
    SPHERE: tl.constexpr,
    SIGMOID: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """All steps of the images program_id(1), program_id(1) + programs, ... of model program_id(0)."""
    member = tl.program_id(0)
    program = member * programs + tl.program_id(1)
    w, w32 = w_ptr + member * weight_stride, w32_ptr + member * weight_stride
    maps, planes = maps_ptr + program.to(tl.int64) * maps_stride, planes_ptr + program.to(tl.int64) * planes_stride
    seed = tl.load(seed_ptr + member * seed_stride)
    rows = tl.arange(0, ZP)
    real = rows < Z
    image = tl.program_id(1)
    while image < n:  # the interpreter has no range over tensors
        sample = member * n + image
        temperature = tl.load(temperature_ptr + sample * temperature_stride).to(tl.float32)
        size = tl.load(size_ptr + sample * size_stride).to(tl.float32)
        rate = size / temperature
        noise = tl.sqrt(noise_ratio * size)
        energy = 0.0
        z = tl.zeros((ZP,), tl.float32)
        grad = tl.zeros((ZP,), tl.float32)
        if LATENT:
            z = tl.load(start_ptr + sample * Z + rows, mask=real, other=0.0).to(tl.float32)
        else:
            _copy_in(start_ptr + sample * (SIDE * SIDE), planes + _large(5, SIDE, 1), SIDE, TILE)
        # Turn 0 stays in place and fetches energy and gradient of the start, so that the passes stand here once.
        for t in range(STEPS + 1):
            sigma = noise
            if ANNEAL:
                sigma = noise / tl.maximum(t, 1)
            y, there, back_again = z, z, z
            if LATENT:
                kick = tl.where(real, _normal(seed, sample * Z + rows, t) * sigma, 0.0)
                drift = _tangent(z, -rate * grad, ON)
                y, there, back_again, allowed = _latent_move(z, drift, kick, low, high, ON, real)
                y = tl.where(t > 0, y, z)
                there = there - drift
            else:
                outside = _propose(planes, rate, sigma, seed, sample * (SIDE * SIDE), t, low, high, ON, SIDE, TILE)
                allowed = outside == 0
            y_energy, y_grad = _value_and_grad(
                y, maps, planes, w, w32, clip, LATENT, CLIP, SIDE, C, HP, ZP, SPHERE, SIGMOID, PRECISION, TILE, ROWS,
                COLUMNS,
            )  # fmt: skip
            accepted = allowed
            if METROPOLIS:
                if LATENT:
                    back_again = back_again - _tangent(y, -rate * y_grad, ON)
                    squares = tl.sum(there * there - back_again * back_again, 0)
                else:
                    squares = _squares(planes, rate, SIDE, TILE)
                log_ratio = (energy - y_energy) / temperature + squares / (2.0 * sigma * sigma)
                accepted = allowed & (tl.log(_uniform(seed, sample, t)) < log_ratio)
            taken = accepted | (t == 0)
            energy = tl.where(taken, y_energy, energy)
            if LATENT:
                z = tl.where(taken, y, z)
                grad = tl.where(taken, y_grad, grad)
            else:
                _take(planes, taken, SIDE, TILE)
            counter = ((t - 1) * tl.num_programs(0) + member) * n + image
            tl.store(accepted_ptr + counter, accepted.to(tl.int32), mask=t > 0)
        tl.store(energy_ptr + sample, energy)
        if LATENT:
            tl.store(position_ptr + sample * Z + rows, z, mask=real)
            tl.store(grad_ptr + sample * Z + rows, grad, mask=real)
        else:
            _copy_out(planes + _large(5, SIDE, 1), position_ptr + sample * (SIDE * SIDE), SIDE, TILE)
            _copy_out(planes + _large(6, SIDE, 1), grad_ptr + sample * (SIDE * SIDE), SIDE, TILE)
            tl.debug_barrier()
        image += programs


@_jit_kernel
def energy_kernel(
    x_ptr: tl.tensor,
    energy_ptr: tl.tensor,
    latent_ptr: tl.tensor,
    w_ptr: tl.tensor,
    w32_ptr: tl.tensor,
    maps_ptr: tl.tensor,
    planes_ptr: tl.tensor,
    n: tl.tensor,
    programs: tl.tensor,
    weight_stride: tl.tensor,
    maps_stride: tl.tensor,
    planes_stride: tl.tensor,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    Z: tl.constexpr,
    HP: tl.constexpr,
    ZP: tl.constexpr,
    SPHERE: tl.constexpr,
    SIGMOID: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Energies and latent points of images."""
    member = tl.program_id(0)
    program = member * programs + tl.program_id(1)
    w, w32 = w_ptr + member * weight_stride, w32_ptr + member * weight_stride
    maps, planes = maps_ptr + program.to(tl.int64) * maps_stride, planes_ptr + program.to(tl.int64) * planes_stride
    rows = tl.arange(0, ZP)
    image = tl.program_id(1)
    while image < n:  # the interpreter has no range over tensors
        sample = (member * n + image).to(tl.int64)
        _copy_in(x_ptr + sample * (SIDE * SIDE), planes, SIDE, TILE)
        z, _, _ = _encode(maps, planes, w, w32, SIDE, C, HP, ZP, SPHERE, PRECISION, TILE, ROWS)
        squares, _, _ = _decode(z, maps, planes, w, w32, False, SIDE, C, HP, ZP, SIGMOID, PRECISION, TILE, ROWS)
        tl.store(energy_ptr + sample, squares / (SIDE * SIDE))
        tl.store(latent_ptr + sample * Z + rows, z, mask=rows < Z)
        image += programs


@_jit_kernel
def gradient_kernel(
    x_ptr: tl.tensor,
    v_energy_ptr: tl.tensor,
    v_latent_ptr: tl.tensor,
    out_ptr: tl.tensor,
    vectors_ptr: tl.tensor,
    w_ptr: tl.tensor,
    w32_ptr: tl.tensor,
    maps_ptr: tl.tensor,
    planes_ptr: tl.tensor,
    n: tl.tensor,
    programs: tl.tensor,
    weight_stride: tl.tensor,
    maps_stride: tl.tensor,
    planes_stride: tl.tensor,
    out_stride: tl.tensor,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    Z: tl.constexpr,
    HP: tl.constexpr,
    ZP: tl.constexpr,
    SPHERE: tl.constexpr,
    SIGMOID: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """The gradient of sum_i (v_energy_i E_i + v_latent_i z_i) with respect to the weights.

    Those of convolutions and slopes are summed over a program's images. A dense layer's is a matrix product over all
    images of its input and of v behind it, which go to `vectors`: A5, v, hidden of the encoder, v, z, v, hidden of the
    decoder, v at A9.
    """
    HALF: tl.constexpr = SIDE // 2
    LENGTH: tl.constexpr = 2 * HALF * HALF + 4 * HP + 2 * ZP
    member = tl.program_id(0)
    program = member * programs + tl.program_id(1)
    w, w32 = w_ptr + member * weight_stride, w32_ptr + member * weight_stride
    maps, planes = maps_ptr + program.to(tl.int64) * maps_stride, planes_ptr + program.to(tl.int64) * planes_stride
    alpha = _vectors(w32, SIDE, C, HP, ZP) + 9 * C
    out = out_ptr + program * out_stride
    rows, columns = tl.arange(0, ZP), tl.arange(0, HP)
    image = tl.program_id(1)
    while image < n:  # the interpreter has no range over tensors
        sample = (member * n + image).to(tl.int64)
        vectors = vectors_ptr + sample * LENGTH
        _copy_in(x_ptr + sample * (SIDE * SIDE), planes, SIDE, TILE)
        z, length, e_hidden = _encode(maps, planes, w, w32, SIDE, C, HP, ZP, SPHERE, PRECISION, TILE, ROWS)
        _copy_out(planes + _small(0, 7, SIDE, 1), vectors, HALF, TILE)
        _, largest, d_hidden = _decode(z, maps, planes, w, w32, False, SIDE, C, HP, ZP, SIGMOID, PRECISION, TILE, ROWS)
        factor = tl.load(v_energy_ptr + sample) * (-2.0 / (SIDE * SIDE))
        v_z, v_d = _decode_back(
            d_hidden, largest, factor, maps, planes, w, w32, out, False, True, SIDE, C, HP, ZP, PRECISION, TILE, ROWS
        )
        v9 = planes + _small(4, 7, SIDE, 1)
        dense = vectors + HALF * HALF + 4 * HP + 2 * ZP
        for start in range(0, HALF * HALF, TILE):
            place, inside = place_of(start, HALF, TILE)
            tl.store(dense + start + tl.arange(0, TILE), tl.load(v9 + place) * factor, mask=inside)
        tl.debug_barrier()
        v_z = v_z * factor + tl.load(v_latent_ptr + sample * Z + rows, mask=rows < Z, other=0.0)
        _, v_z, v_e = _encode_back(
            v_z, z, length, e_hidden, maps, planes, w, w32, out, True, SIDE, C, HP, ZP, SPHERE, PRECISION, TILE, ROWS
        )
        at = vectors + HALF * HALF
        tl.store(at + columns, v_e)
        tl.store(at + HP + columns, prelu(e_hidden, tl.load(alpha + 5)))
        tl.store(at + 2 * HP + rows, v_z)
        tl.store(at + 2 * HP + ZP + rows, z)
        tl.store(at + 2 * HP + 2 * ZP + columns, v_d * factor)
        tl.store(at + 3 * HP + 2 * ZP + columns, prelu(d_hidden, tl.load(alpha + 6)))
        image += programs
