"""Summarise per-client metrics: means, standard deviation, and the worst clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Figures = dict[str, float]


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation has found.

    Attributes:
        figures: summary figures of each group of clients.
        rows: a row of figures for each client, where single clients' are known.
    """

    figures: Mapping[str, Figures]
    rows: Sequence[Mapping[str, object]] = ()


VALIDATION_LOSS, MEDIAN = "validation_loss", "validation_loss_median"
"""Figures of the examples held out from training: the mean over clients, and the median, which no client decides."""


def summarise(metrics: Mapping[str, NDArray[np.float64]], examples: NDArray[np.float64]) -> Figures:
    """Summarise the clients of one group.

    Args:
        metrics: numbers per client, (n,) each: ``accuracy`` (0..1), ``loss``, and others that the method reports.
        examples: number of test examples per client, (n,).

    Returns:
        The unweighted mean over clients of every metric, and the median of ``validation_loss``. For ``accuracy`` also
        ``accuracy_weighted`` (by examples), ``std`` (over clients) and ``worst_decile`` (mean of the worst tenth of the
        clients, at least one); these count only clients with test examples, since a device may have none.
    """
    figures = {name: float(np.nanmean(values)) for name, values in metrics.items() if not np.isnan(values).all()}
    validated = metrics.get(VALIDATION_LOSS, np.empty(0))
    if not np.isnan(validated).all():
        figures[MEDIAN] = float(np.nanmedian(validated))
    known = (examples > 0) & ~np.isnan(metrics.get("accuracy", np.nan))
    if known.any():
        accuracy = metrics["accuracy"][known]
        tenth = math.ceil(len(accuracy) / 10)
        figures["accuracy_weighted"] = float(np.average(accuracy, weights=examples[known]))
        figures["std"] = float(accuracy.std())
        figures["worst_decile"] = float(np.sort(accuracy)[:tenth].mean())
    return figures
