"""
Your own networks: from modules to a decision
=============================================

An encoder and a decoder in torch become a density: :func:`normae.train` trains them in place and computes log Z. What
is refused, and how to load such a run again: :doc:`/own-networks`.
"""

# %%
# The data and the networks
# -------------------------
#
# Rows on two half moons, in units of their own. Half of them are for the training, the others judge it.

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import make_moons
from sklearn.metrics import roc_auc_score
from torch import nn

import normae

UNITS = np.array([10.0, 0.1])
rows = make_moons(4_000, noise=0.1, random_state=0)[0] * UNITS
training, held_out = rows[::2], rows[1::2]

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3))
decoder = nn.Sequential(nn.Linear(3, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2))

model = normae.train(training, encoder=encoder, decoder=decoder, settings=["training.iterations=300"])
print(f"T = {model.temperature:.3f}, log Z = {model.log_z.value:.3f}")

# %%
# The decision
# ------------
#
# The p-value of a row is the share of held-out rows that score at least as high. Rows that are scattered over the whole
# picture are the anomalies; some of them fall onto the moons.

spread = np.random.default_rng(1).uniform(held_out.min(0), held_out.max(0), size=(2_000, 2))
background, score = np.sort(model.score(held_out)), model.score(spread)
p_value = (1 + len(background) - np.searchsorted(background, score)) / (1 + len(background))
found = p_value < 0.01
print(f"of the scattered rows {found.mean():.2f} lie below p = 0.01")
print(f"AUC {roc_auc_score(np.repeat([0, 1], len(spread)), np.concatenate([model.score(held_out), score])):.3f}")

# %%
# The picture
# -----------
#
# Left: log p in the units of the table, with held-out rows. Right: samples of the model, and the rows that were found.

sides = np.linspace(rows.min(0) - 0.3 * UNITS, rows.max(0) + 0.3 * UNITS, 150).T
grid = np.stack(np.meshgrid(*sides), axis=-1)
log_p = model.log_prob(grid.reshape(-1, 2)).reshape(150, 150)
samples = model.sample(2_000, seed=0)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
shown = left.pcolormesh(*sides, log_p, vmin=log_p.max() - 10, rasterized=True)
left.scatter(*held_out[:500].T, s=2, color="white", linewidths=0)
figure.colorbar(shown, ax=left, label="log p")
right.scatter(*spread[found].T, s=4, color="tab:red", linewidths=0, label="found, p < 0.01")
right.scatter(*samples.T, s=4, color="tab:blue", linewidths=0, label="samples")
left.set(title="Learned density, held-out rows", xlabel="$x_1$", ylabel="$x_2$")
right.set(title="Samples, and anomalies that were found", xlabel="$x_1$")
right.legend(loc="upper right", fontsize=9)
plt.show()
