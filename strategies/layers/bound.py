"""The bound of updates' norms (``max-update-norm``): which messages have a norm to bound."""

from __future__ import annotations

from florilegium.strategies.core.messages import Messages


def gap(messages: Messages) -> str:
    """Return why there are no updates to bound, "" if there are."""
    return "clients return no updates" if messages.returns in ("statistics", "nothing") else ""
