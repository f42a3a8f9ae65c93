"""Layers of the convolutional autoencoder for one image and one Triton program: forward, pullback, weight gradients.

A program works on one image. Its activations are too many for registers, so they stand in scratch memory that belongs
to the program and stays in the caches; a barrier separates a layer that writes from the next that reads. A map has C
channels for each pixel, channels last; a plane has one float32 value for each pixel. Both have a border of one pixel
that is zero and is never written, so that no layer asks where the image ends: pixel (row, column) has the place
(row + 1) (SIDE + 2) + column + 1.

The three pixels of a row below a 3x3 stencil are 3 C neighbours in memory. With the pixel behind them, whose weights
are zero, they are the 4 C columns of the left factor of a matrix product: three products a layer. The pullback of a
convolution is the convolution with flipped, transposed weights, so it is the same function.

H is the input of a nonlinearity and A its output. What is stored is what counts: A, the slope and the choice of the
pooling are made from the rounded H.
"""

from __future__ import annotations  # triton's types in signatures, where triton may be absent

from normae.networks.mlp_kernels import _jit

try:
    import triton.language as tl
except ImportError:
    tl = None

__all__ = [
    "back",
    "back_pooled",
    "forward",
    "forward_pooled",
    "from_rows",
    "narrow",
    "place_of",
    "prelu",
    "slope_of",
    "spread",
    "spread_back",
    "to_rows",
    "weight_gradient",
    "weight_gradient_plane",
    "widen",
    "widen_back",
]


