"""A weight draw: one sample of the posterior of the weights, fixed for as long as it is in use.

A training iteration (its chain, E+ and E-), a partition function or a score has one draw from its beginning to its end.
A draw is an ordinary energy with a temperature of its own,

    p_k(x) = exp(-E_k(x)/T_k) / Z_k,    k = 1 ... n.

A `Posterior` is where draws come from. It gives `Draws`, n of them at once, which know their n energies at any x, and
each alone. A deterministic model has a posterior too, with exactly one draw, `Certain`: so nobody has to ask which kind
of model it is. Otherwise draws are weights of a network, from independent Gaussians over them (`MeanField`), or
mixtures of an `Ensemble`. Where draws differ in the decoder's last layer only, its input h(x) is the same for all of
them and is computed once; a draw then costs one small product, E_k = mean_i (x_i - (W_k h + b_k)_i)^2.

A posterior with several modes (`Modes`) has the mean fields of trainings that differ in their seeds.

    q(w) = 1/K sum_j q_j(w),    p(x) = 1/K sum_j p_j(x),    p_j(x) = exp(-E_j(x)/T_j + c_j) / Z.

A mean field knows the width of the mode that its training has found, and nothing of the other modes. A draw is a draw
of one member, so that the spread over draws has both: within a mode, and from one training to another. The density of
the whole is the mean of the members' densities; their constants c_j come from `statistics.mixture_constants`.

Every consumer (scores of files, dual test, histograms, export, evaluation) gets `Rows` from `model.rows(x, n)`, a row
for each draw, with the rule that joins them (`together`):

    log p_k(x) = -s_k(x) - log Z_k,    s_k(x) = E_k(y(x))/T_k - log |dy/dx|.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normae.data.frames import Categories, as_rows, column_names, unmasked
from normae.errors import LogZUnknown
from normae.networks.autoencoder import Autoencoder
from normae.networks.bayesian import width
from normae.networks.mlp import split_decoder
from normae.networks.reconstruction import Named, ReconstructionEnergy, last_input, prefixed
from normae.progress import progress

CONVOLVED = 32  # events whose pictures of all draws are in memory at once: 10 MB for 50 draws of 40 x 40 pixels
CPU_PIECE = 1 << 11  # events at a time on a CPU, whose activations then stay in the cache
GPU_PIECE = 1 << 16
BUFFER = 1 << 26  # bytes of a pinned buffer; events that are large come in smaller pieces


class Draws(Protocol):
    """n weight draws; `temperature` has shape (n,)."""

    temperature: Tensor

    def energies(self, x: Tensor) -> Tensor:
        """E of every draw, with shape (n, N), for x with shape (N, *event)."""

    def stacked(self) -> ReconstructionEnergy:
        """The energies side by side: n blocks of events, draw after draw."""

    def one(self, k: int) -> ReconstructionEnergy:
        """The energy of draw k alone."""


class Posterior(Protocol):
    """A distribution over weights, around those of an autoencoder.

    Args:
        certain: whether there is one draw only.
        mixture: whether the density is the mean of those of the draws, and not that of the mean score.
    """

    certain: bool = False
    mixture: bool = False

    def draws(self, n: int, generator: torch.Generator) -> Draws:
        """`n` draws, all from the generator, on the network's device; fewer where there are no more."""


class Certain(Posterior):
    """The posterior of a deterministic model, and its only draw; the temperature has shape (1,)."""

    certain = True

    def __init__(self, energy: ReconstructionEnergy, temperature: Tensor) -> None:
        self.energy, self.temperature = energy, temperature

    def draws(self, n: int, generator: torch.Generator) -> "Certain":  # noqa: ARG002
        return self

    def energies(self, x: Tensor) -> Tensor:
        return self.energy(x)[None]

    def stacked(self) -> ReconstructionEnergy:
        return self.energy

    def one(self, k: int) -> ReconstructionEnergy:  # noqa: ARG002
        return self.energy


# --- draws that are weights of a network


