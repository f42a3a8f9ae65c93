"""Weights of the convolutional autoencoder in the order that its kernels read, and gradients back in that of a row.

Both are one gather: `packed = cat(row, 0)[index]`. The index comes from the operations (transpose, pad) that
would pack the weights themselves, done once on the numbers of the columns. Padding points to the zero behind the row.

    packed     5 convolutions C -> C as (9, C, C): tap, channel in, channel out; 4 convolutions with one channel on one
               side as (9, C); dense matrices (SMALL, HP) twice and (ZP, HP) twice; biases of convolutions (9, C);
               slopes (16,); biases (HP,) of the encoder, (HP,) of the decoder, (ZP,), (SMALL,)
    gathered   gradients of 5 convolutions as (9, C, C), of 4 as (9, C), of biases (9, C), of slopes (16,)
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from normae.networks.reconstruction import ConvShape, Layout

MIXING = ("encoder.2", "encoder.5", "encoder.7", "decoder.7", "decoder.10")
SINGLE = ("encoder.0", "encoder.9", "decoder.5", "decoder.12")
CONVOLUTIONS = (
    "encoder.0", "encoder.2", "encoder.5", "encoder.7", "encoder.9", "decoder.5", "decoder.7", "decoder.10",
    "decoder.12",
)  # fmt: skip
SLOPES = (
    "encoder.1", "encoder.3", "encoder.6", "encoder.8", "encoder.10", "encoder.13", "decoder.1", "decoder.3",
    "decoder.6", "decoder.8", "decoder.11",
)  # fmt: skip
DENSE = ("encoder.12", "encoder.14", "decoder.0", "decoder.2")


@cache  # never given up: a captured graph reads it
def packing(layout: Layout, shape: ConvShape, device: torch.device) -> Tensor:
    """Columns of cat(row, 0) in packed order, int64 with shape (Q,)."""
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


@cache
def unpacking(layout: Layout, shape: ConvShape, device: torch.device) -> Tensor:
    """Where each column of a row finds its gradient in cat(gathered, `dense_gradients`), int64 with shape (P,)."""
    c = shape.channels
    start = 0

    def take(*sizes: int) -> Tensor:
        nonlocal start
        count = int(torch.Size(sizes).numel())
        start += count
        return torch.arange(start - count, start).reshape(sizes)

    found: dict[str, Tensor] = {}
    for name in MIXING:
        found[f"{name}.weight"] = take(3, 3, c, c).permute(3, 2, 0, 1)
    for name in SINGLE:
        found[f"{name}.weight"] = take(9, c).T
    for name in CONVOLUTIONS:
        found[f"{name}.bias"] = take(c)[: 1 if name in ("encoder.9", "decoder.12") else c]
    for name, place in zip(SLOPES, take(16), strict=False):
        found[f"{name}.weight"] = place[None]
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    for name in DENSE:
        for kind in ("weight", "bias"):
            found[f"{name}.{kind}"] = take(*shapes[f"{name}.{kind}"])
    return torch.cat([found[name].reshape(-1) for name in layout.names]).to(device)


def pack(weights: Tensor, index: Tensor) -> Tensor:
    """Weights (S, P) in packed order, float32 with shape (S, Q)."""
    return torch.cat([weights, weights.new_zeros(len(weights), 1)], 1).index_select(1, index)


def dense_gradients(vectors: Tensor, shape: ConvShape) -> Sequence[Tensor]:
    """Gradients of the dense layers, weight and bias of each flattened to (S, n), from `vectors` (S, N, LENGTH)."""
    hp, zp, h, z = shape.hp, shape.zp, shape.hidden, shape.latent
    sizes = [shape.small, hp, hp, zp, zp, hp, hp, shape.small]
    a5, v_e, a_e, v_z, z_in, v_d, a_d, v_9 = torch.split(vectors, sizes, dim=2)
    pairs = [(v_e[..., :h], a5), (v_z[..., :z], a_e[..., :h]), (v_d[..., :h], z_in[..., :z]), (v_9, a_d[..., :h])]
    return [piece for v, a in pairs for piece in ((v.transpose(1, 2) @ a).flatten(1), v.sum(1))]
