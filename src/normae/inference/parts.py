"""Which feature makes an event unlikely: the score as a sum of parts, one of each feature.

Where features are seen as they are and the energy has no base, E/T is a mean over features: the parts are its terms.
Otherwise the score is followed along the straight line from an event x0 that the model knows,

    part_j = s(x0)/d + (x_j - x0_j) int_0^1 ds/dx_j(x0 + t (x - x0)) dt,

whose sum is s(x) (integrated gradients; Sundararajan, Taly and Yan, ICML 2017). x0 is the nearest row of the base that
is not x itself, or the middle of the nearest Gaussian of a base without kernels, or the centre of the columns where
there is no base. What the sum over steps misses of the integral is shared equally. Of a picture seen by its components
the line is one of components, and the sum over them is spread over pixels.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from normae.components import ComponentsCoordinates
from normae.coordinates import Coordinates, Identity
from normae.lattice import IMPOSSIBLE, cannot_occur
from normae.networks.base import Base, closeness
from normae.networks.reconstruction import ReconstructionEnergy

STEPS = 64  # of the integral


def parts_of(
    x: Tensor, score: Callable[[Tensor], Tensor], energy: ReconstructionEnergy, temperature: float,
    coordinates: Coordinates, certain: bool,
) -> Tensor:  # fmt: skip
    """Parts with shape (N, *event) of the score of events x with shape (N, *event).

    Args:
        score: the model's, with shape (N,), which can be differentiated: of events, or of components of pictures.
        energy, temperature: at the centre of the posterior.
        certain: whether there is nothing but the centre.
    """
    if certain and isinstance(coordinates, Identity) and energy.autoencoder.base is None and energy.rebuilds:
        with torch.no_grad():
            found = (x - energy.decode(energy.encode(x))).square() / (x.shape[1:].numel() * temperature)
            return found if coordinates.lattice is None else found + IMPOSSIBLE * cannot_occur(x, coordinates.lattice)
    pictures = coordinates if isinstance(coordinates, ComponentsCoordinates) else None
    end = x if pictures is None else pictures.forward(x)
    known = known_rows(coordinates.forward(x), energy)
    start = coordinates.inverse(known).to(x) if pictures is None else known.to(end)
    total = torch.zeros_like(end)
    for step in range(STEPS):
        at = (start + (step + 0.5) / STEPS * (end - start)).requires_grad_(True)
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(score(at).sum(), at)
        total += slope / STEPS
    with torch.no_grad():
        found = (end - start) * total if pictures is None else pictures.picture(end - start, total)
        if coordinates.lattice is not None:
            found = found + IMPOSSIBLE * cannot_occur(x, coordinates.lattice)
        missing = (score(end) - found.flatten(1).sum(1)) / x.shape[1:].numel()
        return found + missing.reshape(-1, *[1] * (x.ndim - 1)).to(found)


@torch.no_grad()
def known_rows(y: Tensor, energy: ReconstructionEnergy) -> Tensor:
    """y of x0 of each event, with shape (N, *event), for its own y."""
    base = energy.autoencoder.base
    if not isinstance(base, Base):
        return torch.zeros_like(y)
    given = y.to(base.frame)
    u = given[:, : base.dimension] @ base.frame.T
    centres = base.centres if len(base.centres) else base.means
    one = u.new_ones(())
    pieces = [centres[closeness(piece, centres, base.own(piece), one)[0].argmax(1)] for piece in u.split(256)]
    y = torch.linalg.solve(base.frame, torch.cat(pieces).T).T
    return torch.cat([y, given[:, base.dimension :]], dim=1)
