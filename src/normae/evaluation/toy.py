"""The study of a deterministic run on a known density: section 3.2 of the paper, and the numbers beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from normae import statistics
from normae.config import Run
from normae.coordinates import Identity
from normae.data import Density
from normae.evaluation.evaluate import COURSE, Captions, Draw, Metrics, Study, draw_one, draw_training, good_if
from normae.figures import densities, new_figure
from normae.figures.curves import training_curves
from normae.inference import Model, cell_centres, evaluate_in_chunks, grid_draws, grid_log_z, grid_points
from normae.report import Check, save_figure
from normae.report.paper import TOY, PaperValue
from normae.runs.folder import RunFolder
from normae.runs.load import load
from normae.sampling import Chain
from normae.sources import load_events
from normae.statistics import Estimate
from normae.tensors import stream
from normae.training.two_sample import classifier_test

CHAINS = 50_000  # side by side


class ToyStudy(Study):
    """A deterministic run on a known density."""

    needed: ClassVar[tuple[str, ...]] = (
        "kl", "share_within_10_percent", "auc_ideal", "temperature", "log_z", "pearson_grid", "pearson_test",
        "auc_classifier_exact", "log_z_paper_grid", "auc_classifier_long",
    )  # fmt: skip
    stated: ClassVar = {"log_z": "log Z over the chain's bounds", "log_z_paper_grid": "log Z over the paper's grid"}
    paper: ClassVar[tuple[PaperValue, ...]] = TOY
    kind = "normalized"

    def judge(self, device: str, generated: int | None) -> tuple[Metrics, Draw]:  # noqa: ARG002
        """Every number of section 3.2, or, of a Bayesian run, 3.3."""
        model, events = load(self.run.path, device), load_events(self.config.data, self.config.seed)
        assert events.density is not None
        model.coordinates = Identity()  # the truth has tails beyond the bounds, 2e-5 of the toy: E/T goes on there
        test, metrics = self.measure(model, events.density, events.test)
        return metrics, lambda: self.draw(test, metrics)

    def measure(self, model: Model, density: Density, events: Tensor) -> tuple[Any, Metrics]:
        """What figures are drawn from, and the numbers; for test events with shape (N, 2)."""
        test, evaluation = density_test(model, self.config, density, events), self.config.evaluation
        steps, generation = model.sampling.feature.steps, model.sampling.generation_steps
        lengths = {"recipe": steps, "long": evaluation.long_factor * steps, "generation": generation}
        if generation <= lengths["long"]:
            del lengths["generation"]
        generator, points = stream(self.config.seed, "evaluation/exact"), evaluation.classifier.points
        energy, t, bounds, cells = model.energy_function, model.temperature, model.log_z.bounds, evaluation.log_z_cells
        exact = grid_draws(energy, t, bounds, 2, points, generator, cells, model.device)
        limit = evaluation.grid_limit
        paper = grid_log_z(energy, t, (-limit, limit), 2, 2 * evaluation.grid, model.device)
        grid = grid_points(cell_centres(bounds, cells), 2)
        on_cells = density.log_prob(grid.double()).numpy(), _log_prob(model, grid)  # by the midpoint rule
        quadrature = statistics.grid_kl(*on_cells, ((bounds[1] - bounds[0]) / cells) ** 2)
        metrics = {"temperature": Estimate(t, 0.0), "log_z": Estimate(model.log_z.value, model.log_z.error)}
        metrics |= {"log_z_paper_grid": Estimate(paper.value, paper.error), **agreement(test)}
        metrics |= {"kl_quadrature": Estimate(quadrature, 0.0)}
        metrics |= sample_metrics(model, self.config, density, exact, lengths)
        return test, metrics | {"auc_ideal": ideal_auc(_log_prob(model, exact), exact, density, test)}

    def draw(self, test: Any, metrics: Metrics) -> None:
        """Write the figures of what `measure` gave."""
        marginals = grid_marginals(test.grid_model, test.axis)
        draw_common(self.run, test, [(density, None) for density in marginals], metrics)
        true, learned = (np.exp(log_p) for log_p in (test.grid_true, test.grid_model))
        figure, axes = new_figure(1, 2)
        limits = (0.0, float(max(true.max(), learned.max())))
        for ax, density, name in zip(axes[0], (true, learned), (r"\mathrm{true}", r"\theta"), strict=True):
            densities.field_map(ax, test.axis, test.axis, test.on_grid(density), f"$p_{name}(x)$", limits=limits)
        save_figure(figure, self.run.figures, "density", test.columns | {"true": true, "learned": learned})
        draw_training(self, training_curves, 3)

    def title(self) -> str:
        return f"a {self.kind} autoencoder on {self.config.data.density}, seed {self.config.seed}"

    def summary(self, metrics: Metrics) -> str:
        return (
            "The reconstruction error of this autoencoder, divided by its temperature, is a negative log-likelihood up "
            f"to a constant. Trained on {self.config.data.train:,} points of a known density, it reproduces that "
            f"density to KL = {metrics['kl']}: |Δ| < 10 % holds for "
            f"{100 * metrics['share_within_10_percent'].value:.3f} % of the test set, and an ideal classifier that "
            f"knows both densities reaches an AUC of {metrics['auc_ideal']} (0.5 is a coin)."
        )

    def sample(self) -> dict[str, str]:
        data = self.config.data
        return {"data": f"{data.density}, {data.train:,} training and {data.test:,} test points"}

    def values(self) -> list[PaperValue]:
        """The paper's values, of its own density only."""
        notes = {
            "auc_classifier_long": f"feature chain {self.config.evaluation.long_factor} times as long",
            "auc_classifier_generation": f"feature chain of {self.config.sampling.generation_steps} steps",
        }
        if self.config.sampling.kept:
            notes["auc_classifier_recipe"] = "not the recipe: goes on from the chains of the training"
        theirs = self.config.data.density == "two-gaussians"
        return [v._replace(value=v.value if theirs else "—", note=notes.get(v.metric, v.note)) for v in self.paper]

    def checks(self, metrics: Metrics) -> list[Check]:
        longest = [m for k in ("generation", "long") if (m := metrics.get(f"auc_classifier_{k}")) is not None]
        if not longest:
            return [*self.health(), self.last(metrics)]
        chain, exact = longest[0], metrics["auc_classifier_exact"]
        same = abs(chain.value - exact.value) < max(3 * np.hypot(chain.error, exact.error), 0.005)
        said = (
            f"A classifier tells long chains from the data with AUC {chain}, exact draws of the model with {exact}; "
            "the two agree where the chains have converged."
        )
        remedy = "Let the chains walk further: sampling.generation, or longer steps."
        return [*self.health(), good_if("chains sample the model", bool(same), said, remedy), self.last(metrics)]

    def last(self, metrics: Metrics) -> Check:
        """Whether log Z is known."""
        error = metrics["log_z"].error
        said = f"Halving the grid's cells changes log Z by {error:.1e}."
        return good_if("normalization", error < 1e-3, said, "Raise evaluation.log_z_cells.")

    def captions(self, metrics: Metrics) -> Captions:
        outside = round((1 - metrics["share_within_10_percent"].value) * self.config.data.test)
        return {
            "density": ("Density", "True density on the left, learned density on the right, in the same colours."),
            "marginal-x1": (
                "Marginal density in x₁", "Learned and true density, integrated over x₂, with their ratio below."),
            "marginal-x2": (
                "Marginal density in x₂", "Learned and true density, integrated over x₁, with their ratio below."),
            "grid-correlation": ("Learned against true log-likelihood, grid",
                f"Points on the diagonal are right; Pearson is {metrics['pearson_grid'].value:.4f} over all of the "
                "grid, most of which holds no training point."),
            "grid-regions": ("The regions", "Bands of −log p_true on the grid, in the colours of the figure beside."),
            "test-correlation": ("Learned against true log-likelihood, test set",
                f"Where there are data: between the red lines |Δ| < 10 %; Pearson is {metrics['pearson_test']}."),
            "test-deviation": ("Where the model is off by 10 % or more",
                f"{outside:,} of {self.config.data.test:,} test points (red) have |Δ| ≥ 10 %."),
            "training": COURSE,
        }  # fmt: skip

    def limits(self) -> str:
        bounds = list(self.config.sampling.feature.bounds or ())
        said = (
            "Trained on points within about four standard deviations of the peaks: further out the likelihood is an "
            f"extrapolation.\nlog p is normalized over the box {bounds} in each coordinate; p is 0 beyond it.\n"
        )
        if self.run.read_provenance()["backend"] == "fused":
            said += (
                "The chains ran in the fused kernel: products of fp16 factors summed in float32, and the acceptance "
                "ratio in float32, so\nthat they are exact for an energy that is rounded to 10 bits of mantissa in its "
                "hidden layers.\n"
            )
        return said + self.uncertainty()

    def uncertainty(self) -> str:
        """What the error bars are."""
        return "The model is deterministic: it gives no uncertainty of its likelihood."