class WeightDraws:
    """Draws that are weights of the network, by name, with shape (n, *parameter), or (1, *parameter) where all share.

    The temperature has shape (n,).
    """

    def __init__(self, autoencoder: Autoencoder, weights: Named, temperature: Tensor) -> None:
        self.autoencoder, self.weights, self.temperature = autoencoder, dict(weights), temperature
        self.n = len(temperature)

    def expanded(self) -> dict[str, Tensor]:
        """The weights of every draw, with shape (n, *parameter)."""
        return {name: value.expand(self.n, *value.shape[1:]) for name, value in self.weights.items()}

    def stacked(self) -> ReconstructionEnergy:
        return ReconstructionEnergy(self.autoencoder, self.expanded())

    def one(self, k: int) -> ReconstructionEnergy:
        weights = {name: value[k % len(value)][None] for name, value in self.weights.items()}
        return ReconstructionEnergy(self.autoencoder, weights)

    def energies(self, x: Tensor) -> Tensor:
        if not self._only_last_layer():
            return torch.stack([self.one(k)(x) for k in range(self.n)])
        first = self.one(0)
        hidden, layer, prefix = last_input(self.autoencoder.decoder, first.decoder_parameters, first.encode(x))
        last = prefixed(self.weights, f"decoder.{prefix}")
        if isinstance(layer, nn.Conv2d):
            return first.based(_convolved_energies(layer, last, hidden, x), x)
        out = torch.einsum("nh,koh->kno", hidden, last["weight"]) + last["bias"][:, None]
        return first.based((x[None] - out).square().mean(-1), x)

    def _only_last_layer(self) -> bool:
        """Whether draws differ in the decoder's last layer only, and that is a product or a convolution."""
        _, layer, prefix = split_decoder(self.autoencoder.decoder) or (None, None, "")
        serves = isinstance(layer, nn.Linear) or (type(layer) is nn.Conv2d and layer.groups == 1)
        others = [value for name, value in self.weights.items() if not name.startswith(f"decoder.{prefix}")]
        return serves and all(len(value) == 1 for value in others)


def _convolved_energies(layer: nn.Conv2d, last: Named, hidden: Tensor, x: Tensor) -> Tensor:
    """E of n draws of a convolution, with shape (n, N): all draws as the channels of one, some events at a time."""
    weight, bias = last["weight"], last["bias"]
    draws, channels = max(len(weight), len(bias)), weight.shape[1]
    kernels = weight.expand(draws, *weight.shape[1:]).flatten(0, 1)
    offsets = bias.expand(draws, channels).flatten()
    found = []
    for h, event in zip(torch.split(hidden, CONVOLVED), torch.split(x, CONVOLVED), strict=True):
        out = nn.functional.conv2d(h, kernels, offsets, layer.stride, layer.padding, layer.dilation)
        out = out.unflatten(1, (draws, channels)) - event[:, None]
        found.append(out.square().flatten(2).mean(-1).T)
    return torch.cat(found, dim=1)


class MeanField(Posterior):
    """Independent Gaussians of width softplus(rho) around the weights of a network, `rho` by their names.

    Args:
        means: the weights by name, where they are not those that the network has.
    """

    def __init__(self, autoencoder: Autoencoder, rho: Named, temperature: float, means: Named | None = None) -> None:
        self.autoencoder, self.temperature, self.means = autoencoder, temperature, means or {}
        self.widths = {name: width(value) for name, value in rho.items()}

    def draws(self, n: int, generator: torch.Generator) -> WeightDraws:
        """Means plus widths times standard normal noise."""
        drawn = {}
        for name, own in self.autoencoder.named_parameters():
            drawn[name] = self.means.get(name, own).to(own)[None]
            if name in self.widths:
                noise = torch.randn(n, *own.shape, generator=generator, device=generator.device)
                drawn[name] = drawn[name] + self.widths[name].to(own) * noise.to(own.device)
        return WeightDraws(self.autoencoder, drawn, own.new_full((n,), self.temperature))


