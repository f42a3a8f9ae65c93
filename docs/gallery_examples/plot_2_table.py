"""
Your own table: fit, score, predict, error bars
===============================================

:class:`normae.NormalizedAutoencoder` follows scikit-learn: ``fit`` on background rows, then ``score_samples``. Its
coordinates and its settings follow from the table, as those of ``normae train`` do.
"""

# %%
# Two columns: log p with an error bar
# ------------------------------------
#
# Where log Z is known, ``score_samples`` is log p in the table's own units; ``score_kind_`` says so.
# ``bayesian=True`` adds error bars.

import tempfile

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import multivariate_normal
from sklearn.datasets import load_wine
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score

import normae

peaks = [
    (0.7, multivariate_normal([91.0, 2.5], [[16.0, 1.0], [1.0, 0.25]])),
    (0.3, multivariate_normal([112.0, 4.5], [[36.0, -1.5], [-1.5, 0.5]])),
]
random = np.random.default_rng(0)
table = np.concatenate([peak.rvs(round(10_000 * share), random) for share, peak in peaks])  # mass, width in GeV

nae = normae.NormalizedAutoencoder(bayesian=True, contamination=0.01, random_state=0).fit(table)
print(nae.score_kind_, f"T = {nae.temperature_:.3f}")

new = np.array([[91.0, 2.5], [112.0, 4.5], [100.0, 2.0], [125.0, 2.5]])
scored = zip(new, nae.score_samples(new), nae.score_std(new), nae.predict(new), strict=True)
print("  mass   width     log p   error   predict (-1 is an anomaly)")
for row, log_p, error, label in scored:
    print(f"{row[0]:6.0f} {row[1]:7.1f} {log_p:9.2f} {error:7.2f} {label:+5d}")

# %%
# Left: log p. The red line is the threshold of ``predict``, beyond which 1 % of the training rows lie
# (``contamination``). Right: log p along a line at constant width, with its error bar, and the truth, which is known
# here. The band is wider where there are no rows: there a score is an extrapolation. It is what eight trainings on
# halves of the rows differ by (:doc:`/estimator`).

across, up = np.linspace(70, 140, 90), np.linspace(0, 8, 80)
grid = np.stack(np.meshgrid(across, up, indexing="ij"), axis=-1).reshape(-1, 2)
log_p = nae.score_samples(grid).reshape(90, 80)
line = np.stack([np.linspace(70, 140, 120), np.full(120, 3.0)], axis=1)
centre, error = nae.score_samples(line), nae.score_std(line)
truth = np.log(sum(share * peak.pdf(line) for share, peak in peaks))

figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4), layout="constrained")
image = left.pcolormesh(across, up, log_p.T, vmin=-20, rasterized=True)
left.scatter(*table[::10].T, s=2, color="white", linewidths=0)
left.contour(across, up, log_p.T, levels=[nae.offset_], colors="tab:red")
left.axhline(3.0, color="0.8", linestyle=":")
left.set(xlabel="mass (GeV)", ylabel="width (GeV)", title="log p, rows, threshold of predict")
figure.colorbar(image, ax=left, label="log p (p in 1/GeV²)", extend="min")
right.fill_between(line[:, 0], centre - error, centre + error, color="tab:red", alpha=0.25, linewidth=0)
right.plot(line[:, 0], centre, color="tab:red", label="learned, with its error bar")
right.plot(line[:, 0], truth, color="0.15", linestyle="--", label="true")
right.set(xlabel="mass (GeV)", ylabel="log p (p in 1/GeV²)", ylim=(-30, 0), title="At a width of 3 GeV (dotted line)")
right.legend()
plt.show()

# %%
# More columns
# ------------
#
# Thirteen columns of scikit-learn's wine table: two sorts are the background, and the third is to be found. log Z comes
# from draws of the base, or from annealed importance sampling where too few of them count. Where its bounds disagree,
# ``score_kind_`` is "unnormalized": a score that orders rows as log p does and whose zero has no meaning. Half of the
# background is held out.

wine = load_wine()
usual, other = wine.data[wine.target < 2], wine.data[wine.target == 2]
order = np.random.default_rng(0).permutation(len(usual))
train, held_out = usual[order[::2]], usual[order[1::2]]
small = normae.NormalizedAutoencoder(random_state=0).fit(train)
print(small.score_kind_)

label = np.r_[np.zeros(len(held_out)), np.ones(len(other))]
rows = np.concatenate([held_out, other])
forest = IsolationForest(random_state=0).fit(train)
print(f"AUC {roc_auc_score(label, -small.score_samples(rows)):.3f}")
print(f"AUC {roc_auc_score(label, -forest.score_samples(rows)):.3f} (IsolationForest, the same rows)")

# %%
# Anomalies lie left. The dashed line is ``offset_``: with the default ``contamination=0.1`` a tenth of the *training*
# rows is left of it. Of the held-out rows it is about as many, since a training row is scored as if the base had not
# seen it. For an analysis take the threshold from held-out background, as the p-values of ``normae score`` do.

figure, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
edges = np.linspace(small.score_samples(rows).min(), small.score_samples(rows).max(), 35)
ax.hist(small.score_samples(held_out), edges, histtype="step", color="tab:blue", label="held-out background")
ax.hist(small.score_samples(other), edges, histtype="step", color="tab:red", label="the third sort")
ax.axvline(small.offset_, color="0.4", linestyle="--", label="offset_")
ax.set(xlabel=f"score_samples ({small.score_kind_})", ylabel="rows")
ax.legend()
plt.show()

# %%
# Which column
# ------------
#
# ``explain`` has what each column adds to the score of a row, compared with the nearest training row. Here the most
# anomalous wine, and the three columns that make it so.

worst = rows[small.score_samples(rows).argmin()]
parts = small.model_.explain(worst[None])[0]
for k in parts.argsort()[:-4:-1]:
    print(f"{wine.feature_names[k]:30} {worst[k]:8.2f}, adds {parts[k]:6.1f}")

# %%
# Keep it
# -------
#
# ``save`` writes a run folder. Every command takes it (``normae score``, ``normae export``, ...), and ``load`` reads it
# again; a pickle works too.

with tempfile.TemporaryDirectory() as place:
    small.save(f"{place}/wine")
    again = normae.NormalizedAutoencoder.load(f"{place}/wine")
print(f"largest difference {np.abs(again.score_samples(rows) - small.score_samples(rows)).max():.1e}")