@_jit
def place_of(start: tl.tensor, SIDE: tl.constexpr, TILE: tl.constexpr) -> tl.tuple:
    """Places of the pixels start, start + 1, ... with shape (TILE,), and which of them there are."""
    pixel = start + tl.arange(0, TILE)
    inside = pixel < SIDE * SIDE
    pixel = tl.minimum(pixel, SIDE * SIDE - 1)
    return (pixel // SIDE + 1) * (SIDE + 2) + pixel % SIDE + 1, inside


@_jit
def _corner_of(start: tl.tensor, HALF: tl.constexpr, TILE: tl.constexpr) -> tl.tensor:
    """Places in the large image of the upper left pixels of the 2x2 windows start, start + 1, ..."""
    window = tl.minimum(start + tl.arange(0, TILE), HALF * HALF - 1)
    return (2 * (window // HALF) + 1) * (2 * HALF + 2) + 2 * (window % HALF) + 1


@_jit
def prelu(h: tl.tensor, alpha: tl.tensor) -> tl.tensor:
    """The nonlinearity."""
    return tl.where(h > 0.0, h, alpha * h)


@_jit
def slope_of(h: tl.tensor, alpha: tl.tensor) -> tl.tensor:
    """Its derivative."""
    return tl.where(h > 0.0, 1.0, alpha)


@_jit
def _at(place: tl.tensor, C: tl.constexpr) -> tl.tensor:
    """Offsets of the channels at places, with shape (TILE, C)."""
    return (place * C)[:, None] + tl.arange(0, C)[None, :]


@_jit
def _product(x: tl.tensor, w: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    if PRECISION == "fp16":
        y = tl.dot(x, w)
    else:
        y = tl.dot(x, w, input_precision=PRECISION)
    return y


@_jit
def _row(src: tl.tensor, place: tl.tensor, dy: tl.constexpr, ROW: tl.constexpr, C: tl.constexpr) -> tl.tensor:
    """The four pixels from the left neighbour on, one row up or down by dy, with shape (TILE, 4 C)."""
    return tl.load(src + (place * C)[:, None] + ((dy * ROW - 1) * C + tl.arange(0, 4 * C))[None, :])


@_jit
def _matrix(w: tl.tensor, k: tl.constexpr, C: tl.constexpr) -> tl.tensor:
    """The weights of one row of the stencil, with shape (4 C, C)."""
    return tl.load(w + k * 4 * C * C + tl.arange(0, 4 * C)[:, None] * C + tl.arange(0, C)[None, :])


@_jit
def _stencil(
    src: tl.tensor,
    w: tl.tuple,
    place: tl.tensor,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """The convolution of a map at places, with shape (TILE, C), without bias."""
    up, middle, down = w
    acc = _product(_row(src, place, -1, SIDE + 2, C), up, PRECISION)
    acc += _product(_row(src, place, 0, SIDE + 2, C), middle, PRECISION)
    return acc + _product(_row(src, place, 1, SIDE + 2, C), down, PRECISION)


@_jit
def _store_both(
    h_map: tl.tensor,
    a_map: tl.tensor,
    at: tl.tensor,
    mask: tl.tensor,
    h: tl.tensor,
    alpha: tl.tensor,
) -> None:
    rounded = h.to(h_map.dtype.element_ty)
    tl.store(h_map + at, rounded, mask=mask)
    tl.store(a_map + at, prelu(rounded.to(tl.float32), alpha).to(a_map.dtype.element_ty), mask=mask)


# --- forward


@_jit
def forward(
    src: tl.tensor,
    h_map: tl.tensor,
    a_map: tl.tensor,
    w: tl.tensor,
    bias: tl.tensor,
    alpha: tl.tensor,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """A convolution C -> C and its nonlinearity."""
    matrices = (_matrix(w, 0, C), _matrix(w, 1, C), _matrix(w, 2, C))
    b = tl.load(bias + tl.arange(0, C))
    for start in range(0, SIDE * SIDE, TILE):
        place, inside = place_of(start, SIDE, TILE)
        h = _stencil(src, matrices, place, SIDE, C, PRECISION) + b[None, :]
        _store_both(h_map, a_map, _at(place, C), inside[:, None], h, alpha)
    tl.debug_barrier()


@_jit
def forward_pooled(
    src: tl.tensor,
    h_map: tl.tensor,
    a_map: tl.tensor,
    w: tl.tensor,
    bias: tl.tensor,
    alpha: tl.tensor,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """A convolution C -> C, its nonlinearity, and the largest value of each 2x2 window; H is large, A small."""
    HALF: tl.constexpr = SIDE // 2
    matrices = (_matrix(w, 0, C), _matrix(w, 1, C), _matrix(w, 2, C))
    b = tl.load(bias + tl.arange(0, C))
    for start in range(0, HALF * HALF, TILE):
        small, inside = place_of(start, HALF, TILE)
        corner = _corner_of(start, HALF, TILE)
        best = tl.full((TILE, C), float("-inf"), tl.float32)
        for q in tl.static_range(4):
            place = corner + (q // 2) * (SIDE + 2) + q % 2
            h = (_stencil(src, matrices, place, SIDE, C, PRECISION) + b[None, :]).to(h_map.dtype.element_ty)
            tl.store(h_map + _at(place, C), h, mask=inside[:, None])
            best = tl.maximum(best, prelu(h.to(tl.float32), alpha))
        tl.store(a_map + _at(small, C), best.to(a_map.dtype.element_ty), mask=inside[:, None])
    tl.debug_barrier()


@_jit
def _widened(
    plane: tl.tensor, w: tl.tensor, place: tl.tensor, ROW: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr
) -> tl.tensor:
    """The convolution 1 -> C of a plane at places, with shape (TILE, C), in float32."""
    acc = tl.zeros((TILE, C), tl.float32)
    for tap in tl.static_range(9):
        x = tl.load(plane + place + ((tap // 3 - 1) * ROW + tap % 3 - 1))
        acc += x[:, None] * tl.load(w + tap * C + tl.arange(0, C))[None, :]
    return acc


@_jit
def widen(
    plane: tl.tensor,
    h_map: tl.tensor,
    a_map: tl.tensor,
    w: tl.tensor,
    bias: tl.tensor,
    alpha: tl.tensor,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """A convolution 1 -> C and its nonlinearity."""
    b = tl.load(bias + tl.arange(0, C))
    for start in range(0, SIDE * SIDE, TILE):
        place, inside = place_of(start, SIDE, TILE)
        h = _widened(plane, w, place, SIDE + 2, C, TILE) + b[None, :]
        _store_both(h_map, a_map, _at(place, C), inside[:, None], h, alpha)
    tl.debug_barrier()


@_jit
def narrow(
    src: tl.tensor, w: tl.tensor, place: tl.tensor, ROW: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr
) -> tl.tensor:
    """The convolution C -> 1 of a map at places, with shape (TILE,), in float32, without bias."""
    acc = tl.zeros((TILE, C), tl.float32)
    for tap in tl.static_range(9):
        x = tl.load(src + _at(place + ((tap // 3 - 1) * ROW + tap % 3 - 1), C)).to(tl.float32)
        acc += x * tl.load(w + tap * C + tl.arange(0, C))[None, :]
    return tl.sum(acc, 1)


@_jit
def _blend(
    src: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    HALF: tl.constexpr,
    C: tl.constexpr,
) -> tl.tensor:
    place = (row + 1) * (HALF + 2) + column + 1
    return tl.load(src + _at(place, C)).to(tl.float32)


@_jit
def spread(src: tl.tensor, dst: tl.tensor, SIDE: tl.constexpr, C: tl.constexpr, TILE: tl.constexpr) -> None:
    """Bilinear upsampling by two: 3/4 of the nearest pixel and 1/4 of the next along each axis; edges are repeated."""
    HALF: tl.constexpr = SIDE // 2
    for start in range(0, SIDE * SIDE, TILE):
        place, inside = place_of(start, SIDE, TILE)
        pixel = tl.minimum(start + tl.arange(0, TILE), SIDE * SIDE - 1)
        row, column = pixel // SIDE, pixel % SIDE
        near_row, near_column = row // 2, column // 2
        next_row = tl.minimum(tl.maximum(near_row + 2 * (row % 2) - 1, 0), HALF - 1)
        next_column = tl.minimum(tl.maximum(near_column + 2 * (column % 2) - 1, 0), HALF - 1)
        value = 0.5625 * _blend(src, near_row, near_column, HALF, C)
        value += 0.1875 * _blend(src, near_row, next_column, HALF, C)
        value += 0.1875 * _blend(src, next_row, near_column, HALF, C)
        value += 0.0625 * _blend(src, next_row, next_column, HALF, C)
        tl.store(dst + _at(place, C), value.to(dst.dtype.element_ty), mask=inside[:, None])
    tl.debug_barrier()


# --- pullback


@_jit
def _store_back(
    v: tl.tensor,
    h_map: tl.tensor,
    dst: tl.tensor,
    at: tl.tensor,
    mask: tl.tensor,
    alpha: tl.tensor,
) -> tl.tensor:
    """Store v times the slope; v times the negative part of H, with shape (TILE, C), is the slope's own gradient."""
    h = tl.load(h_map + at).to(tl.float32)
    tl.store(dst + at, (v * slope_of(h, alpha)).to(dst.dtype.element_ty), mask=mask)
    return tl.where(mask, v * tl.minimum(h, 0.0), 0.0)


@_jit
def back(
    src: tl.tensor,
    h_map: tl.tensor,
    dst: tl.tensor,
    w: tl.tensor,
    alpha: tl.tensor,
    SLOPE: tl.constexpr,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """Pull back through a convolution C -> C and the nonlinearity before it, if SLOPE; its slope's gradient."""
    matrices = (_matrix(w, 0, C), _matrix(w, 1, C), _matrix(w, 2, C))
    total = tl.zeros((TILE, C), tl.float32)
    for start in range(0, SIDE * SIDE, TILE):
        place, inside = place_of(start, SIDE, TILE)
        v = _stencil(src, matrices, place, SIDE, C, PRECISION)
        if SLOPE:
            total += _store_back(v, h_map, dst, _at(place, C), inside[:, None], alpha)
        else:
            tl.store(dst + _at(place, C), v.to(dst.dtype.element_ty), mask=inside[:, None])
    tl.debug_barrier()
    return total


@_jit
def back_pooled(
    src: tl.tensor,
    h_map: tl.tensor,
    dst: tl.tensor,
    w: tl.tensor,
    alpha: tl.tensor,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """Pull back through a convolution of the small image, the pooling (to the first largest) and the nonlinearity."""
    HALF: tl.constexpr = SIDE // 2
    matrices = (_matrix(w, 0, C), _matrix(w, 1, C), _matrix(w, 2, C))
    total = tl.zeros((TILE, C), tl.float32)
    for start in range(0, HALF * HALF, TILE):
        small, inside = place_of(start, HALF, TILE)
        corner = _corner_of(start, HALF, TILE)
        v = _stencil(src, matrices, small, HALF, C, PRECISION)
        best = tl.full((TILE, C), float("-inf"), tl.float32)
        for q in tl.static_range(4):
            h = tl.load(h_map + _at(corner + (q // 2) * (SIDE + 2) + q % 2, C)).to(tl.float32)
            best = tl.maximum(best, prelu(h, alpha))
        free = best == best
        for q in tl.static_range(4):
            at = _at(corner + (q // 2) * (SIDE + 2) + q % 2, C)
            h = tl.load(h_map + at).to(tl.float32)
            chosen = free & (prelu(h, alpha) == best)
            free = free & (prelu(h, alpha) != best)
            total += _store_back(tl.where(chosen, v, 0.0), h_map, dst, at, inside[:, None], alpha)
    tl.debug_barrier()
    return total


@_jit
def widen_back(
    plane: tl.tensor,
    scale: tl.tensor,
    h_map: tl.tensor,
    dst: tl.tensor,
    w: tl.tensor,
    alpha: tl.tensor,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """Pull back `scale` times a plane through a convolution C -> 1 and the nonlinearity before it."""
    total = tl.zeros((TILE, C), tl.float32)
    for start in range(0, SIDE * SIDE, TILE):
        place, inside = place_of(start, SIDE, TILE)
        v = _widened(plane, w, place, SIDE + 2, C, TILE) * scale
        total += _store_back(v, h_map, dst, _at(place, C), inside[:, None], alpha)
    tl.debug_barrier()
    return total


@_jit
def spread_back(
    src: tl.tensor,
    h_map: tl.tensor,
    dst: tl.tensor,
    alpha: tl.tensor,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """Pull back through the upsampling and the nonlinearity before it."""
    HALF: tl.constexpr = SIDE // 2
    total = tl.zeros((TILE, C), tl.float32)
    for start in range(0, HALF * HALF, TILE):
        small, inside = place_of(start, HALF, TILE)
        corner = _corner_of(start, HALF, TILE)
        window = tl.minimum(start + tl.arange(0, TILE), HALF * HALF - 1)
        row, column = window // HALF, window % HALF
        v = tl.zeros((TILE, C), tl.float32)
        for dy in tl.static_range(4):
            for dx in tl.static_range(4):
                weight = _share(dy, row, HALF) * _share(dx, column, HALF)
                at = _at(corner + (dy - 1) * (SIDE + 2) + dx - 1, C)
                v += weight[:, None] * tl.load(src + at).to(tl.float32)
        total += _store_back(v, h_map, dst, _at(small, C), inside[:, None], alpha)
    tl.debug_barrier()
    return total


@_jit
def _share(k: tl.constexpr, place: tl.tensor, HALF: tl.constexpr) -> tl.tensor:
    """What pixel `place` gave to pixel 2 place - 1 + k: 1/4, 3/4, 3/4, 1/4; at an edge 3/4 + 1/4."""
    if k == 1:
        share = tl.where(place == 0, 1.0, 0.75)
    elif k == 2:
        share = tl.where(place == HALF - 1, 1.0, 0.75)
    else:
        share = tl.where(place < 0, 0.0, 0.25)
    return share


# --- dense layers between the small image, as a plane, and the hidden vector


@_jit
def from_rows(w: tl.tensor, plane: tl.tensor, HALF: tl.constexpr, HP: tl.constexpr, ROWS: tl.constexpr) -> tl.tensor:
    """Sum over pixels of plane times weights, for weights with shape (HALF^2, HP); shape (HP,)."""
    acc = tl.zeros((ROWS, HP), tl.float32)
    for start in range(0, HALF * HALF, ROWS):
        place, inside = place_of(start, HALF, ROWS)
        at = (start + tl.arange(0, ROWS))[:, None] * HP + tl.arange(0, HP)[None, :]
        value = tl.load(plane + place, mask=inside, other=0.0)
        acc += tl.load(w + at, mask=inside[:, None], other=0.0).to(tl.float32) * value[:, None]
    tl.debug_barrier()
    return tl.sum(acc, 0)


@_jit
def to_rows(
    w: tl.tensor, hidden: tl.tensor, start: tl.tensor, inside: tl.tensor, HP: tl.constexpr, ROWS: tl.constexpr
) -> tl.tensor:
    """Weights times the hidden vector for the pixels start, start + 1, ...; shape (ROWS,)."""
    at = (start + tl.arange(0, ROWS))[:, None] * HP + tl.arange(0, HP)[None, :]
    matrix = tl.load(w + at, mask=inside[:, None], other=0.0).to(tl.float32)
    return tl.sum(matrix * hidden[None, :], 1)


# --- weight gradients, added to what a program has gathered


@_jit
def _add(pointer: tl.tensor, value: tl.tensor) -> None:
    tl.store(pointer, tl.load(pointer) + value)


@_jit
def weight_gradient(
    x_map: tl.tensor,
    v_map: tl.tensor,
    factor: tl.tensor,
    out: tl.tensor,
    bias_out: tl.tensor,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Of a convolution C -> C: the sum over pixels of its input below the stencil times v, and of v."""
    up = tl.zeros((4 * C, C), tl.float32)
    middle = tl.zeros((4 * C, C), tl.float32)
    down = tl.zeros((4 * C, C), tl.float32)
    bias = tl.zeros((TILE, C), tl.float32)
    for start in range(0, SIDE * SIDE, TILE):
        place, inside = place_of(start, SIDE, TILE)
        v = tl.load(v_map + _at(place, C), mask=inside[:, None], other=0.0)
        up += _product(tl.trans(_row(x_map, place, -1, SIDE + 2, C)), v, PRECISION)
        middle += _product(tl.trans(_row(x_map, place, 0, SIDE + 2, C)), v, PRECISION)
        down += _product(tl.trans(_row(x_map, place, 1, SIDE + 2, C)), v, PRECISION)
        bias += v.to(tl.float32)
    at = out + tl.arange(0, 4 * C)[:, None] * C + tl.arange(0, C)[None, :]
    _add(at, up * factor)
    _add(at + 4 * C * C, middle * factor)
    _add(at + 8 * C * C, down * factor)
    _add(bias_out + tl.arange(0, C), tl.sum(bias, 0) * factor)


@_jit
def weight_gradient_plane(
    plane: tl.tensor,
    scale: tl.tensor,
    channels: tl.tensor,
    factor: tl.tensor,
    out: tl.tensor,
    bias_out: tl.tensor,
    FLIP: tl.constexpr,
    SIDE: tl.constexpr,
    C: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Of a convolution 1 -> C with the plane as input and v as map; or, if FLIP, C -> 1 with v as plane.

    Summed over the pixels of the map, sum_p x(p + tap) v(p) and sum_q v(q - tap) x(q) are the same.
    """
    tap = tl.arange(0, 16)
    offset = (tap // 3 - 1) * (SIDE + 2) + tap % 3 - 1
    if FLIP:
        offset = -offset
    acc = tl.zeros((16, C), tl.float32)
    bias = tl.zeros((TILE, C), tl.float32)
    for start in range(0, SIDE * SIDE, TILE):
        place, inside = place_of(start, SIDE, TILE)
        shifted = tl.load(plane + place[:, None] + offset[None, :], mask=(tap < 9)[None, :], other=0.0) * scale
        c = tl.load(channels + _at(place, C), mask=inside[:, None], other=0.0)
        acc += _product(tl.trans(shifted.to(c.dtype)), c, PRECISION)
        if FLIP:
            v = tl.load(plane + place, mask=inside, other=0.0) * scale
            bias += tl.where(tl.arange(0, C)[None, :] == 0, v[:, None], 0.0)
        else:
            bias += c.to(tl.float32)
    _add(out + tap[:, None] * C + tl.arange(0, C)[None, :], acc * factor)
    _add(bias_out + tl.arange(0, C), tl.sum(bias, 0) * factor)
