"""Privacy of clients, client side: clip an update, and add the client's share of the noise if devices add it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from florilegium.clients.core.base import Answer
from florilegium.clients.core.reduce import UPDATES
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.wire import BESIDE, CLIP_NORM, NOISE, WITHIN_NOISE, Request
from florilegium.clients.layers.layer import Layer, Place
from florilegium.common.errors import RunError
from florilegium.models.parameters import Arrays
from florilegium.privacy.clipping import clip_together
from florilegium.privacy.noise import draw, secret_generator
from florilegium.privacy.settings import PrivacySettings

WITHIN = BESIDE + "within-bound"
"""Array beside an update: +½ if its norm was within the clipping bound, else −½ (Andrew et al. 2021, section 2.2)."""


@dataclass(frozen=True)
class Contribution:
    """Clips one client's update, and adds its share of the noise.

    Attributes:
        settings: keys of table ``privacy``.
        told: clipping bound and noise from the request (:data:`florilegium.clients.core.wire.PROTECTION`).
        discrete: whether the noise is added later, to integers, as with secure aggregation.
    """

    settings: PrivacySettings
    told: Mapping[str, float]
    discrete: bool = False

    def __post_init__(self) -> None:
        p = self.settings
        needed = [NOISE, WITHIN_NOISE] if p.noise_at == "device" else []
        if missing := [name for name in needed if name not in self.told]:
            raise RunError(f"the request lacks '{missing[0]}', the noise that every client adds")
        if self.told.get(CLIP_NORM, p.clip_norm) <= 0:
            raise RunError(f"the request's '{CLIP_NORM}' is not above 0")

    def __call__(self, change: Arrays) -> Arrays:
        """Return the update ``change`` clipped to norm C over all its arrays, plus noise if devices add it."""
        p = self.settings
        bound = self.told.get(CLIP_NORM, p.clip_norm)
        result = clip_together(change, bound, by_array=p.clipping == "layer")
        if p.clip_quantile:
            norm = np.sqrt(sum(float(np.vdot(array, array)) for array in change.values()))
            result[WITHIN] = np.array([0.5 if norm <= bound else -0.5])
        if p.noise_at == "device" and not self.discrete:
            rng = secret_generator()
            for name, array in result.items():
                deviation = self.told[WITHIN_NOISE if name == WITHIN else NOISE]
                result[name] = array + draw(rng, "gaussian", deviation, array.shape)
        return result


class Noise(Layer):
    """Protects updates with ``privacy.unit = "client"``, and lets no other arrays out.

    Args:
        contribution: clips and adds noise; None: the request asks for no updates.
    """

    changes: ClassVar[bool] = True

    def __init__(self, contribution: Contribution | None) -> None:
        self._contribution = contribution

    @classmethod
    def opened(cls, request: Request, place: Place) -> Self | None:
        """Return the layer if clients are protected."""
        s = place.settings
        if s.privacy.unit != "client":
            return None
        updates = request.reduce in UPDATES
        return cls(Contribution(s.privacy, request.protection, s.secure_aggregation) if updates else None)

    def check(self, request: Request, answer: Answer, length: float | None) -> None:
        """Raise :class:`RunError` if a client returns arrays that are no update."""
        if self._contribution is None and answer.arrays:
            raise RunError(f"phase '{request.phase}' returns arrays that privacy.unit = 'client' cannot bound")

    def change(self, index: int, update: Arrays, state: ClientState) -> Arrays:
        """Return the update, clipped, with the client's noise."""
        return update if self._contribution is None else self._contribution(update)
