"""Summarise per-client metrics: means, standard deviation, and the worst clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.tasks.task import Task

Figures = dict[str, float]


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation has found.

    Attributes:
        figures: summary figures of each group of clients.
        rows: a row of figures for each client, where single clients' are known.
        lacking: where they are not: for each group and figure, how many clients have none.
    """

    figures: Mapping[str, Figures]
    rows: Sequence[Mapping[str, object]] = ()
    lacking: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


VALIDATION_LOSS, MEDIAN = "validation_loss", "validation_loss_median"
"""Figures of the examples held out from training: the mean over clients, and the median, which no client decides."""


def watched(task: Task) -> tuple[str, bool]:
    """Return the figure by which ``patience`` ends a run, and whether larger is better.

    It is the main figure of held-out examples if key ``metrics`` chooses one, else their loss.
    """
    if not task.choices.metrics:
        return VALIDATION_LOSS, False
    return f"validation_{task.main}", task.figures[task.main].higher


def held_out_figures(evaluations: Sequence[Mapping[str, Any]], task: Task) -> list[tuple[Mapping[str, Any], float]]:
    """Return evaluations, and of each the figure of held-out examples that ``patience`` and ``keep`` follow."""
    name = f"{watched(task)[0]}_median"
    found = [(line, line.get("seen", {}).get(name)) for line in evaluations]
    return [(line, value) for line, value in found if value is not None]  # one may have reached nobody who validates


def best_round(evaluations: Sequence[Mapping[str, Any]], task: Task) -> int | None:
    """Return the round with the best figure of held-out examples, the first of equal ones; None before any."""
    found, choose = held_out_figures(evaluations, task), max if watched(task)[1] else min
    return int(choose(found, key=lambda one: one[1])[0]["round"]) if found else None


def summarise(metrics: Mapping[str, NDArray[np.float64]], examples: NDArray[np.float64], task: Task) -> Figures:
    """Summarise the clients of one group.

    Args:
        metrics: numbers per client, (n,) each: what the task measures, and others that the method reports.
        examples: number of test examples per client, (n,).
        task: what is learned.

    Returns:
        The unweighted mean over clients of every metric, and the median of what ``patience`` follows; the task's
        figures of all examples together, as far as they follow exactly (``accuracy_weighted``, ``rmse_pooled``). Of the
        main figure also ``std`` (over clients) and ``worst_decile`` (mean of the worst tenth of the clients, at least
        one); these count only clients with test examples, since a device may have none.
    """
    told = {name: values for name, values in metrics.items() if name not in task.sums and not np.isnan(values).all()}
    figures = {name: float(np.nanmean(values)) for name, values in told.items()}
    name = watched(task)[0]
    validated = metrics.get(name, np.empty(0))
    if not np.isnan(validated).all():
        figures[f"{name}_median"] = float(np.nanmedian(validated))
    values = metrics.get(task.main, np.full(len(examples), np.nan))
    figures |= pooled(task, lambda name: _over_examples(metrics[name], examples), metrics)
    known = (examples > 0) & ~np.isnan(values)
    if known.any():
        main = np.sort(values[known])
        tenth = math.ceil(len(main) / 10)
        figures["std"] = float(values[known].std())
        figures["worst_decile"] = float((main[:tenth] if task.figures[task.main].higher else main[-tenth:]).mean())
    return figures


def _over_examples(values: NDArray[np.float64], examples: NDArray[np.float64]) -> float:
    """Return the mean over all examples of clients' means; NaN without examples."""
    known = (examples > 0) & ~np.isnan(values)
    return float(np.average(values[known], weights=examples[known])) if known.any() else math.nan


def undefined(rows: Sequence[Mapping[str, object]], task: Task) -> dict[str, dict[str, list[str]]]:
    """Return the clients with test examples for which a figure of the task is undefined, by group and figure.

    Args:
        rows: a row of figures for each client.
        task: what is learned.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        for name in task.figures if row["test_examples"] else ():
            if isinstance(value := row.get(name), float) and math.isnan(value):
                client = str(row.get("name") or row["client"])
                found.setdefault(str(row["group"]), {}).setdefault(name, []).append(client)
    return found


def pooled(task: Task, mean: Callable[[str], float], reported: Collection[str]) -> Figures:
    """Return the task's figures of all examples of several clients together, where they follow exactly.

    Args:
        task: what is learned.
        mean: returns the mean over all examples of what clients report under a name.
        reported: the names that clients report.
    """
    if not {*task.reported} <= {*reported}:
        return {}
    found = task.pool({name: mean(name) for name in task.reported})
    return {f"{name}_{task.figures[name].pooled}": value for name, value in found.items() if not math.isnan(value)}
