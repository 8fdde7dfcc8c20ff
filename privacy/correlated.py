"""Noise on the sums of successive rounds, and what a client's presence costs who takes part in every E-th of them.

Rounds t = 1, 2, … release Σ_i x_i + noise. A model adds these up, so that what counts is the noise in running totals.
Independent noise adds up as the rounds do; noise that is correlated between rounds cancels there (Kairouz et al. 2021,
"Practical and private (deep) learning without sampling or shuffling"; Denisov et al. 2022; Fichtenberger et al. 2023).

Each mechanism is linear: with independent standard normal vectors Z, round t gets the noise σ·Σ_j w_tj·Z_j. All rounds
together are one Gaussian mechanism, whose squared sensitivity, for clients of norm 1, is the sum of the rounds'
charges. So a run with noise multiplier z = σ/C costs what a single Gaussian release with z/√(Σ charges) costs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

Kind = Literal["gaussian", "tree", "matrix"]
Index = tuple[int, ...]
"""Number of one of the independent vectors Z."""


class Mechanism(ABC):
    """A way to correlate noise.

    Args:
        period: E ≥ 1; a client takes part in the rounds s, s + E, s + 2E, … for some s of 1..E, and in no others.
        rounds: T ≥ 1, the number of rounds that the mechanism is made for.
    """

    def __init__(self, period: int, rounds: int) -> None:
        self.period = period
        self.rounds = rounds

    @abstractmethod
    def weights(self, number: int) -> Mapping[Index, float]:
        """Return w_tj of round t = ``number``, counted from 1, by j; weights that are 0 are left out."""

    @abstractmethod
    def charge(self, number: int) -> float:
        """Return by how much round t = ``number`` raises the squared sensitivity of the rounds before it."""

    @abstractmethod
    def accumulated(self, number: int) -> float:
        """Return the variance of the noise in the running total of the first t = ``number`` rounds, in units of σ²."""


class Independent(Mechanism):
    """Independent noise in every round: what a client costs grows with the number of rounds in which it takes part."""

    def weights(self, number: int) -> Mapping[Index, float]:
        """Return a weight of 1 for a vector of the round's own."""
        return {(number,): 1.0}

    def charge(self, number: int) -> float:
        """Return 1 where a client of the first slot takes part."""
        return float((number - 1) % self.period == 0)

    def accumulated(self, number: int) -> float:
        """Return t."""
        return float(number)


class Tree(Mechanism):
    """Tree aggregation with a new tree every E rounds (Kairouz et al. 2021, appendix B), without Honaker's averaging.

    A tree's nodes are the intervals (m·2^l, (m + 1)·2^l] of its rounds, each with a Z of its own. The running total of
    the first p rounds has the noise of the fewest nodes that make up 1..p. A round belongs to at most ⌊log₂ p⌋ + 1
    nodes that are complete by then, and a client takes part once in a tree.
    """

    def weights(self, number: int) -> Mapping[Index, float]:
        """Return 1 for nodes that the running total gains with the round, −1 for those that they replace."""
        tree, place = divmod(number - 1, self.period)
        now, before = _nodes(place + 1), _nodes(place)
        gained: dict[Index, float] = {(tree, *node): 1.0 for node in now - before}
        return gained | {(tree, *node): -1.0 for node in before - now}

    def charge(self, number: int) -> float:
        """Return 1 where a new level of the tree begins: at place 1, 2, 4, 8, …"""
        place = (number - 1) % self.period + 1
        return float(place & (place - 1) == 0)

    def accumulated(self, number: int) -> float:
        """Return the number of nodes that make up the rounds so far, of all trees."""
        trees, place = divmod(number, self.period)
        return float(trees * self.period.bit_count() + place.bit_count())


def _nodes(place: int) -> frozenset[tuple[int, int]]:
    """Return the fewest nodes that make up 1..``place``, each as (level, last round)."""
    return frozenset((level, place >> level << level) for level in range(place.bit_length()) if place >> level & 1)


class Matrix(Mechanism):
    """The banded square root of the matrix of running totals (Fichtenberger et al. 2023; Kalinin and Lampert 2024).

    Running totals are multiplication by the lower triangular matrix A of ones. For any lower triangular C, noise C⁻¹Z
    on the rounds is noise AC⁻¹Z on their running totals, which is CZ if C·C = A. That root's entry k below the diagonal
    is the coefficient of x^k in (1 − x)^(−1/2). Here C has the p first of them; with p = 1, noise is independent. p is
    chosen for the smallest mean variance of running totals, given what the rounds cost.

    The rounds of a client of slot s are columns s, s + E, … of C; the norm of their sum is largest for s = 1, since C
    has no negative entry and later columns are cut off.
    """

    def __init__(self, period: int, rounds: int) -> None:
        super().__init__(period, rounds)
        below = np.arange(1, rounds)
        root = np.cumprod(np.concatenate([[1.0], (below - 0.5) / below]))
        bands = {rounds, min(period, rounds), *(1 << power for power in range(rounds.bit_length()))}
        _, self._root = min(
            ((self._error(root[:band]), root[:band]) for band in sorted(bands) if band <= rounds), key=itemgetter(0)
        )
        self._inverse = self._inverted(self._root)

    def weights(self, number: int) -> Mapping[Index, float]:
        """Return row t of C⁻¹."""
        return {(number - back,): float(self._inverse[back]) for back in range(number)}

    def charge(self, number: int) -> float:
        """Return the squared entry of round t in the sum of columns 1, 1 + E, …"""
        return float(self._root[:number][(number - 1) % self.period :: self.period].sum() ** 2)

    def accumulated(self, number: int) -> float:
        """Return the sum of squares of row t of AC⁻¹."""
        return float(np.square(np.cumsum(self._inverse[:number])).sum())

    def _error(self, root: NDArray[np.float64]) -> float:
        """Return the mean variance of running totals times the squared sensitivity, with these entries of C."""
        variances = np.cumsum(np.square(np.cumsum(self._inverted(root))))
        self._root = root
        return float(variances.mean()) * squared_sensitivity(self, self.rounds)

    def _inverted(self, root: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the entries of C⁻¹: the coefficients of the power series 1 ÷ Σ_k root_k·x^k."""
        one = np.zeros(self.rounds)
        one[0] = 1.0
        inverse: NDArray[np.float64] = lfilter([1.0], root, one)
        return inverse


MECHANISMS: Mapping[Kind, type[Mechanism]] = {"gaussian": Independent, "tree": Tree, "matrix": Matrix}


def squared_sensitivity(mechanism: Mechanism, rounds: int) -> float:
    """Return the squared sensitivity of the first ``rounds`` rounds, for contributions of norm ≤ 1."""
    return sum(mechanism.charge(number) for number in range(1, rounds + 1))


def noise(
    mechanism: Mechanism, seed: int, number: int, deviation: float, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray[Any]]:
    """Return the noise of round t = ``number``, by name.

    The vectors Z are drawn anew from their numbers, so that none has to be kept; in round t, ``matrix`` draws t of
    them, and ``tree`` at most log₂ E + 1.

    Args:
        mechanism: how noise is correlated.
        seed: a secret; it must be the same in all rounds, and a round's noise must be used only once.
        number: t ≥ 1.
        deviation: σ.
        shapes: shapes of the arrays of the sum, by name; the same in all rounds.
    """
    result = {name: np.zeros(shape) for name, shape in shapes.items()}
    for index, weight in mechanism.weights(number).items():
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=index))
        for name, shape in shapes.items():
            result[name] += rng.normal(scale=deviation, size=shape) * weight
    return result
