"""Keys of methods whose clients hold models of different size: HeteroFL, FedRolex, LoRA with unequal ranks."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, ValidationInfo, field_validator

from florilegium.common.settings import Section, key, parse_numbers


def _check_levels(text: str) -> str:
    if not (levels := parse_numbers(text)) or not all(0 < level <= 1 for level in levels):
        raise ValueError(
            f"'{text}' is not a comma-separated list of numbers above 0 and at most 1, such as '1,0.5,0.25'"
        )
    return text


class Levels(Section):
    """Capacities of clients: what share of the whole each of them holds."""

    levels: Annotated[str, AfterValidator(_check_levels)] = key(
        "1,0.5,0.25",
        "capacities r of simulated clients, shares of each layer's channels; each client draws one from the seed; "
        "devices state theirs in `--node-config`",
        values="list of numbers in (0, 1]",
    )
    shares: str = key(
        "",
        "how frequent each of `levels` is among the clients, up to a common factor; \"\": all alike",
        values='list of numbers ≥ 0, ""',
    )  # fmt: skip

    @field_validator("shares")
    @classmethod
    def _are_as_many(cls, shares: str, info: ValidationInfo) -> str:
        numbers = parse_numbers(shares) if shares else []
        levels = parse_numbers(info.data.get("levels", ""))
        if shares and levels and (len(numbers) != len(levels) or min(numbers) < 0 or not sum(numbers)):
            raise ValueError(f"give {len(levels)} numbers ≥ 0, one for each of levels, not all of them 0")
        return shares

    @property
    def law(self) -> tuple[list[float], list[float]]:
        """The levels, and the probability of each."""
        levels = parse_numbers(self.levels)
        shares = parse_numbers(self.shares) or [1.0] * len(levels)
        return levels, [share / sum(shares) for share in shares]


class CapacityHyper(Levels):
    """Keys ``capacity.*``."""

    scaler: bool = key(
        True, "hidden convolutions and dense layers of a sub-network multiply their outputs by 1/r (HeteroFL's scaler)"
    )
    masked_loss: bool = key(
        False, "local training sets the logits of classes that a client has no example of to 0 (masked cross-entropy)"
    )


class RanksHyper(Levels):
    """Keys ``ranks.*``."""

    levels: Annotated[str, AfterValidator(_check_levels)] = key(
        "1",
        "capacities c of simulated clients, whose ranks are ⌈c·`adapter.rank`⌉; each client draws one from the seed; "
        "devices state theirs in `--node-config`",
        values="list of numbers in (0, 1]",
    )
    tolerance: float = key(
        1e-6,
        "`hlora`: components are dropped, and not sent, whose singular value is at most this share of the layer's "
        "largest",
        ge=0, lt=1, where="method=hlora",
    )  # fmt: skip
    sparsity: bool = key(
        True,
        "`hetlora`: clients' matrices count by the norms of their products B·A; false: as `weighting` says",
        where="method=hetlora",
    )
    decay: float = key(
        0.99,
        "`hetlora`: γ, share of its rank that a client keeps when it prunes; 1: nothing is pruned",
        gt=0,
        le=1,
        where="method=hetlora",
    )
    penalty: float = key(
        0.005,
        "`hetlora`: λ, weight of the penalty on what a client would prune of its matrices",
        ge=0,
        where="method=hetlora",
    )
