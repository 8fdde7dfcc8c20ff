"""Cost of FLowDUP's expansion operator P: Pv and Pᵀg on one core."""

from __future__ import annotations

import time

import torch

from florilegium.models.networks import build
from florilegium.models.subspace import expansion

DIMENSIONS = 10_000
REPEATS = 15


def expansion_cost(kind: str, model: str) -> tuple[float, float]:
    """Return the median milliseconds of Pv and Pᵀg together for ``model`` on CIFAR-10, and the megabytes of P."""
    d = sum(parameter.numel() for parameter in build(model, (3, 32, 32), 10, 1).parameters())
    p = expansion(kind, d, DIMENSIONS, 1)
    v, g = torch.randn(DIMENSIONS, requires_grad=True), torch.randn(d)
    threads, seconds = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        for _ in range(REPEATS):
            start = time.perf_counter()
            torch.autograd.grad(p(v), v, g)
            seconds.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return 1000 * sorted(seconds)[REPEATS // 2], p.bytes / 1e6
