"""Attacks made for a defence: local model poisoning (Fang, Cao, Jia and Gong 2020), and one that tries the rule out."""

from __future__ import annotations

from typing import cast

import numpy as np

from florilegium.clients.attacks.attack import Attack, Matrix, Seen, copies, unit
from florilegium.clients.attacks.colluding import direction
from florilegium.common.settings import Section, key

LEAST_STEP = 1e-5
"""The λ below which the attack on Krum gives up (section 4.2)."""


class FangTrimmed(Attack):
    """Attacks trimmed mean and median: entries beyond all honest ones, against the direction of change (section 4.3).

    With all updates known, an entry that would grow gets a value between the smallest honest one w and w/2 or 2w,
    whichever lies below, of models rather than updates; with the attackers' own known, a value between μ − 4σ and
    μ − 3σ. Entries that would shrink get values above accordingly.
    """

    title = "entries just beyond the honest ones, against the direction of change"
    source = "Fang et al. 2020"
    least, usual = "attackers", "updates"

    def forged(self, seen: Seen) -> Matrix:
        """Return the updates, whose entries are drawn."""
        s = np.sign(seen.others.mean(axis=0))
        drawn = seen.generator.uniform(size=seen.own.shape)
        if seen.knows == "attackers":
            σ = seen.others.std(axis=0)
            return seen.others.mean(axis=0) - s * (3 + drawn) * σ
        models = seen.sent + seen.others
        low, high = models.min(axis=0), models.max(axis=0)
        beyond_low = np.where(low > 0, low / 2, 2 * low)
        beyond_high = np.where(high > 0, 2 * high, high / 2)
        below, above = low + drawn * (beyond_low - low), high + drawn * (beyond_high - high)
        return np.where(s > 0, below, above) - seen.sent


class FangKrum(Attack):
    """Attacks Krum: −λ·s for the signs s of the mean update, with the largest λ that Krum chooses (section 4.2)."""

    title = "the negative signs of the mean update, as large as Krum still chooses"
    source = "Fang et al. 2020"
    least, usual = "attackers", "updates"

    def forged(self, seen: Seen) -> Matrix:
        """Return equal updates; λ is halved until Krum takes one of them."""
        s = np.sign(seen.others.mean(axis=0))
        attackers, d = len(seen.own), max(1, len(s))
        rows = np.concatenate([seen.others, np.zeros((attackers, len(s)))])
        near = max(1, len(rows) - attackers - 2)
        squares = np.array([np.square(seen.others - row).sum(axis=1) for row in seen.others])
        sums = np.sort(squares, axis=1)[:, 1 : near + 1].sum(axis=1)
        divisor = max(1, len(rows) - 2 * attackers - 1) * d
        λ = np.sqrt(sums.min() / divisor) + np.linalg.norm(seen.others, axis=1).max() / np.sqrt(d)
        while λ >= LEAST_STEP:
            rows[len(seen.others) :] = -λ * s
            scores = _krum(rows, near)
            if scores[len(seen.others) :].min() < scores[: len(seen.others)].min():
                break
            λ /= 2
        return copies(-λ * s, attackers)


def _krum(rows: Matrix, near: int) -> Matrix:
    """Return the scores of Krum, (n,)."""
    squares = np.array([np.square(rows - row).sum(axis=1) for row in rows])
    np.fill_diagonal(squares, np.inf)
    return np.asarray(np.sort(squares, axis=1)[:, :near].sum(axis=1))


class AdaptiveKeys(Section):
    """Keys of the attack that tries the defence out."""

    title = "Attack `adaptive`"

    steps: int = key(12, "number of scales that are tried in each direction", ge=1)
    largest: float = key(100.0, "the largest scale; the others are smaller by a factor of 2 each", gt=0)


class Adaptive(Attack):
    """Returns μ + γ·∇ with the direction and scale that do the most harm to what the defence in use computes.

    Directions are those of min-max and min-sum, scaled to the mean length of honest updates' differences from μ. The
    harm is how far the combined update falls behind μ along μ.
    """

    title = "the mean update, moved in the direction and by the scale that harm the defence in use most"
    source = "own; directions of Shejwalkar and Houmansadr 2021"
    keys = AdaptiveKeys
    least, usual = "defence", "defence"

    def forged(self, seen: Seen) -> Matrix:
        """Return the updates after trying all."""
        own, others = cast(AdaptiveKeys, self.settings), seen.others
        mean, combined = others.mean(axis=0), seen.combined
        if combined is None:
            raise TypeError("the attack 'adaptive' was not given the defence")
        length = float(np.linalg.norm(others - mean, axis=1).mean()) or float(np.linalg.norm(mean))
        along, best, chosen = unit(mean), -np.inf, mean
        for name in ("deviation", "unit", "sign"):
            toward = unit(direction(name, others)) * length
            for scale in own.largest * 0.5 ** np.arange(own.steps):
                tried = mean + scale * toward
                found = combined(np.concatenate([others, copies(tried, len(seen.own))]))
                if (harm := float((mean - found) @ along)) > best:
                    best, chosen = harm, tried
        return copies(chosen, len(seen.own))
