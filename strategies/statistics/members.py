"""Whose rows a result is of: sums of several exchanges go together only if they are of the same clients."""

from __future__ import annotations

from collections.abc import Sequence

from florilegium.strategies.exchange.exchange import Outcome


class OtherClientsError(Exception):
    """Other clients replied than to the exchanges before.

    Attributes:
        clients: those that replied.
    """

    def __init__(self, clients: Sequence[str]) -> None:
        super().__init__(f"{len(clients)} clients replied")
        self.clients = clients


def same_members(before: Sequence[str], outcome: Outcome) -> list[str]:
    """Return who replied, in the order of the cohort.

    Args:
        before: who replied to the exchanges before; (): there were none.
        outcome: the replies.

    Raises:
        OtherClientsError: if it is not the same clients.
    """
    if before and {*before} != {*outcome.clients}:
        raise OtherClientsError(outcome.clients)
    return [*outcome.clients]
