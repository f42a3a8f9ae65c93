"""
Two models, one likelihood ratio: the dual test
===============================================

Two normalized autoencoders that were trained apart give log r = log p_B - log p_A. Here the truth is known; where it is
not, a classifier takes its place (:doc:`/dual`).
"""

# %%
# A is the zoo's model of two Gaussians. B is trained here on one Gaussian, for half a minute.

import tempfile
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from normae import config
from normae.dual.judge import DualSettings
from normae.dual.test import dual_test
from normae.figures.ratios import ratio_correlation
from normae.runs.session import train

run = Path(tempfile.mkdtemp()) / "one"
changes = ["data.density=one-gaussian", "data.train=60_000", "data.test=2_000", "training.epochs=8",
           "network.hidden=[64, 64]", "evaluation.log_z_cells=300"]  # fmt: skip
train(config.read("toy-quick", changes), run)

# %%
# ``dual_test`` draws labelled events of both densities (label 1 is B), fits a line of the true log r against that of
# the models, and judges: the slope should be 1 and the residuals small. ``normae dual`` writes a
# report too.

result = dual_test("toy-2gauss-nae", run, settings=DualSettings(events=10_000, classifier=False))
for sentence in result.verdicts.values():
    print(textwrap.fill(sentence, 110))
for name in ("pearson_true_log_z", "slope_true_log_z", "constant_true_log_z"):
    print(f"{name:24s} {result.metrics[name]}")

# %%
# Left: events lie along the diagonal, between the lines where log r is off by 1. Right: log r of the events of either
# density. It is what a search cuts on, and true and learned distributions should coincide.

labels, learned, true = result.sample.labels, result.ratios["log_z"], result.against["true"].log_ratio
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
ratio_correlation(left, true, learned, labels)
edges = np.linspace(-8, 6, 57)
for label, name, colour in ((False, "events of A", "tab:blue"), (True, "events of B", "tab:red")):
    chosen = labels == label
    right.hist(true[chosen], edges, density=True, color=colour, alpha=0.25, label=f"{name}, true log r")
    right.hist(learned[chosen], edges, density=True, histtype="step", color=colour, label=f"{name}, learned")
right.set(xlabel=r"$\log r = \log p_B - \log p_A$", ylabel="events, normalized", yscale="log", xlim=(-12, 7))
right.legend(fontsize=9, loc="upper left")
plt.show()
