"""Keys of methods that train one model for all clients: FedProx, SCAFFOLD, FedIIR, FedSR, FedGTST."""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationInfo, field_validator

from florilegium.common.settings import Section, key


class FedProxHyper(Section):
    """Keys ``fedprox.*``."""

    mu: float = key(0.01, "weight μ of the proximal term; 0 is FedAvg. Its start value is 1 when adaptive.", ge=0)
    adaptive: bool = key(False, "change μ with the training loss (Li et al. 2020, section 5.3.2)")


class ScaffoldHyper(Section):
    """Keys ``scaffold.*``."""

    option: Literal[1, 2] = key(
        2, "how c_i is renewed: the gradient at the received model, or the mean of the steps taken"
    )


class FedIIRHyper(Section):
    """Keys ``fediir.*``."""

    penalty: float = key(0.001, "γ, weight of the distance between the client's and the mean gradient", ge=0)
    momentum: float = key(0.95, "how much of the mean gradient's past stays in it every round", ge=0, lt=1)


class FedSRHyper(Section):
    """Keys ``fedsr.*``."""

    norm_penalty: float = key(0.01, "α of ℓ^L2R, the mean squared length of representations", ge=0)
    information_penalty: float = key(0.001, "α of ℓ^CMI; 0: representations have no spread either", ge=0)


class FedGTSTHyper(Section):
    """Keys ``fedgtst.*``."""

    coefficient: float = key(0.0005, "λ, weight of the distance between gradient norm and guide norm", ge=0)
    standard_share: float = key(0.1, "share of the cohort that also trains without it", ge=0, le=1)
    norm_of: Literal["batch", "client"] = key("batch", "which loss's gradient is regularised: a batch's, or all's")
    measured: Literal["received", "trained", "epoch"] = key(
        "trained", "where the norm that is sent is taken: at the received model, at the trained one, or on the way"
    )
    alignment: Literal["absolute", "relative"] = key("absolute", "(‖J‖ − Ĵ)², or (‖J‖/Ĵ − 1)²")
    guide: Literal["largest", "standard"] = key(
        "standard", "Ĵ: the largest norm received, or the largest of those that trained without the regulariser"
    )
    diagnose: bool = key(False, "also measure the variance of gradients themselves; in simulation alone")

    @field_validator("guide")
    @classmethod
    def _has_clients_to_come_from(cls, guide: str, info: ValidationInfo) -> str:
        if guide == "standard" and not info.data.get("standard_share"):
            raise ValueError("with fedgtst.standard-share = 0 no client trains without the regulariser")
        return guide