@dataclass(frozen=True)
class DensityTest:
    """Learned and true log p on the paper's grid, whose first coordinate runs slowest, and on the test set."""

    axis: np.ndarray  # coordinates of the grid, shape (G,)
    grid_true: np.ndarray  # shape (G * G,)
    grid_model: np.ndarray
    test: np.ndarray  # events, shape (N, 2)
    test_true: np.ndarray  # shape (N,)
    test_model: np.ndarray

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """The coordinates of the grid's points, each with shape (G * G,)."""
        size = len(self.axis)
        return {"x1": np.repeat(self.axis, size), "x2": np.tile(self.axis, size)}

    def on_grid(self, values: np.ndarray) -> np.ndarray:
        """Values of the grid's points with shape (G, G)."""
        return values.reshape(len(self.axis), len(self.axis))


def paper_grid(config: Run) -> tuple[Tensor, Tensor]:
    """The paper's test grid, endpoints included: an axis with shape (G,) and the points (G * G, 2)."""
    limit = config.evaluation.grid_limit
    axis = torch.linspace(-limit, limit, config.evaluation.grid, dtype=torch.float64)
    return axis, grid_points(axis, 2)


def density_test(model: Model, config: Run, density: Density, events: Tensor) -> DensityTest:
    """log p of model and truth on the paper's grid and on the test set."""
    axis, grid = paper_grid(config)
    true, test_true = (density.log_prob(x.double()).numpy() for x in (grid, events))
    return DensityTest(axis.numpy(), true, _log_prob(model, grid), events.numpy(), test_true, _log_prob(model, events))


