"""What has been released so far, and what it cost: kept on disk, so that no release is forgotten."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from common.files import write_text
from privacy.accounting import Release, total


class Ledger:
    """The Gaussian releases of a run.

    Args:
        path: the file; what it holds already counts.
        delta: δ.
    """

    def __init__(self, path: Path, delta: float) -> None:
        self._path = path
        self._delta = delta
        self._times: Counter[tuple[float, float]] = Counter()
        if path.exists():
            for multiplier, rate, times in json.loads(path.read_text(encoding="utf-8"))["releases"]:
                self._times[multiplier, rate] = times

    def __len__(self) -> int:
        return self._times.total()

    def add(self, multiplier: float, rate: float) -> None:
        """Note a release, before it happens.

        Args:
            multiplier: z > 0, the noise's deviation ÷ the sensitivity.
            rate: the probability with which each unit takes part; 1 where that is not by chance.
        """
        self._times[multiplier, rate] += 1
        rows = [[z, q, times] for (z, q), times in sorted(self._times.items())]
        write_text(self._path, json.dumps({"delta": self._delta, "releases": rows}) + "\n")

    def epsilon(self, *more: Release) -> float:
        """Return ε of all releases at δ, and of ``more``."""
        made = [Release("gaussian", z, times, q) for (z, q), times in self._times.items()]
        return total([*made, *more], self._delta)
