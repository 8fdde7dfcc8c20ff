"""FoolsGold (Fung, Yoon and Beschastnikh 2020, Algorithm 1): clients that always point the same way count less.

The histories Hᵢ are the sums of a client's updates of the last block over all rounds. vᵢ is the largest cosine of Hᵢ
with another client's; pardoning multiplies the cosines of i with j by vᵢ/vⱼ where vⱼ > vᵢ. αᵢ = 1 − maxⱼ csᵢⱼ is
divided by the largest, and becomes ln(αᵢ/(1 − αᵢ)) + ½, within [0, 1].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from florilegium.common.settings import Section, key
from florilegium.strategies.robust.rule import Combined, Rule, Surroundings
from florilegium.strategies.robust.stack import Matrix, Stack, Vector

if TYPE_CHECKING:
    from florilegium.models.parameters import Arrays


class FoolsGoldKeys(Section):
    """Keys of FoolsGold."""

    title = "Robust rule `foolsgold`"

    whole: bool = key(False, "compare histories of the whole network rather than of its last block")
    confidence: float = key(1.0, "κ, by which the logit is multiplied", gt=0)


class FoolsGold(Rule):
    """Averages updates by how much each client's history differs from all others'."""

    title = "the mean of updates, with less weight for clients whose histories are alike"
    needs = (0, 2)
    source = "Fung et al. 2020"
    keys = FoolsGoldKeys
    mixes = False

    def combine(self, stack: Stack, around: Surroundings) -> Combined:
        """Return the weighted mean, and keep the histories; if all clients are alike, return 0."""
        own = cast(FoolsGoldKeys, self.settings)
        last = next(reversed(stack.arrays)).rpartition(".")[0]
        part = stack.only(lambda name: own.whole or name.rpartition(".")[0] == last)
        for row, client in enumerate(around.clients):
            before = around.remembered(client)
            around.remember(client, _added(before, {name: array[row] for name, array in part.arrays.items()}))
        told = [around.remembered(client) for client in around.clients]
        histories = Stack({name: np.stack([one[name] for one in told]) for name in part.arrays}, stack.weights)
        zero = {name: np.zeros(array.shape[1:]) for name, array in histories.arrays.items()}
        α = weights(cosines(histories.products(zero)), own.confidence)
        total = α.sum()
        return Combined(stack.combination(α / total if total else α), α == 0)


def _added(before: Arrays, update: Arrays) -> Arrays:
    """Return a history with a further update; arrays of which there is none yet begin."""
    fits = {
        name: before[name] for name, array in update.items() if name in before and before[name].shape == array.shape
    }
    return {name: fits.get(name, 0.0) + array.astype(np.float64) for name, array in update.items()}


def cosines(products: Matrix) -> Matrix:
    """Return the cosines that follow from inner products, (n, n); 0 where a vector has no length."""
    lengths = np.sqrt(np.maximum(np.diag(products), 0.0))
    scale = np.outer(lengths, lengths)
    return np.divide(products, scale, out=np.zeros_like(scale), where=scale > 0)


def weights(similar: Matrix, confidence: float = 1.0) -> Vector:
    """Return α of all clients, (n,) in [0, 1]; ``similar``: the cosines of their histories, (n, n)."""
    cs = similar - np.diag(np.diag(similar)) - np.diag(np.full(len(similar), np.inf))
    v = cs.max(axis=1)
    factor = np.divide(v[:, None], v, out=np.ones_like(cs), where=(v > v[:, None]) & (v != 0))
    α = np.clip(
        1 - (np.where(np.isfinite(cs), cs, 0.0) * factor + np.diag(np.full(len(cs), -np.inf))).max(axis=1), 0, 1
    )
    if not α.max():
        return np.zeros(len(α))
    α = α / α.max()
    with np.errstate(divide="ignore"):
        logit = np.log(α) - np.log1p(-α)
    return np.asarray(np.clip(confidence * logit + 0.5, 0, 1))
