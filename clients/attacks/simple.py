"""Attacks that need no look at others: random updates, turned signs, and free riders."""

from __future__ import annotations

from typing import cast

import numpy as np

from florilegium.clients.attacks.attack import Attack, Matrix, Seen
from florilegium.common.settings import Section, key


class RandomKeys(Section):
    """Keys of random updates."""

    title = "Attack `random`"

    scale: float = key(1.0, "length of an attacker's update, in lengths of its honest one", gt=0)


class Random(Attack):
    """Returns updates in random directions."""

    title = "updates in random directions"
    source = "Blanchard et al. 2017"
    keys = RandomKeys

    def forged(self, seen: Seen) -> Matrix:
        """Return Gaussian updates, scaled."""
        drawn = seen.generator.normal(size=seen.own.shape)
        lengths = np.linalg.norm(seen.own, axis=1) / np.linalg.norm(drawn, axis=1)
        return drawn * (cast(RandomKeys, self.settings).scale * lengths)[:, None]


class SignFlipKeys(Section):
    """Keys of turned signs."""

    title = "Attack `sign-flip`"

    scale: float = key(1.0, "factor on the negative of the honest update", gt=0)


class SignFlip(Attack):
    """Returns the negative of the honest update."""

    title = "the negative of the honest update"
    source = "Li et al. 2019"
    keys = SignFlipKeys

    def forged(self, seen: Seen) -> Matrix:
        """Return the negative updates."""
        return -cast(SignFlipKeys, self.settings).scale * seen.own


class FreeRiderKeys(Section):
    """Keys of free riders."""

    title = "Attack `free-rider`"

    copies: bool = key(True, "return the model's last change rather than nothing")
    noise: float = key(0.0, "length of Gaussian noise that hides it, in lengths of the model's last change", ge=0)


class FreeRider(Attack):
    """Does not train, and returns the model's last change, or nothing, with noise."""

    title = "no training: the model's last change, or nothing, with noise"
    source = "Lin et al. 2019; Fraboni et al. 2021"
    keys = FreeRiderKeys

    def forged(self, seen: Seen) -> Matrix:
        """Return the updates; 0 in the attackers' first exchange."""
        own = cast(FreeRiderKeys, self.settings)
        change = np.zeros(len(seen.sent)) if seen.before is None else seen.sent - seen.before
        noise = seen.generator.normal(size=seen.own.shape) / np.sqrt(max(1, len(change)))
        return own.copies * change + own.noise * np.linalg.norm(change) * noise
