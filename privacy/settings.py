"""The configuration keys for differential privacy, table ``privacy``."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import model_validator

from florilegium.common.settings import Section, key
from florilegium.privacy.delta import MOST_DELTA


class PrivacySettings(Section):
    """What is protected, how strong the guarantee is, and where the noise is added."""

    title = "Differential privacy"

    unit: Literal["none", "client", "example"] = key(
        "none", "what is protected: nothing, whole clients or single examples ([methods](privacy.md))"
    )
    epsilon: float = key(
        0.0, "ε, privacy budget of the whole run, from which the noise multiplier is computed; 0: not given", ge=0
    )
    delta: float = key(
        1e-5,
        "δ of the guarantee; usually less than 1 ÷ number of units",
        gt=0,
        le=MOST_DELTA,
        where="privacy.unit!=none",
    )
    noise_multiplier: float = key(0.0, "noise multiplier z, given instead of a budget; 0: not given", ge=0)
    clip_norm: float = key(
        1.0,
        "C, norm to which a client's update or an example's gradient is clipped",
        gt=0,
        allow_inf_nan=True,
        where="privacy.unit!=none",
    )
    clipping: Literal["flat", "layer"] = key(
        "flat",
        "for `unit = client`: scale the whole update by one factor, or clip each of its L arrays to C/√L",
        where="privacy.unit=client",
    )
    gradients: Literal["hooks", "ghost"] = key(
        "hooks",
        "for `unit = example`, where layers are not all dense or convolutional: compute per-example gradients, or only "
        "their norms (ghost clipping)",
        where="privacy.unit=example",
    )
    clip_quantile: float = key(
        0.0, "for `unit = client`: γ, C follows this quantile of the updates' norms; 0: C is constant", ge=0, lt=1
    )
    sampling: Literal["poisson", "fixed", "slots"] = key(
        "poisson",
        "for `unit = client`: sample each client independently, which amplifies privacy; cohorts of a fixed size; or "
        "slots: a client takes part in every E-th round ([more](privacy.md#clients))",
        where="privacy.unit=client",
    )
    mechanism: Literal["gaussian", "tree", "matrix"] = key(
        "gaussian",
        "for `sampling = slots`: independent noise in every round, or correlated noise that cancels in the model: "
        "`tree` or `matrix` ([more](privacy.md#correlated-noise))",
    )
    noise_at: Literal["server", "device"] = key("server", "for `unit = client`: who adds the noise")

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
        if self.noise_at == "device" and self.sampling != "fixed":
            raise ValueError(
                "with noise-at = 'device' the server knows who takes part, which amplifies nothing; set sampling to "
                "'fixed'"
            )
        if self.mechanism != "gaussian" and self.sampling != "slots":
            raise ValueError(
                f"mechanism = '{self.mechanism}' needs clients that take part in every E-th round; set sampling to "
                "'slots'"
            )
        if self.mechanism != "gaussian" and self.clip_quantile:
            raise ValueError(f"mechanism = '{self.mechanism}' needs one bound for all rounds; set clip-quantile to 0")
        return self
