"""Keys of methods whose server keeps a model of each client: FedAMP, FedFomo, APPLE."""

from __future__ import annotations

from typing import Literal

from florilegium.common.settings import Section, key


class FedAMPHyper(Section):
    """Keys ``fedamp.*``."""

    regularization: float = key(1.0, "λ, weight of the term λ/(2α)·‖w − u_i‖² of the local objective", ge=0)
    step_size: float = key(
        10.0, "α, step of message passing: ξ_ij = α·A'(‖w_i − w_j‖²), and ξ_ii is the rest, at least 0", gt=0
    )
    scale: float = key(10.0, "σ of A(x) = 1 − exp(−x/σ): models at squared distances far above σ do not mix", gt=0)
    start: Literal["cloud", "own"] = key(
        "cloud", "where local training starts: at the received u_i, or at the client's own last model w_i"
    )


class FedFomoHyper(Section):
    """Keys ``fedfomo.*``."""

    models: int = key(5, "M, number of models of other clients that a client receives per round", ge=1)
    validation_share: float = key(
        0.2,
        "share of a client's training examples on which it compares models; 0: all of them, also trained on",
        ge=0,
        lt=1,
    )
    exploration: float = key(0.3, "ε of the first round: probability that a model is chosen at random", ge=0, le=1)
    exploration_decay: float = key(0.05, "what ε loses per round, down to 0", ge=0, le=1)


class APPLEHyper(Section):
    """Keys ``apple.*``."""

    models: int = key(0, "M, number of models of other clients that a client receives per round; 0: all", ge=0)
    scale_rate: bool = key(
        True, "multiply `learning-rate` by the number of clients for w_i, since p_ii begins near one over that number"
    )
    relation_learning_rate: float = key(0.001, "η₂, learning rate of the directed relationships p_i", gt=0)
    regularization: float = key(0.1, "μ, weight of the term λ(r)·μ/2·‖p_i − p_0‖²", ge=0)
    scheduler: Literal["cosine", "exponential"] = key("cosine", "how λ(r) falls from 1 in the first round")
    scheduler_rounds: int = key(20, "L, rounds after which λ(r) is 0", ge=0)
