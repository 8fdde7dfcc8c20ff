"""Transfer (``transfer-target``): the server's features for another dataset."""

from __future__ import annotations

from florilegium.strategies.exchange.messages import Messages


def gap(messages: Messages) -> str:
    """Return why the server's features cannot be transferred to another dataset, "" if they can."""
    return "" if messages.features == "whole" else messages.features
