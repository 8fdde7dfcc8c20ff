"""Label flipping: attackers train honestly on wrong labels (Tolpegin, Truex, Gursoy and Liu 2020)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from florilegium.clients.attacks.attack import Attack
from florilegium.common.settings import Section, key

if TYPE_CHECKING:
    from florilegium.partitions.clientdata import Examples


class LabelFlipKeys(Section):
    """Keys of label flipping."""

    title = "Attack `label-flip`"

    source: int = key(-1, "class whose examples get another label; -1: every class y gets C − 1 − y", ge=-1)
    target: int = key(0, "their label", ge=0, where="label-flip.source!=-1")


class LabelFlip(Attack):
    """Trains on wrong labels."""

    title = "training on wrong labels"
    source = "Tolpegin et al. 2020"
    keys = LabelFlipKeys
    classes = True

    def poisoned(self, examples: Examples, classes: int, seed: int) -> Examples:
        """Return the examples with their wrong labels."""
        own = cast(LabelFlipKeys, self.settings)
        if own.source < 0:
            return replace(examples, y=classes - 1 - examples.y)
        return replace(examples, y=examples.y.masked_fill(examples.y == own.source, own.target))

    def probed(self, examples: Examples) -> Examples | None:
        """Return the examples of the class, with the attackers' label; None if all classes are flipped."""
        own = cast(LabelFlipKeys, self.settings)
        if own.source < 0:
            return None
        chosen = examples.rows(examples.y == own.source)
        return replace(chosen, y=chosen.y * 0 + own.target)
