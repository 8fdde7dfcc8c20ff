"""Backdoors (Bagdasaryan, Veit, Hua, Estrin and Shmatikov 2020; Sun et al. 2019): a pattern of pixels means a class.

Attackers add the pattern to a share of their examples and give these the target label. Model replacement multiplies
their updates by n/η, so that the average becomes their model; a norm bound then scales them down, as attackers do that
know which updates are accepted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from florilegium.clients.attacks.attack import Attack, Matrix, Seen
from florilegium.common.settings import Section, key

if TYPE_CHECKING:
    from torch import Tensor

    from florilegium.partitions.clientdata import Examples


class BackdoorKeys(Section):
    """Keys of backdoors."""

    title = "Attack `backdoor`"

    target: int = key(0, "class that the pattern stands for", ge=0)
    share: float = key(0.5, "share of an attacker's examples that get the pattern", gt=0, le=1)
    size: int = key(
        3, "side of the square of pixels in the lower right corner; of tables the number of last columns", ge=1
    )
    value: float = key(2.5, "value of the pattern in the scale of the network's inputs")
    boost: float = key(1.0, "factor on attackers' updates; 0: model replacement, n/η", ge=0)
    norm: float = key(0.0, "norm to which attackers then scale their updates down; 0: none", ge=0)


class Backdoor(Attack):
    """Teaches the model a class for a pattern of pixels."""

    title = "a pattern of pixels that means a class; with model replacement, and within a norm bound"
    source = "Bagdasaryan et al. 2020; Sun et al. 2019"
    keys = BackdoorKeys
    classes = True
    continuous = True

    @property
    def forges(self) -> bool:
        """Whether updates are scaled."""
        own = cast(BackdoorKeys, self.settings)
        return own.boost != 1 or own.norm > 0

    def poisoned(self, examples: Examples, classes: int, seed: int) -> Examples:
        """Return the examples, some with pattern and target label, the same ones in every round."""
        own, count = cast(BackdoorKeys, self.settings), len(examples)
        chosen = np.random.default_rng(seed).choice(count, round(own.share * count), replace=False)
        x, y = examples.x.clone(), examples.y.clone()
        rows = y.new_tensor(np.sort(chosen), dtype=y.dtype)
        x[rows], y[rows] = self._marked(x[rows]), own.target
        return replace(examples, x=x, y=y)

    def forged(self, seen: Seen) -> Matrix:
        """Return the attackers' updates, boosted and then scaled down."""
        own = cast(BackdoorKeys, self.settings)
        rows = seen.own * (own.boost or seen.boost)
        if not own.norm:
            return rows
        lengths = np.linalg.norm(rows, axis=1)
        return rows * np.minimum(1.0, own.norm / np.maximum(lengths, np.finfo(float).tiny))[:, None]

    def probed(self, examples: Examples) -> Examples | None:
        """Return the examples of other classes with the pattern, and the target label."""
        own = cast(BackdoorKeys, self.settings)
        others = examples.rows(examples.y != own.target)
        return replace(others, x=self._marked(others.x.clone()), y=others.y * 0 + own.target)

    def _marked(self, x: Tensor) -> Tensor:
        own = cast(BackdoorKeys, self.settings)
        corner = (..., slice(-own.size, None), slice(-own.size, None)) if x.dim() > 2 else (..., slice(-own.size, None))
        x[corner] = own.value
        return x
