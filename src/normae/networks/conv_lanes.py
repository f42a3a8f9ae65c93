"""Forward passes of the paper's convolutional layers, compiled by numba: eight channels are the lanes of a vector unit.

A pixel's eight channels lie together, and so do the eight weights that lead from one of them to all: a convolution is
one broadcast, one load and one multiplication with addition of eight numbers for each tap and channel, for ten pixels
at a time so that the unit is never idle. Written in scalars; LLVM makes vectors of them, which numba has to be asked
for while it compiles. LLVM inlines the small functions too: numba's own inlining takes three times as long to compile,
and gives code that takes four times as long. Maps have a border of zeros: one of a side s is (s + 2, s + 2, 8).

Importing this module compiles, or loads what was compiled before. `scoring_energy` is its only user.
"""

# mypy: ignore-errors

import numba
import numpy as np
from numba.core import config

_before = config.SLP_VECTORIZE
config.SLP_VECTORIZE = 1
_options = {"error_model": "numpy", "nogil": True, "fastmath": {"contract", "nsz", "reassoc"}}
kernel = numba.njit(**_options)
_maps, _rows = numba.float32[:, :, ::1], numba.float32[:, ::1]
eager = numba.njit((_maps, _maps, _rows, numba.float32[::1], _rows, numba.float32, _maps), cache=True, **_options)


@kernel
def _add(s, v, w, k):
    """s + v w[k], of eight numbers."""
    return (
        s[0] + v * w[k, 0], s[1] + v * w[k, 1], s[2] + v * w[k, 2], s[3] + v * w[k, 3],
        s[4] + v * w[k, 4], s[5] + v * w[k, 5], s[6] + v * w[k, 6], s[7] + v * w[k, 7],
    )  # fmt: skip


@kernel
def _larger(a, b):
    return b if b > a else a


@kernel
def _put(out, y, x, s, slope):
    """PReLU; what is not a number stays so."""
    for c in range(8):
        out[y, x, c] = s[c] if s[c] > 0 else slope * s[c]


@kernel
def _convolve(x, w, b, slope, out):
    """Channels to eight channels, and PReLU: w has shape (9 * channels, 8)."""
    side, channels = x.shape[0] - 2, x.shape[2]
    for y in range(side):
        for q in range(0, side, 10):
            s0 = (b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7])
            s1, s2, s3, s4, s5, s6, s7, s8, s9 = s0, s0, s0, s0, s0, s0, s0, s0, s0
            for dy in range(3):
                for dx in range(3):
                    for c in range(channels):
                        k = (3 * dy + dx) * channels + c
                        s0 = _add(s0, x[y + dy, q + dx + 0, c], w, k)
                        s1 = _add(s1, x[y + dy, q + dx + 1, c], w, k)
                        s2 = _add(s2, x[y + dy, q + dx + 2, c], w, k)
                        s3 = _add(s3, x[y + dy, q + dx + 3, c], w, k)
                        s4 = _add(s4, x[y + dy, q + dx + 4, c], w, k)
                        s5 = _add(s5, x[y + dy, q + dx + 5, c], w, k)
                        s6 = _add(s6, x[y + dy, q + dx + 6, c], w, k)
                        s7 = _add(s7, x[y + dy, q + dx + 7, c], w, k)
                        s8 = _add(s8, x[y + dy, q + dx + 8, c], w, k)
                        s9 = _add(s9, x[y + dy, q + dx + 9, c], w, k)
            sums = (s0, s1, s2, s3, s4, s5, s6, s7, s8, s9)
            for k in range(10):
                _put(out, y + 1, q + 1 + k, sums[k], slope)


@kernel
def _narrow(x, w, b, out):
    """Eight channels to one: w has shape (9, 8), out (side, side)."""
    side = x.shape[0] - 2
    for y in range(side):
        for q in range(side):
            total = b
            for dy in range(3):
                for dx in range(3):
                    for c in range(8):
                        total += x[y + dy, q + dx, c] * w[3 * dy + dx, c]
            out[y, q] = total


@kernel
def _pool(x, out):
    """The largest of two by two."""
    for y in range(out.shape[0] - 2):
        for q in range(out.shape[1] - 2):
            for c in range(8):
                above = _larger(x[2 * y + 1, 2 * q + 1, c], x[2 * y + 1, 2 * q + 2, c])
                below = _larger(x[2 * y + 2, 2 * q + 1, c], x[2 * y + 2, 2 * q + 2, c])
                out[y + 1, q + 1, c] = _larger(above, below)


@kernel
def _upsample(x, out):
    """Bilinear, by two: three quarters of the nearest and a quarter of the next, which is itself at the border."""
    side = x.shape[0] - 2
    for y in range(2 * side):
        near = y // 2
        far = min(max(near + 2 * (y % 2) - 1, 0), side - 1)
        for q in range(2 * side):
            close = q // 2
            distant = min(max(close + 2 * (q % 2) - 1, 0), side - 1)
            for c in range(8):
                a = np.float32(0.75) * x[near + 1, close + 1, c] + np.float32(0.25) * x[far + 1, close + 1, c]
                b = np.float32(0.75) * x[near + 1, distant + 1, c] + np.float32(0.25) * x[far + 1, distant + 1, c]
                out[y + 1, q + 1, c] = np.float32(0.75) * a + np.float32(0.25) * b


@eager
def forward(x, w, b, slopes, w_out, b_out, found):
    """Maps (N, s, s) through two layers, pooling or upsampling to the side of `found`, the other layers, and the last.

    w and b are of the layers to eight channels; `found`, with shape (N, side, side), is before a nonlinearity.
    """
    before, side = x.shape[1] + 2, found.shape[1] + 2
    plane = np.zeros((before, before, 1), np.float32)
    first, second = np.zeros((before, before, 8), np.float32), np.zeros((before, before, 8), np.float32)
    here, there = np.zeros((side, side, 8), np.float32), np.zeros((side, side, 8), np.float32)
    for n in range(x.shape[0]):
        plane[1:-1, 1:-1, 0] = x[n]
        _convolve(plane, w[0, :9], b[0], slopes[0], first)
        _convolve(first, w[1], b[1], slopes[1], second)
        if side < before:
            _pool(second, here)
        else:
            _upsample(second, here)
        _convolve(here, w[2], b[2], slopes[2], there)
        if w.shape[0] > 3:
            _convolve(there, w[3], b[3], slopes[3], here)
            _narrow(here, w_out, b_out, found[n])
        else:
            _narrow(there, w_out, b_out, found[n])


config.SLP_VECTORIZE = _before