def _log_prob(model: Model, x: Tensor) -> np.ndarray:
    energy = evaluate_in_chunks(model.energy_function, x, model.device)
    return (-energy / model.temperature - model.log_z.value).numpy()


def agreement(test: DensityTest) -> Metrics:
    """How close the learned density is to the true one: correlations, KL(true, model), share of accurate points."""
    deviation = statistics.relative_deviation(test.test_model, test.test_true)
    return {
        "pearson_grid": Estimate(statistics.pearson(test.grid_true, test.grid_model).value, 0.0),
        "pearson_test": statistics.pearson(test.test_true, test.test_model),
        "kl": statistics.kl_divergence(test.test_true, test.test_model),
        "share_within_10_percent": statistics.share_within(deviation),
    }


def sample_metrics(model: Model, config: Run, density: Density, exact: Tensor, lengths: Mapping[str, int]) -> Metrics:
    """The classifier test on chains of these lengths and on exact draws of the model, with shape (n, 2)."""
    kinds = chain_samples(model, len(exact), stream(config.seed, "evaluation/chain", model.device), lengths)
    metrics: Metrics = {f"acceptance_{name}": acceptance for name, (_, acceptance) in kinds.items()}
    settings = config.evaluation.classifier
    true = density.sample(settings.points, stream(config.seed, "evaluation/true"))
    for name in (*kinds, "exact"):
        sample, generator = exact if name == "exact" else kinds[name][0], stream(config.seed, f"classifier/{name}")
        found = classifier_test(true, sample, settings, generator=generator, device=model.device)
        metrics[f"auc_classifier_{name}"] = found.auc
    return metrics


