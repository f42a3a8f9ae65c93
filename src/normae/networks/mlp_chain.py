"""A whole Langevin chain of MLP autoencoders in one Triton kernel.

A step of `langevin.step` is some 45 small kernels, whose launches take longer than their arithmetic. Here one program
keeps a block of samples of one model for all steps, and only the end points leave the chip. The mathematics is that of
`langevin`, `energy` and `networks.mlp`, and the tests hold it against them.

Inside a program everything stands as (feature, sample), so that a layer is h = W x + b with the weight as left factor
and, for the pullback, v -> W^T v with the same weight transposed: a tall weight times a narrow block of samples is the
shape in which few samples fill a Hopper tensor core. Events and latent points are padded to a power of two; padded rows
have zero weights and stay zero. `pack_kernel` writes the weights of a call, which are brought together, in that form.

A `LocalEnergy` adds sum_j c_j h_j^2 with h the input of the decoder's last layer, whose derivative joins the pullback
there.

Numbers. Energies, gradients and the log acceptance ratio are in float32, where `run_chain` takes the ratio in float64.
`precision` is the arithmetic of the H x H products. "fp16" rounds both factors to 10 bits of mantissa, so that the
paper's weights stay in shared memory (1.6 ms instead of 2.9 with tf32 for the paper's toy iteration); activations must
stay below 65504, and the vectors pulled back are scaled to be of order one. "ieee" is float32, which tells an error
from a rounding. The first and last layers, which see the events themselves, are summed in float32 always. The chain is
exact for exp(-E/T) of the rounded E, up to the float32 ratio. Random numbers: see `sampling.chain.keys`.
"""

from __future__ import annotations  # triton's types in signatures, where triton may be absent

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from normae.errors import InputError, refuse
from normae.networks.autoencoder import Autoencoder
from normae.networks.mlp import MLP
from normae.networks.mlp_kernels import chain_kernel, pack_kernel, triton
from normae.networks.reconstruction import LatentEnergy, LocalEnergy, ReconstructionEnergy
from normae.sampling.chain import numbers, run_chain, strided
from normae.sampling.config import ChainConfig
from normae.sampling.langevin import Scalar

Precision = Literal["fp16", "ieee"]

MOST_DIMENSIONS = 16  # of events and latent points, whose layers are sums over them rather than matrix products
RESIDENT_BYTES = 128 * 1024
"""Most memory of H x H matrices that a program keeps in shared memory; a Hopper multiprocessor has 227 KiB."""


def why_not(architecture: Autoencoder, *chains: ChainConfig) -> str | None:
    """Why the fused chain cannot be used for these, or None where it can."""
    encoder, decoder = architecture.encoder, architecture.decoder
    if triton is None:
        return "triton is not installed"
    if not isinstance(encoder, MLP) or not isinstance(decoder, MLP):
        return "encoder and decoder are not both MLPs"
    if architecture.sphere:
        return "the latent space is a sphere"
    for network in (encoder, decoder):
        if network.activation not in ("relu", "silu", "gelu"):
            return f"the activation is {network.activation}, not relu, silu or gelu"
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
    return "the chain moves on a sphere" if any(chain.sphere for chain in chains) else None


def _sizes(architecture: Autoencoder, config: ChainConfig) -> dict[str, int]:
    """Sizes as the kernels call them: D and Z of events and latent points, and IO, to which both are padded; numbers NE
    and ND of hidden layers, and their width H."""
    refuse(reason := why_not(architecture, config), f"the fused chain cannot be used: {reason}")
    e, d = architecture.encoder, architecture.decoder
    assert isinstance(e, MLP)
    assert isinstance(d, MLP)
    events, latent, width = e.sizes[0], e.sizes[-1], e.sizes[1]
    padded = max(2, 1 << (max(events, latent) - 1).bit_length())
    return {"D": events, "Z": latent, "NE": len(e.sizes) - 2, "ND": len(d.sizes) - 2, "H": width, "IO": padded}


