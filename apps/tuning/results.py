"""What a tuning has found, as plain data: the trials of each method, and the best of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from florilegium.apps.settings.configuration import complete, parse
from florilegium.apps.tuning.plan import Plan, Subject
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value

State = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class Trial:
    """A trial that has ended.

    Attributes:
        number: 0 is the recipe's own values.
        state: whether it had all its rounds, was ended early because it was bad, or failed.
        values: the tuned keys.
        objective: the figure after its last evaluation; None if it failed.
        clients: number of clients whose mean the objective is.
        rounds: number of rounds it had.
        reason: why it failed.
    """

    number: int
    state: State
    values: dict[str, Value]
    objective: float | None
    clients: int
    rounds: int
    reason: str = ""


@dataclass(frozen=True)
class Result:
    """The trials of one method.

    Attributes:
        subject: the method.
        trials: all of them, in their order.
        importances: share of each key in the objective's variance over the completed trials; {} if unknown.
        maximised: whether a larger objective is better.
    """

    subject: Subject
    trials: list[Trial]
    importances: dict[str, float]
    maximised: bool

    @property
    def best(self) -> Trial | None:
        """The completed trial with the best objective, the earliest of equal ones; None if none has completed."""
        done = [trial for trial in self.trials if trial.state == "complete"]
        return max(done, key=self._goodness) if done else None

    @property
    def failure(self) -> str:
        """Why no trial has completed: the reason of the first that failed."""
        return next((trial.reason for trial in self.trials if trial.reason), "all were ended early")

    def curve(self) -> list[float | None]:
        """Return the best objective of the completed trials so far, after each trial."""
        best: list[float | None] = []
        for trial in self.trials:
            here = trial.objective if trial.state == "complete" else None
            known = [value for value in (here, best[-1] if best else None) if value is not None]
            best.append((max if self.maximised else min)(known) if known else None)
        return best

    def count(self, state: State) -> int:
        """Return the number of trials in ``state``."""
        return sum(trial.state == state for trial in self.trials)

    def at_edge(self) -> dict[str, Value]:
        """Return the chosen values at an end of their range beyond which the key allows others."""
        if self.best is None:
            return {}
        found = {}
        for key, value in self.best.values.items():
            outside = self.subject.ranges[key].beyond(value)
            if outside is not None and _allowed({**self.subject.keys, key: outside}):
                found[key] = value
        return found

    def _goodness(self, trial: Trial) -> float:
        assert trial.objective is not None
        return trial.objective if self.maximised else -trial.objective


@dataclass(frozen=True)
class Tuning:
    """A tuning that has been carried out: what was planned, and each method's result."""

    plan: Plan
    results: list[Result]

    def warnings(self) -> list[str]:
        """Return in words which chosen values lie at an edge, and which methods have no choice."""
        words = [
            f"{result.subject.name}: {key} = {shown(value)} is at the edge of its range "
            f"({result.subject.ranges[key]}); a better value may lie outside"
            for result in self.results
            for key, value in result.at_edge().items()
        ]
        for result in self.results:
            if result.best is None:
                words.append(f"{result.subject.name}: none of {len(result.trials)} trials completed: {result.failure}")
        return words

    def require_choices(self) -> None:
        """Raise :class:`RunError` if no trial of a method has completed, so that nothing was chosen for it."""
        if without := [result.subject.name for result in self.results if result.best is None]:
            raise RunError(f"no trial of {', '.join(without)} completed; {self.plan.folder / 'report.md'} says why")


def _allowed(keys: dict[str, Value]) -> bool:
    try:
        parse(complete(keys))
    except ConfigurationError:
        return False
    return True


def shown(value: Value) -> str:
    """Return a key's value with at most four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
