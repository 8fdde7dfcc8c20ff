"""Robust aggregation, which tolerates some clients with arbitrary updates: medians, trimmed means, Krum.

Each replaces the mean of a cohort's updates, and needs the individual updates: nodes return stacks, not sums.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.settings.server import ServerSettings

log = logging.getLogger("flwr")

LEAST = {"median": 1, "trimmed-mean": 1, "krum": 3}
"""Number of clients that a rule needs in addition to two for every attacker."""


def least(rule: str, attackers: int) -> int:
    """Return the smallest number of clients with which a rule tolerates ``attackers``."""
    return LEAST[rule] + 2 * attackers


def check_cohorts(settings: ServerSettings, sizes: Sequence[int]) -> None:
    """Raise :class:`ConfigurationError` if a cohort is too small for the rule; ``sizes``: of each round's cohort."""
    rule, attackers = settings.aggregation, settings.attackers
    if sizes and min(sizes) < (needed := least(rule, attackers)):
        raise ConfigurationError(
            f"aggregation: '{rule}' with attackers = {attackers} needs {needed} clients, but a cohort has {min(sizes)}"
            ". Ask more (cohort-size, participation, final-participation), or lower attackers"
        )


def robust_sum(outcome: Outcome, rule: str, attackers: int) -> Arrays:
    """Return the combined update of a cohort times its total weight, to be used like a weighted sum of updates.

    Zeros if too few clients have returned a usable update.

    Args:
        outcome: the clients' updates, stacked.
        rule, attackers: those of :func:`combine`.
    """
    needed, count = least(rule, attackers), len(outcome.clients)
    if count < needed:
        log.warning("the model stays as it is: %d clients have replied, '%s' needs %d", count, rule, needed)
        return {name: np.zeros(changes.shape[1:]) for name, changes in outcome.arrays.items()}
    return {name: change * outcome.weight for name, change in combine(outcome.arrays, rule, attackers).items()}


def combine(changes: Arrays, rule: str, attackers: int) -> Arrays:
    """Return one update combined from several, each of which has the same weight; float64 throughout.

    Args:
        changes: the updates of c clients: arrays by name, each (c, …).
        rule: "median", of every entry (Yin et al. 2018); "trimmed-mean", of every entry without the f largest and f
            smallest values (Yin et al. 2018); "krum", the update with the smallest sum of squared distances to its
            c − f − 2 nearest ones (Blanchard et al. 2017).
        attackers: f, number of clients that may return arbitrary updates; c must be at least :func:`least`.
    """
    count = len(next(iter(changes.values())))
    changes = {name: rows.astype(np.float64) for name, rows in changes.items()}
    if rule == "median":
        return {name: np.median(rows, axis=0) for name, rows in changes.items()}
    if rule == "trimmed-mean":
        from scipy.stats import trim_mean  # takes seconds to import

        share = (attackers + 0.5) / count  # scipy cuts ⌊share · count⌋ = f values at each end
        return {name: trim_mean(rows, share, axis=0) for name, rows in changes.items()}
    rows = np.concatenate([rows.reshape(count, -1) for rows in changes.values()], axis=1)
    distances = np.sort([np.square(rows - row).sum(axis=1) for row in rows], axis=1)  # the first is to itself
    chosen = int(distances[:, 1 : count - attackers - 1].sum(axis=1).argmin())
    return {name: rows[chosen] for name, rows in changes.items()}
