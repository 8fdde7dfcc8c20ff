"""What becomes of a client's change before it leaves its host: it is clipped and, where devices add it, gets noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from florilegium.clients.core.wire import BESIDE, CLIP_NORM, NOISE, WITHIN_NOISE
from florilegium.models.parameters import Arrays
from florilegium.privacy.clipping import clip_together
from florilegium.privacy.noise import draw, secret_generator
from florilegium.privacy.settings import PrivacySettings

WITHIN = BESIDE + "within-bound"
"""Beside a change: +½ where it was no longer than the bound, −½ where it was (Andrew et al. 2021, section 2.2)."""


@dataclass(frozen=True)
class Contribution:
    """Clips one client's change, and adds its share of the noise.

    Attributes:
        settings: table ``privacy``.
        told: what the request says of it (:data:`florilegium.clients.core.wire.PROTECTION`).
    """

    settings: PrivacySettings
    told: Mapping[str, float]

    def __call__(self, change: Arrays) -> Arrays:
        """Return what leaves the host of ``change``, all its arrays together: of norm C at most before noise."""
        p = self.settings
        bound = self.told.get(CLIP_NORM, p.clip_norm)
        result = clip_together(change, bound, by_array=p.clipping == "layer")
        if p.clip_quantile:
            norm = np.sqrt(sum(float(np.vdot(array, array)) for array in change.values()))
            result[WITHIN] = np.array([0.5 if norm <= bound else -0.5])
        if p.noise_at == "device":
            rng = secret_generator()
            for name, array in result.items():
                deviation = self.told[WITHIN_NOISE if name == WITHIN else NOISE]
                result[name] = array + draw(rng, "gaussian", deviation, array.shape)
        return result
