"""Keys of methods whose clients hold networks of different width: HeteroFL, FedRolex."""

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


class CapacityHyper(Section):
    """Keys ``capacity.*``."""

    levels: Annotated[str, AfterValidator(_check_levels)] = key(
        "1,0.5,0.25",
        "capacities r of simulated clients, shares of each layer's channels; each client draws one from the seed; "
        "devices state theirs in `--node-config`",
        values="list of numbers in (0, 1]",
    )
    shares: str = key(
        "",
        "how frequent each of `capacity.levels` is among the clients, up to a common factor; \"\": all alike",
        values='list of numbers ≥ 0, ""',
    )  # fmt: skip
    scaler: bool = key(
        True, "hidden convolutions and dense layers of a sub-network multiply their outputs by 1/r (HeteroFL's scaler)"
    )
    masked_loss: bool = key(
        False, "local training sets the logits of classes that a client has no example of to 0 (masked cross-entropy)"
    )

    @field_validator("shares")
    @classmethod
    def _are_as_many(cls, shares: str, info: ValidationInfo) -> str:
        numbers = parse_numbers(shares) if shares else []
        levels = parse_numbers(info.data.get("levels", ""))
        if shares and levels and (len(numbers) != len(levels) or min(numbers) < 0 or not sum(numbers)):
            raise ValueError(f"give {len(levels)} numbers ≥ 0, one for each of capacity.levels, not all of them 0")
        return shares

    @property
    def law(self) -> tuple[list[float], list[float]]:
        """The levels, and the probability of each."""
        levels = parse_numbers(self.levels)
        shares = parse_numbers(self.shares) or [1.0] * len(levels)
        return levels, [share / sum(shares) for share in shares]
