"""The interface of a robust rule: what combines a cohort's updates, and what it needs of the run to do so."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from florilegium.common.settings import NoHyper, Section
from florilegium.strategies.robust.stack import Stack, Vector

if TYPE_CHECKING:
    from florilegium.models.parameters import Arrays


class Surroundings(Protocol):
    """What a rule may know of the exchange whose updates it combines."""

    @property
    def clients(self) -> Sequence[str]:
        """The clients whose updates are the rows, in their order."""

    def generator(self, *purpose: str) -> np.random.Generator:
        """Return the generator of this round, this exchange and a purpose, from the run's seed."""

    def remembered(self, name: str) -> Arrays:
        """Return what the rule has kept under a name: a client's, or one that begins with "_"; {} if nothing."""

    def remember(self, name: str, arrays: Arrays) -> None:
        """Keep arrays under a name, on disk, for later rounds."""

    def trusted(self) -> Arrays:
        """Return the update that the server makes by the clients' training on its own examples, float64."""


@dataclass(frozen=True)
class Combined:
    """What a rule has made of a cohort's updates.

    Attributes:
        update: the combined update, float64.
        excluded: whether each row has no share in it, (rows,); None: the rule excludes no row as a whole.
    """

    update: Arrays
    excluded: NDArray[np.bool_] | None = None


class Rule(ABC):
    """A rule, named by ``aggregation``; its object serves a whole run.

    Args:
        keys: its own keys.
        attackers: f, the number of updates of a cohort that may be arbitrary.

    Attributes:
        title: what it computes, in a few words.
        source: the paper.
        keys: section of its own keys, whose table has the name of the rule.
        needs: the fewest rows, as a pair (a, b): a·f + b. With a = 0 any number of rows may be arbitrary.
        weighted: whether it weights rows by clients' weights; otherwise all count the same.
        mixes: whether rows may be mixtures of updates (``robust.mixing``).
        trusts: whether it uses examples of the server.
    """

    title: ClassVar[str]
    source: ClassVar[str]
    keys: ClassVar[type[Section]] = NoHyper
    needs: ClassVar[tuple[int, int]] = (2, 1)
    weighted: ClassVar[bool] = False
    mixes: ClassVar[bool] = True
    trusts: ClassVar[bool] = False

    def __init__(self, keys: Section, attackers: int) -> None:
        self.settings, self.attackers = keys, attackers

    @classmethod
    def least(cls, attackers: int) -> int:
        """Return the fewest rows with which the rule tolerates ``attackers`` of them."""
        each, more = cls.needs
        return each * attackers + more

    @abstractmethod
    def combine(self, stack: Stack, around: Surroundings) -> Combined:
        """Return one update made of several, of which there are at least :meth:`least`."""


def mean_of(stack: Stack, chosen: Sequence[int] | NDArray[np.intp]) -> Combined:
    """Return the plain mean of some rows; the others are excluded."""
    coefficients: Vector = np.zeros(len(stack))
    coefficients[chosen] = 1 / len(chosen)
    return Combined(stack.combination(coefficients), coefficients == 0)
