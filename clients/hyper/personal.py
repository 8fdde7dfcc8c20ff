"""Keys of methods with personal heads or models: FedPer and related, Ditto, pFedFDA, Per-FedAvg, pFedMe, kNN-Per."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from florilegium.common.settings import Section, key, parse_whole


def _check_whole(text: str) -> str:
    parse_whole(text)
    return text


class HeadHyper(Section):
    """Keys of methods that split the network into body and head."""

    head_blocks: int = key(1, "number of last blocks of the network that form the head; the others are the body", ge=1)

    personal: str = key(
        "",
        'blocks that are each client\'s own, instead of the head, separated by commas, such as `"B,head"` of LoRA '
        '([more](pretrained.md#personal-adapters)); "": the head',
        values='names of blocks, ""',
    )


class FedSALoRAHyper(Section):
    """Keys ``fedsa-lora.*``."""

    head: Literal["personal", "shared"] = key(
        "personal", "whether the network's last block is each client's own, as B is, or averaged, as A is"
    )


class FedRepHyper(HeadHyper):
    """Keys ``fedrep.*``."""

    head_epochs: int = key(4, "k_h, epochs of training the head per round; `local-epochs` is not used", ge=0)
    body_epochs: int = key(1, "k_b, epochs of training the body per round", ge=1)
    new_head_epochs: int = key(20, "epochs of training a new head before a test, for a client without one", ge=0)


class FedBABUHyper(HeadHyper):
    """Keys ``fedbabu.*``."""

    finetune: Literal["whole", "head", "body"] = key("whole", "part of the network that is fine-tuned before a test")


class DittoHyper(Section):
    """Keys ``ditto.*``."""

    regularization: float = key(1.0, "λ, weight of the proximal term between v_k and the global model", ge=0)
    personal_epochs: int = key(0, "epochs of training the personal model v_k per round; 0: `local-epochs`", ge=0)


class PFedFDAHyper(Section):
    """Keys ``pfedfda.*``."""

    shrinkage: float = key(0.0001, "s, shrinkage of covariances towards a multiple of the identity", gt=0, lt=1)
    ridge: float = key(1.0, "added to the diagonal of every estimated covariance", ge=0)
    folds: int = key(2, "folds of the cross-validation that chooses β", ge=2)


class PerFedAvgHyper(Section):
    """Keys ``per-fedavg.*``."""

    adaptation_rate: float = key(0.01, "α, learning rate of the adaptation, in training and before a test", gt=0)
    hessian: Literal["first-order", "hessian-free"] = key(
        "first-order", "second derivatives are ignored (FO), or approximated by differences of gradients (HF)"
    )
    difference: float = key(0.001, "δ, step of the central differences of gradients in `hessian-free`", gt=0)


class PFedMeHyper(Section):
    """Keys ``pfedme.*``."""

    regularization: float = key(15.0, "λ, weight of the proximal term between θ_i and w", gt=0)
    personal_steps: int = key(3, "K, gradient steps for θ_i on each batch", ge=1)
    personal_learning_rate: float = key(0.01, "learning rate of the steps for θ_i", gt=0)


class KNNPerHyper(Section):
    """Keys ``knn-per.*``."""

    neighbors: Annotated[str, AfterValidator(_check_whole)] = key("5,10", "numbers of neighbours k to choose from")
    weights: int = key(10, "n: the weight λ of the neighbours is chosen from 0, 1/n, …, 1", ge=1)
    choose_on: Literal["training", "held-out"] = key(
        "training",
        "examples on which a client chooses k and λ: leave-one-out on its training examples; or those that "
        "`validation-fraction` holds out",
    )
    scale: float = key(100.0, "σ: a neighbour at distance d has weight exp(−d²/(σ·number of features))", gt=0)
