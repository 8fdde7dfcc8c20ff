"""Weights of training examples by their class."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.text import listed

if TYPE_CHECKING:
    from florilegium.tasks.task import Task

BALANCED = CLIENT, FEDERATION = "balanced", "balanced-federation"


def check_class_weights(task: Task) -> None:
    """Check the choice of class weights.

    Raises:
        ValueError: if the task's examples have no single class, or there is not one number ≥ 0 for each class, not all
            0.
    """
    text, classes = task.choices.class_weights, task.num_strata
    if classes < 2 or task.shape:
        raise ValueError(f"class-weights: a task that {task.title} has no single class of each example; leave it out")
    if text not in (CLIENT, FEDERATION):
        given = _numbers(text)
        if len(given) != classes or not all(math.isfinite(one) and one >= 0 for one in given) or not any(given):
            raise ValueError(
                f"class-weights: '{text}' is neither {CLIENT} nor {FEDERATION}, nor {classes} numbers of at least 0, "
                "one for each class, not all 0"
            )


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in listed(text)]
    except ValueError:
        return []


def class_weights(task: Task, y: NDArray[Any], counts: NDArray[np.int64] | None) -> NDArray[np.float32]:
    """Return the weight of each example, (n,).

    Balanced weights are n / (C'·n_c) for class c with n_c of n examples, C' classes among them, as scikit-learn has it:
    their mean is 1, and each class has the same total.

    Args:
        task: a task whose strata are its classes.
        y: the targets of a client's training examples, (n,).
        counts: number of examples of each class of all clients, for weights of the federation, (C,).
    """
    strata = task.strata(y)
    if task.choices.class_weights in (CLIENT, FEDERATION):
        known = np.bincount(strata, minlength=task.num_strata) if counts is None else np.asarray(counts)
        present = known > 0
        weights = np.divide(known.sum() / max(1, present.sum()), known, out=np.zeros(len(known)), where=present)
    else:
        weights = np.array(_numbers(task.choices.class_weights))
    return np.asarray(weights[strata], np.float32)
