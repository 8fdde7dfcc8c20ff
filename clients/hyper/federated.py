"""Keys of methods that train one model for all: FedProx, SCAFFOLD, FedDyn, FedNova, MOON, FedIIR, FedSR, FedGTST."""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationInfo, field_validator

from florilegium.common.settings import Section, key


class FedProxHyper(Section):
    """Keys ``fedprox.*``."""

    mu: float = key(0.01, "weight μ of the proximal term, or its start if `fedprox.adaptive`; 0 is FedAvg", ge=0)
    adaptive: bool = key(False, "adapt μ to the training loss (after Li et al. 2020, section 5.3.2)")


class ScaffoldHyper(Section):
    """Keys ``scaffold.*``."""

    option: Literal[1, 2] = key(
        2, "how c_i is updated: to the gradient at the received model (1), or to the mean gradient of the steps (2)"
    )


class FedDynHyper(Section):
    """Keys ``feddyn.*``."""

    alpha: float = key(0.01, "α, weight of the dynamic regulariser", gt=0)


class FedNovaHyper(Section):
    """Keys ``fednova.*``."""

    mu: float = key(0.0, "weight μ of FedProx's proximal term", ge=0)
    effective_steps: float = key(
        0.0, "τ_eff, number of steps that a round counts for; 0: the weighted mean of the cohort's ‖a_i‖₁", ge=0
    )


class MoonHyper(Section):
    """Keys ``moon.*``."""

    mu: float = key(1.0, "μ, weight of the model-contrastive loss; 0 is FedAvg", ge=0)
    temperature: float = key(0.5, "τ, temperature of the model-contrastive loss", gt=0)


class FedIIRHyper(Section):
    """Keys ``fediir.*``."""

    penalty: float = key(0.01, "γ, weight of the squared distance between client gradient and mean gradient", ge=0)
    momentum: float = key(0.95, "m, momentum of the running mean gradient over rounds", ge=0, lt=1)


class FedSRHyper(Section):
    """Keys ``fedsr.*``."""

    norm_penalty: float = key(0.01, "α_L2R, weight of ℓ^L2R, the mean norm of representations", ge=0)
    norm: Literal["length", "squared"] = key(
        "length", "ℓ^L2R: the mean of ‖z‖, as in the authors' code, or of ‖z‖², as in the paper"
    )
    information_penalty: float = key(
        0.001, "α_CMI, weight of ℓ^CMI, the conditional mutual information; 0: representations without noise", ge=0
    )


class FedGTSTHyper(Section):
    """Keys ``fedgtst.*``."""

    coefficient: float = key(
        0.0005, "λ, weight of the regulariser, the squared difference of gradient norm and guide norm", ge=0
    )
    standard_share: float = key(0.1, "share of the cohort that also trains without the regulariser", ge=0, le=1)
    norm_of: Literal["batch", "client"] = key(
        "batch", "gradient whose norm is regularised: of the batch's loss, or of the loss on all the client's examples"
    )
    measured: Literal["received", "trained", "epoch"] = key(
        "trained",
        "gradient norm that clients send: at the received model, at the trained model, or the mean over training steps",
    )
    alignment: Literal["absolute", "relative"] = key("absolute", "form of the regulariser: (‖J‖ − Ĵ)², or (‖J‖/Ĵ − 1)²")
    guide: Literal["largest", "standard"] = key(
        "standard",
        "guide norm Ĵ: the largest norm received, or the largest from clients that trained without the regulariser",
    )
    diagnose: bool = key(False, "also measure the variance of the clients' gradients; only in simulations")

    @field_validator("guide")
    @classmethod
    def _has_clients_to_come_from(cls, guide: str, info: ValidationInfo) -> str:
        if guide == "standard" and not info.data.get("standard_share"):
            raise ValueError("with fedgtst.standard-share = 0 no client trains without the regulariser")
        return guide
