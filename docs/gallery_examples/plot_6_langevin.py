"""
The sampler alone, on an energy of your own
===========================================

:func:`normae.langevin` samples exp(-E/T) for any differentiable callable from (N, d) to (N,). It needs no autoencoder.
"""

# %%
# A banana-shaped energy in two dimensions, at a temperature that is not one.

import matplotlib.pyplot as plt
import numpy as np
import torch

import normae
from normae.sampling import effective_sample_size, split_r_hat


def energy(x: torch.Tensor) -> torch.Tensor:
    """(N, 2) -> (N,)."""
    return 0.5 * x[:, 0] ** 2 + 4.0 * (x[:, 1] - 0.5 * x[:, 0] ** 2 + 1.0) ** 2


TEMPERATURE, BOUNDS = 0.5, (-4.0, 4.0)
start = np.zeros((2_000, 2), dtype=np.float32)

# %%
# ``step_size`` is the paper's λ and ``noise`` its σ, by default √(2λ). With ``metropolis="exact"``, the default, every
# step is accepted or rejected for each chain by itself, and the chain is exact for any step size. With ``"off"`` every
# step within the bounds is taken: long steps then sample another density.


def chain(step_size: float, metropolis: str) -> normae.sampling.Chain:
    """400 steps of 2,000 chains side by side."""
    return normae.langevin(
        energy, start, temperature=TEMPERATURE, step_size=step_size, steps=400, metropolis=metropolis, bounds=BOUNDS,
        trace=1, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


chains = {
    "exact, λ = 0.04": chain(0.04, "exact"),
    "exact, λ = 0.005": chain(0.005, "exact"),
    "no test, λ = 0.04": chain(0.04, "off"),
}
for name, found in chains.items():
    draws = found.trace[50:, :100, 0]  # steps, chains
    print(
        f"{name:18s} accepted {found.acceptance.mean():.2f}   R-hat {split_r_hat(draws):.3f}   "
        f"effective samples in 350 steps of 100 chains {effective_sample_size(draws):6.0f}"
    )

# %%
# The truth is known here from a grid. Left: end points of the exact chains on the contours of p. Right: the marginal of
# x₂. The exact chains follow the truth with long steps; without the test, the same steps give a density that is too
# wide. Short steps are right too, but neighbours in the chain are nearly the same point: see the effective samples.

axis = np.linspace(*BOUNDS, 401)
grid = torch.from_numpy(np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2))
p = np.exp(-energy(grid).numpy() / TEMPERATURE).reshape(401, 401)
p /= p.sum() * (axis[1] - axis[0]) ** 2

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.contour(axis, axis, p.T, levels=p.max() * np.exp([-4.5, -2.0, -0.5]), cmap="viridis")
left.scatter(*chains["exact, λ = 0.04"].position.T, s=2, color="0.4", linewidths=0)
left.set(xlabel="$x_1$", ylabel="$x_2$", xlim=(-3, 3), ylim=(-2.5, 3), title="End points on the true contours")
edges = np.linspace(-2.5, 2.5, 51)
right.plot(axis, p.sum(0) * (axis[1] - axis[0]), color="0.15", label="true")
for (name, found), colour in zip(chains.items(), ("tab:blue", "tab:green", "tab:red"), strict=True):
    late = found.trace[100::10, :, 1].ravel()
    right.hist(late, edges, density=True, histtype="step", color=colour, label=name)
right.set(xlabel="$x_2$", ylabel="density", xlim=(-2.5, 2.5), title="Marginal")
right.legend(fontsize=9)
plt.show()
