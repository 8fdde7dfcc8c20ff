"""Privacy of clients (``privacy.unit = "client"``): bounded sums of updates with noise."""

from __future__ import annotations

from florilegium.strategies.core.messages import Messages

UNBOUNDED = {
    "sum": "",
    "parts": "each part is averaged over the clients that train it, and nothing bounds what one of few counts for",
    "groups": "each group of clients is averaged by itself, and nothing bounds what one of few counts for",
    "single": "the server uses the replies of single clients, and these are not bounded",
    "statistics": "clients send statistics, and nothing bounds them",
    "nothing": "clients learn alone, so that there is no sum of updates to protect",
}


def gap(messages: Messages) -> str:
    """Return why bounded sums of updates with noise do not protect clients, "" if they do."""
    chosen = f"its cohorts hold {messages.cohorts}, not by chance" if messages.cohorts else ""
    return messages.own_privacy or messages.beside or messages.individual or chosen or UNBOUNDED[messages.returns]
