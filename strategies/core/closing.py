"""What a run says of itself at its end: its summary, and warnings on what the figures do not show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from florilegium.strategies.core.federation import Federation
from florilegium.strategies.core.health import at_chance, diverged
from florilegium.strategies.core.hooks import Hooks
from florilegium.strategies.exchange.evaluation import Evaluation, undefined
from florilegium.strategies.folder.main_figure import recorded

_NAMED = 5
"""Number of clients that a warning names."""


def summary_of(
    strategy: Hooks, seconds: Sequence[float], found: Evaluation, notes: Sequence[str], further: Mapping[str, float]
) -> dict[str, Any]:
    """Return the contents of ``summary.json``.

    Args:
        strategy: the method that was carried out.
        seconds: the duration of each round.
        found: the last evaluation.
        notes: warnings, as sentences.
        further: the round whose models are kept, if not the last; the virtual time, if a fleet lets it pass.
    """
    s, federation = strategy.settings, strategy.federation
    roster, layers = federation.roster, dict[str, Any]()
    for layer in federation.layers:
        layers |= layer.report()
    return {
        "method": s.method,
        "dataset": s.dataset,
        "seed": s.seed,
        **recorded(strategy.task),
        "rounds": len(seconds),
        "clients": len(roster.clients),
        "nodes": len(roster.nodes),
        **({"left_out": roster.left_out} if roster.left_out else {}),
        **({"refused": refused} if (refused := roster.refused) else {}),
        "seconds": round(sum(seconds), 3),
        "seconds_per_round": round(float(np.median(seconds[1:] or seconds or [0.0])), 4),
        "bytes_down": federation.bytes_down,
        "bytes_up": federation.bytes_up,
        **further,
        "final": found.figures,
        **({"undefined": lacking} if (lacking := found.lacking or undefined(found.rows, strategy.task)) else {}),
        **({"duplicates": equal} if (equal := federation.remarks(roster.deployed).duplicates) else {}),
        **federation.attendance.report(),
        **({"warnings": notes} if notes else {}),
        **layers,
        **strategy.report(),
    }


def untested(strategy: Hooks) -> Iterator[str]:
    """Yield a sentence if clients have no example that they are evaluated on, so that means are of fewer clients."""
    federation = strategy.federation
    everyone = federation.roster.clients.values()
    if lacking := [member for member in everyone if not member.test] if strategy.models != "none" else []:
        named = ", ".join([member.name or member.id for member in lacking[:_NAMED]])
        yield (
            f"{len(lacking)} of {len(everyone)} clients have no {federation.settings.evaluate_on} example, and are not "
            f"evaluated: {named}{', …' if len(lacking) > _NAMED else ''}; figures are of the others"
        )


def warnings(federation: Federation, found: Evaluation) -> Iterator[str]:
    """Yield what the final figures do not show, as sentences (:mod:`florilegium.strategies.core.health`)."""
    task = federation.task
    whole = f"{task.main}_{task.figures[task.main].pooled}"
    for group, lacking in undefined(found.rows, task).items():
        for name, clients in lacking.items():
            named = ", ".join(clients[:_NAMED]) + (", …" if len(clients) > _NAMED else "")
            yield f"{name} of {group} clients leaves out {len(clients)}, for which it is undefined: {named}"
    for group, counts in found.lacking.items():
        for name, count in counts.items():
            yield f"{name} of {group} clients leaves out {count}, which have none; secure sums do not say which"
    test_loss = found.figures.get("seen", {}).get("loss", math.nan)
    yield from diverged(federation.run.metrics.losses(), test_loss, task.guess)
    for group, figures in found.figures.items():
        if whole in figures:
            rows = [row for row in found.rows if row["group"] == group]
            examples = sum(int(str(row["test_examples"])) for row in rows)
            yield from at_chance(group, task, figures[whole], examples, _chance(federation, rows))


def _chance(federation: Federation, rows: Sequence[Mapping[str, object]]) -> float:
    """Return the main figure of the best constant prediction for the clients of these rows; NaN if it is not known."""
    if federation.roster.deployed:  # devices do not say what their targets are
        known = federation.task.figures[federation.task.main].chance
        return math.nan if known is None else known
    return federation.chance([str(row["client"]) for row in rows])
