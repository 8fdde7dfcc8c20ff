"""The bound of updates, client side: a client whose update is too long has failed (key ``max-update-norm``)."""

from __future__ import annotations

from typing import Protocol, Self

from florilegium.clients.core.base import Answer
from florilegium.clients.core.reduce import UPDATES
from florilegium.clients.core.wire import Request
from florilegium.clients.layers.layer import Layer, Place
from florilegium.common.errors import RunError
from florilegium.models.parameters import Arrays, norm
from florilegium.privacy.settings import PrivacySettings

MODELS = 10.0
"""Norm of the longest update that devices return, relative to what they were sent, unless a key names another."""


def longest_update(sent: Arrays) -> float:
    """Return the largest norm of a device's update if key ``max-update-norm`` is 0: 10·max(1, ‖sent‖).

    Training that moves a model further than ten times its own norm has diverged, and what it returns harms all others.
    """
    return MODELS * max(1.0, norm(sent))


class Bounded(Protocol):
    """Settings that a bound follows from, on either side."""

    @property
    def max_update_norm(self) -> float:
        """The bound, 0 if none is set."""

    @property
    def privacy(self) -> PrivacySettings:
        """Keys of table ``privacy``."""


def bound(settings: Bounded, sent: Arrays, *, deployed: bool) -> float:
    """Return the largest norm allowed for an update of ``sent``; 0: none. Clipping replaces the default of devices."""
    longest = settings.max_update_norm
    if not longest and deployed and settings.privacy.unit != "client":
        longest = longest_update(sent)
    return longest


class Bound(Layer):
    """Refuses updates that are longer than ``longest``, the largest Euclidean norm allowed."""

    def __init__(self, longest: float) -> None:
        self._longest = longest

    @classmethod
    def opened(cls, request: Request, place: Place) -> Self | None:
        """Return the layer if updates are asked for and have a bound."""
        if request.reduce not in UPDATES:
            return None
        longest = bound(place.settings, request.arrays, deployed=place.deployed)
        return cls(longest) if longest else None

    def check(self, request: Request, answer: Answer, length: float | None) -> None:
        """Raise :class:`RunError` if a client's update is too long."""
        if length is not None and length > self._longest:
            raise RunError(f"its update has norm {length:.4g}, more than max-update-norm = {self._longest:g}")
