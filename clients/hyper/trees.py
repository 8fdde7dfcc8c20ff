"""Keys of boosted trees."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Section, key


class BoostingHyper(Section):
    """Keys ``boosting.*``, named as XGBoost's parameters where they are the same."""

    eta: float = key(0.3, "η: a tree's leaves are multiplied by this", gt=0, le=1, also="shrinkage")
    l2: float = key(1.0, "λ, added to the sum of Hessians of a leaf", ge=0, also="lambda reg-lambda")
    gamma: float = key(0.0, "γ, the least gain of a split", ge=0, also="min-split-loss")
    min_child_weight: float = key(1.0, "least sum of Hessians on each side of a split", ge=0)
    bins: int = key(32, "most bins of a column of numbers; their edges are public", ge=2, le=1024, also="max-bin")
    reach: float = key(
        0.0,
        "bins have equal widths between minus and plus this, in units of encoded inputs, and depend on no data; 0: "
        "they are quantiles of all clients' rows",
        ge=0,
    )
    refit: float = key(
        0.0,
        "share of a client's own leaf values, fitted to its training rows, in the leaves that it predicts with; 0: it "
        "uses the received ones",
        ge=0, le=1,
    )  # fmt: skip

    @model_validator(mode="after")
    def _divides_by_something(self) -> BoostingHyper:
        if not self.l2 and not self.min_child_weight:
            raise ValueError("l2 and min-child-weight: one of them must be above 0, for leaves of few rows")
        return self

    def check_with(self, settings: Any) -> None:
        """Check that there is room for all trees, and that one threshold means the same at all clients.

        Raises:
            ConfigurationError: if not.
        """
        if settings.rounds > settings.trees.number:
            raise ConfigurationError(
                f"rounds: each grows a tree, and there is room for trees.number = {settings.trees.number} (found: "
                f"{settings.rounds}); raise trees.number"
            )
        if settings.standardise == "client":
            raise ConfigurationError(
                "standardise: with 'client' a threshold would mean another number at every client; set 'federation' or "
                "'none'"
            )
