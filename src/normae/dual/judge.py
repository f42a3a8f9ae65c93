"""The dual test of two trained models, whose equation, fit and rule are in `normae.statistics.dual`.

It is made with C = 0, as in the paper, and with C from the two log Z, which shifts log r and changes nothing else;
against the true ratio where both densities are known, and against a classifier whose calibration is measured.

What a classifier says far out, where one class has no events, nothing can check. So against a classifier linearity is
judged between the values of log r beyond which either class still has n events, n = 1/tolerance^2 for the tolerance on
log r, since n events fix a log ratio to 1/sqrt(n). A classifier has an error of its own: the spread over several is
added to the errors of slopes and residuals. And a logistic fit of the labels gives its own log r a factor; how far that
is from 1 is added to the tolerance of slopes, and its error to their errors.

**Labels alone** judge too, without any reference: the factor b of a logistic fit of the labels on log r is 1 for a
calibrated one, and in bins of log r the ratio of labels must be r.

A Bayesian model gives one log r for each weight draw. The central log r is the mean over draws, of a posterior with
several modes that of the mean densities; all pairs of a draw of A and a draw of B give the band of its distribution and
the spread of slope and constant.
"""

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from normae import statistics
from normae.data import Density
from normae.data.labelled import Labelled
from normae.errors import require_that
from normae.inference import Rows
from normae.sources import MOST_EVENTS
from normae.statistics.arrays import Array, Estimate, balanced_weights, over
from normae.statistics.calibration import BinnedOdds, binned_odds, logistic_slope, unit_slope_shift
from normae.tensors import stream
from normae.training.two_sample import ClassifierReference, RatioSettings

MOST_DRAWS, MOST_BINS = 1000, 70
FEWEST_EVENTS = 100  # of each class: what a classifier, its calibration and 20 bins need at the very least
REFERENCES = {"true": "the true ratio", "classifier": "the classifier", "rows": "a classifier on the models' rows"}


@dataclass(frozen=True)
class DualSettings:
    """How the test is made."""

    events: int = 100_000  # of each density, drawn where no file is given
    draws: int | None = None  # weight draws of a Bayesian model; if not given, 100
    seed: int = 0  # gives all randomness
    classifier: bool = True  # whether to train a classifier as a reference
    limit: float = 1.0  # |delta log r| from which an event is said to be off
    n_bootstrap: int = 200
    band_events: int = 20_000  # of each class, for the band over all pairs of draws, at a cost of draws^2 times events
    rule: statistics.DualRule = field(default_factory=statistics.DualRule)
    network: RatioSettings = field(default_factory=RatioSettings)

    def __post_init__(self) -> None:
        enough, some = FEWEST_EVENTS <= self.events <= MOST_EVENTS, self.draws is None or 2 <= self.draws <= MOST_DRAWS
        require_that(enough, "events", f"{FEWEST_EVENTS} to {MOST_EVENTS} of each class", self.events)
        require_that(some, "draws", f"2 to {MOST_DRAWS}, since a spread needs two", self.draws)
        require_that(self.seed >= 0, "seed", "a whole number of at least 0", self.seed)


def central(rows: Rows) -> Array:
    """-E/T with shape (N,), what the draws of a model say together, in float64."""
    return np.asarray(-rows._replace(scores=rows.scores.astype(np.float64)).score())


class Against(NamedTuple):
    """The test against one reference."""

    log_ratio: Array  # of the reference, shape (N,)
    comparisons: dict[str, statistics.RatioComparison]  # by the choice of C: "c0" and, where it is known, "log_z"
    pairs: statistics.PairLines | None  # over all pairs of draws with C = 0, where a model is Bayesian
    pair_constants: dict[str, Array]  # of these pairs, by the choice of C
    judged: tuple[float, float] | None  # range of the best log r in which linearity is judged, where not all of it
    everywhere: statistics.Verdict  # what it would be without that range

    @property
    def best(self) -> statistics.RatioComparison:
        """With C from log Z where that is known."""
        return self.comparisons.get("log_z", self.comparisons["c0"])

    @property
    def passes(self) -> bool:
        """The same for both choices of C."""
        return self.best.verdict.passes


class Distribution(NamedTuple):
    """Densities of log r in bins with edges (B + 1,): rows A and B, (2, B); a band where a model is Bayesian."""

    edges: Array
    reference: Array
    learned: Array
    band: Array | None


