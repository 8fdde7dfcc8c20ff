"""What a tracker is: a place outside the run's folder that shows the figures of runs. Nothing here knows of Flower."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from florilegium.common.settings import Value


@dataclass(frozen=True)
class TrackedRun:
    """What identifies a run to a tracker.

    Attributes:
        path: the run's folder; its name is the run's id.
        project: the name under which a tracker groups runs (key ``tracker-project``).
        config: the configuration keys that the run reads, flat: ``{"rounds": 30, "fedprox.mu": 0.01, …}``.
    """

    path: Path
    project: str
    config: Mapping[str, Value]

    @property
    def name(self) -> str:
        """The run's id."""
        return self.path.name


class Tracker(ABC):
    """Receives the figures of one run; a subclass sends them to some place. Only :meth:`log` must be overridden.

    The methods are called in the server's process: ``begin``, ``log`` for each round, ``end``. An exception does not
    affect the run: it is logged once, and the tracker is not called again.

    Args:
        run: the run.

    Attributes:
        run: as given.
        package: module that must be installed; "" for none.
    """

    package: ClassVar[str] = ""

    def __init__(self, run: TrackedRun) -> None:
        self.run = run

    @classmethod  # noqa: B027 (most trackers need nothing)
    def check(cls) -> None:
        """Raise an exception if it is already known, before the run starts, that the tracker cannot be used."""

    @property
    def place(self) -> str:
        """Where the figures go, in words; what was sent to one place is sent anew to another."""
        return self.run.project

    def knows(self, own: str) -> bool:
        """Return whether the place still has the run that :meth:`begin` named ``own``; otherwise all is sent anew."""
        return True

    def begin(self, own: str) -> str:
        """Open a run of the tracker.

        Args:
            own: what this method returned for the same run earlier, to go on with it; "": begin a new one.

        Returns:
            The tracker's own name for the run, not empty.
        """
        return own or self.run.name

    @abstractmethod
    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Receive the figures of a round.

        Args:
            round: the round's number; it never decreases. Figures of one round may come in several parts.
            figures: by name, such as "seen/accuracy", "training/loss", "bytes_up"; may be infinite or not a number.
        """

    def end(  # noqa: B027 (some trackers need nothing)
        self, state: str, summary: Mapping[str, float], files: Sequence[Path], clients: Mapping[str, Sequence[float]]
    ) -> None:
        """Close the run of the tracker, for now.

        Args:
            state: "completed", "stopped" (may be resumed), "failed", or "running" (more follows later).
            summary: the figures of ``summary.json``, flat; {} unless the run has completed.
            files: what describes the run: configuration and, once it has completed, results. Never data or models.
            clients: the main figure of each client in the last evaluation, by group and figure:
                ``{"seen/accuracy": [0.9, …]}``; {} unless the run has completed.
        """
