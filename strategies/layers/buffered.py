"""Buffered rounds (``mode = "buffered"``): server steps along updates of earlier models, as they arrive."""

from __future__ import annotations

from florilegium.strategies.exchange.messages import Messages


def gap(messages: Messages) -> str:
    """Return why the server's step is no weighted mean of updates, "" if it is one."""
    return "" if messages.step == "mean" else messages.step