def _pack(energy: ReconstructionEnergy, sizes: dict[str, int], precision: Precision, copies: int) -> tuple[Tensor, ...]:
    """The weights in the form that the chain reads.

    Returns:
        H x H matrices of encoder and decoder, rounded, with shape (S, copies, matrices, H, H), the second copy
        transposed; transposed first weight and last weight of encoder and decoder, with shape (S, 4, IO, H); biases of
        all layers, padded with zeros, with shape (S, layers, H).
    """
    sides = ((energy.encoder_parameters, sizes["NE"]), (energy.decoder_parameters, sizes["ND"]))
    pieces = [
        parameters[f"layers.{k}.{kind}"].detach().flatten(1)
        for parameters, hidden in sides
        for k in range(hidden + 1)
        for kind in ("weight", "bias")
    ]
    flat = torch.cat(pieces, 1).float()
    members, h, layers = energy.members, sizes["H"], sizes["NE"] + sizes["ND"] + 2
    dtype = torch.float16 if precision == "fp16" else torch.float32
    packed = (
        flat.new_empty((members, copies, layers - 4, h, h), dtype=dtype),
        flat.new_empty((members, 4, sizes["IO"], h)),
        flat.new_empty((members, layers, h)),
    )
    grid = (members, layers, h // 16)
    pack_kernel[grid](flat, *packed, flat.stride(0), **sizes, PRECISION=precision, COPIES=copies, ROWS=16)
    return packed


def launch_chain(
    energy: ReconstructionEnergy | LatentEnergy, start: Tensor, config: ChainConfig, temperature: Scalar, size: Scalar,
    seeds: Tensor, members: int, precision: Precision = "fp16", block: int = 16,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """End points, their energies, and counts of accepted steps, int32 with shape (steps, S, programs).

    Args:
        precision: arithmetic of the H x H products, see the module's docstring.
        block: samples per program, a power of two of at least 16.
    """
    latent = isinstance(energy, LatentEnergy)
    of = energy.energy if isinstance(energy, LatentEnergy) else energy
    networks, sizes = of.autoencoder, _sizes(of.autoencoder, config)
    dimension = sizes["Z" if latent else "D"]
    if start.ndim != 2 or start.shape[1] != dimension or len(start) % members:
        raise InputError(f"expected {members} equal blocks of points of shape ({dimension},), got {tuple(start.shape)}")
    if of.members not in (1, members) or len(seeds) not in (1, members):
        raise InputError(
            f"expected one model and one generator, or {members} of each for {members} blocks of samples, "
            f"got {of.members} and {len(seeds)}"
        )
    numbers_kept = (sizes["NE"] + sizes["ND"] - 2) * sizes["H"] ** 2
    resident = numbers_kept * (2 if precision == "fp16" else 8) <= RESIDENT_BYTES  # float32 stands both ways round
    packed = _pack(of, sizes, precision, copies=1 if resident else 2)
    variance = of.coefficients().detach().float().contiguous() if isinstance(of, LocalEnergy) else packed[-1]
    start, n = start.detach().contiguous(), len(start) // members
    programs = -(-n // block)
    position, value = torch.empty_like(start), start.new_empty(len(start))
    accepted = torch.empty((config.steps, members, programs), dtype=torch.int32, device=start.device)
    t, t_stride = strided(temperature, start)
    s, s_stride = strided(size, start)
    clip_rule = "none" if config.clip is None else "value" if config.clip_rule == "value" else "norm"
    chain_kernel[(members, programs)](
        start, position, value, accepted, seeds, t, s, *packed, variance, n, int(len(seeds) > 1), t_stride,
        s_stride, int(of.members > 1), *numbers(config),
        STEPS=config.steps, LATENT=latent, LOCAL=isinstance(of, LocalEnergy), METROPOLIS=config.metropolis == "exact",
        BOUNDS="none" if config.bounds is None else config.bounds_rule, CLIP=clip_rule, ANNEAL=config.anneal,
        DIMENSION=dimension, E_ACT=networks.encoder.activation, D_ACT=networks.decoder.activation,
        PRECISION=precision, RESIDENT=resident, BLOCK=block, num_warps=4, num_stages=1,
        **{name: size for name, size in sizes.items() if name != "Z"},
    )  # fmt: skip
    return position, value, accepted


fused_runner = partial(run_chain, launch=launch_chain)
"""`run_chain` in one kernel, for the energy of MLP autoencoders over feature or latent space."""
