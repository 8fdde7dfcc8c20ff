"""The registry of tasks: the suite's own, and those of other packages."""

from __future__ import annotations

from typing import Any

from florilegium.common.errors import ConfigurationError
from florilegium.common.memo import remembered
from florilegium.common.plugins import Registry
from florilegium.tasks.task import Targets, Task

CLASSIFICATION, REGRESSION = "classification", "regression"


def _read(found: Any, reference: str) -> type[Task]:
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise TypeError(f"expected a subclass of florilegium.Task (found: {type(found).__name__} {found!r:.60})")
    return found


TASKS: Registry[type[Task]] = Registry(
    "task",
    "a task",
    {
        CLASSIFICATION: "florilegium.tasks.classification:Classification",
        REGRESSION: "florilegium.tasks.regression:Regression",
    },
    _read,
)
"""All tasks by name: the suite's own, and those of other packages (:mod:`florilegium.common.plugins`)."""


@remembered(8)
def make_task(name: str, targets: Targets) -> Task:
    """Return the task of this name for the targets of a dataset.

    Raises:
        ConfigurationError: if there is no such task, or it cannot be learned from these targets.
    """
    try:
        return TASKS[name](targets)
    except ValueError as error:
        raise ConfigurationError(f"task: {error}; name another task or another dataset") from error
