"""The configuration keys of a run's privacy, table ``privacy``."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import model_validator

from florilegium.common.settings import Section, key


class PrivacySettings(Section):
    """What is protected, how well, and by what noise."""

    title = "Differential privacy"

    unit: Literal["none", "client", "example"] = key("none", "what is protected ([methods](privacy.md))")
    epsilon: float = key(0.0, "ε, budget of the whole run; the noise multiplier follows from it; 0: none given", ge=0)
    delta: float = key(1e-5, "δ of the guarantee", gt=0, lt=1)
    noise_multiplier: float = key(0.0, "noise multiplier z, instead of a budget", ge=0)
    clip_norm: float = key(
        1.0, "C, norm to which a client's update or an example's gradient is clipped", gt=0, allow_inf_nan=True
    )
    clipping: Literal["flat", "layer"] = key(
        "flat", "of clients' updates: one factor for the whole update, or each of its L arrays to C/√L"
    )
    gradients: Literal["hooks", "ghost"] = key(
        "hooks", "of examples: compute gradients of single examples, or only their norms"
    )
    clip_quantile: float = key(
        0.0, "of clients: γ, C follows this quantile of the updates' norms; 0: C is constant", ge=0, lt=1
    )
    sampling: Literal["poisson", "fixed"] = key(
        "poisson",
        "of clients: each takes part at random, which amplifies privacy; or cohorts of a fixed size, accounted as if "
        "everybody took part in every round",
    )
    noise_at: Literal["server", "device"] = key("server", "of clients: who adds the noise")

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
