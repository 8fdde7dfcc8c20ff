"""Secure aggregation (``secure-aggregation``): the server learns sums over a cohort alone."""

from __future__ import annotations

from florilegium.strategies.core.messages import Messages

MORE_THAN_SUMS = {
    "sum": "",
    "parts": "the server needs to know which clients have trained which part",
    "groups": "the server needs a sum for each group of clients, and a group may be small",
    "single": "the server needs the replies of single clients",
    "statistics": "",
    "nothing": "clients learn alone, and there is no sum",
}


def gap(messages: Messages) -> str:
    """Return why sums over cohorts do not suffice, "" if they do."""
    untried = f"it has not been tried with cohorts of {messages.cohorts}" if messages.cohorts else ""
    return messages.individual or untried or MORE_THAN_SUMS[messages.returns]
