"""Small convolutional autoencoders, events for them, and reference chains with the random numbers of a kernel."""

import sys

import numpy as np
import torch
from torch import Tensor, nn

from normae.networks import Autoencoder, NetworkConfig, build_autoencoder
from normae.sampling.chain import keys, run_chain
from normae.sampling.config import ChainConfig

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIDE = 8


def generator(seed: int = 0) -> torch.Generator:
    """Of the CPU: a kernel's key, and so the steps that its chain takes, are the same on all devices."""
    return torch.Generator().manual_seed(seed)


def models(members: int, side: int = SIDE, seed: int = 0, **changes: object) -> list[Autoencoder]:
    """Networks with weights of order one, so that no layer is idle, and slopes that can be told apart."""
    settings: dict = {"kind": "conv", "latent": 3, "hidden": (20,), "activation": "prelu", "latent_space": "sphere"}
    config = NetworkConfig(**(settings | {"output": "sigmoid"} | changes))
    draw = torch.Generator().manual_seed(seed)
    built = [build_autoencoder(config, (1, side, side), draw).to(DEVICE) for _ in range(members)]
    with torch.no_grad():
        for model in built:
            for k, layer in enumerate(m for m in model.modules() if isinstance(m, nn.PReLU)):
                layer.weight.fill_(0.1 + 0.05 * k)
            for p in model.parameters():
                if p.ndim > 1:
                    p.mul_(1.5)
    return built


def images(n: int, side: int = SIDE, seed: int = 1) -> Tensor:
    return torch.rand(n, 1, side, side, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def normal(n: int, d: int, seed: int = 0) -> Tensor:
    """The same on all devices: how near a kink a value lies decides what half precision can reach."""
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def sphere(n: int, d: int = 3, seed: int = 2) -> Tensor:
    return nn.functional.normalize(normal(n, d, seed), dim=1)


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert (ours.double() - theirs).norm() <= tolerance * theirs.norm()


def philox(seed: int, counter: np.ndarray, step: int, stream: int) -> tuple[np.ndarray, np.ndarray]:
    """The first two words of Philox 4x32 with ten rounds, for counters (counter, step, stream, 0)."""
    low = np.uint64(0xFFFFFFFF)
    c = [np.broadcast_to(np.uint64(v), counter.shape) for v in (0, step, stream, 0)]
    c[0] = counter.astype(np.uint64)
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ np.uint64(key[0]),
            b & low,
            (a >> np.uint64(32)) ^ c[3] ^ np.uint64(key[1]),
            a & low,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0], c[1]


def unit(words: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1) from words of 32 bits, as the kernels make them."""
    signed = words.astype(np.uint32).view(np.int32).astype(np.int64)
    return np.where(signed < 0, -signed - 1, signed) * 4.6566127342e-10


def chain_numbers(seed: int, size: int, step: int) -> tuple[Tensor, Tensor]:
    """What a chain draws at a step: normal numbers for `size` components, uniform ones for as many samples."""
    counter = np.arange(size)
    u, v = (unit(words) for words in philox(seed, counter, step, 0))
    eps = np.sqrt(-2 * np.log(np.maximum(1e-7, u))) * np.cos(2 * np.pi * v)
    return torch.from_numpy(eps), torch.from_numpy(unit(philox(seed, counter, step, 1)[0]))


def reference_chain(monkeypatch, seed: int, energy, start: Tensor, config: ChainConfig, temperature: float):
    """`run_chain` in float64 with the random numbers of the kernel."""
    key, turn, u = int(keys(generator(seed), start.device)[0]), 0, torch.empty(0)

    def normal(shape, _, like):
        nonlocal turn, u
        turn += 1
        eps, u = chain_numbers(key, start.numel(), turn)
        return eps.reshape(shape).to(like)

    module = sys.modules["normae.sampling.langevin"]  # the package has a function of this name
    monkeypatch.setattr(module, "normal", normal)
    monkeypatch.setattr(module, "uniform", lambda shape, _, like: u[: shape[0]].to(like))
    return run_chain(energy, start.double(), config, temperature, generator(seed))
