"""Vectorised clients (``vectorise``): several clients' networks trained in one call."""

from __future__ import annotations

from florilegium.clients.core.training_facts import Training


def gap(training: Training) -> str:
    """Return why several clients do not train together, "" if they do."""
    return "" if training.stacked else "its training cannot be stacked"
