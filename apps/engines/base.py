"""What an engine is: something that carries out runs, chosen by name (:mod:`florilegium.apps.engines.registry`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from florilegium.apps.engines.progress import Display, Show, silent

if TYPE_CHECKING:
    from florilegium.common.settings import Value

OnEvaluation = Callable[[int, dict[str, dict[str, float]]], object]
"""Called with the round and the figures of each group of clients; the run ends with this round if it returns true."""


@dataclass(frozen=True)
class Means:
    """By which means runs are carried out, and how they are shown.

    Attributes:
        engine: an engine's name, or "auto" (:func:`florilegium.apps.engines.registry.engine`).
        workers, fork: as for :class:`Engine`.
        display: shows the progress of each run.
    """

    engine: str = "auto"
    workers: int = 1
    display: Display = silent
    fork: bool = False


class Engine(ABC):
    """Carries out runs, one after the other: a context manager, in which :meth:`run` is called for each.

    Args:
        workers: number of worker processes that share the work; with one, none need be started.
        configs: the complete configurations of the runs that are to come, as far as they are known.
        on_evaluation: see :data:`OnEvaluation`.
        fork: whether workers may be forked from this process.
    """

    remote: ClassVar[bool] = False
    """Whether a run's server works in another process, which cannot import what this one has defined in a notebook."""

    def __init__(
        self,
        workers: int = 1,
        configs: Sequence[Mapping[str, Value]] = (),
        on_evaluation: OnEvaluation | None = None,
        *,
        fork: bool = False,
    ) -> None:
        self.workers, self.configs, self.on_evaluation, self.fork = workers, configs, on_evaluation, fork

    @classmethod
    def suits(cls, workers: int, configs: Sequence[Mapping[str, Value]]) -> bool:
        """Return whether "auto" takes this engine for runs with these complete configurations."""
        return False

    def __enter__(self) -> Self:
        """Start what the runs need; it may go on starting in the background."""
        return self

    def __exit__(self, *exception: object) -> None:  # noqa: B027 (most have nothing to end)
        """End it."""

    @abstractmethod
    def run(self, overrides: Mapping[str, Value], run_path: Path, progress: Show) -> None:
        """Carry out one run and wait for it.

        Args:
            overrides: the run configuration, where it differs from the defaults.
            run_path: the folder the run will write to.
            progress: called with the contents of the run's ``status.json`` whenever they change.

        Raises:
            ConfigurationError, RunError: if the run cannot start or continue, or has failed.
        """
