"""The configuration keys of a run's privacy, table ``privacy``."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from common.settings import Section


class PrivacySettings(Section):
    """What is protected, how well, and by what noise."""

    unit: Literal["none", "client", "example"]
    epsilon: float = Field(ge=0)
    delta: float = Field(gt=0, lt=1)
    noise_multiplier: float = Field(ge=0)
    clip_norm: float = Field(gt=0, allow_inf_nan=True)
    clipping: Literal["flat", "layer"]
    gradients: Literal["hooks", "ghost"]
    clip_quantile: float = Field(ge=0, lt=1)
    sampling: Literal["poisson", "fixed"]
    noise_at: Literal["server", "device"]

    @model_validator(mode="after")
    def _says_how_much(self) -> PrivacySettings:
        if self.unit == "none" and (self.epsilon or self.noise_multiplier):
            raise ValueError("epsilon and noise-multiplier need a unit to protect: set privacy.unit")
        if self.unit != "none" and self.epsilon and self.noise_multiplier:
            raise ValueError("give either epsilon, for the noise it needs, or noise-multiplier, for what it costs")
        if (self.epsilon or self.noise_multiplier) and math.isinf(self.clip_norm):
            raise ValueError("noise needs a finite clip-norm (found: inf)")
        if self.unit != "client" and (self.clip_quantile or self.noise_at == "device"):
            raise ValueError("clip-quantile and noise-at = 'device' are for unit = 'client'")
        if self.clip_quantile and self.clipping == "layer":
            raise ValueError("clip-quantile adapts one bound for the whole change; leave clipping at 'flat'")
        if self.noise_at == "device" and self.sampling == "poisson":
            raise ValueError(
                "with noise-at = 'device' the server knows who takes part, which amplifies nothing; set sampling to "
                "'fixed'"
            )
        return self
