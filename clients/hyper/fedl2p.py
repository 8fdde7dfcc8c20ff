"""Keys of FedL2P and L2P."""

from __future__ import annotations

from typing import Literal

from florilegium.common.settings import Section, key


class FedL2PHyper(Section):
    """Keys ``fedl2p.*`` of `fedl2p` and `l2p`."""

    iterations: int = key(1, "K, steps of λ in a round; each fine-tunes for `finetune-epochs`", ge=1)
    meta_learning_rate: float = key(0.001, "ζ of the meta-nets BNNet and LRNet", gt=0)
    multiplier_learning_rate: float = key(0.0001, "ζ of the multipliers η̃", gt=0)
    initial_rate: float = key(0.01, "η̃ at first: the best learning rate of plain fine-tuning", gt=0)
    hypergradient: Literal["ift", "fomaml+"] = key(
        "ift", "by implicit differentiation, or through the last fine-tuning step alone"
    )
    neumann_steps: int = key(3, "Q, terms of the Neumann series after the first", ge=0)
    neumann_rate: float = key(0.1, "ψ, its step size", gt=0)
    neumann_split: bool = key(True, "each term's Hessian is of its own share of the batch, not of all of it")
    neumann_scale: bool = key(True, "multiply the series by ψ, as the inverse needs; the paper does not")
    clip: float = key(1.0, "bound of every entry of the hypergradient", gt=0)
    learn: Literal["both", "bn", "lr"] = key(
        "both", "which meta-nets there are: without LRNet the rate is `initial-rate`, without BNNet β is `mixing`"
    )
    mixing: float = key(0.0, "β where BNNet is left out", ge=0, le=1)
    hidden_biases: bool = key(False, "biases of hidden units start from 0.5 and 1, as those of outputs; else from 0")
    pretraining_rounds: int = key(0, "rounds of FedAvg that make the model first, where none is given", ge=0)
