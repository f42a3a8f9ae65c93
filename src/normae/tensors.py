"""Small tensor operations that several rooms share."""

import torch
from torch import Tensor


def norm(x: Tensor, keepdim: bool = False) -> Tensor:
    """Euclidean norm over the last axis."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=keepdim)
    return length
