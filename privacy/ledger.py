"""Record of private releases and their cost, kept on disk so that no release is forgotten."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from florilegium.common.errors import RunError
from florilegium.common.files import write_text

log = logging.getLogger("flwr")

History = list[tuple[float, float, int]]
"""Releases as (noise multiplier z, sampling rate q, number of releases), the format of Opacus' accountants."""


SPENT = "its budget is spent"
"""Beginning of the reason that a client gives if its privacy budget does not allow it to train any more."""


class Ledger:
    """Record of the Gaussian releases of a run, or of a client's training.

    Args:
        path: file of the record; releases that it already contains count.
        delta: δ of the guarantee.
        discrete: whether the noise is a sum of discrete Gaussians (see ``florilegium.privacy.accounting``).

    Raises:
        RunError: if the file is damaged.
    """

    def __init__(self, path: Path, delta: float, *, discrete: bool = False) -> None:
        self._path = path
        self._discrete = discrete
        self.delta = delta
        self._times: Counter[tuple[float, float]] = Counter()
        if path.exists():
            try:
                for multiplier, rate, times in json.loads(path.read_text(encoding="utf-8"))["releases"]:
                    self._times[float(multiplier), float(rate)] = int(times)
            except (ValueError, TypeError, KeyError) as error:
                raise RunError(f"the privacy account {path} is damaged ({error}); restore it from a backup") from error

    def __len__(self) -> int:
        return self._times.total()

    @property
    def history(self) -> History:
        """All releases recorded so far."""
        return [(z, q, times) for (z, q), times in sorted(self._times.items())]

    def add(self, multiplier: float, rate: float, times: int = 1) -> None:
        """Record releases on disk; call this before they happen.

        Args:
            multiplier: noise multiplier z > 0, the noise's standard deviation ÷ the sensitivity.
            rate: sampling rate q, the probability that a unit takes part; 1 without random sampling.
            times: number of releases.
        """
        self._times[multiplier, rate] += times
        self._write()

    def restore(self, history: Iterable[tuple[float, float, int]]) -> None:
        """Add releases that a checkpoint knows of and the file does not, because it was lost or is an older one.

        What was released after that checkpoint may still be missing; there is a warning.
        """
        missing = {(z, q): times for z, q, times in history if times > self._times[z, q]}
        if missing:
            log.warning(
                "%s lacked releases that the run's checkpoint has, which count now; what was released after the "
                "checkpoint is not known", self._path,
            )  # fmt: skip
            self._times.update({one: times - self._times[one] for one, times in missing.items()})
            self._write()

    def _write(self) -> None:
        write_text(self._path, json.dumps({"delta": self.delta, "releases": self.history}) + "\n", private=True)

    def epsilon(self, *more: tuple[float, float, int]) -> float:
        """Return the total ε at δ of all recorded releases and of ``more``, from privacy loss distributions."""
        from florilegium.privacy.accounting import Release, total  # dp-accounting takes seconds to import

        kind: Literal["gaussian", "discrete"] = "discrete" if self._discrete else "gaussian"
        return total([Release(kind, z, times, q) for z, q, times in (*self.history, *more)], self.delta)
