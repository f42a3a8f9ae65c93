"""The pictures of the user pages: `python docs/pictures.py` writes them into docs/figures, in a minute or two.

The report with its parts named needs a browser too: `python docs/pictures.py --browser chromium`.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import normae
from normae.data import DENSITIES
from normae.errors import TrainingDiverged
from normae.figures import figure_style, new_figure
from normae.jets import images, public
from normae.presets import preset_path
from normae.runs.folder import RunFolder
from normae.statistics.auc import auc
from normae.tensors import stream

FIGURES = Path(__file__).parent / "figures"
SMALL = ["data.train=20000", "data.test=20000", "training.epochs=10", "training.batch=500", "guard.log_every=10"]
SHORT = ["sampling.feature.steps=2", "sampling.feature.step_size=2e-3", "sampling.replay=0.5", "guard.rollbacks=0",
         "guard.largest_gap=1000", "training.warmup=0", "training.schedule=constant"]  # fmt: skip


PARTS = {
    "Health of the training": "what was checked; a check that is not good says what to do",
    "Scores": "is a new row as likely as a training row?",
    "Columns": "do samples of the model look like the table?",
    "Course of the training": "did it learn to the end?",
}
"""What the headings of a report are about."""


def course(path: Path, settings: list[str], short: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Iterations, E+/T and E-/T of a training of the small toy."""
    text = preset_path("toy-quick").read_text(encoding="utf-8")
    config = path.with_suffix(".toml")
    config.write_text(text.replace("adapt = 0.65\n", "") if short else text, encoding="utf-8")
    try:
        normae.train(str(config), str(path), settings=settings)
    except TrainingDiverged:
        assert short
    lines = [line for line in RunFolder(path).read_history() if line["phase"] == "training"]
    columns = [np.array([line[name] for line in lines]) for name in ("positive_energy", "negative_energy")]
    temperature = np.array([line["temperature"] for line in lines])
    return np.array([line["iteration"] for line in lines]), columns[0] / temperature, columns[1] / temperature


def trainings(folder: Path) -> None:
    """A training that converges, and one whose chains are too short."""
    with figure_style():
        figure, axes = new_figure(1, 2)
        for ax, name, settings in zip(np.ravel(axes), ("good", "bad"), (SMALL, SMALL + SHORT), strict=True):
            iteration, positive, negative = course(folder / name, settings, name == "bad")
            ax.plot(iteration, positive, color="0.15", label="data, $E_+/T$")
            ax.plot(iteration, negative, color="tab:red", label="samples, $E_-/T$")
            ax.set(xlabel="update", yscale="log", title={"good": "good: they meet", "bad": "bad: they run away"}[name])
            ax.legend()
        figure.savefig(FIGURES / "good-and-bad-training.svg")


def dual() -> None:
    """The log r of two models against the true one: right, and with one temperature twice too large."""
    two, one = DENSITIES["two-gaussians"](), DENSITIES["one-gaussian"]()
    x = torch.cat([two.sample(2000, stream(0, "two")), one.sample(2000, stream(0, "one"))])
    a, b = normae.load("toy-2gauss-nae"), normae.load("toy-1gauss-nae")
    true = one.log_prob(x) - two.log_prob(x)
    with figure_style():
        figure, axes = new_figure(1, 2)
        for ax, factor, title in zip(
            np.ravel(axes), (1.0, 0.5), ("right: slope 1", "T twice too large: slope 2"), strict=True
        ):
            found = factor * (b.log_prob(x) - a.log_prob(x))
            ax.plot([-12, 12], [-12, 12], color="0.7")
            for label, colour in ((0, "tab:blue"), (1, "tab:orange")):
                rows = slice(2000 * label, 2000 * (label + 1))
                ax.plot(found[rows], true[rows], ".", markersize=2, color=colour, label=f"events of {'AB'[label]}")
            ax.set(xlabel="log r of the models", ylabel="true log r", xlim=(-6, 11), ylim=(-6, 11), title=title)
            ax.legend(markerscale=4)
        figure.savefig(FIGURES / "dual-right-and-wrong.png", dpi=130)


def jets() -> None:
    """What the public jets look like on average, and scores of two networks that were trained on tops."""
    sample = public()
    x, tops = images(sample), sample.labels == 1
    with figure_style():
        figure, axes = new_figure(1, 4)
        axes = axes[0]
        for ax, label, title in zip(axes[:2], (0, 1), ("QCD jets, mean", "top jets, mean"), strict=True):
            ax.imshow(np.sqrt(x[sample.labels == label].mean(0)[0]), origin="lower", cmap="magma")
            ax.set(title=title, xticks=[], yticks=[], xlabel="eta", ylabel="phi")
        for ax, name, title in zip(axes[2:], ("ae", "nae"), ("autoencoder of tops", "NAE of tops"), strict=True):
            score = np.log10(normae.load(f"jets-top-{name}").score(x))
            edges = np.linspace(*np.quantile(score, (0.002, 0.998)), 25)
            for rows, label, colour in ((tops, "tops", "0.15"), (~tops, "QCD, the anomaly", "tab:red")):
                ax.hist(score[rows], edges, density=True, histtype="step", color=colour, label=label)
            found = auc(score[~tops], score[tops])
            ax.set(title=f"{title}: AUC {found.value:.2f} ± {found.error:.2f}", xlabel="log10 of the score", yticks=[])
            ax.set_ylim(0, 1.25 * ax.get_ylim()[1])  # room for the legend
            ax.legend()
        figure.savefig(FIGURES / "jets-both-directions.png", dpi=130)


def main() -> None:
    """Write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--browser", help="a Chromium, for the picture of a report")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        trainings(Path(scratch))
        dual()
        jets()
        if given.browser:
            report(Path(scratch), given.browser)


def report(folder: Path, browser: str) -> None:
    """A report of a table with its parts named."""
    random = np.random.default_rng(0)
    pt = 30 + random.exponential(20, 5000)
    np.savez(folder / "table.npz", pt=pt, eta=random.normal(0, 1, 5000), mass=0.3 * pt + random.normal(10, 2, 5000))
    for words in (["train", "table.npz", "-o", "mine"], ["evaluate", "mine"], ["report", "mine"]):
        subprocess.run([sys.executable, "-m", "normae", *words], cwd=folder, check=True, capture_output=True)
    page = folder / "mine" / "report.html"
    text = page.read_text(encoding="utf-8")
    for heading, words in PARTS.items():
        assert heading in text, heading
        text = text.replace(heading, f'{heading} <span style="color:#c0392b;font-size:0.8em">← {words}</span>', 1)
    page.write_text(text, encoding="utf-8")
    subprocess.run([browser, "--headless", "--no-sandbox", "--window-size=1000,1500", "--hide-scrollbars",
                    f"--screenshot={FIGURES / 'report-page.png'}", page.as_uri()],
                   check=True, capture_output=True)  # fmt: skip


if __name__ == "__main__":
    main()
