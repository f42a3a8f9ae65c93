"""
Score and sample with a model of the zoo
========================================

``toy-2gauss-nae`` is a normalized autoencoder that was trained on 500,000 points of two Gaussians. The package ships
it, so nothing is trained here.
"""

# %%
# A model is a density, p(x) = exp(-E(x)/T)/Z. ``score`` is E/T and rises with the anomaly; ``log_prob`` is log p and
# falls.

import matplotlib.pyplot as plt
import numpy as np

import normae

model = normae.load("toy-2gauss-nae")
events = np.array([[1.5, 1.5], [0.0, 0.0], [1.5, -1.5], [3.5, 3.5]])
print(f"T = {model.temperature:.3f}, log Z = {model.log_z.value:.4f} ± {model.log_z.error:.1g}")
for x, score, log_prob in zip(events, model.score(events), model.log_prob(events), strict=True):
    print(f"x = {x}   score E/T = {score:6.2f}   log p = {log_prob:6.2f}")

# %%
# ``sample`` walks Langevin chains on the energy: first in the latent space, then among the events.

generated = model.sample(1_000, seed=0)

# %%
# Left: the learned density. White dots are generated events; they should fill the two peaks and nothing else. The
# four crosses are the events from above. Right: the score of generated events, and of events that are spread evenly
# over the square. A score of 5 is usual for these and rare for the model's own events; how rare can be counted, since
# the model generates: 1 % of its events lie above the dashed line.

axis = np.linspace(-4.5, 4.5, 200)
grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
log_p = model.log_prob(grid).reshape(200, 200)
flat = np.random.default_rng(0).uniform(-4.5, 4.5, size=(2_000, 2))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
image = left.pcolormesh(axis, axis, log_p.T, vmin=-12, cmap="viridis", rasterized=True)
left.scatter(*generated[:800].T, s=2, color="white", linewidths=0)
left.scatter(*events.T, marker="x", color="tab:red")
left.set(xlabel="$x_1$", ylabel="$x_2$", title="Learned log p, and generated events", aspect="equal")
figure.colorbar(image, ax=left, label="log p(x)", extend="min")

edges = np.linspace(0, 40, 60)
right.hist(model.score(generated), edges, histtype="step", color="tab:blue", label="generated", density=True)
right.hist(model.score(flat), edges, histtype="step", color="tab:red", label="spread evenly", density=True)
right.axvline(np.quantile(model.score(generated), 0.99), color="0.4", linestyle="--", label="1 % of generated above")
right.set(xlabel="score E/T", ylabel="events, normalized", yscale="log", title="Anomaly score", xlim=(0, 40))
right.legend()
plt.show()
