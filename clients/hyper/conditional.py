"""Keys of methods whose models depend on a condition of the client's own: FedCP, GPFL."""

from __future__ import annotations

from florilegium.common.settings import Section, key


class FedCPHyper(Section):
    """Keys ``fedcp.*``."""

    discrepancy: float = key(5.0, "λ, weight of the discrepancy between trained and received features", ge=0)
    gumbel: bool = key(False, "add Gumbel noise to the policy's two numbers per feature in training")


class GPFLHyper(Section):
    """Keys ``gpfl.*``."""

    magnitude: float = key(0.01, "λ, weight of the distance between global features and their class's embedding", ge=0)
    decay: float = key(0.1, "μ, weight decay of the embeddings and the valve", ge=0)
