"""Maximum mean discrepancy: how far two samples are from being drawn from one distribution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def discrepancy(x: Tensor, y: Tensor, bandwidths: Sequence[float]) -> Tensor:
    """Return the squared maximum mean discrepancy of samples (n, d) and (m, d), with Gaussian kernels.

    It is the squared distance of the samples' means in the space of the kernel k(u, v) = Σ_b exp(−‖u − v‖²/(2b)), the
    sum over the ``bandwidths`` b: mean k(x, x') + mean k(y, y') − 2·mean k(x, y), pairs of equal indices included.
    """
    joint = torch.cat([x, y])
    squares = joint.square().sum(dim=1)
    distances = (squares[:, None] + squares[None, :] - 2 * joint @ joint.T).clamp_min(0)
    kernel = torch.stack([torch.exp(distances / (-2 * b)) for b in bandwidths]).sum(dim=0)
    n = len(x)
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()
