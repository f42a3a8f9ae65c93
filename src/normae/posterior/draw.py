"""A weight draw: one sample of the posterior of the weights, fixed for as long as it is in use.

A training iteration (its chain, E+ and E-), a partition function or a score has one draw from its beginning to its end.
A draw is an ordinary energy with a temperature of its own,

    p_k(x) = exp(-E_k(x)/T_k) / Z_k,    k = 1 ... n.

A `Posterior` is where draws come from: `weights` (mean field, ensemble, modes). It gives `Draws`, n of
them at once, which know their n energies at any x, and each alone. A deterministic model has a posterior too, with
exactly one draw, `Certain`: so nobody has to ask which kind of model it is.

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
from torch import Tensor

from normae.data.frames import Categories, as_rows, column_names
from normae.errors import LogZUnknown
from normae.networks.reconstruction import ReconstructionEnergy
from normae.progress import progress

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
        """`n` draws, all from the generator; fewer where there are no more."""

    def to(self, device: torch.device | str) -> "Posterior":
        """The same posterior on `device`."""


class Certain(Posterior):
    """The posterior of a deterministic model, and its only draw; the temperature has shape (1,)."""

    certain = True

    def __init__(self, energy: ReconstructionEnergy, temperature: Tensor) -> None:
        self.energy, self.temperature = energy, temperature

    def draws(self, n: int, generator: torch.Generator) -> "Certain":  # noqa: ARG002
        return self

    def to(self, device: torch.device | str) -> "Certain":
        self.temperature = self.temperature.to(device)  # a model that moves makes a new energy
        return self

    def energies(self, x: Tensor) -> Tensor:
        return self.energy(x)[None]

    def stacked(self) -> ReconstructionEnergy:
        return self.energy

    def one(self, k: int) -> ReconstructionEnergy:  # noqa: ARG002
        return self.energy


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
        return x
    return np.asarray(x) if column_names(x) is None else as_rows(x, columns, name, categories=categories).values


def in_pieces(
    function: Callable[[Tensor], Tensor],
    events: NDArray[Any],
    device: torch.device,
    most: int | None = None,
    dtype: type[np.floating[Any]] = np.float32,
) -> tuple[Tensor, Tensor]:
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
