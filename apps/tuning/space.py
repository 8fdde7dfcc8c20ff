"""A recipe's table ``[tune.<name>]``: which keys are tuned, for which methods, within which ranges.

[tune.rates]
methods = ["", "fedprox", "local"]          # variants of the recipe, or methods; "" is the recipe itself
trials = 20                                 # of every method
rounds = 30                                 # of every trial; default: the recipe's
figure = "validation_loss"                  # default: the task's main figure, such as "validation_accuracy"
[tune.rates.keys]
learning-rate = { low = 0.001, high = 0.3, log = true }
local-epochs = { low = 1, high = 5 }
fedprox.mu = { values = [0.001, 0.01, 0.1, 1.0] }       # of all methods that read it
[tune.rates.own.local]                                  # of one entry of methods; instead of a range above, or besides
learning-rate = { low = 0.01, high = 1.0, log = true }
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from florilegium.apps.runs.experiment import pick, read_layers
from florilegium.common.errors import ConfigurationError, nearest
from florilegium.common.settings import Value

EDGE = 0.05
"""A number is at the edge of an interval if it is nearer to an end than this share of the interval's length."""

_STRICT = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Range(BaseModel):
    """The values of a key that are tried: an interval with both ends, or a list."""

    model_config = _STRICT

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    values: list[bool | int | float | str] = []

    @model_validator(mode="after")
    def _is_whole(self) -> Range:
        interval = (self.low, self.high)
        if self.values:
            if interval != (None, None) or self.log:
                raise ValueError("give either low and high, or values")
            if len({*map(repr, self.values)}) < max(2, len(self.values)):
                raise ValueError(f"values: give two or more different ones (found: {self.values})")
        elif self.low is None or self.high is None:
            raise ValueError("give low and high, or a list of values")
        elif not self.low < self.high:
            raise ValueError(f"low must be less than high (found: {self.low:g} and {self.high:g})")
        elif self.log and self.low <= 0:
            raise ValueError(f"with log = true, low must be greater than 0 (found: {self.low:g})")
        return self

    def of_floats(self) -> Range:
        """Return the same range of floats, so that ``1`` may be written for ``1.0``."""
        ends = {end: None if (value := getattr(self, end)) is None else float(value) for end in ("low", "high")}
        values = [float(value) if type(value) is int else value for value in self.values]
        return self.model_copy(update={**ends, "values": values})

    @property
    def ends(self) -> list[Value]:
        """What must be allowed for all to be: both ends, or the whole list."""
        return [*self.values] or [end for end in (self.low, self.high) if end is not None]

    def __contains__(self, value: Value) -> bool:
        """Return whether ``value`` is one that is tried."""
        if self.low is None or self.high is None:
            return value in self.values
        return not isinstance(value, str) and self.low <= value <= self.high

    def __str__(self) -> str:
        """Return the range in words."""
        if self.values:
            return ", ".join(map(str, self.values))
        return f"{self.low:g} to {self.high:g}{', log' if self.log else ''}"

    def beyond(self, value: Value) -> Value | None:
        """Return a value a little outside the range, past the end at which ``value`` is; None if it is not at an end.

        The ends of a list of numbers are its smallest and largest; a list of other values has no ends.
        """
        numbers = [end for end in self.ends if not isinstance(end, bool | str)]
        if isinstance(value, bool | str) or len(numbers) < len(self.ends):
            return None
        low, high = min(numbers), max(numbers)
        place = math.log(value / low) / math.log(high / low) if self.log else (value - low) / (high - low)
        whole = isinstance(low, int)
        near, step = 0.0 if whole or self.values else EDGE, 1 if whole else EDGE * (high - low)
        if place <= near:
            return low * (1 - EDGE) if low > 0 and not whole else low - step
        return high + step if place >= 1 - near else None


def listed(ranges: Mapping[str, Range], most: int) -> list[dict[str, Value]]:
    """Return all combinations of values if every range is a list and there are at most ``most``; otherwise none."""
    if not all(found.values for found in ranges.values()) or math.prod(len(r.values) for r in ranges.values()) > most:
        return []
    return [dict(zip(ranges, values, strict=True)) for values in product(*(found.values for found in ranges.values()))]


class Tune(BaseModel):
    """A table ``[tune.<name>]`` of a recipe."""

    model_config = _STRICT

    methods: list[str] = Field(default=[""], min_length=1)
    trials: int = Field(ge=1)
    rounds: int | None = Field(default=None, ge=1)
    seeds: list[int] = []
    figure: str = ""
    keys: dict[str, Range] = Field(min_length=1)
    own: dict[str, dict[str, Range]] = {}

    @property
    def tuned(self) -> list[str]:
        """Keys that are tuned, for all methods or for one."""
        return list(dict.fromkeys([*self.keys, *(key for own in self.own.values() for key in own)]))

    @field_validator("figure")
    @classmethod
    def _is_of_held_out_examples(cls, figure: str) -> str:
        if figure and not figure.startswith("validation_"):
            raise ValueError("name a figure of held-out examples, such as 'validation_accuracy' or 'validation_loss'")
        return figure

    @field_validator("seeds")
    @classmethod
    def _are_different(cls, seeds: list[int]) -> list[int]:
        if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
            raise ValueError(f"{twice[0]} is given twice")
        return seeds

    @field_validator("keys", mode="before")
    @classmethod
    def _flattened(cls, tables: Any) -> Any:
        """Take ``fedprox.mu = {…}``, which TOML reads as nested tables, like ``"fedprox.mu" = {…}``."""
        return dict(_ranges(tables, "")) if isinstance(tables, Mapping) else tables

    @field_validator("own", mode="before")
    @classmethod
    def _each_flattened(cls, tables: Any) -> Any:
        return {entry: cls._flattened(own) for entry, own in tables.items()} if isinstance(tables, Mapping) else tables

    @model_validator(mode="after")
    def _is_of_methods(self) -> Tune:
        if other := [entry for entry in self.own if entry not in self.methods]:
            raise ValueError(f"own: '{other[0]}' is not in methods{nearest(other[0], self.methods)}")
        return self


def _ranges(tables: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, table in tables.items():
        if isinstance(table, Mapping) and table and all(isinstance(value, Mapping) for value in table.values()):
            yield from _ranges(table, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", table


def read_tune(recipe: str, name: str) -> Tune:
    """Return the table ``[tune.<name>]`` of a recipe.

    Raises:
        ConfigurationError: if there is no such table, or it is invalid; names the entry and what is allowed.
    """
    table = pick(name, read_layers(recipe).tune, f"recipe '{recipe}'", "tuning table")
    try:
        return Tune.model_validate(table)
    except ValidationError as error:
        said = "; ".join(dict.fromkeys(_said(problem) for problem in error.errors()))
        raise ConfigurationError(f"recipe '{recipe}', [tune.{name}]: {said}") from error


def _said(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"] if part not in ("int", "float", "str", "bool"))
    message = str(problem["msg"]).removeprefix("Value error, ")
    found = "" if isinstance(problem["input"], dict | BaseModel) else f" (found: {problem['input']!r})"
    return f"{where}: {message[0].lower()}{message[1:]}{found}"
