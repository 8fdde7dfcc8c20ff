"""The interface of an attack: what attackers do with their examples and updates, and what they know for it.

Updates are rows of matrices in float64, without running statistics, which attackers leave as they are.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from florilegium.common.settings import NoHyper, Section

if TYPE_CHECKING:
    from florilegium.partitions.clientdata import Examples

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]

KNOWLEDGE = ("own", "attackers", "updates", "defence")
"""What attackers know: their own training, each other's, all updates of the exchange, and the rule that combines."""


@dataclass(frozen=True)
class Seen:
    """What attackers of an exchange see, as far as they know it.

    Attributes:
        own: the updates that the m attackers would return if they were honest, (m, d).
        others: the updates by which they judge what honest clients return, (h, d): those of all honest clients, or
            their own; with knowledge "own" each attacker's own alone, so that h = m.
        clients: the clients of ``others``.
        sent: the model that clients were sent, (d,).
        before: the model of the attackers' last exchange, (d,); None before.
        tolerated: f, the number of attackers that the defence is made for.
        boost: total weight of the exchange divided by the attackers' mean weight and the server's learning rate.
        combined: with knowledge "defence": what the server makes of the updates (h + m, d), the honest ones first.
        generator: draws what is random.
        knows: which of ``KNOWLEDGE``.
        memory: JSON values that the attackers keep from exchange to exchange.
    """

    own: Matrix
    others: Matrix
    clients: Sequence[str]
    sent: Vector
    before: Vector | None
    tolerated: int
    boost: float
    combined: Callable[[Matrix], Vector] | None
    generator: np.random.Generator
    memory: dict[str, Any]
    knows: str

    @property
    def size(self) -> int:
        """n, the number of updates of the exchange as far as the attackers know, at least those that they see."""
        return len(self.own) + len(self.others)


class Attack(ABC):
    """An attack, named by ``attack``; a subclass overrides :meth:`poisoned`, :meth:`forged`, or both.

    Args:
        keys: its own keys.

    Attributes:
        title: what attackers do, in a few words.
        source: the paper.
        keys: section of its own keys, whose table has the name of the attack.
        least: the least of ``KNOWLEDGE`` with which it works.
        usual: what attackers know unless ``attack-knows`` says otherwise.
        classes: whether it needs classes as targets.
        continuous: whether it needs inputs of numbers, rather than of codes such as characters.
    """

    title: ClassVar[str]
    source: ClassVar[str]
    keys: ClassVar[type[Section]] = NoHyper
    least: ClassVar[str] = "own"
    usual: ClassVar[str] = "own"
    classes: ClassVar[bool] = False
    continuous: ClassVar[bool] = False

    def __init__(self, keys: Section) -> None:
        self.settings = keys

    @property
    def poisons(self) -> bool:
        """Whether attackers train on other examples than their own."""
        return type(self).poisoned is not Attack.poisoned

    @property
    def forges(self) -> bool:
        """Whether attackers return other updates than they have trained."""
        return type(self).forged is not Attack.forged

    def poisoned(self, examples: Examples, classes: int, seed: int) -> Examples:
        """Return the examples that an attacker trains on.

        Args:
            examples: its own.
            classes: number of classes; 0 if targets are no classes.
            seed: for random choices, the same in all rounds.
        """
        return examples

    def forged(self, seen: Seen) -> Matrix:
        """Return the updates of the attackers, (m, d)."""
        return seen.own

    def probed(self, examples: Examples) -> Examples | None:
        """Return examples whose targets are what attackers want to be predicted for them; None: no goal is measured."""
        return None


class NoAttack(Attack):
    """Nobody attacks."""

    title = "nothing: all clients are honest"
    source = "–"


def unit(vector: Vector) -> Vector:
    """Return the vector scaled to length 1; 0 as it is."""
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector


def copies(vector: Vector, count: int) -> Matrix:
    """Return the vector as ``count`` equal rows."""
    return np.tile(vector, (count, 1))