def ideal_auc(log_prob: np.ndarray, sample: Tensor, density: Density, test: DensityTest) -> Estimate:
    """AUC of log p_model - log p_true, samples of the model with shape (n, 2) against the test set; at least 0.5."""
    ratio = log_prob - density.log_prob(sample.double()).numpy()
    return statistics.auc(ratio, test.test_model - test.test_true)


def chain_samples(
    model: Model, n: int, generator: torch.Generator, lengths: Mapping[str, int]
) -> dict[str, tuple[Tensor, Estimate]]:
    """`n` samples of each kind, with the acceptance of the feature steps since the kind before.

    "recipe" is the paper's: a latent chain from noise, eight times as long as in training, then a feature chain. "long"
    and "generation" are the same chains gone on. `lengths` are steps of the feature chain for each kind, rising.
    """
    first = min(lengths.values())
    chains: dict[str, list[Chain]] = {name: [] for name in lengths}
    for size in [min(CHAINS, n - start) for start in range(0, n, CHAINS)]:
        chain, done = model.sample_chain(size, generator, feature_steps=first), first
        for name, length in lengths.items():
            if length > done:
                chain, done = model.continue_chain(chain.position, generator, length - done), length
            chains[name].append(chain)
    joined = {}
    for name, parts in chains.items():
        position = torch.cat([part.position.cpu() for part in parts])
        shares = torch.cat([part.acceptance.flatten() for part in parts])
        acceptance = float(shares.mean()) if len(shares) else 1.0
        error = (acceptance * (1 - acceptance) / (len(position) * max(len(parts[0].acceptance), 1))) ** 0.5
        joined[name] = position, Estimate(acceptance, error)
    return joined


def draw_common(
    run: RunFolder, test: DensityTest, learned: Sequence[tuple[np.ndarray, np.ndarray | None]], metrics: Metrics
) -> None:
    """Grid, test set and marginals; `learned` is that of each coordinate and its standard deviation, shapes (G,)."""
    marginals = zip(grid_marginals(test.grid_true, test.axis), learned, strict=True)
    for k, (true, (mean, band)) in enumerate(marginals, start=1):
        figure, axes = new_figure(2, 1, height_ratios=(3, 1), sharex=True)
        densities.marginal(axes[:, 0], test.axis, true, mean, band, f"$x_{k}$")
        columns = {f"x{k}": test.axis, "true": true, "learned": mean}
        save_figure(figure, run.figures, f"marginal-x{k}", columns if band is None else columns | {"sigma": band})
    bands, pair = statistics.regions(test.grid_true), (test.grid_true, test.grid_model)
    columns = {"log_p_true": pair[0], "log_p_model": pair[1], "region": bands}
    text = f"Pearson {metrics['pearson_grid'].value:.4f}"
    draw_one(run, "grid-correlation", columns, densities.likelihood_correlation, *pair, bands, text=text)
    columns = test.columns | {"region": bands}
    draw_one(run, "grid-regions", columns, densities.region_map, test.axis, test.axis, test.on_grid(bands))
    pair, deviation = (test.test_true, test.test_model), statistics.relative_deviation(test.test_model, test.test_true)
    columns = {"log_p_true": pair[0], "log_p_model": pair[1], "deviation": deviation}
    text = f"Pearson {metrics['pearson_test']}"
    draw_one(run, "test-correlation", columns, densities.likelihood_correlation, *pair, limit=0.1, text=text)
    columns = {"x1": test.test[:, 0], "x2": test.test[:, 1], "deviation": deviation}
    draw_one(run, "test-deviation", columns, densities.deviation_map, test.test, np.abs(deviation) >= 0.1)


def grid_marginals(log_p: np.ndarray, axis: np.ndarray) -> list[np.ndarray]:
    """The marginal density in each coordinate, shape (G,), of log p on the grid."""
    density = np.exp(log_p.astype(np.float64)).reshape(len(axis), len(axis))
    return [density.sum(axis=k) * float(axis[1] - axis[0]) for k in (1, 0)]
