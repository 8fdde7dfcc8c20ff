"""Attacks that know what others return, and are of one mind: all attackers return the same update.

μ and σ are mean and standard deviation of the updates by which attackers judge honest ones (:class:`Seen.others`).
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Literal, cast

import numpy as np

from florilegium.clients.attacks.attack import Attack, Matrix, Seen, Vector, copies, unit
from florilegium.common.settings import Section, key


class InnerProductKeys(Section):
    """Keys of inner-product manipulation."""

    title = "Attack `inner-product`"

    scale: float = key(0.5, "ε, factor on the negative of the mean update", gt=0)


class InnerProduct(Attack):
    """Returns −ε·μ (Xie, Koyejo and Gupta 2020)."""

    title = "the negative of the mean update, scaled"
    source = "Xie et al. 2020"
    keys = InnerProductKeys
    least, usual = "attackers", "updates"

    def forged(self, seen: Seen) -> Matrix:
        """Return −ε·μ."""
        return copies(-cast(InnerProductKeys, self.settings).scale * seen.others.mean(axis=0), len(seen.own))


class LittleIsEnoughKeys(Section):
    """Keys of "a little is enough"."""

    title = "Attack `little-is-enough`"

    deviations: float = key(0.0, "z, number of standard deviations; 0: as many as the median does not notice", ge=0)


class LittleIsEnough(Attack):
    """Returns μ + z·σ (Baruch, Baruch and Goldberg 2019, Algorithm 3).

    z is the largest with Φ(z) ≤ (n − m − s)/(n − m), where s = ⌊n/2 + 1⌋ − m honest clients must be farther away than
    the attackers for these to be the majority; 0 if few attackers make that negative.
    """

    title = "the mean update plus z standard deviations, which hide among honest ones"
    source = "Baruch et al. 2019"
    keys = LittleIsEnoughKeys
    least, usual = "attackers", "updates"

    def forged(self, seen: Seen) -> Matrix:
        """Return μ + z·σ."""
        z = cast(LittleIsEnoughKeys, self.settings).deviations or most_deviations(seen.size, len(seen.own))
        return copies(seen.others.mean(axis=0) + z * seen.others.std(axis=0), len(seen.own))


def most_deviations(count: int, attackers: int) -> float:
    """Return z for n = ``count`` updates of which m = ``attackers`` are not honest."""
    honest, needed = count - attackers, count // 2 + 1 - attackers
    share = (honest - needed) / honest if honest else 0.0
    return max(0.0, NormalDist().inv_cdf(min(max(share, 1e-9), 1 - 1e-9)))


class DirectedKeys(Section):
    """Keys of attacks that go as far as they can in one direction."""

    direction: Literal["deviation", "unit", "sign"] = key(
        "deviation", "where to go from the mean update: −σ of every entry, −μ/‖μ‖, or −sign(μ)"
    )


class MinMaxKeys(DirectedKeys):
    """Keys of the min-max attack."""

    title = "Attack `min-max`"


class MinSumKeys(DirectedKeys):
    """Keys of the min-sum attack."""

    title = "Attack `min-sum`"


def direction(name: str, others: Matrix) -> Vector:
    """Return the direction ∇ of Shejwalkar and Houmansadr 2021, section IV-B."""
    mean: Vector = others.mean(axis=0)
    return {"deviation": -others.std(axis=0), "unit": -unit(mean), "sign": -np.sign(mean)}[name]


class MinMax(Attack):
    """Returns μ + γ·∇ as far as no honest update is farther away than two honest ones are (2021, equation 2)."""

    title = "the mean update, moved until it is as far from an honest one as these are from each other"
    source = "Shejwalkar and Houmansadr 2021"
    keys = MinMaxKeys
    least, usual = "attackers", "updates"

    def forged(self, seen: Seen) -> Matrix:
        """Return μ + γ·∇ with the largest γ, which solves a quadratic equation for each honest update."""
        others, toward = seen.others, direction(cast(MinMaxKeys, self.settings).direction, seen.others)
        left, square = others.mean(axis=0) - others, float(toward @ toward)
        most = _squared_distances(others).max()
        half = left @ toward
        roots = -half + np.sqrt(np.maximum(half**2 + square * (most - np.square(left).sum(axis=1)), 0.0))
        γ = roots.min() / square if square else 0.0
        return copies(others.mean(axis=0) + γ * toward, len(seen.own))


class MinSum(Attack):
    """Returns μ + γ·∇ as far as its sum of squared distances is no larger than an honest one's (2021, equation 3)."""

    title = "the mean update, moved until its sum of distances is that of the outermost honest one"
    source = "Shejwalkar and Houmansadr 2021"
    keys = MinSumKeys
    least, usual = "attackers", "updates"

    def forged(self, seen: Seen) -> Matrix:
        """Return μ + γ·∇: Σ ‖μ + γ∇ − xᵢ‖² = h·γ²·‖∇‖² + Σ ‖μ − xᵢ‖²."""
        others, toward = seen.others, direction(cast(MinSumKeys, self.settings).direction, seen.others)
        mean, square = others.mean(axis=0), float(toward @ toward) * len(others)
        room = _squared_distances(others).sum(axis=1).max() - np.square(others - mean).sum()
        return copies(mean + (np.sqrt(max(room, 0.0) / square) if square else 0.0) * toward, len(seen.own))


def _squared_distances(rows: Matrix) -> Matrix:
    centred = rows - rows.mean(axis=0)
    squares = np.square(centred).sum(axis=1)
    return np.maximum(squares[:, None] + squares - 2 * centred @ centred.T, 0.0)


class Mimic(Attack):
    """Copies one honest client (Karimireddy, He and Jaggi 2022, section 3.2), which then counts several times.

    It is the client with the largest projection on the direction in which honest updates differ most. The same one is
    copied in later exchanges in which it takes part.
    """

    title = "copies of one honest client's update, the most unusual one's"
    source = "Karimireddy et al. 2022"
    least, usual = "updates", "updates"

    def forged(self, seen: Seen) -> Matrix:
        """Return the copies."""
        copied = seen.memory.get("copied")
        if copied not in seen.clients:
            centred = seen.others - seen.others.mean(axis=0)
            main = np.linalg.eigh(centred @ centred.T)[1][:, -1]
            copied = seen.memory["copied"] = seen.clients[int(np.abs(main).argmax())]
        return copies(seen.others[seen.clients.index(copied)], len(seen.own))
