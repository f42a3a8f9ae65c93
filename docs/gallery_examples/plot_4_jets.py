"""
Jets: constituents, images, observables, a tiny autoencoder
===========================================================

The repository's tests carry 100 QCD and 100 top jets (``tests/jets/data/sample.npz``). They are enough to walk the
whole way from constituents to scores, and far too few to learn much: see :doc:`/jets-tagging` for real trainings.
"""

# %%
# ``read`` takes TopTagging HDF5, npz, or normae's own files and recognizes them by their content. ``images`` centres,
# rotates, flips, pixelates, normalizes and smooths; ``observables`` gives mass and N-subjettiness.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import roc_auc_score

import normae
from normae import config, jets
from normae.jets.gallery import draw_histogram, draw_image
from normae.runs.session import train
from normae.sources import load_events

here = Path.cwd()
clone = next(folder for folder in (here, *here.parents) if (folder / "tests" / "jets").is_dir())
sample_file = clone / "tests" / "jets" / "data" / "sample.npz"
sample = jets.read(sample_file)
images = jets.images(sample)
observables = jets.observables(sample)
print(f"{len(sample)} jets, {len(sample.pt)} constituents; images {images.shape}, {images.dtype}")
print({name: values[:2].round(3).tolist() for name, values in observables.items()})

# %%
# Above: one QCD jet, and the means of both classes. A top has three prongs, so its mean image is broader. Below: mass,
# and tau3/tau2, which is small where three axes describe the jet much better than two.

qcd, top = sample.labels == 0, sample.labels == 1
figure, axes = plt.subplots(2, 3, figsize=(11, 6.4), layout="constrained")
for ax, image, title in zip(
    axes[0], (images[qcd][0], images[qcd].mean(0), images[top].mean(0)), ("one QCD jet", "QCD, mean", "top, mean"),
    strict=True,
):  # fmt: skip
    draw_image(ax, image[0]).set_title(title)
draw_histogram(axes[1, 0], sample.labels, observables["mass"], "mass").set_xlabel("jet mass (GeV)")
draw_histogram(axes[1, 1], sample.labels, observables["tau2"] / observables["tau1"], r"$\tau_2/\tau_1$")
draw_histogram(axes[1, 2], sample.labels, observables["tau3"] / observables["tau2"], r"$\tau_3/\tau_2$")
axes[1, 0].legend()
plt.show()

# %%
# A training on 70 QCD jets, with the paper's preset made small. ``data.path`` may be one file, which the seed splits,
# or a folder with ``train`` and ``test``. The command is ``normae train jets-paper-qcd-nae``, with each
# change as a ``--set``.

run = Path(tempfile.mkdtemp()) / "qcd"
changes = [
    f"data.path={sample_file}", "device=cpu", "threads=1", "data.train=70", "data.validation=0", "data.test=30",
    "network.channels=4", "network.hidden=[32]", "pretraining.epochs=60", "pretraining.batch=35", "training.epochs=5",
    "training.batch=35", "sampling.buffer=200", "sampling.latent.steps=5", "sampling.feature.steps=5",
]  # fmt: skip
train(config.read("jets-paper-qcd-nae", changes), run)
model = normae.load(run)

# %%
# The scores of QCD jets that the training saw, of those that it did not, and of tops. The training was far too short
# and too small for the held-out jets to look like the seen ones; this gap is what to look for in a training of yours.
# ``explain`` has the part of each pixel in the score: they sum to it.

events = load_events(config.read(run / "config.toml").data, seed=0)
seen, held_out = model.score(events.train.dense().numpy()), model.score(events.test.numpy())
tops = model.score(images[top])
auc = roc_auc_score(np.r_[np.zeros(len(held_out)), np.ones(len(tops))], np.r_[held_out, tops])
print(f"median score: seen {np.median(seen):.1f}, held out {np.median(held_out):.1f}, top {np.median(tops):.1f}")
print(f"AUC of tops against held-out QCD jets: {auc:.2f}, from {len(held_out)} and {len(tops)} jets")

figure, (left, middle, where, right) = plt.subplots(1, 4, figsize=(15, 3.4), layout="constrained")
draw_image(left, events.test[0, 0].numpy()).set_title("a held-out QCD jet")
reconstruction = model.autoencoder(events.test[:1]).detach()[0, 0].numpy()
draw_image(middle, reconstruction).set_title("its reconstruction")
parts = where.imshow(model.explain(events.test[:1].numpy())[0, 0], origin="lower", aspect="auto")
figure.colorbar(parts, ax=where, label="part of the score")
where.set(title="explain: pixels that make its score", xticks=[], yticks=[])
edges = np.linspace(0, np.quantile(tops, 0.98), 25)
for values, name, colour in ((seen, "QCD, seen", "0.6"), (held_out, "QCD, held out", "tab:blue"),
                             (tops, "top", "tab:red")):  # fmt: skip
    right.hist(values, edges, density=True, histtype="step", color=colour, label=name)
right.set(xlabel="score E/T", ylabel="jets, normalized", title="Anomaly score")
right.legend()
plt.show()
