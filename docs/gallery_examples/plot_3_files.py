"""
Files, through the command line
===============================

``normae train``, ``evaluate``, ``report`` and ``score``, each as one would type it. The first training is shortened so
that this page is built in two minutes; what a longer one reaches is in :doc:`/toy`.
"""

# %%
# Where the truth is known
# ------------------------
#
# A toy density can be judged point by point. The preset is shortened with ``--set``.

import json
import shlex
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

folder = Path(tempfile.mkdtemp())


def type_in(line: str) -> None:
    """Run a command line in the example's folder, and show what it prints."""
    print(f"$ {line}")
    words = shlex.split(line)[1:]
    done = subprocess.run([sys.executable, "-m", "normae", *words], cwd=folder, capture_output=True, text=True)
    print((done.stdout + done.stderr).strip()[-1500:] + "\n")
    done.check_returncode()


type_in(
    "normae train toy-quick -o runs/toy --set data.train=60_000 --set data.test=20_000 --set training.epochs=4 "
    "--set evaluation.classifier.points=8_000 --set evaluation.classifier.train=9_000 "
    "--set evaluation.classifier.validation=2_000 --set evaluation.classifier.test=5_000 "
    "--set guard.log_every=10 --set evaluation.grid=100 --set evaluation.log_z_cells=200"
)
type_in("normae evaluate runs/toy")
type_in("normae report runs/toy")

# %%
# ``report.html`` is one page that needs no other file; :doc:`/report` says how to read it. Its numbers are in
# ``metrics.json``, and the course of the training in ``metrics.jsonl``.
#
# What to see: the energies of data and of samples, in units of T, meet. Where the samples' energy stays above, the
# chains do not reach the model's density; where it stays below, the model has probability where there are no data.

history = [json.loads(line) for line in (folder / "runs/toy/metrics.jsonl").read_text().splitlines()]
lines = [line for line in history if line.get("phase") == "training"]
figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
epoch = [line["epoch"] for line in lines]
for name, label in (("positive_energy", "data"), ("negative_energy", "samples")):
    ax.plot(epoch, [line[name] / line["temperature"] for line in lines], label=label)
ax.set(xlabel="epoch", ylabel="mean E/T", title="Energies of data and of samples")
ax.legend()
plt.show()

# %%
# A file of your own
# ------------------
#
# A table with three columns in Parquet, each in its own units: what would be background events of an analysis. No
# setting is given. A fifth of the rows is held out; they are the background of the p-values.

random = np.random.default_rng(0)


def events(n: int) -> np.ndarray:
    """Background: a spectrum in GeV, a number between 0 and 1 that depends on it a little, a distance in mm."""
    logarithm = random.normal(4.0, 0.4, n)
    return np.stack([np.exp(logarithm), random.normal(0.1 * logarithm, 0.1), random.normal(0.0, 0.02, n)], axis=1)


def write(path: Path, rows: np.ndarray) -> None:
    """Columns by name, as an analysis framework writes them."""
    pq.write_table(pa.table(dict(zip(("pt", "tau", "d0"), rows.T, strict=True))), path)


write(folder / "background.parquet", events(10_000))
signal = np.stack([random.normal(90, 3, 200), random.normal(0.15, 0.05, 200), random.normal(0.03, 0.01, 200)], axis=1)
write(folder / "data.parquet", np.concatenate([events(5_000), signal]))

type_in("normae train background.parquet -o runs/mine")
type_in("normae evaluate runs/mine")
type_in("normae report runs/mine")

# %%
# Nobody knows the density of a table, so ``evaluate`` judges by rows held out: ``auc_overtraining`` near 0.5 says that
# they are as likely as those of the training, ``auc_samples`` says how well a classifier tells samples of the model
# from them. All settings that were chosen stand in ``config.toml`` of the run.

settings = tomllib.loads((folder / "runs/mine/config.toml").read_text())
print("coordinates:", settings["coordinates"])
print("base:", settings["base"], "network:", settings["network"]["hidden"])
type_in("normae score runs/mine data.parquet -o scores.parquet")

# %%
# The result has a row for each event, by file and row. ``p_value`` is the share of held-out background that is at least
# as anomalous. Rows outside the range of the training sample are scored too; the
# command counts and names them.

scores = pq.read_table(folder / "scores.parquet")
print(scores.schema.names)
p_value = scores["p_value"].to_numpy()
print(f"p < 0.01: {100 * (p_value[:5000] < 0.01).mean():.1f} % of background, ", end="")
print(f"{100 * (p_value[5000:] < 0.01).mean():.0f} % of signal")

# %%
# P-values of background are even: the blue line is flat, whatever the model has learned, because they compare with
# background that the training did not see. Signal piles up at small p as far as the model tells it from background.

figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
edges = np.linspace(0, 1, 41)
ax.hist(p_value[:5000], edges, histtype="step", density=True, color="tab:blue", label="background in the data")
ax.hist(p_value[5000:], edges, histtype="step", density=True, color="tab:red", label="signal in the data")
ax.set(xlabel="p-value", ylabel="events, normalized", yscale="log", title="Scores of data.parquet")
ax.legend()
plt.show()
