"""Keys of methods that mix a global model with a client's own: APFL, FedALA, FedRoD, FedDBE."""

from __future__ import annotations

from typing import Literal

from florilegium.common.settings import Section, key


class APFLHyper(Section):
    """Keys ``apfl.*``."""

    alpha: float = key(0.5, "initial α_i, weight of the personal model v_i in the mixture; 0: FedAvg", ge=0, le=1)
    adapt: Literal["round", "step", "never"] = key(
        "round", "when α_i is adapted: in the first step of a round, in every step, or never"
    )
    rule: Literal["paper", "pfllib"] = key(
        "paper", "the steps of v_i and α_i: the paper's, or those of PFLlib ([APFL](methods/apfl.md#pfllibs-steps))"
    )


class FedALAHyper(Section):
    """Keys ``fedala.*``."""

    blocks: int = key(1, "p, number of last blocks that are mixed element by element; 0, or too many: all", ge=0)
    sample: float = key(0.8, "s, share of the training examples from which W_i is learned in a round", gt=0, le=1)
    weight_learning_rate: float = key(1.0, "η, learning rate of W_i; 0: W_i stays 1, which is FedAvg", ge=0)
    tolerance: float = key(
        0.1, "W_i has converged when the losses of its last ten epochs have a smaller standard deviation", gt=0
    )
    first_epochs: int = key(100, "most epochs of learning W_i when a client does so first; later there is one", ge=1)


class FedRoDHyper(Section):
    """Keys ``fedrod.*``."""

    personal_head: Literal["linear", "hypernetwork"] = key(
        "linear", "each client trains its personal head, or a shared hypernetwork makes it from class frequencies"
    )
    hidden_width: int = key(16, "width of the hypernetwork's hidden layer", ge=1)


class FedDBEHyper(Section):
    """Keys ``feddbe.*``."""

    penalty: float = key(
        25.0, "κ, weight of the mean squared difference between the client's and the consensus mean", ge=0
    )
    momentum: float = key(1.0, "μ, weight of the present batch in the client's mean representation", gt=0, le=1)
    memory: bool = key(True, "add the client's learned vector z_p to its representations")
