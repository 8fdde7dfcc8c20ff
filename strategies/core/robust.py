"""Aggregation that bears some clients with arbitrary updates: medians, trimmed means, Krum.

Each takes the place of the mean of a cohort's changes and needs to see them one by one: nodes answer stacks, not sums.
"""

from __future__ import annotations

import logging

import numpy as np
from flwr.app import RecordDict
from flwr.serverapp.strategy.multikrum import select_multikrum

from florilegium.clients.core.wire import pack
from florilegium.common.errors import RunError
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.exchange import Outcome

log = logging.getLogger("flwr")

LEAST = {"median": 1, "trimmed-mean": 1, "krum": 3}
"""How many clients a rule needs beside two for every attacker."""


def least(rule: str, attackers: int) -> int:
    """Return how many clients a rule needs."""
    return LEAST[rule] + 2 * attackers


def robust_sum(outcome: Outcome, rule: str, attackers: int, asked: int) -> Arrays:
    """Return what :func:`combine` makes of a cohort's changes, as the sum that their mean would be of.

    Nothing changes where too few have answered for it.

    Args:
        outcome: the changes, stacked.
        rule, attackers: as of :func:`combine`.
        asked: how many clients were to answer.

    Raises:
        RunError: if too few were asked.
    """
    needed, count = least(rule, attackers), len(outcome.clients)
    if asked < needed:
        raise RunError(
            f"aggregation: '{rule}' with {attackers} attackers (key attackers) needs {needed} clients, but {asked} "
            "were asked"
        )
    if count < needed:
        log.warning("nothing changes: %d clients have answered, '%s' needs %d", count, rule, needed)
        return {name: np.zeros(changes.shape[1:]) for name, changes in outcome.arrays.items()}
    return {name: change * outcome.weight for name, change in combine(outcome.arrays, rule, attackers).items()}


def combine(changes: Arrays, rule: str, attackers: int) -> Arrays:
    """Return one change made of several, each of which counts the same.

    Args:
        changes: by name, each (clients, …).
        rule: "median", of every entry (Yin et al. 2018); "trimmed-mean", of every entry without the f largest and
            smallest (the same); "krum", the change whose c − f − 2 nearest are nearest (Blanchard et al. 2017).
        attackers: f, how many of the clients may answer anything; there are as many changes as that needs.
    """
    count = len(next(iter(changes.values())))
    if rule == "median":
        return {name: np.median(rows, axis=0) for name, rows in changes.items()}
    if rule == "trimmed-mean":
        from scipy.stats import trim_mean  # takes seconds to import

        share = (attackers + 0.5) / count  # of which scipy takes the whole part of count times it
        return {name: trim_mean(rows, share, axis=0) for name, rows in changes.items()}
    contents = [RecordDict({"arrays": pack({n: rows[i] for n, rows in changes.items()})}) for i in range(count)]
    chosen = contents.index(select_multikrum(contents, attackers, 1)[0])
    return {name: rows[chosen] for name, rows in changes.items()}
