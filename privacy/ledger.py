"""What has been released so far, and what it cost: kept on disk, so that no release is forgotten."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from florilegium.common.files import write_text

History = list[tuple[float, float, int]]
"""Noise multiplier z, sampling rate q and number of releases, as Opacus' accountants have them too."""


SPENT = "its budget is spent"
"""How the reason begins for which a client does not train any more."""


class Ledger:
    """The Gaussian releases of a run, or of a client's training.

    Args:
        path: the file; what it holds already counts.
        delta: δ.
    """

    def __init__(self, path: Path, delta: float) -> None:
        self._path = path
        self.delta = delta
        self._times: Counter[tuple[float, float]] = Counter()
        if path.exists():
            for multiplier, rate, times in json.loads(path.read_text(encoding="utf-8"))["releases"]:
                self._times[multiplier, rate] = times

    def __len__(self) -> int:
        return self._times.total()

    @property
    def history(self) -> History:
        """What has been released."""
        return [(z, q, times) for (z, q), times in sorted(self._times.items())]

    def add(self, multiplier: float, rate: float, times: int = 1) -> None:
        """Note releases, before they happen.

        Args:
            multiplier: z > 0, the noise's deviation ÷ the sensitivity.
            rate: q, the probability with which each unit takes part; 1 where that is not by chance.
            times: how many.
        """
        self._times[multiplier, rate] += times
        write_text(self._path, json.dumps({"delta": self.delta, "releases": self.history}) + "\n")

    def epsilon(self, *more: tuple[float, float, int]) -> float:
        """Return ε of all releases at δ, and of ``more``, by distributions of the privacy loss."""
        from florilegium.privacy.accounting import Release, total  # dp-accounting takes seconds to import

        return total([Release("gaussian", z, times, q) for z, q, times in (*self.history, *more)], self.delta)
