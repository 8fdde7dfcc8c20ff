"""Keys of all clustering methods, table ``kmeans``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ValidationInfo, field_validator

from florilegium.common.settings import Section, key, parse_numbers
from florilegium.privacy.delta import MOST_DELTA


def _check_split(text: str) -> str:
    shares = parse_numbers(text)
    if not shares or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"the shares '{text}' must be above 0 and sum to 1 (they sum to {sum(shares):g})")
    return text


def _check_epsilons(text: str) -> str:
    if any(epsilon <= 0 for epsilon in parse_numbers(text)):
        raise ValueError(f"every ε of '{text}' must be above 0")
    return text


class KMeansHyper(Section):
    """Keys ``kmeans.*`` of all clustering methods."""

    k: int = key(10, "number of clusters", ge=1)
    choose_k: int = key(
        0, "largest k to try; the elbow method chooses k after step 2 of FedDP-Init; 0: k is fixed", ge=0
    )
    dimensions: int = key(
        0, "dimension of the data subspace in FedDP-Init; 0: k, or `choose-k` if set", ge=0, where="method=feddp-kmeans"
    )
    restarts: int = key(10, "restarts of k-means on the server; the best result is used", ge=1)
    weight_threshold: float = key(
        5.0, "server points with a smaller noisy weight are dropped", ge=0, where="method=feddp-kmeans"
    )
    margin: float = key(
        0.0,
        "step 3 of FedDP-Init uses only points whose projection is within this distance of its centre; 0: all points",
        ge=0,
        where="method=feddp-kmeans",
    )
    min_count: float = key(
        2.0, "a cluster keeps its centre if its noisy count is below this many noise scales, or below 1", ge=0
    )
    privacy_unit: Literal["example", "client", "none"] = key(
        "example", "unit that the guarantee protects: one example, one client, or none (no noise)"
    )
    epsilon: float = key(1.0, "ε of the whole run", gt=0)
    delta: float = key(1e-06, "δ of the whole run", gt=0, le=MOST_DELTA)
    split: Annotated[str, AfterValidator(_check_split)] = key(
        "0.2,0.2,0.45,0.15", "shares of ε_1, ε_2, ε_3G, ε_3L in FedDP-Init's budget"
    )
    lloyds_share: float = key(0.3, "share of the budget for FedDP-Lloyds, if it takes any steps", gt=0, lt=1)
    lloyds_split: Annotated[str, AfterValidator(_check_split)] = key(
        "0.75,0.25", "shares of ε_4G and ε_4L in the budget of FedDP-Lloyds"
    )
    epsilons: Annotated[str, AfterValidator(_check_epsilons)] = key(
        "", 'values of ε_1, ε_2, ε_3G, ε_3L (and ε_4G, ε_4L), instead of `kmeans.epsilon`; "": not given'
    )
    gaussian: Literal["analytic", "classical"] = key("analytic", "formula for σ of the Gaussian mechanism")
    radius: float = key(0.0, "Δ, norm to which examples are clipped; 0: the largest norm in the server's data", ge=0)
    client_size: int = key(
        0, "public number of points of a typical client, used for the bounds; 0: `samples-per-client`", ge=0
    )
    clip_outer: float = key(
        0.0,
        "client-level privacy: norm to which a client's outer products are clipped (step 1); 0: derived from the "
        "server's data",
        ge=0,
    )
    clip_weights: float = key(
        0.0, "client-level privacy: L1 norm to which a client's weights are clipped (step 2); 0: `client-size`", ge=0
    )
    clip_sums: float = key(
        0.0,
        "client-level privacy: norm to which a client's cluster means are clipped (step 3, FedDP-Lloyds); 0: derived "
        "from the server's data",
        ge=0,
    )
    clip_counts: float = key(
        0.0,
        "client-level privacy: L1 norm to which a client's cluster counts are clipped (step 3, FedDP-Lloyds); 0: the "
        "smaller of k and `client-size`",
        ge=0,
    )
    noise_at: Literal["server", "device"] = key("server", "who adds the noise")
    dropout: float = key(
        0.0, "if devices add the noise: share of clients that may fail; the others add more noise", ge=0, lt=1
    )
    reveal_rows: bool = key(
        False,
        "without noise and secure aggregation: whether devices return sums from which single rows can be computed "
        "([more](attacks.md#trajectories-of-centres))",
    )
    local_k: int = key(0, "number of centres that each client finds in `k-fed`; 0: k", ge=0, where="method=k-fed")

    @field_validator("split", "lloyds_split")
    @classmethod
    def _has_a_share_for_every_release(cls, text: str, info: ValidationInfo) -> str:
        wanted = {"split": 4, "lloyds_split": 2}[str(info.field_name)]
        if len(parse_numbers(text)) != wanted:
            raise ValueError(f"'{text}' must have {wanted} shares")
        return text