@dataclass(frozen=True)
class DualResult:
    """Everything that numbers, figures and page need."""

    names: tuple[str, str]  # of the two models
    sample: Labelled  # where the test is made
    ratios: dict[str, Array]  # the central log r by the choice of C, "c0" and "log_z", with shape (N,)
    constant: Estimate | None  # log Z_A - log Z_B, where known
    against: dict[str, Against]  # by reference, "true", "classifier" and "rows", the first being the one to believe
    logistic: Estimate  # b of a logistic fit of the labels on log r
    odds: dict[str, BinnedOdds]  # labels in bins of log r: of the "models", with the C that labels give, and references
    distributions: dict[str, Distribution]  # by C, against the first; "fit", for slope 1, where log Z is not known
    densities: tuple[Density, Density] | None  # the two true densities, where known
    classifier: ClassifierReference | None  # the supervised reference, where there is one
    metrics: dict[str, Estimate]  # every number with its error, by name
    settings: DualSettings
    events: int = 0  # of the file, of which the sample is a part; 0 where it is all of it

    @property
    def calibrated(self) -> bool:
        """Whether labels say that log r has the right scale."""
        rule = self.settings.rule
        return abs(self.logistic.value - 1) <= rule.class_tolerance + rule.sigmas * self.logistic.error

    @property
    def passes(self) -> bool:
        """Whether the models pass against every reference, and by labels."""
        return self.calibrated and all(found.passes for found in self.against.values())

    @property
    def outcome(self) -> str:
        """In a few words: "passed", "failed", or against which reference the one and against which the other."""
        words = {f"against {REFERENCES[name]}": found.passes for name, found in self.against.items()}
        words["by labels"] = self.calibrated
        if len(set(words.values())) == 1:
            return "passed" if self.passes else "failed"
        return ", ".join(f"{'passed' if passes else 'failed'} {name}" for name, passes in words.items())

    @property
    def verdicts(self) -> dict[str, str]:
        """One sentence for each reference."""
        said = {name: found.best.verdict.sentence for name, found in self.against.items()}
        return {name: f"Against {REFERENCES[name]} it {text[0].lower()}{text[1:]}" for name, text in said.items()}


def judge(
    sample: Labelled, a: Rows, b: Rows, densities: tuple[Density, Density] | None,
    classifier: ClassifierReference | None, settings: DualSettings | None = None,
    names: tuple[str, str] = ("A", "B"), rows: ClassifierReference | None = None,
) -> DualResult:  # fmt: skip
    """The dual test from draws of both models; `rows` is a classifier that knows as little of an event as they do."""
    settings = settings or DualSettings()
    references = {} if densities is None else {"true": true_ratio(*densities, sample)}
    trained = {name: one for name, one in (("classifier", classifier), ("rows", rows)) if one is not None}
    references |= {name: one.log_ratio for name, one in trained.items()}
    constant = None
    if a.log_z is not None and b.log_z is not None:  # means over draws, with their spread and the numerical errors
        error = np.linalg.norm([a.log_z.std(), b.log_z.std(), a.log_z_error, b.log_z_error])
        constant = Estimate(float(a.log_z.mean() - b.log_z.mean()), float(error))
    plain = central(b) - central(a)
    ratios = {"c0": plain} if constant is None else {"c0": plain, "log_z": plain + constant.value}
    trial = _Trial(sample, a, b, ratios, settings)
    against = {name: trial.against(ref, trained.get(name)) for name, ref in references.items()}
    first = next(iter(references.values()))
    distributions = {choice: trial.distribution(choice, first) for choice in ratios}
    if constant is None:
        shift = fitted_shift(first, plain, sample.labels)
        shifted = b._replace(scores=b.scores - np.float32(shift))
        distributions["fit"] = trial._replace(b=shifted, ratios={"c0": plain + shift}).distribution("c0", first)
    asked = {"models": plain + unit_slope_shift(plain, sample.labels), **references}
    odds = {name: binned_odds(ratio, sample.labels, settings.rule.bins) for name, ratio in asked.items()}
    slope = logistic_slope(plain, sample.labels)
    told = (names, sample, ratios, constant, against, slope, odds, distributions, densities, classifier)
    found = DualResult(*told, {}, settings)
    found.metrics.update(_metrics(found, a, b))
    return found


def true_ratio(a: Density, b: Density, sample: Labelled) -> Array:
    """log p_B - log p_A of the true densities, with shape (N,)."""
    x = torch.from_numpy(sample.x).double()
    return np.asarray((b.log_prob(x) - a.log_prob(x)).numpy())


