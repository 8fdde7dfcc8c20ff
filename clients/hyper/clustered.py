"""Keys of methods with a model for each cluster of clients: IFCA, CFL, FL+HC, FLUX."""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationInfo, field_validator

from florilegium.common.settings import Section, key


class IFCAHyper(Section):
    """Keys ``ifca.*``."""

    clusters: int = key(2, "K, number of clusters, each with a model of its own; 1 is FedAvg", ge=1)
    averaging: Literal["models", "gradients"] = key(
        "models",
        "divide the sum of a cluster's updates by the weight of its own clients (models), or of the whole cohort "
        "(gradients; with `local-steps = 1`, the paper's)",
    )
    shared_body: bool = key(False, "all clusters share the network but its last block (the paper's weight sharing)")


class CFLHyper(Section):
    """Keys ``cfl.*``."""

    epsilon_1: float = key(0.1, "ε₁: a cluster may be split if the norm of its mean update is below this", ge=0)
    epsilon_2: float = key(0.4, "ε₂: and the largest norm of a client's update is above this", ge=0)
    relative: bool = key(
        True, "ε₁ and ε₂ are multiples of the largest norm of a mean update in the run so far, not norms"
    )
    gamma: float = key(
        0.0, "γ_max: and √((1 − α)/2) is above this, α: the largest cosine similarity across the split", ge=0, le=1
    )
    min_clients: int = key(3, "clusters with fewer clients are not split", ge=2)


class FLHCHyper(Section):
    """Keys ``fl-hc.*``."""

    warmup_rounds: int = key(5, "n, rounds of FedAvg before the clustering", ge=0)
    metric: Literal["euclidean", "cosine"] = key("euclidean", "distance between the updates of two clients")
    linkage: Literal["single", "complete", "average", "ward"] = key(
        "ward", "distance between two clusters; `ward` needs `euclidean`"
    )
    threshold: float = key(0.7, "clusters at a larger distance are not merged", ge=0)
    relative: bool = key(True, "the threshold is a share of the distance of the last merge, not a distance")
    clusters: int = key(0, "number of clusters; 0: as the threshold gives", ge=0)

    @field_validator("linkage")
    @classmethod
    def _fits_the_metric(cls, linkage: str, info: ValidationInfo) -> str:
        if linkage == "ward" and info.data.get("metric") != "euclidean":
            raise ValueError("'ward' needs fl-hc.metric = 'euclidean'; use 'single', 'complete' or 'average'")
        return linkage


class FLUXHyper(Section):
    """Keys ``flux.*``."""

    warmup_rounds: int = key(4, "rounds of FedAvg before the clustering", ge=0)
    dimensions: int = key(0, "l, number of dimensions that features are projected to; 0: number of classes", ge=0)
    scale: float = key(1.0, "factor on ε, the radius of DBSCAN found at the elbow of nearest distances", gt=0)
