"""What has left the device so far: bytes of each run and day, ε over all runs, and how often each thing was asked.

The files lie in the owner's folder. What a reply costs is written before it leaves; if that fails, it does not leave.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Literal

from filelock import FileLock
from pydantic import Field, ValidationError

from florilegium.common.errors import DataError
from florilegium.common.files import write_text
from florilegium.common.settings import Section
from florilegium.owner.asked import Asked
from florilegium.owner.denied import DeniedError
from florilegium.owner.home import Home
from florilegium.owner.policy import Budget, Limits
from florilegium.privacy.ledger import SPENT, Ledger


class Place(Section):
    """How far a run has come: the last attempt and round, and how often each phase of it was asked for."""

    attempt: int = 0
    round: int = 0
    phases: dict[str, int] = Field(default_factory=dict)


class Usage(Section):
    """The account of bytes and requests, as it is kept on disk.

    Attributes:
        runs, days: bytes that have left, by run (name/identity) and by day.
        asked: how far each run has come.
        promised: ε that the code of admitted runs promises to keep to, by run.
    """

    version: Literal[1] = 1
    runs: dict[str, int] = Field(default_factory=dict)
    days: dict[str, int] = Field(default_factory=dict)
    asked: dict[str, Place] = Field(default_factory=dict)
    promised: dict[str, float] = Field(default_factory=dict)


@dataclass(frozen=True)
class Account:
    """The accounts in an owner's folder; several processes may charge them."""

    home: Home
    _lock: FileLock = field(init=False)
    _asked: dict[str, Place] = field(default_factory=dict)
    """How far runs have come; on disk from the next reply that leaves, since before it nothing has."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_lock", FileLock(f"{self.home.usage_file}.lock"))

    def ask(self, asked: Asked) -> None:
        """Count a request before it is carried out. Rounds do not go back, so that no old request is carried out again.

        Raises:
            DeniedError: if this phase of this round was asked for as often as it may be, or a later one already.
        """
        with self._lock:
            before = self._asked.get(asked.full_name) or self._read().asked.get(asked.full_name, Place())
        place = Place(attempt=asked.attempt, round=asked.round)
        if (place.attempt, place.round) < (before.attempt, before.round):
            raise DeniedError("reply.times", f"round {place.round} is over: round {before.round} was asked for")
        if (place.attempt, place.round) == (before.attempt, before.round):
            place = before
        assert asked.rule is not None
        phase, times = f"{asked.phase} {asked.rule.reduce}", asked.rule.times
        if (count := place.phases.get(phase, 0)) >= times:
            raise DeniedError("reply.times", f"round {place.round}, {phase}: asked for {count} times; at most {times}")
        self._asked[asked.full_name] = place.model_copy(update={"phases": {**place.phases, phase: count + 1}})

    def leave(
        self, run: str, size: int, multiplier: float | None, limits: Limits, budget: Budget, today: date
    ) -> float:
        """Charge what is about to leave; return ε over all runs so far, with it.

        Args:
            run: the run, name/identity.
            size: bytes.
            multiplier: noise ÷ sensitivity; None: nothing that noise protects.
            limits: the policy's; budget: likewise.
            today: the day.

        Raises:
            DeniedError: if a limit would be exceeded; then nothing is charged.
        """
        with self._lock:
            usage, day = self._read(), today.isoformat()
            for line, spent, most in (
                ("limits.run-bytes", usage.runs.get(run, 0), limits.run_bytes),
                ("limits.day-bytes", usage.days.get(day, 0), limits.day_bytes),
            ):
                if spent + size > most:
                    raise DeniedError(line, f"{size} bytes after {spent}; at most {most}")
            epsilon = self._epsilon(usage, budget, multiplier)
            usage.runs[run] = usage.runs.get(run, 0) + size
            usage.days[day] = usage.days.get(day, 0) + size
            usage.asked.update(self._asked)
            self._write(usage)
            if multiplier is not None:
                Ledger(self.home.epsilon_file, budget.delta).add(multiplier, 1.0)
            return epsilon

    def promise(self, run: str, epsilon: float, budget: Budget) -> None:
        """Charge the ε that a run's own code promises to keep to, once for each run.

        Raises:
            DeniedError: if the total would exceed the budget.
        """
        with self._lock:
            usage = self._read()
            if epsilon <= usage.promised.get(run, 0.0):
                return
            usage.promised[run] = epsilon
            self._epsilon(usage, budget, None)
            self._write(usage)

    def forget(self, run: str) -> None:
        """Delete what was asked of runs of this name; bytes and ε that have left stay counted."""
        with self._lock:
            usage = self._read()
            for one in [one for one in usage.asked if one.rpartition("/")[0] == run]:
                del usage.asked[one]
            self._write(usage)

    def epsilon(self, budget: Budget) -> float:
        """Return ε over all runs so far."""
        with self._lock:
            return self._epsilon(self._read(), budget, None, check=False)

    def _epsilon(self, usage: Usage, budget: Budget, multiplier: float | None, *, check: bool = True) -> float:
        """Return ε with one more release: that of all noise together, and what runs promise.

        Raises:
            DeniedError: if ``check`` and it exceeds a budget.
        """
        ledger = Ledger(self.home.epsilon_file, budget.delta)
        more = [] if multiplier is None else [(multiplier, 1.0, 1)]
        noised = ledger.epsilon(*more) if len(ledger) or more else 0.0
        total = noised + math.fsum(usage.promised.values())
        if check and budget.epsilon and total > budget.epsilon:
            raise DeniedError("budget.epsilon", f"{SPENT}: ε would be {total:.3g}; at most {budget.epsilon:g}")
        return total

    def _read(self) -> Usage:
        path = self.home.usage_file
        if not path.exists():
            return Usage()
        try:
            return Usage.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise DataError(
                f"the owner's account {path} is damaged ({error.errors()[0]['msg']}); restore it"
            ) from error

    def _write(self, usage: Usage) -> None:
        write_text(self.home.usage_file, usage.model_dump_json(by_alias=True) + "\n", private=True)


def read_usage(path: Path) -> dict[str, object]:
    """Return the account of bytes and requests as it is on disk; {} if there is none."""
    found: dict[str, object] = json.loads(path.read_bytes()) if path.exists() else {}
    return found