class MixedDraws(ReconstructionEnergy):
    """n draws that mix the scores of an ensemble: T sum_j w_kj E_j(x)/T_j, which are one energy side by side.

    Latent points and starting points are those of one member, another one for each draw.

    Args:
        own: the K members.
        mixture: w, with shape (n, K); the weights of a draw add up to one.
        temperature: T.
    """

    def __init__(self, own: WeightDraws, mixture: Tensor, temperature: float) -> None:
        chosen = torch.arange(len(mixture), device=mixture.device) % own.n
        super().__init__(own.autoencoder, {name: value[chosen] for name, value in own.weights.items()}, explicit=False)
        self.own, self.mixture, self.centre = own, mixture, temperature
        self.temperature = mixture.new_full((len(mixture),), temperature)
        self.each = [own.one(j) for j in range(own.n)]
        self.scale = temperature * mixture / own.temperature

    def __call__(self, x: Tensor) -> Tensor:
        energies = torch.stack([energy(x) for energy in self.each]).unflatten(1, (self.members, -1))
        return torch.einsum("knb,nk->nb", energies, self.scale).flatten()

    def value_and_grad(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, grad = torch.zeros_like(x[:, 0].flatten()), torch.zeros_like(x)
        for energy, scale in zip(self.each, self.scale.T, strict=True):
            weight = scale.repeat_interleave(len(x) // self.members)
            own, slope = energy.value_and_grad(x)
            value += weight * own
            grad += weight.reshape(-1, *[1] * (x.ndim - 1)) * slope
        return value, grad

    def with_latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self(x), self.encode(x)

    def energies(self, x: Tensor) -> Tensor:
        """E of every draw, with shape (n, N): the members once, whatever the number of draws."""
        return self.centre * (self.mixture @ (self.own.energies(x) / self.own.temperature[:, None]))

    def stacked(self) -> "MixedDraws":
        return self

    def one(self, k: int) -> "MixedDraws":
        return MixedDraws(self.own, self.mixture[k : k + 1], self.centre)


class Ensemble(Posterior):
    """Around the mean score of K models trained apart, with their spread:

        s_k = s + f r_k sum_j xi_kj (s_j - s) / sqrt(K - 1),    s = sum_j s_j / K,    xi ~ N(0, 1),
        r_k = sqrt((K - 1) / chi^2_k),    chi^2 with K - 1 degrees of freedom.

    Without f and r the draws have the mean and the covariance of the members. The covariance is an estimate from K of
    them, and r makes the draws Student's t, which allows for that. Members with events of their own are independent;
    the error of their mean is then f = 1/sqrt(K) times their spread, and else f = 1. A draw is an energy: scores mixed
    with weights that add up to one. It costs what K members cost, however many the draws.

    Args:
        members: weights by name, with shape (K, *parameter).
        temperatures: with shape (K,).
        independent: trained on events of their own.
    """

    def __init__(self, autoencoder: Autoencoder, members: Named, temperatures: Tensor, independent: bool) -> None:
        self.autoencoder, self.members, self.temperatures = autoencoder, dict(members), temperatures
        self.independent = independent

    def draws(self, n: int, generator: torch.Generator) -> MixedDraws:
        """Random mixtures of the members."""
        members = {name: self.members[name].to(own) for name, own in self.autoencoder.named_parameters()}
        temperatures = self.temperatures.to(next(self.autoencoder.parameters()))
        count = len(temperatures)
        normal = torch.randn(n, 2 * count - 1, generator=generator, device=generator.device).to(temperatures)
        noise, chi_square = normal[:, :count], normal[:, count:].square().sum(1, keepdim=True)
        factor = count**-0.5 if self.independent else 1.0
        mixture = 1 / count + factor * chi_square.rsqrt() * (noise - noise.mean(1, keepdim=True))
        return MixedDraws(WeightDraws(self.autoencoder, members, temperatures), mixture, float(temperatures.mean()))


class ModeDraws:
    """Draws of several mean fields in turn: `own` has those of each of the K members, at most one more or less.

    The constants c_j have shape (K,). Chains do not see them, and the energies of one draw or of all side by side do
    not have them.
    """

    def __init__(self, own: Sequence[WeightDraws], constants: Tensor) -> None:
        self.own, self.constants = list(own), constants
        self.temperature = _in_turn([draws.temperature for draws in self.own])

    def energies(self, x: Tensor) -> Tensor:
        """E - T c of every draw, with shape (n, N): energies whose constants can be compared."""
        pairs = zip(self.own, self.constants, strict=True)
        return _in_turn([draws.energies(x) - (draws.temperature * c)[:, None] for draws, c in pairs])

    def stacked(self) -> ReconstructionEnergy:
        parts = [draws.expanded() for draws in self.own]
        weights = {name: _in_turn([part[name] for part in parts]) for name in parts[0]}
        return ReconstructionEnergy(self.own[0].autoencoder, weights)

    def one(self, k: int) -> ReconstructionEnergy:
        return self.own[k % len(self.own)].one(k // len(self.own))


def _in_turn(parts: Sequence[Tensor]) -> Tensor:
    """The first row of each part, then the second of each, and so on."""
    found = parts[0].new_empty((sum(map(len, parts)), *parts[0].shape[1:]))
    for j, part in enumerate(parts):
        found[j :: len(parts)] = part
    return found


class Modes(Posterior):
    """Mean fields of K trainings, each with as many draws as the others or one more; constants c_j with shape (K,)."""

    mixture = True

    def __init__(self, members: Sequence[MeanField], constants: Tensor) -> None:
        self.members, self.constants = list(members), constants

    @staticmethod
    def of(autoencoder: Autoencoder, weights: Named, rho: Named, t: Tensor, constants: Tensor) -> "Modes":
        """From the weights and widths of all members, with shape (K, *parameter), and their temperatures t, (K,)."""
        fields = []
        for j, temperature in enumerate(t.tolist()):
            widths, means = ({name: value[j] for name, value in named.items()} for named in (rho, weights))
            fields.append(MeanField(autoencoder, widths, temperature, means))
        return Modes(fields, constants)

    def draws(self, n: int, generator: torch.Generator) -> ModeDraws:
        """The members in turn, beginning with any of them: their numbers of draws differ by one at most."""
        count = len(self.members)
        order = torch.randperm(count, generator=generator, device=generator.device)[:n].tolist()
        own = [self.members[j].draws(len(range(k, n, len(order))), generator) for k, j in enumerate(order)]
        return ModeDraws(own, self.constants[order])


# --- what draws say together


def together(scores: Any, mixture: bool) -> Any:
    """What draws with the scores (n, N), an array or a tensor, say together, with shape (N,).

    Their mean; of a mixture -log of the mean of exp(-score), which is the score of the mean density.
    """
    if not mixture:
        return scores.mean(0)
    found = np.log(len(scores)) - torch.logsumexp(-torch.as_tensor(scores), dim=0)
    return found if isinstance(scores, Tensor) else found.numpy()


def widening(n: int) -> float:
    """Of the standard deviation of n draws, such that their mean is within it of the truth in 68 % of all cases.

    The deviation is itself uncertain, which is Student's t with n - 1 degrees of freedom, and so is the mean.

    >>> from normae.posterior.draw import widening
    >>> round(widening(8), 3)
    1.142
    """
    from normae.statistics.arrays import student  # scipy takes a second to import

    return student(n) * math.sqrt(1 + 1 / n)


def bar_of_halves(scores: NDArray[Any]) -> float:
    """What the standard deviation over members has to be multiplied by to be the error of what they say together.

    The members, with scores (K, N), come in J pairs, which were trained on the two halves a, b of one cut of the rows.
    As far as a half is off the whole, the other half is off to the other side. So the error that comes of the rows, V,
    is in the differences of pairs and not in their means, and the chance of a training, C, is in both:

        W = <(a - b)^2>/4 = V + C/2 = Var[(a + b)/2],

    the error of a pair. That J of them have a smaller C is not counted: what all members get wrong alike stands against
    it. The ratio of W to the variance over members is averaged over events, and that differences are few is in it as
    Student's t. Of no pairs, or one, all is taken for V.

    >>> import numpy as np
    >>> from normae.posterior.draw import bar_of_halves
    >>> random = np.random.default_rng(0)
    >>> rows, chance = random.normal(size=(4, 10_000)), random.normal(size=(8, 10_000))
    >>> round(bar_of_halves(np.stack([rows, -rows], axis=1).reshape(8, -1)), 2), round(bar_of_halves(chance), 2)
    (1.07, 0.81)
    """
    from normae.statistics.arrays import student

    n = len(scores)
    if n % 2 or n < 4:
        return widening(n)
    pairs = scores.astype(np.float64).reshape(-1, 2, scores.shape[1])
    error, variance = np.square(pairs[:, 0] - pairs[:, 1]).mean(0) / 4, pairs.var((0, 1)) * n / (n - 1)
    return student(len(pairs) + 1) * math.sqrt(float(np.mean(error / np.maximum(variance, 1e-30))))


# --- what they say about events


class Rows(NamedTuple):
    """n weight draws at N events.

    Args:
        scores: E/T of each draw, in the user's units, with shape (n, N); an array or a tensor, as the events were.
        log_z: of each draw, with shape (n,); None where it is not known.
        mixture: whether the density is the mean of those of the draws, and not that of the mean score.
        log_z_error: what is left open in log Z of one draw.
        unknown: the sentence of `LogZUnknown`.
        bar: factor on the standard deviation over draws that makes it the error of what they say together.

    >>> import numpy as np, normae.inference
    >>> rows = normae.inference.Rows(np.array([[1.0, 2.0], [3.0, 2.0]]), log_z=np.array([0.5, 0.5]))
    >>> rows.score(), rows.log_prob(), rows.spread().round(2)
    (array([2., 2.]), array([-2.5, -2.5]), array([1.41, 0.  ]))
    """

    scores: Any
    log_z: NDArray[np.float64] | None = None
    mixture: bool = False
    log_z_error: float = 0.0
    unknown: str = "log Z is not known"
    bar: float = 1.0

    def score(self) -> Any:
        """What the draws say together, with shape (N,): of a mixture each counts with its own log Z, where known."""
        if not self.mixture or self.log_z is None:
            return together(self.scores, self.mixture)
        return together(self.scores + self._column(self.log_z - self.log_z.mean()), self.mixture)

    def log_prob_draws(self) -> Any:
        """log p of each draw with its own log Z, with shape (n, N); `LogZUnknown` where that is not known."""
        if self.log_z is None:
            raise LogZUnknown(self.unknown)
        return -self.scores - self._column(self.log_z)

    def log_prob(self) -> Any:
        """log p with shape (N,): the mean over draws of log p, or the log of the mean of p of a mixture."""
        return -together(-self.log_prob_draws(), self.mixture)

    def spread(self) -> Any:
        """The error of the score, from its standard deviation over draws, with shape (N,); None of one draw."""
        if len(self.scores) == 1:
            return None
        found = self.scores.std(0) if isinstance(self.scores, Tensor) else self.scores.std(0, ddof=1)
        return found * self.bar

    def _column(self, numbers: NDArray[np.float64]) -> Any:
        """Numbers of each draw with shape (n, 1), of the kind that the scores are."""
        column = numbers[:, None]
        if isinstance(self.scores, Tensor):
            return torch.from_numpy(column).to(self.scores)
        return column.astype(self.scores.dtype)


def as_events(x: Any, columns: Sequence[str] | None, categories: Categories, name: str) -> Any:
    """Arrays and tensors as they are; of a data frame these columns, with the categories of text, or all of them."""
    if isinstance(x, Tensor | np.ndarray):
        return unmasked(x) if isinstance(x, np.ma.MaskedArray) else x
    return np.asarray(x) if column_names(x) is None else as_rows(x, columns, name, categories=categories).values


def in_pieces(
    function: Callable[[Tensor], Tensor], events: NDArray[Any], device: torch.device, most: int | None = None,
    dtype: type[np.floating[Any]] = np.float32,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`function` of all events, with shape (..., N), and which events are finite, with shape (N,); both on the CPU.

    Args:
        function: from a tensor (n, *event) on the device, n at `most`, to (..., n).
        events: with shape (N, *event), of any real type.
        dtype: of the tensors, float32 or float64.
    """
    values, finite = [], []
    with torch.no_grad(), progress("scoring", len(events)) as tick:
        for piece in _on_device(events, device, most, dtype):
            finite.append((piece * 0).flatten(1).sum(1) == 0)  # five times as fast as torch.isfinite
            values.append(function(piece))
            tick(len(piece))
            if values[-1].numel() > len(piece):  # many values an event do not wait on the device
                values[-1] = values[-1].cpu()
    return torch.cat(values, dim=-1).cpu(), torch.cat(finite).cpu()


def _on_device(
    events: NDArray[Any], device: torch.device, most: int | None, dtype: type[np.floating[Any]]
) -> Iterator[Tensor]:
    """Tensors on the device, at least one; a consumer has launched what it does before it asks for the next.

    A copy to a GPU is fast only from pinned memory: two pinned buffers take turns. One is filled while the other one's
    events are copied and computed.
    """
    if device.type != "cuda":
        size = most or CPU_PIECE
        for start in range(0, max(len(events), 1), size):
            with np.errstate(over="ignore"):
                piece = np.array(events[start : start + size], dtype=dtype)
            yield torch.from_numpy(piece).to(device)
        return
    kind = torch.float64 if dtype == np.float64 else torch.float32
    fit = max(1, BUFFER // (kind.itemsize * math.prod(events.shape[1:])))
    size = min(most or GPU_PIECE, fit, max(len(events), 1))
    shape = (size, *events.shape[1:])
    buffers = [torch.empty(shape, dtype=kind, device="cpu", pin_memory=True) for _ in range(2)]
    copied = [torch.cuda.Event() for _ in buffers]
    for k, start in enumerate(range(0, max(len(events), 1), size)):
        buffer, done = buffers[k % 2], copied[k % 2]
        done.synchronize()  # returns at once where nothing has been recorded
        piece = events[start : start + size]
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and found to be
            np.copyto(buffer.numpy()[: len(piece)], piece, casting="unsafe")
        there = buffer[: len(piece)].to(device, non_blocking=True)
        done.record(torch.cuda.current_stream(device))
        yield there
