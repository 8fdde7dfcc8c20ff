"""Secure sums of random groups of a cohort (``secure-groups``), whose means a robust rule combines.

The server learns k sums of about n/k clients each rather than one of n. An attacker is in one group, so that at most f
means are arbitrary. Those who collude with the server may meet in a group by chance: each sum is planned for as many as
only come together with probability ``secure-failure``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil

import numpy as np

from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import numpy_generator
from florilegium.privacy.secure_sum.plan import ImpossibleError, plan, tails
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.requests import Exchange
from florilegium.strategies.exchange.totals import Totals
from florilegium.strategies.settings.server import ServerSettings


@lru_cache(maxsize=256)
def most_colluding(parties: int, groups: int, colluding: float, failure: float) -> int:
    """Return how many colluding clients a group may have; more meet in some group with probability ``failure`` at most.

    Args:
        parties: n, the clients of the cohort.
        groups: k; the largest has ⌈n/k⌉ of them.
        colluding: share of the n that collude with the server; rounded up.
        failure: the bound.
    """
    marked, size = ceil(colluding * parties - 1e-9), -(-parties // groups)
    if groups == 1:
        return marked
    chances = tails(parties, marked, size)  # at least x of the colluding ones in a group
    return next(x for x in range(size + 1) if groups * chances[x + 1] <= failure)


def sizes(parties: int, groups: int) -> set[int]:
    """Return the sizes of k groups of n clients that differ by one at most."""
    return {parties // groups, -(-parties // groups)}


def check(settings: ServerSettings, parties: int, what: str) -> None:
    """Raise :class:`ConfigurationError` if the groups of a cohort are too small.

    Args:
        settings: the run's configuration.
        parties: the size of the cohort.
        what: the cohort in words.
    """
    s, k = settings, settings.secure_groups
    least = parties // k
    key = f"secure-groups: of {what}, {parties} clients, {k} groups have {least} each"
    if least < s.secure_group_size:
        raise ConfigurationError(
            f"{key}, and secure-group-size asks for {s.secure_group_size}; take fewer groups or ask more clients"
        )
    bad = most_colluding(parties, k, s.secure_colluding, s.secure_failure)
    try:
        for size in sizes(parties, k):
            plan(size, bad / size, s.secure_vanishing, s.secure_failure, deviating=s.secure_deviating)
    except ImpossibleError as error:
        raise ConfigurationError(
            f"{key}; by chance {bad} that collude may meet in one: {error}. Take fewer groups, ask more clients, or "
            "lower secure-colluding or secure-vanishing"
        ) from error


def drawn(settings: ServerSettings, exchange: Exchange, clients: Sequence[str]) -> list[list[str]]:
    """Return the groups of an exchange's clients, drawn by the run's seed, each in the cohort's order."""
    order = numpy_generator(settings.seed, "secure-groups", exchange.number, exchange.phase).permutation(len(clients))
    return [[clients[i] for i in sorted(part)] for part in np.array_split(order, settings.secure_groups)]


def together(cohort: Sequence[str], outcomes: Sequence[Outcome]) -> Outcome:
    """Return one outcome of the groups' sums: the groups' means stacked, and all else summed.

    Groups whose sum has failed are left out; without any, there are no clients.

    Args:
        cohort: the clients, in the order of the result.
        outcomes: one for each group.
    """
    failures = {client: why for one in outcomes for client, why in one.failures.items()}
    revealed = sum(one.revealed for one in outcomes)
    known = [(one, one.totals) for one in outcomes if one.clients and one.totals is not None]
    if not known:
        return Outcome([], {}, {}, failures, revealed=revealed)
    came = {client for one, _ in known for client in one.clients}
    means = [{name: array / totals.weight for name, array in one.arrays.items()} for one, totals in known]
    return Outcome(
        [client for client in cohort if client in came],
        {name: np.stack([mean[name] for mean in means]) for name in means[0]},
        {},
        failures,
        totals=_added([totals for _, totals in known]),
        revealed=revealed,
        groups=[totals.weight for _, totals in known],
    )


def _added(parts: Sequence[Totals]) -> Totals:
    """Return the sums over all groups; a metric that is lacking in one is left out."""
    names = set.intersection(*({*part.metrics} for part in parts))
    fours = {name: np.sum([part.metrics[name] for part in parts], axis=0) for name in sorted(names)}
    metrics = {name: (float(a), float(b), float(c), float(d)) for name, (a, b, c, d) in fours.items()}
    return Totals(
        sum(part.clients for part in parts), sum(part.weight for part in parts), sum(part.examples for part in parts),
        parts[0].uniform, metrics, sum(part.bytes_down for part in parts), sum(part.bytes_up for part in parts),
    )  # fmt: skip
