"""Keys of all clustering methods, table ``kmeans``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ValidationInfo, field_validator

from florilegium.common.settings import Section, key, parse_numbers


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
    choose_k: int = key(0, "choose k from 1 to this after step 2 of FedDP-Init, by the elbow; 0: `k`", ge=0)
    dimensions: int = key(0, "of the data subspace of FedDP-Init; 0: k, or `choose-k`", ge=0)
    restarts: int = key(10, "of k-means on the server; the best is taken", ge=1)
    weight_threshold: float = key(5.0, "server points with a smaller noisy weight are dropped", ge=0)
    margin: float = key(0.0, "step 3 takes only points whose projection is this close to its centre; 0: all", ge=0)
    min_count: float = key(
        2.0, "a cluster with a noisy count under so many noise scales (and under 1) keeps its centre", ge=0
    )
    privacy_unit: Literal["example", "client", "none"] = key(
        "example", "what the guarantee is for: one example more or less, one client, or nothing (no noise)"
    )
    epsilon: float = key(1.0, "ε of the whole run", gt=0)
    delta: float = key(1e-06, "δ of the whole run", gt=0, lt=1)
    split: Annotated[str, AfterValidator(_check_split)] = key(
        "0.2,0.2,0.45,0.15", "shares of ε_1, ε_2, ε_3G, ε_3L in FedDP-Init's budget"
    )
    lloyds_share: float = key(0.3, "share of FedDP-Lloyds, where it takes steps, in the budget", gt=0, lt=1)
    lloyds_split: Annotated[str, AfterValidator(_check_split)] = key("0.75,0.25", "shares of ε_4G and ε_4L in it")
    epsilons: Annotated[str, AfterValidator(_check_epsilons)] = key(
        "", 'ε_1, ε_2, ε_3G, ε_3L (and ε_4G, ε_4L) themselves, in place of `kmeans.epsilon`; "": none'
    )
    gaussian: Literal["analytic", "classical"] = key("analytic", "formula of the Gaussian mechanism's σ")
    radius: float = key(0.0, "Δ, to which examples are clipped; 0: the radius of the server's data", ge=0)
    client_size: int = key(
        0, "points of a usual client, as is publicly known, for the bounds; 0: `samples-per-client`", ge=0
    )
    clip_outer: float = key(0.0, "bound of what a client sends in step 1; 0: see the page", ge=0)
    clip_weights: float = key(0.0, "the same in step 2", ge=0)
    clip_sums: float = key(0.0, "the same in step 3 and FedDP-Lloyds, means", ge=0)
    clip_counts: float = key(0.0, "the same, contributions", ge=0)
    noise_at: Literal["server", "device"] = key("server", "who adds the noise")
    dropout: float = key(
        0.0, "share of clients that may fail where devices add the noise: the others add more", ge=0, lt=1
    )
    local_k: int = key(0, "centres of each client in `k-fed`; 0: k", ge=0)

    @field_validator("split", "lloyds_split")
    @classmethod
    def _has_a_share_for_every_release(cls, text: str, info: ValidationInfo) -> str:
        wanted = {"split": 4, "lloyds_split": 2}[str(info.field_name)]
        if len(parse_numbers(text)) != wanted:
            raise ValueError(f"'{text}' must have {wanted} shares")
        return text
