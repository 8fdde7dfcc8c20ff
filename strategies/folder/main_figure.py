"""The main figure of a run's task, as the run's files name it, so that readers of files need not load the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from florilegium.tasks.task import LOSS, Task


@dataclass(frozen=True)
class MainFigure:
    """What readers of a run's files know of its figures. The defaults are those of runs whose files do not say it.

    Attributes:
        name: the main figure.
        pooled: its name for all examples of several clients together.
        higher: whether larger numbers are better.
        percent: whether it is a share, which is shown in per cent.
        further: the task's other figures.
        averaged: the figures that are means over clients alone, since none of all examples together follows from what
            clients report.
    """

    name: str = "accuracy"
    pooled: str = "accuracy_weighted"
    higher: bool = True
    percent: bool = True
    further: tuple[str, ...] = ()
    averaged: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The figures that tables show, in order."""
        return (self.name, f"{self.name}_global", self.pooled, "std", "worst_decile", *self.further, LOSS)

    def is_percent(self, figure: str) -> bool:
        """Return whether a figure of the run, such as ``accuracy_global`` or ``std``, is shown in per cent."""
        return self.percent and LOSS not in figure and figure not in self.further

    def shown(self, figures: Mapping[str, Any]) -> str:
        """Return the name of the figure that stands for others: the main one, or the loss where there is none."""
        return self.name if self.name in figures else LOSS


def main_of(task: Task) -> MainFigure:
    """Return what is to be known of a task's figures."""
    name, figure = task.main, task.figures[task.main]
    further = tuple(other for other in task.figures if other != name)
    averaged = tuple(name for name in task.figures if name in task.averaged)
    return MainFigure(name, f"{name}_{figure.pooled}", figure.higher, figure.percent, further, averaged)


def recorded(task: Task) -> dict[str, Any]:
    """Return the entry ``task`` of ``summary.json`` and ``status.json``; JSON values."""
    return {"task": asdict(main_of(task))}


def read_main(record: Mapping[str, Any]) -> MainFigure:
    """Return what :func:`recorded` has written; runs of earlier versions classify."""
    found = record.get("task") or {}
    return MainFigure(**{**found, **{name: tuple(found.get(name, ())) for name in ("further", "averaged")}})
