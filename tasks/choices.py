"""What the configuration says of a task: its loss, its figures, which classes are positive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Choices:
    """The configuration keys that a task depends on; their names are those of the keys.

    Attributes:
        loss: name of the loss, or a reference to a function; "": the task's own.
        metrics: names of figures or references to functions, joined by commas, the main one first; "": the task's own.
        positive: the classes that a binary task counts as positive, joined by commas; "": the last of two classes.
        focal_gamma: γ ≥ 0 of the focal loss.
        label_smoothing: ε of the loss with smoothed labels, 0..1.
        target_scale: "none" if outputs of a regression are in the targets' unit, "standard" if they are deviations.
        scales: mean and standard deviation of each target, if outputs are scaled; not a key, but found in the data.
        class_weights: weights of examples by class: "balanced", "balanced-federation", a number for each class, joined
            by commas, or "": 1 each.
    """

    loss: str = ""
    metrics: str = ""
    positive: str = ""
    focal_gamma: float = 2.0
    label_smoothing: float = 0.1
    class_weights: str = ""
    target_scale: str = "none"
    scales: tuple[tuple[float, float], ...] = ()

    @staticmethod
    def of(settings: Any) -> Choices:
        """Return the values that ``settings`` have under the names of the fields."""
        return Choices(
            **{field.name: getattr(settings, field.name) for field in fields(Choices) if field.name != "scales"}
        )

    @staticmethod
    def read(values: Mapping[str, Any]) -> Choices:
        """Return the choices that :meth:`given` has returned, and JSON has kept."""
        scales = tuple((float(mean), float(std)) for mean, std in values.get("scales", ()))
        return Choices(**{**values, "scales": scales})

    def given(self) -> dict[str, Any]:
        """Return the choices that differ from their defaults."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}


OF_LOSS = ("loss", "class_weights")
"""The choices that change what training minimises."""
DEFAULTS = Choices()
"""What a task is without any choice."""
