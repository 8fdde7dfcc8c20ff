"""Harrell's C-index of risks for times to an event."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from florilegium.tasks.metric import TIMES, Metric, Seen
from florilegium.tasks.task import Figure

_BLOCK = 1024
"""Rows compared with all others at a time, so that memory grows with the number of examples alone."""


class CIndex(Metric):
    """The share of comparable pairs of which the one with the earlier event has the larger risk; equal risks count ½.

    A pair is comparable if the shorter time is that of an event; of equal times, if exactly one is (Harrell et al.
    1982). Pooled over clients, it is that of pairs within a client, since no other pairs can be counted.
    """

    name = "c-index"
    title = "Harrell's concordance index; pooled: of pairs within clients"
    fits = frozenset({TIMES})
    columns = ("concordant", "comparable")

    @property
    def figure(self) -> Figure:
        """A share; risks without any use have one half."""
        return Figure(0.0, 1.0, chance=0.5)

    def means(self, seen: Seen) -> dict[str, float]:
        """Return the numbers of concordant and of comparable pairs, divided by the number of examples."""
        risks = np.asarray(seen.scores.double().cpu())
        times, events = np.asarray(seen.y.double().cpu()).T
        concordant = comparable = 0.0
        happened = np.flatnonzero(events > 0.5)
        for first in range(0, len(happened), _BLOCK):
            rows = happened[first : first + _BLOCK, None]
            pairs = (times[rows] < times) | ((times[rows] == times) & (events < 0.5))
            comparable += float(pairs.sum())
            concordant += float((pairs & (risks[rows] > risks)).sum() + (pairs & (risks[rows] == risks)).sum() / 2)
        return {"concordant": concordant / len(times), "comparable": comparable / len(times)}

    def value(self, means: Mapping[str, float]) -> float:
        """Return the index; NaN if no pair is comparable."""
        return means["concordant"] / means["comparable"] if means["comparable"] > 0 else math.nan
