"""What strategies promise about themselves, as shared functions: a class assigns them as its static methods.

Each takes the method's hyper-parameters and returns why the promise does not hold, "" if it holds
(:mod:`florilegium.common.promises`).
"""

from __future__ import annotations

from typing import Any


def sums_of_updates(hyper: Any) -> str:
    """Promise of client privacy, kept: the server uses only sums of the clients' updates of the arrays it sent."""
    return ""


def single_replies(hyper: Any) -> str:
    """Promise of client privacy, not kept: the server uses individual replies of clients."""
    return "the server uses the replies of single clients, and these are not bounded"


def only_sums(hyper: Any) -> str:
    """Promise of secure sums, kept: the server needs sums over a cohort alone, of arrays, examples and metrics."""
    return ""


def needs_individuals(hyper: Any) -> str:
    """Promise of secure sums, not kept: the server needs single clients' replies."""
    return "the server needs the replies of single clients"


def trains_by_updates(hyper: Any) -> str:
    """Promise of compression, kept: all that clients train reaches the server as updates of the arrays it sent."""
    return ""


def mean_of_updates(hyper: Any) -> str:
    """Promise of buffered rounds, kept: the server's step is a weighted mean of updates, whoever they are from."""
    return ""


def whole_network(hyper: Any) -> str:
    """Promise of transfer, kept: the server's arrays contain all blocks of the network but the last."""
    return ""
