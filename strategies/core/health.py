"""What the final figures of a run do not show: clients that failed, a loss that rose, figures at chance.

The warnings stand in ``summary.json``, in reports, and behind the run's progress on the screen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from florilegium.privacy.ledger import SPENT
from florilegium.strategies.exchange.exchange import LATE
from florilegium.tasks.task import Task

MANY = 0.1
"""Share of the clients that have failed from which there is a warning."""
_NAMED = 5
"""Most clients that a warning names."""
_ENDS = 0.1
"""Share of the rounds, at the start and at the end, whose mean losses are compared."""

_ADVICE = "the run may have diverged; try a smaller learning-rate"


class Attendance:
    """Counts for each client the rounds in which it was asked to train, and those in which it failed.

    A client that has spent its privacy budget, or whose reply was not among the first, has not failed.
    """

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}

    def add(self, asked: Collection[str], failures: Mapping[str, str]) -> None:
        """Add a round: the clients that were asked, and the reasons of those that failed."""
        failed = {client: reason for client, reason in failures.items() if not reason.startswith((SPENT, LATE))}
        self._asked.update(asked)
        self._failed.update([*failed])
        self._reasons |= failed

    def facts(self) -> dict[str, Any]:
        """Return the counts for checkpoints; JSON values."""
        return {"asked": self._asked, "failed": self._failed, "reasons": self._reasons}

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Restore the counts that :meth:`facts` returned; {} for checkpoints of earlier versions, which have none."""
        self._asked, self._failed = Counter(facts.get("asked", {})), Counter(facts.get("failed", {}))
        self._reasons = dict(facts.get("reasons", {}))

    def report(self) -> dict[str, Any]:
        """Return the block ``failed`` of ``summary.json``: of each client that failed, how often and why; or {}."""
        clients = [
            {"client": client, "rounds": self._asked[client], "failed": times, "reason": self._reasons[client]}
            for client, times in self._failed.most_common()
        ]
        return {"failed": clients} if clients else {}

    def warnings(self) -> Iterator[str]:
        """Yield a sentence on clients that failed in every round, and one if many have failed at least once."""
        always = [client for client, times in self._failed.items() if times == self._asked[client]]
        if always:
            reasons = {client: self._reasons[client] for client in always}
            yield f"{_count(len(always), self._asked)} failed in every round that asked them to train: {_told(reasons)}"
        share = len(self._failed) / max(1, len(self._asked))
        if share >= MANY and len(self._failed) > len(always):
            yield (
                f"{_count(len(self._failed), self._asked)} failed in at least one round; "
                f"{self._failed.total() / self._asked.total():.0%} of the updates asked for are missing: "
                f"{_told(self._reasons)}"
            )


def unmeasured(asked: Collection[str], measured: Collection[str], reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence if clients of the last evaluation have no figures.

    Args:
        asked: the clients to be evaluated.
        measured: those with figures.
        reasons: why the others failed.
    """
    if lost := {client: reasons.get(client, "it sent no figures") for client in asked if client not in {*measured}}:
        yield f"{_count(len(lost), asked)} failed in the last evaluation, and do not count in it: {_told(lost)}"


def diverged(losses: Sequence[float], test_loss: float, guess: float | None) -> Iterator[str]:
    """Yield a sentence if the training loss ends above its start, or a run ends with losses above that of guessing.

    A round's loss is a mean over its steps, so that the first may be high already. A training loss with a penalty may
    be higher than that of guessing, and so may the test loss of models that are too sure.

    Args:
        losses: the training loss of each round that reports one.
        test_loss: the mean loss of the clients that have trained in the last evaluation; NaN if it is not known.
        guess: the loss of guessing; None: it is not known.
    """
    size = max(1, round(_ENDS * len(losses)))
    if len(losses) < 2 * size:
        return
    first, last = float(np.mean(losses[:size])), float(np.mean(losses[-size:]))
    if last > first:
        rounds = "round" if size == 1 else f"{size} rounds"
        yield (
            f"the training loss ends above its start ({first:.4g} in the first {rounds}, {last:.4g} in the last): "
            f"{_ADVICE}"
        )
    elif guess is not None and last > guess and test_loss > guess:
        yield (
            f"the losses end above that of guessing, {guess:.4g} ({last:.4g} on training, "
            f"{test_loss:.4g} on test examples): {_ADVICE}"
        )


def at_chance(group: str, task: Task, value: float, examples: int, chance: float) -> Iterator[str]:
    """Yield a sentence if the main figure is at chance: at most two standard errors better than a constant prediction.

    Args:
        group: the group of clients.
        task: what is learned.
        value: the main figure of its test examples.
        examples: number of test examples.
        chance: the main figure of the best constant prediction for them, or what is reached without any use, whatever
            the data; NaN if neither is known.
    """
    figure = task.figures[task.main]
    gain = value - chance if figure.higher else chance - value
    if chance not in (figure.low, figure.high) and gain <= 2 * task.error(chance, examples):
        yield (
            f"the {task.main} of {group} clients is at chance: {value:{figure.format}} of {examples} test examples, "
            f"where {task.constantly} gives {chance:{figure.format}}"
        )


def _count(some: int, everyone: Collection[str]) -> str:
    return f"{some} of {len(everyone)} clients"


def _told(reasons: Mapping[str, str]) -> str:
    """Return clients and reasons in a few words; those with the same reason together."""
    clients: dict[str, list[str]] = {}
    for client, reason in reasons.items():
        clients.setdefault(reason, []).append(client)
    reason, same = max(clients.items(), key=lambda item: len(item[1]))
    named = ", ".join(same[:_NAMED]) + (", …" if len(same) > _NAMED else "")
    others = f" ({len(clients) - 1} other reasons in failures.jsonl)" if len(clients) > 1 else ""
    return f"client{'s' if len(same) > 1 else ''} {named}: {reason}{others}"
