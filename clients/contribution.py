"""What becomes of a client's change before it leaves its host: it is clipped and, where devices add it, gets noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clients.wire import BESIDE, Config
from models.parameters import Arrays
from privacy.clipping import clip_together
from privacy.noise import draw, secret_generator
from privacy.settings import PrivacySettings

WITHIN = BESIDE + "within-bound"
"""Beside a change: +½ where it was no longer than the bound, −½ where it was (Andrew et al. 2021, section 2.2)."""
CLIP_NORM, NOISE, WITHIN_NOISE = "clip-norm", "noise", "within-noise"
"""What a request says: C, where it is adapted; and the deviations of the noise that every client adds, if it does."""


@dataclass(frozen=True)
class Contribution:
    """Clips one client's change, and adds its share of the noise.

    Attributes:
        settings: table ``privacy``.
        config: the request.
    """

    settings: PrivacySettings
    config: Config

    def __call__(self, change: Arrays) -> Arrays:
        """Return what leaves the host of ``change``, all its arrays together: of norm C at most before noise."""
        p = self.settings
        bound = float(self.config.get(CLIP_NORM, p.clip_norm))
        result = clip_together(change, bound, by_array=p.clipping == "layer")
        if p.clip_quantile:
            norm = np.sqrt(sum(float(np.vdot(array, array)) for array in change.values()))
            result[WITHIN] = np.array([0.5 if norm <= bound else -0.5])
        if p.noise_at == "device":
            rng = secret_generator()
            for name, array in result.items():
                deviation = float(self.config[WITHIN_NOISE if name == WITHIN else NOISE])
                result[name] = array + draw(rng, "gaussian", deviation, array.shape)
        return result
