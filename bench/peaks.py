"""What an autoencoder's energy cannot do with two peaks: python bench/peaks.py --seeds 0-3

Fits the toy network to p_2G on a grid, by the exact likelihood: no events, no chains, so what is left is the network's
own error. At one of the two peaks E reaches zero and log p is right; at the other E stays above zero and log p is too
low. Our reading: the residual r(x) = x - f(x) is a map of the plane into itself with E = |r|^2 / 2, a clean paraboloid
around a peak only where r winds around it, and it does not wind around both.
"""

import argparse
import math

import torch

from normae.data import two_gaussians
from normae.networks import Autoencoder, NetworkConfig, build_mlp_autoencoder
from normae.tensors import stream

LIMIT, CELLS, FINE = 4.5, 64, 400


def grid(cells: int) -> torch.Tensor:
    """Centres of the cells, with shape (cells^2, 2)."""
    axis = ((torch.arange(cells) + 0.5) / cells * 2 - 1) * LIMIT
    return torch.cartesian_prod(axis, axis)


def fit(seed: int, iterations: int) -> tuple[Autoencoder, torch.Tensor]:
    """The network of toy-bayes-best and log T, after an autoencoder's pretraining and `iterations` on shifted grids."""
    truth, points = two_gaussians(), grid(CELLS)
    config = NetworkConfig(latent=3, hidden=(64, 64, 64), activation="gelu")
    network = build_mlp_autoencoder(config, (2,), stream(seed, "init"))
    optimizer, events = torch.optim.Adam(network.parameters(), lr=1e-3), stream(seed, "peaks/events")
    for _ in range(488):
        x = truth.sample(2048, events).float()
        optimizer.zero_grad()
        (x - network(x)).square().mean().backward()
        optimizer.step()
    log_t, shifts = torch.tensor(math.log(0.25), requires_grad=True), stream(seed, "peaks/shifts")
    optimizer = torch.optim.Adam([*network.parameters(), log_t], lr=2e-3)
    for k in range(iterations):
        optimizer.param_groups[0]["lr"] = 2e-3 * min(1, (k + 1) / 300) * 0.5 * (1 + math.cos(math.pi * k / iterations))
        x = points + (torch.rand(2, generator=shifts) - 0.5) * (2 * LIMIT / CELLS)
        score = (x - network(x)).square().mean(1) / log_t.exp()
        optimizer.zero_grad()
        ((torch.softmax(truth.log_prob(x).float(), 0) * score).sum() + torch.logsumexp(-score, 0)).backward()
        optimizer.step()
    return network, log_t.detach()


@torch.no_grad()
def judge(network: Autoencoder, log_t: torch.Tensor) -> str:
    """log p - log p_true and E/T at the two peaks, and the error's root mean square over p_true."""
    truth, points = two_gaussians(), grid(FINE)
    x = torch.cat([truth.means.float(), points])
    score = (x - network(x)).square().mean(1).double() / log_t.exp()
    log_z = torch.logsumexp(-score[2:], 0) + 2 * math.log(2 * LIMIT / FINE)
    error = -score - log_z - truth.log_prob(x).double()
    weight = torch.softmax(truth.log_prob(points).double(), 0)
    rms = (weight * error[2:].square()).sum().sqrt()
    peaks = ", ".join(f"{e:+.4f} (E/T {s:.4f})" for e, s in zip(error[:2].tolist(), score[:2].tolist(), strict=True))
    return f"log p - log p_true at the peaks {peaks}; rms {float(rms):.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0-3")
    parser.add_argument("--iterations", type=int, default=4000)
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    for seed in range(int(first), int(last or first) + 1):
        print(f"seed {seed}: {judge(*fit(seed, arguments.iterations))}", flush=True)


if __name__ == "__main__":
    main()
