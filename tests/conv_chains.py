"""Small convolutional autoencoders, events for them, and reference chains with the random numbers of a kernel."""

import sys

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from normae.networks import Autoencoder, NetworkConfig, build_autoencoder
from normae.networks.mlp_chain import _seeds
from normae.networks.mlp_kernels import _normal, _uniform
from normae.sampling.chain import run_chain
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


@triton.jit
def numbers_kernel(seed_ptr, normal_ptr, uniform_ptr, t, N: tl.constexpr):
    """What a chain draws at step t: a normal number for each component, a uniform one for each sample."""
    k = tl.arange(0, N)
    seed = tl.load(seed_ptr)
    tl.store(normal_ptr + k, _normal(seed, k, t))
    tl.store(uniform_ptr + k, _uniform(seed, k, t))


def reference_chain(monkeypatch, seed: int, energy, start: Tensor, config: ChainConfig, temperature: float):
    """`run_chain` in float64 with the random numbers of the kernel."""
    key, turn = _seeds(generator(seed), start.device), 0
    size = 1 << (start.numel() - 1).bit_length()

    def normal(shape, _, like):
        nonlocal turn, u
        turn += 1
        eps, u = torch.empty(size, device=DEVICE), torch.empty(size, device=DEVICE)
        numbers_kernel[(1,)](key, eps, u, turn, N=size)
        return eps[: start.numel()].reshape(shape).to(like)

    u = torch.empty(0)
    module = sys.modules["normae.sampling.langevin"]  # the package has a function of this name
    monkeypatch.setattr(module, "normal", normal)
    monkeypatch.setattr(module, "uniform", lambda shape, _, like: u[: shape[0]].to(like))
    return run_chain(energy, start.double(), config, temperature, generator(seed))
