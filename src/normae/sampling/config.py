"""Settings of chains: of one Langevin chain, and of the two chains and the buffer that make negative samples."""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from normae.errors import require_that

Metropolis = Literal["exact", "off"]
BoundsRule = Literal["reject", "clamp"]
ClipRule = Literal["norm", "row", "value"]
Sphere = Literal[None, "geodesic", "project"]
CHOICES = {"metropolis": Metropolis, "bounds_rule": BoundsRule, "clip_rule": ClipRule, "sphere": Sphere}


@dataclass(frozen=True)
class ChainConfig:
    """One Langevin chain.

    Args:
        steps: length of the chain.
        step_size: the paper's lambda; the drift of a step is lambda/T times the energy gradient.
        noise: the paper's sigma; sqrt(2 lambda) by default, for which the unadjusted chain samples at T.
        metropolis: "exact" accepts each step by the Metropolis test, "off" takes every step within the bounds.
        bounds: lowest and highest value of every feature.
        bounds_rule: "reject" refuses steps that leave the bounds and is exact; "clamp" moves them back to the
            edge, which changes the proposal, so that the Metropolis test is only approximate.
        clip: largest gradient of E, before 1/T. The test uses the clipped gradient both ways and stays exact.
        clip_rule: "norm" limits the norm over the whole event, "row" over the last axis, "value" each component.
        sphere: None for a flat space; "geodesic" moves along great circles and is exact; "project" takes the flat
            step and normalizes, for which the test is only approximate.
        anneal: noise sigma/(1+t) at step t = 0, 1, ...
        adapt: acceptance towards which training moves the step size; None keeps the step size.

    >>> from normae.sampling import ChainConfig
    >>> ChainConfig(steps=10, step_size=0.02).describe()
    '10 steps of lambda = 0.02, sigma = 0.2, exact Metropolis test'
    """

    steps: int = 100
    step_size: float = 5e-3
    noise: float | None = None
    metropolis: Metropolis = "exact"
    bounds: tuple[float, float] | None = None
    bounds_rule: BoundsRule = "reject"
    clip: float | None = None
    clip_rule: ClipRule = "norm"
    sphere: Sphere = None
    anneal: bool = False
    adapt: float | None = None

    def __post_init__(self) -> None:
        for name, kind in CHOICES.items():
            given, allowed = getattr(self, name), list(get_args(kind))
            require_that(given in allowed, name, f"one of {allowed}", repr(given))
        require_that(self.steps >= 0, "steps", "at least 0", self.steps)
        require_that(0 < self.step_size < math.inf, "step_size", "a positive number", self.step_size)
        if self.noise is not None:
            lowest = "a positive number" if self.metropolis == "exact" else "a number of at least 0"
            enough = self.noise > 0 or (self.noise == 0 and self.metropolis == "off")
            require_that(enough and self.noise < math.inf, "noise", lowest, self.noise)
        if self.bounds is not None:
            low, high = self.bounds
            require_that(-math.inf < low < high < math.inf, "bounds", "a lower and a higher finite number", self.bounds)
            require_that(self.sphere is None, "bounds", "none on a sphere", self.bounds)
        require_that(self.clip is None or self.clip > 0, "clip", "a positive number", self.clip)
        if self.adapt is not None:
            require_that(0 < self.adapt < 1, "adapt", "an acceptance between 0 and 1", self.adapt)
            rejects = self.metropolis == "exact"
            require_that(rejects, "adapt", "metropolis = 'exact', since only it rejects", self.metropolis)

    @property
    def noise_ratio(self) -> float:
        """sigma^2/lambda, which stays where lambda is adapted."""
        return 2.0 if self.noise is None else self.noise**2 / self.step_size

    @property
    def exact(self) -> bool:
        """Whether the chain leaves exp(-E/T) invariant."""
        clamps = self.bounds is not None and self.bounds_rule == "clamp"
        return self.metropolis == "exact" and not clamps and self.sphere != "project"

    def describe(self) -> str:
        """One line that says which chain ran."""
        test = "no Metropolis test" if self.metropolis == "off" else "exact Metropolis test"
        if self.metropolis == "exact" and not self.exact:
            test = "approximate Metropolis test (the proposal is clamped or projected)"
        sigma = math.sqrt(2 * self.step_size) if self.noise is None else self.noise
        return f"{self.steps} steps of lambda = {self.step_size:g}, sigma = {sigma:g}, {test}"


@dataclass(frozen=True)
class SamplingConfig:
    """How negative samples are made.

    Args:
        backend: "reference" for plain PyTorch, "explicit" for pullbacks without autograd, "graph" for explicit
            pullbacks in a CUDA graph, "fused" for the chain in one kernel; "auto" takes the fastest that serves.
        buffer: number of stored end points of earlier chains.
        replay: share of chains that start from the buffer; the others start from noise.
        buffer_space: "latent" stores latent end points, as the paper; "feature" keeps persistent chains in feature
            space, and only fresh chains go through the latent space.
        chains_from: where persistent feature chains begin: "latent", points decoded from latent noise, or "data",
            training events.
        keep_chains: keep persistent feature chains, from which samples go on; always so where they began at the data.
        generation: length of the feature chain that generates samples; None for that of the training, as in the paper.
        latent, feature: the two chains of the on-manifold start.
    """

    backend: Literal["auto", "reference", "explicit", "graph", "fused"] = "auto"
    buffer: int = 10_000
    replay: float = 0.95
    buffer_space: Literal["latent", "feature"] = "latent"
    chains_from: Literal["latent", "data"] = "latent"
    keep_chains: bool = False
    generation: int | None = None
    latent: ChainConfig = field(default_factory=lambda: ChainConfig(steps=50))
    feature: ChainConfig = field(default_factory=lambda: ChainConfig(steps=100))

    def __post_init__(self) -> None:
        require_that(self.buffer >= 1, "sampling.buffer", "at least 1", self.buffer)
        require_that(0 <= self.replay <= 1, "sampling.replay", "a share between 0 and 1", self.replay)
        require_that(self.generation_steps >= 0, "sampling.generation", "at least 0", self.generation)
        persistent = self.buffer_space == "feature" or not self.keep_chains
        require_that(persistent, "sampling.keep_chains", 'buffer_space = "feature"', self.buffer_space)

    @property
    def kept(self) -> bool:
        """Whether a run keeps its feature chains."""
        return self.keep_chains or self.chains_from == "data"

    @property
    def generation_steps(self) -> int:
        """Length of the feature chain that generates samples."""
        return self.feature.steps if self.generation is None else self.generation
