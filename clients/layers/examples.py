"""Privacy of examples (``privacy.unit = "example"``): DP-SGD inside the one training loop."""

from __future__ import annotations

from florilegium.clients.core.training_facts import Training


def gap(training: Training) -> str:
    """Return why DP-SGD does not protect a client's examples, "" if it does."""
    return "" if training.examples == "gradients" else training.examples
