"""The base of every settings model: frozen, strictly typed, kebab-case keys, no unknown key.

Each layer declares the keys it reads; ``florilegium.apps.settings`` merges them into the one model of a run.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Value = bool | int | float | str
"""What a key of Flower's run configuration can hold."""

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
"""Names of clients and runs: they become names of folders."""


PARAMETER_FILES = (".safetensors", ".pt", ".pth")
"""How files of a network's parameters end, which key ``init`` may name."""


class Section(BaseModel):
    """A group of configuration keys. Field ``local_epochs`` is the key ``local-epochs``.

    Attributes:
        title: what the group is called in lists of keys.
    """

    title: ClassVar[str] = ""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
        allow_inf_nan=False,
    )


def key(default: Value, meaning: str, *, values: str = "", **bounds: Any) -> Any:
    """Declare a configuration key: the default of a field of a :class:`Section`, from which the rest is generated.

    Args:
        default: its default.
        meaning: what it does, in Markdown, with units.
        values: the values it may have, in words, where type and bounds do not say so.
        bounds: ``ge``, ``gt``, ``le``, ``lt``, ``pattern`` and so on, as of :func:`pydantic.Field`.
    """
    return Field(default, description=meaning, json_schema_extra={"values": values}, **bounds)


class DataSettings(Section):
    """What everything in a run depends on: the data and the seed."""

    title = "The run"

    seed: int = key(1, "seed of every random draw of the run: federation, initial model, cohorts, batches", ge=0)
    dataset: str = key("digits", "the dataset", values="`florilegium datasets`, or a folder")


class NoHyper(Section):
    """The hyper-parameters of a method that has none of its own."""


def folder(text: str) -> Path:
    """Return the absolute path that ``text`` names, with ``~`` for the home folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(f"'{text}' names the home folder of an unknown user") from error


def check_folder(text: str) -> str:
    """Validate a folder key: empty, absolute, or starting with ``~``.

    Flower starts server and client processes in folders of its own, so a relative path would mean a different
    place for each of them.
    """
    if text and not folder(text).is_absolute():
        raise ValueError(f"'{text}' is a relative path; give an absolute one, or one that starts with '~'")
    return text


def parse_numbers(text: str) -> list[float]:
    """Parse a comma-separated list of numbers, as in ``"0,90,180"`` (Flower's run configuration has no lists)."""
    try:
        numbers = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"'{text}' is not a comma-separated list of numbers, such as '0,90,180'")
    return numbers


def parse_counts(text: str) -> list[int]:
    """Parse a comma-separated list of whole numbers ≥ 0, at least one."""
    numbers = parse_numbers(text)
    if not numbers or any(number < 0 or number != int(number) for number in numbers):
        raise ValueError(f"'{text}' is not a comma-separated list of whole numbers, such as '30,50,40,40'")
    return [int(number) for number in numbers]


def parse_whole(text: str) -> list[int]:
    """Parse a comma-separated list of whole numbers ≥ 1."""
    if min(numbers := parse_counts(text)) < 1:
        raise ValueError(f"'{text}' is not a comma-separated list of whole numbers ≥ 1")
    return numbers
