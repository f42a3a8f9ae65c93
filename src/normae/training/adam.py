"""Adam for rows of weights, one row for each of S models, with a learning rate for each row.

    m <- b1 m + (1-b1) g,  v <- b2 v + (1-b2) g^2,  w <- w - rate m^ / (sqrt(v^) + eps)

with m^ = m/(1-b1^k), v^ = v/(1-b2^k) at update k. Its state is three tensors, so a checkpoint needs no pickle, a
rollback is a copy, and the whole update can be captured in a CUDA graph. The numbers are those of torch.optim.Adam.
"""

import torch
from torch import Tensor


class Adam:
    """Optimizer of weights with shape (S, P), in place.

    Args:
        weights: with shape (S, P).
    """

    def __init__(self, weights: Tensor, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8) -> None:
        self.weights = weights
        self.betas = betas
        self.epsilon = epsilon
        self.first = torch.zeros_like(weights)
        self.second = torch.zeros_like(weights)
        self.updates = torch.zeros((), dtype=torch.float64, device=weights.device)

    def state(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint holds."""
        return {"first": self.first, "second": self.second, "updates": self.updates}

    @torch.no_grad()
    def update(self, grad: Tensor, rate: Tensor) -> None:
        """One step along `grad`, with shape (S, P), at learning rates with shape (S,)."""
        beta1, beta2 = self.betas
        self.updates += 1
        self.first.lerp_(grad, 1 - beta1)
        self.second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction1 = (1 - beta1**self.updates).to(grad.dtype)
        correction2 = (1 - beta2**self.updates).to(grad.dtype)
        scale = (self.second / correction2).sqrt_().add_(self.epsilon)
        self.weights.sub_((rate[:, None] / correction1) * self.first / scale)
