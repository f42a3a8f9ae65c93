"""Which feature makes an event unlikely: the score as a sum of parts, one of each feature.

Where features are seen as they are and the energy has no base, E/T is a mean over features: the parts are its terms.
Otherwise the score is followed along the straight line from an event x0 that the model knows,

    part_j = s(x0)/d + (x_j - x0_j) int_0^1 ds/dx_j(x0 + t (x - x0)) dt,

whose sum is s(x) (integrated gradients; Sundararajan, Taly and Yan, ICML 2017). x0 is the nearest row of the base that
is not x itself, or the centre of the columns where there is no base: a part says what the value of a column adds to the
score, compared with a row like it. What the sum over steps misses of the integral is shared equally.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from normae.coordinates import Coordinates, Identity
from normae.networks.base import Base, distances
from normae.networks.reconstruction import ReconstructionEnergy

STEPS = 64  # of the integral


def parts_of(
    x: Tensor,
    score: Callable[[Tensor], Tensor],
    energy: ReconstructionEnergy,
    temperature: float,
    coordinates: Coordinates,
    certain: bool,
) -> Tensor:
    """Parts with shape (N, *event) of the score of events x with shape (N, *event).

    Args:
        score: the model's, with shape (N,), which can be differentiated.
        energy, temperature: at the centre of the posterior.
        certain: whether there is nothing but the centre.
    """
    if certain and isinstance(coordinates, Identity) and energy.autoencoder.base is None and energy.rebuilds:
        with torch.no_grad():
            return (x - energy.decode(energy.encode(x))).square() / (x[0].numel() * temperature)
    start = known_events(x, energy, coordinates)
    total = torch.zeros_like(x)
    for step in range(STEPS):
        at = (start + (step + 0.5) / STEPS * (x - start)).requires_grad_(True)
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(score(at).sum(), at)
        total += slope / STEPS
    with torch.no_grad():
        found = (x - start) * total
        missing = (score(x) - found.flatten(1).sum(1)) / x[0].numel()
        return found + missing.reshape(-1, *[1] * (x.ndim - 1)).to(found)


@torch.no_grad()
def known_events(x: Tensor, energy: ReconstructionEnergy, coordinates: Coordinates) -> Tensor:
    """x0 of each event, with shape (N, *event)."""
    base = energy.autoencoder.base
    if not isinstance(base, Base):
        y = coordinates.forward(x)
        return coordinates.inverse(torch.zeros_like(y)).to(x)
    given = coordinates.forward(x).to(base.frame)
    u = given[:, : base.dimension] @ base.frame.T
    pieces = [base.centres[distances(piece, base.centres)[0].argmin(1)] for piece in u.split(256)]
    y = torch.linalg.solve(base.frame, torch.cat(pieces).T).T
    return coordinates.inverse(torch.cat([y, given[:, base.dimension :]], dim=1)).to(x)
