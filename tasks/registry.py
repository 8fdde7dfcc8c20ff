"""The registry of tasks: the suite's own, and those of other packages."""

from __future__ import annotations

from dataclasses import fields

from florilegium.common.errors import ConfigurationError
from florilegium.common.memo import remembered
from florilegium.common.plugins import Registry, subclass_of
from florilegium.tasks.choices import DEFAULTS, Choices
from florilegium.tasks.task import Targets, Task

CLASSIFICATION, REGRESSION, SEQUENCE, SEGMENTATION = "classification", "regression", "sequence-labels", "segmentation"


TASKS: Registry[type[Task]] = Registry(
    "task",
    "a task",
    {
        CLASSIFICATION: "florilegium.tasks.classification:Classification",
        "binary": "florilegium.tasks.classification:Binary",
        "multi-label": "florilegium.tasks.multi_label:MultiLabel",
        REGRESSION: "florilegium.tasks.regression:Regression",
        "counts": "florilegium.tasks.counts:Counts",
        "survival": "florilegium.tasks.survival:Survival",
        SEQUENCE: "florilegium.tasks.positions:SequenceLabels",
        "next-token": "florilegium.tasks.positions:NextToken",
        SEGMENTATION: "florilegium.tasks.positions:Segmentation",
    },
    subclass_of(Task, "florilegium.Task"),
)
"""All tasks by name: the suite's own, and those of other packages (:mod:`florilegium.common.plugins`)."""


@remembered(32)
def make_task(name: str, targets: Targets, choices: Choices = DEFAULTS) -> Task:
    """Return the task of this name for the targets of a dataset.

    Raises:
        ConfigurationError: if there is no such task, it cannot be learned from these targets, or has no such loss or
            metric.
    """
    try:
        return TASKS[name](targets, choices)
    except ValueError as error:
        if str(error).partition(":")[0] in (one.name.replace("_", "-") for one in fields(Choices)):
            raise ConfigurationError(str(error)) from error  # a key of its own is wrong, not the task
        raise ConfigurationError(f"task: {error}; name another task or another dataset") from error
