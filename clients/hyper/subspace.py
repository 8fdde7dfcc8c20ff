"""Keys of methods in a random subspace, and of FedTTA: FLowDUP, LD-FedAvg, FedTTA."""

from __future__ import annotations

from typing import Literal

from florilegium.common.settings import Section, key


class SubspaceHyper(Section):
    """Keys of models in a random subspace."""

    dimensions: int = key(10000, "k, dimension of the subspace", ge=1)
    expansion: Literal["kronecker", "fastfood", "dense"] = key("kronecker", "how the matrix P is drawn and applied")


class FLowDUPHyper(SubspaceHyper):
    """Keys ``flowdup.*``."""

    penalty: float = key(0.001, "λ, weight of the squared distance between v and ψ_r", ge=0)
    learn_center: bool = key(True, "learn the centre ψ_r; otherwise it stays 0")
    labeled_share: float = key(0.9, "α, share of labeled clients in the cohort; 1: only these train", gt=0, le=1)
    inner_model: str = key("", 'network of h₁; "": that of `model`')
    features: int = key(256, "e, number of outputs of h₁", ge=1)
    width: int = key(256, "width of the hidden layer of h₂", ge=1)
    output_scale: float = key(1.0, "factor on the initial parameters of the last layer of h₂", ge=0)
    test_batch: int = key(
        0, "number of inputs from which a client's model is made before a test; 0: all its training inputs", ge=0
    )


class FedTTAHyper(Section):
    """Keys ``fedtta.*``."""

    adaptation_rate: float = key(0.1, "α, learning rate of the adaptation to unlabeled inputs", gt=0)
    width: int = key(128, "width of the two hidden layers of φ, the network that computes the learned loss", ge=1)
