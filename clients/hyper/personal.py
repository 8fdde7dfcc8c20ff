"""Keys of methods with personal heads or models: FedPer and its like, Ditto, pFedFDA, Per-FedAvg, pFedMe, kNN-Per."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from florilegium.common.settings import Section, key, parse_whole


def _check_whole(text: str) -> str:
    parse_whole(text)
    return text


class HeadHyper(Section):
    """Where the network is cut."""

    head_blocks: int = key(1, "how many of the network's last blocks are the head; the rest: the body", ge=1)


class FedRepHyper(HeadHyper):
    """Keys ``fedrep.*``."""

    head_epochs: int = key(4, "k_h, epochs of the head in a round; `local-epochs` is not used", ge=0)
    body_epochs: int = key(1, "k_b, epochs of the body in a round", ge=1)
    new_head_epochs: int = key(20, "epochs of the head of a client that has none yet, before a test", ge=0)


class FedBABUHyper(HeadHyper):
    """Keys ``fedbabu.*``."""

    finetune: Literal["whole", "head", "body"] = key("whole", "what `finetune-epochs` tune before a test")


class DittoHyper(Section):
    """Keys ``ditto.*``."""

    regularization: float = key(1.0, "λ, the weight of the pull of v_k towards the global model", ge=0)
    personal_epochs: int = key(0, "epochs of v_k in a round; 0: as many as `local-epochs`", ge=0)


class PFedFDAHyper(Section):
    """Keys ``pfedfda.*``."""

    shrinkage: float = key(0.0001, "share of a multiple of the identity in every covariance", gt=0, lt=1)
    ridge: float = key(1.0, "added to the diagonal of every estimated covariance", ge=0)
    folds: int = key(2, "folds of the cross-validation that chooses β", ge=2)


class PerFedAvgHyper(Section):
    """Keys ``per-fedavg.*``."""

    adaptation_rate: float = key(0.01, "α, step size of the adaptation that the model is trained for", gt=0)
    hessian: Literal["first-order", "hessian-free"] = key(
        "first-order", "the second derivatives are left out (FO), or taken as differences of gradients (HF)"
    )
    difference: float = key(0.001, "δ, half the distance of these differences", gt=0)


class PFedMeHyper(Section):
    """Keys ``pfedme.*``."""

    regularization: float = key(15.0, "λ, the weight of the pull of θ_i towards w", gt=0)
    personal_steps: int = key(3, "K, steps towards θ_i on each batch", ge=1)
    personal_learning_rate: float = key(0.01, "step size of these steps", gt=0)


class KNNPerHyper(Section):
    """Keys ``knn-per.*``."""

    neighbors: Annotated[str, AfterValidator(_check_whole)] = key("5,10", "values of k to choose from")
    weights: int = key(10, "the weight of the neighbours is chosen from 0, 1/n, …, 1 with this n", ge=1)
    scale: float = key(100.0, "σ: a neighbour at distance d counts exp(−d²/(σ·features))", gt=0)
