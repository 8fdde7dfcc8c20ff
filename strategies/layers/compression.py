"""Compressed updates (table ``compression``): updates that may reach the server rounded, sparse or of low rank."""

from __future__ import annotations

from florilegium.strategies.core.messages import Messages

INCOMPRESSIBLE = {
    "sum": "",
    "parts": "",
    "groups": "updates of groups of clients are not compressed",
    "single": "the server works on what single clients return as it is",
    "statistics": "clients return statistics, not updates",
    "nothing": "clients learn alone, and return nothing to compress",
}


def gap(messages: Messages) -> str:
    """Return why clients cannot compress what they return, "" if they can."""
    untried = f"it has not been tried with cohorts of {messages.cohorts}" if messages.cohorts else ""
    return untried or INCOMPRESSIBLE[messages.returns]
