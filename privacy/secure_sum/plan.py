"""The parameters of a secure sum: how many neighbours each party has, and how many shares give a secret.

They are computed from the number of parties n, the shares of them that may collude with the server and that may vanish,
and the probability with which the sum may fail. The graph is drawn at random, whoever colludes or vanishes. Then
(Bell et al. 2020, section 3):

- *exposed*: some party has t or more colluding neighbours, who could reveal both of its secrets; or those that neither
  collude nor vanish fall apart in the graph, so that the sums of the pieces come out. For the latter, k/2 neighbours in
  a row must collude or vanish somewhere in the circle.
- A server that tells some devices that a party has sent its vector, and others that it has not, gets both secrets of it
  if t neighbours reveal each. Honest ones reveal one, so that it needs 2t − k colluding ones among the k.
- *stuck*: some party has fewer than t neighbours that do not vanish, so that its masks cannot be removed.

The bounds add up the probabilities of all parties, which are tails of hypergeometric distributions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import ceil, comb, prod


class ImpossibleError(ValueError):
    """There are too few parties for what is demanded of a secure sum."""


@dataclass(frozen=True)
class Plan:
    """The parameters of a secure sum.

    Attributes:
        parties: n.
        degree: k, number of neighbours of each party.
        threshold: t, number of shares that give a secret; above k/2.
        vanishing: the largest number of parties that may vanish.
        exposed, stuck: upper bounds of the probabilities that more than the sum comes out, or no sum at all.
        one_kind: whether *exposed* counts a server that tells devices different things, too.
    """

    parties: int
    degree: int
    threshold: int
    vanishing: int
    exposed: float
    stuck: float
    one_kind: bool


def tails(population: int, marked: int, drawn: int) -> list[float]:
    """Return for each x from 0 to ``drawn`` + 1 the probability of at least x marked members among those drawn."""
    ways = [comb(marked, x) * comb(population - marked, drawn - x) for x in range(drawn + 1)]
    all_ways = comb(population, drawn)
    return [more / all_ways for more in [*accumulate(reversed(ways))][::-1]] + [0.0]


@lru_cache(maxsize=256)
def plan(parties: int, colluding: float, vanishing: float, failure: float, *, deviating: bool = False) -> Plan:
    """Return the parameters with the fewest neighbours; with as many, those with ``one_kind`` go before others.

    Args:
        parties: n, the number of parties that send keys.
        colluding: share of them that may tell the server all they know; at least one, if it is not 0.
        vanishing: share of them that may stop to reply at any time.
        failure: the largest probability allowed, for *exposed* and *stuck* each.
        deviating: whether the server may tell devices different things: only ``one_kind`` will do.

    Raises:
        ImpossibleError: if there are too few parties.
    """
    c, v = ceil(colluding * parties - 1e-9), int(vanishing * parties + 1e-9)  # both on the safe side
    kinds = (True,) if deviating else (True, False)
    for k in range(2, parties - 1, 2):
        for one_kind in kinds:
            found = _sparse(parties, c, v, k, failure, one_kind=one_kind)
            if found is not None:
                return found
    k = parties - 1
    for one_kind in kinds:
        least, most = max(c, (k + c if one_kind else k) // 2) + 1, k - v
        if least <= most and parties - c - v >= 2:
            return Plan(parties, k, (least + most + 1) // 2, v, 0.0, 0.0, one_kind)
    raise ImpossibleError(f"{parties} parties are too few if {c} of them may collude with the server and {v} vanish")


def _sparse(n: int, c: int, v: int, k: int, failure: float, *, one_kind: bool) -> Plan | None:
    """Return the plan with k neighbours whose two probabilities are smallest, or None if it is not good enough."""
    apart = n * prod(max(c + v - j, 0) / (n - 1 - j) for j in range(k // 2))
    if apart > failure or n - c - v < 2:
        return None
    colluding, vanishing = tails(n - 1, c, k), tails(n - 1, v, k)
    plans = [
        Plan(
            n, k, t, v, apart + n * colluding[min(t, 2 * t - k) if one_kind else t], n * vanishing[k - t + 1], one_kind
        )
        for t in range(k // 2 + 1, k + 1)
    ]
    best = min(plans, key=lambda one: max(one.exposed, one.stuck))
    return best if max(best.exposed, best.stuck) <= failure else None
