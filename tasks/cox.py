"""The Cox model's negative log partial likelihood of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from florilegium.tasks.choices import Choices
from florilegium.tasks.losses import RISK, Loss

if TYPE_CHECKING:
    from torch import Tensor


def cox(outputs: Tensor, y: Tensor, choices: Choices) -> Tensor:
    """Return E_i·(log Σ_{j: T_j ≥ T_i} exp s_j − s_i) of each row of a batch, (n,), Breslow's form for ties.

    Args:
        outputs: the scores s, (n, 1): logarithms of relative risks.
        y: times T and events E, (n, 2).
        choices: not used.
    """
    from torch import searchsorted

    times, events = y.unbind(1)
    order = times.argsort(descending=True, stable=True)
    # All rows with the same time are at risk together: the sum up to the last of them.
    falling = -times[order]
    last = searchsorted(falling, falling, right=True) - 1
    return _terms(outputs[order, 0], events[order], last, order)


def cox_in_order(outputs: Tensor, y: Tensor, choices: Choices) -> Tensor:
    """Return the terms of :func:`cox`, where ties are at risk in the order of the batch, as in FLamby's loss."""
    from torch import arange

    order = y[:, 0].argsort(descending=True, stable=True)
    return _terms(outputs[order, 0], y[order, 1], arange(len(order), device=y.device), order)


def _terms(scores: Tensor, events: Tensor, last: Tensor, order: Tensor) -> Tensor:
    """Return the terms, in the order of the batch, of scores and events sorted by falling time."""
    from torch import empty_like

    sorted_terms = (scores.logcumsumexp(dim=0)[last] - scores) * events
    return empty_like(sorted_terms).scatter(0, order, sorted_terms)


COX = Loss("negative log partial likelihood of a batch, Breslow's form for ties", {RISK: cox})
COX_IN_ORDER = Loss("the same, with ties at risk in the order of the batch", {RISK: cox_in_order})
