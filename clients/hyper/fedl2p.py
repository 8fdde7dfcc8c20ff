"""Keys of FedL2P and L2P."""

from __future__ import annotations

from typing import Literal

from florilegium.common.settings import Section, key


class FedL2PHyper(Section):
    """Keys ``fedl2p.*`` of `fedl2p` and `l2p`."""

    iterations: int = key(1, "K, steps on λ per round, each after fine-tuning for `finetune-epochs`", ge=1)
    meta_learning_rate: float = key(0.001, "ζ, learning rate of the meta-nets BNNet and LRNet", gt=0)
    multiplier_learning_rate: float = key(0.0001, "ζ, learning rate of the multipliers η̃", gt=0)
    initial_rate: float = key(0.01, "initial η̃; should be the best learning rate of plain fine-tuning", gt=0)
    hypergradient: Literal["ift", "fomaml+"] = key(
        "ift", "how it is computed: by implicit differentiation, or through the last fine-tuning step only"
    )
    neumann_steps: int = key(3, "Q, terms of the Neumann series after the first", ge=0)
    neumann_rate: float = key(0.1, "ψ, step size of the Neumann series", gt=0)
    neumann_split: bool = key(True, "compute each term's Hessian on its own part of the batch, not on the whole batch")
    neumann_scale: bool = key(True, "multiply the series by ψ, as the inverse requires; the paper does not")
    clip: float = key(1.0, "every entry of the hypergradient is clipped to [−clip, clip]", gt=0)
    learn: Literal["both", "bn", "lr"] = key(
        "both",
        "which meta-nets are learned; without LRNet learning rates are `initial-rate`, without BNNet β is `mixing`",
    )
    mixing: float = key(0.0, "β of all layers if BNNet is not learned", ge=0, le=1)
    hidden_biases: bool = key(
        False, "initialise biases of hidden units like those of outputs (BNNet 0.5, LRNet 1), not at 0"
    )
    pretraining_rounds: int = key(0, "first rounds, in which FedAvg trains the model, if `init` names none", ge=0)
