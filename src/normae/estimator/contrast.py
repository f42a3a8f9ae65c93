"""The start of a training: noise-contrastive estimation against the standard Gaussian.

A whitened table is not far from the standard Gaussian g(x) in d dimensions. A classifier that tells rows from draws of
g has as its best logit log p(x) - log g(x); with

    log p(x) = -E(x)/T - c

in that logit, the weights, log T and c = log Z are learned by plain classification, without a chain. f(x) is near 0 as
it begins and T = 2/d, so that p = g at the first step. Unlike the likelihood, this loss can be computed for rows held
out: the weights that suit them best are kept, which is what stops a small table from being learned by heart. Gutmann
and Hyvärinen, AISTATS 2010.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normae.energy import mean_square
from normae.networks.autoencoder import Autoencoder
from normae.random import stream

EVERY = 25
"""Iterations between two looks at the rows held out."""
PATIENCE = 16
"""Looks without a better loss after which it stops."""
WEIGHT_DECAY = 1e-3
"""Of AdamW, for the autoencoder's weights."""


class Contrast(NamedTuple):
    """What the start found; the autoencoder has the weights.

    Args:
        temperature: T.
        log_z: c.
        loss: of the rows held out, relative to that of a Gaussian.
        iterations: after which they were best.
    """

    temperature: float
    log_z: float
    loss: float
    iterations: int


def minus_log_gaussian(x: Tensor) -> Tensor:
    """-log g with shape (N,), for x with shape (N, d)."""
    return 0.5 * x.square().sum(1) + 0.5 * x.shape[1] * math.log(2 * math.pi)


def contrast(
    autoencoder: Autoencoder,
    train: Tensor,
    held_out: Tensor,
    iterations: int,
    batch: int,
    learning_rate: float,
    seed: int,
) -> Contrast:
    """Train the autoencoder in place on rows with shape (N, d); the best weights for `held_out`, (M, d), stay."""
    d = train.shape[1]
    generator = stream(seed, "contrast", train.device)
    log_temperature = torch.tensor(math.log(2 / d), device=train.device, requires_grad=True)
    log_z = torch.tensor(0.5 * d * math.log(2 * math.pi), device=train.device, requires_grad=True)
    parameters = [*autoencoder.parameters(), log_temperature, log_z]
    groups = [
        {"params": list(autoencoder.parameters()), "weight_decay": WEIGHT_DECAY},
        {"params": [log_temperature, log_z], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations, 0.01 * learning_rate)

    def loss(rows: Tensor, noise: Tensor) -> Tensor:
        x = torch.cat([rows, noise])
        value = minus_log_gaussian(x) - mean_square(x - autoencoder(x)) * (-log_temperature).exp() - log_z
        softplus = nn.functional.softplus
        return softplus(-value[: len(rows)]).mean() + softplus(value[len(rows) :]).mean()

    reference = torch.randn(4 * len(held_out), d, generator=generator, device=train.device)
    best, found, kept = math.inf, 0, [p.detach().clone() for p in parameters]
    for step in range(iterations + 1):
        if step % EVERY == 0 or step == iterations:
            with torch.no_grad():
                now = float(loss(held_out, reference))
            if now < best:
                best, found, kept = now, step, [p.detach().clone() for p in parameters]
            elif step - found > PATIENCE * EVERY:
                break
        index = torch.randint(len(train), (batch,), generator=generator, device=train.device)
        noise = torch.randn(batch, d, generator=generator, device=train.device)
        optimizer.zero_grad()
        loss(train[index], noise).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        for p, value in zip(parameters, kept, strict=True):
            p.copy_(value)
    return Contrast(float(log_temperature.detach().exp()), float(log_z.detach()), best - 2 * math.log(2), found)