def fitted_shift(reference: Array, ratio: Array, labels: NDArray[np.bool_]) -> float:
    """The C that a line of slope 1 has: the mean of reference minus model, both classes with the same weight."""
    return float((reference - ratio) @ balanced_weights(labels))


class _Trial(NamedTuple):
    """Draws of both models at the sample, and their central log r by the choice of C."""

    sample: Labelled
    a: Rows
    b: Rows
    ratios: dict[str, Array]
    settings: DualSettings

    @property
    def bayesian(self) -> bool:
        return max(len(self.a.scores), len(self.b.scores)) > 1

    def against(self, reference: Array, classifier: ClassifierReference | None) -> Against:
        """The test against log r of a reference with shape (N,), the classifier's where that is given."""
        labels, settings = self.sample.labels, self.settings
        pairs = statistics.pair_lines(reference, -self.a.scores, -self.b.scores, labels) if self.bayesian else None
        spread = 0.0 if pairs is None else float(pairs.slope.std())
        comparisons: dict[str, statistics.RatioComparison] = {}
        judged, whole = None, None
        for choice, ratio in self.ratios.items():
            whole = statistics.compare_ratios(
                reference, ratio, labels, settings.rule, settings.n_bootstrap,
                generator=stream(settings.seed, "dual/bootstrap"), limit=settings.limit, slope_spread=spread,
            )  # fmt: skip
            comparisons[choice] = whole
            if classifier is not None:
                judged = supported(ratio, labels, settings.rule)
                comparisons[choice] = self.rejudged(whole, classifier, ratio, spread, judged)
                whole = self.rejudged(whole, classifier, ratio, spread, None)
        assert whole is not None
        constants = {} if pairs is None else {"c0": pairs.constant}
        if pairs is not None and self.a.log_z is not None and self.b.log_z is not None:
            # log r of a pair is shifted by its own C, so the line's constant moves by -m C.
            constants["log_z"] = pairs.constant - pairs.slope * (self.a.log_z[:, None] - self.b.log_z[None])
        return Against(reference, comparisons, pairs, constants, judged, whole.verdict)

    def rejudged(
        self, whole: statistics.RatioComparison, classifier: ClassifierReference, ratio: Array, spread: float,
        judged: tuple[float, float] | None,
    ) -> statistics.RatioComparison:  # fmt: skip
        """The comparison with the classifiers' own errors, and linearity judged in a range of log r."""
        labels, rule = self.sample.labels, self.settings.rule
        low, high = judged or (-math.inf, math.inf)
        inside = (ratio >= low) & (ratio <= high)

        def residuals_of(reference: Array) -> statistics.BinnedResiduals:
            return statistics.binned_residuals(reference[inside], ratio[inside], labels[inside], whole.line, rule.bins)

        residuals = residuals_of(classifier.log_ratio)
        slopes = np.array([whole.line.slope.value, *(one.slope.value for one in whole.within)])
        own = logistic_slope(classifier.log_ratio, labels)
        errors = np.hypot(spread, slopes * own.error)
        if len(classifier.members) > 1:
            scatter = np.std([residuals_of(member).residual for member in classifier.members], axis=0, ddof=1)
            residuals = residuals._replace(error=np.hypot(residuals.error, scatter))
            errors = np.hypot(errors, member_slopes(classifier, ratio, labels).std(axis=0, ddof=1))
        doubt = abs(own.value - 1)
        of_slope, of_class = rule.slope_tolerance + doubt, rule.class_tolerance + doubt
        wider, (over_all, in_a, in_b) = replace(rule, slope_tolerance=of_slope, class_tolerance=of_class), errors
        verdict = statistics.verdict(whole.line, whole.within, residuals, wider, float(over_all), (in_a, in_b))
        return whole._replace(residuals=residuals, verdict=verdict)

    def distribution(self, choice: str, reference: Array) -> Distribution:
        """Reference and model at the same events, in even bins over nearly all of them, the same for both C."""
        ends = np.array([np.quantile(values, (0.0005, 0.9995)) for values in (reference, *self.ratios.values())])
        low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
        bins = int(np.clip(math.sqrt(reference.size) / 3, 20, MOST_BINS))
        edges = np.linspace(low, max(high, low + 1e-6), bins + 1)
        labels = self.sample.labels
        members = [np.flatnonzero(labels == label) for label in (False, True)]
        if self.bayesian:
            members = [index[:: -(-index.size // self.settings.band_events)] for index in members]
        nothing = np.zeros((1, labels.size))
        found = [statistics.pair_histogram(nothing[:, i], reference[None, i], edges)[0] for i in members]
        sides = [(_log_p(self.a, choice, i), _log_p(self.b, choice, i)) for i in members]
        bands = [statistics.pair_histogram(*pair, edges) for pair in sides]
        learned, spread = (np.stack(rows) for rows in zip(*bands, strict=True))
        return Distribution(edges, np.stack(found), learned, spread if self.bayesian else None)


def supported(ratio: Array, labels: NDArray[np.bool_], rule: statistics.DualRule) -> tuple[float, float] | None:
    """The range of log r beyond which either class still has 1/tolerance^2 events; None where there is none."""
    least = math.ceil(1 / rule.residual_tolerance**2) if rule.residual_tolerance else labels.size
    a, b = np.sort(ratio[~labels]), np.sort(ratio[labels])
    if min(a.size, b.size) < least or not b[least - 1] < a[-least]:
        return None
    return float(b[least - 1]), float(a[-least])


def member_slopes(classifier: ClassifierReference, ratio: Array, labels: NDArray[np.bool_]) -> Array:
    """The slope m against each of the classifiers, for all events, within A and within B, with shape (K, 3)."""
    nothing = np.zeros((1, ratio.size))
    lines = [statistics.pair_lines(row, nothing, ratio[None], labels) for row in classifier.members]
    within = [statistics.within_classes(row, ratio, labels) for row in classifier.members]
    return np.array([(a.slope[0, 0], *(b.slope.value for b in two)) for a, two in zip(lines, within, strict=True)])


def _log_p(side: Rows, choice: str, index: NDArray[np.int64]) -> Array:
    """log p of each draw at some events, up to log Z for C = 0, with shape (n, N)."""
    some: Rows = side._replace(scores=side.scores[:, index].astype(np.float64))
    return np.asarray(-some.scores if choice == "c0" or side.log_z is None else some.log_prob_draws())


def _metrics(result: DualResult, a: Rows, b: Rows) -> dict[str, Estimate]:
    """Flat names: quantity, reference, choice of C, as in slope_true_log_z."""
    metrics: dict[str, Estimate] = {}
    for name, against in result.against.items():
        for choice, comparison in against.comparisons.items():
            values = {"pearson": comparison.pearson, **comparison.line._asdict()}
            for side, one in zip("ab", comparison.within, strict=True):
                values |= {f"{quantity}_{side}": value for quantity, value in one._asdict().items()}
            values |= {f"outside{side}": getattr(comparison, f"outside{side}") for side in ("", "_a", "_b")}
            metrics |= {f"{quantity}_{name}_{choice}": value for quantity, value in values.items()}
        if against.pairs is not None:
            metrics[f"slope_pairs_{name}"] = over(against.pairs.slope)
            metrics[f"pearson_pairs_{name}"] = over(against.pairs.pearson)
            for choice, constants in against.pair_constants.items():
                metrics[f"constant_pairs_{name}_{choice}"] = over(constants)
    metrics["logistic_slope"] = result.logistic
    if result.constant is not None:
        metrics["constant_log_z"] = result.constant
    for side, model in (("a", a), ("b", b)):
        if model.log_z is not None:
            error = float(np.hypot(model.log_z.std(), model.log_z_error))
            metrics[f"log_z_{side}"] = Estimate(float(model.log_z.mean()), error)
    if (found := result.classifier) is None:
        return metrics
    metrics["classifier_ece"], metrics["classifier_ece_perfect"] = found.before.error
    metrics["classifier_cross_entropy"] = found.before.cross_entropy
    metrics["classifier_ece_corrected"] = found.after.error.measured
    metrics["classifier_cross_entropy_corrected"] = found.after.cross_entropy
    metrics["classifier_logistic_slope"] = logistic_slope(found.log_ratio, result.sample.labels)
    if len(found.members) > 1:
        slopes = member_slopes(found, result.ratios["c0"], result.sample.labels)
        for name, column in zip(("", "_a", "_b"), slopes.T, strict=True):
            metrics[f"slope_members{name}_classifier"] = over(column)
    if "true" in result.against:
        true, limit = result.against["true"].log_ratio, result.settings.limit
        metrics["classifier_pearson_true"] = statistics.balanced_pearson(true, found.log_ratio, result.sample.labels)
        metrics["classifier_outside_true"] = statistics.share_outside(true, found.log_ratio, limit)
    return metrics
