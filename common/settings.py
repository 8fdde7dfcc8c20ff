"""Base class of all settings models: frozen, strictly typed, kebab-case keys, unknown keys rejected.

Each layer declares the keys it reads; ``florilegium.apps.settings.configuration`` merges them into one model for
the run.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Value = bool | int | float | str
"""Types of value that Flower's run configuration supports."""

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
"""Pattern for the names of clients and runs, which are also used as folder names; 200 characters at most."""


PARAMETER_FILES = (".safetensors", ".pt", ".pth")
"""Suffixes of the parameter files that key ``init`` accepts."""


class Section(BaseModel):
    """A group of configuration keys. Field ``local_epochs`` is the key ``local-epochs``.

    Attributes:
        title: heading of the group in lists of keys.
    """

    title: ClassVar[str] = ""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
        allow_inf_nan=False,
        defer_build=True,  # a run uses a few of the models, and all are imported
    )

    def check_with(self, settings: Any) -> None:
        """Check what these keys need of those of all runs, without PyTorch; by default nothing.

        Args:
            settings: the keys that all runs have.

        Raises:
            ConfigurationError: if they do not go together.
        """


def key(default: Value, meaning: str, *, values: str = "", where: str = "", also: str = "", **bounds: Any) -> Any:
    """Declare a configuration key as a field of a :class:`Section`; its documentation is generated from this.

    Args:
        default: the default value.
        meaning: what the key does, in Markdown, with units.
        values: description of the allowed values, if type and bounds do not already define them.
        where: with which values of other keys something reads this one, if not always: conditions such as
            "mode=buffered", "aggregation=krum|median", "fleet.speed!=0", joined by " or ", and those by " and ";
            "descends" in place of a key says whether the method's clients train by descent.
        also: what other programs call it, words separated by blanks, by which messages and searches find it.
        bounds: constraints such as ``ge``, ``gt``, ``le``, ``lt`` and ``pattern``, passed to :func:`pydantic.Field`.
    """
    extra = {"values": values, "where": where, "also": also}
    return Field(default, description=meaning, json_schema_extra=dict(extra), **bounds)


class DataSettings(Section):
    """The keys that every part of a run depends on: the dataset and the seed."""

    title = "The run"

    seed: int = key(
        1,
        "seed of every random draw of the run: federation, initial model, cohorts, batches",
        ge=0,
        also="random-seed manual-seed",
    )
    dataset: str = key("digits", "the dataset", values="`florilegium datasets`, or [your own](data.md)")


class NoHyper(Section):
    """Empty section, for methods without hyper-parameters of their own."""


def folder(text: str) -> Path:
    """Return ``text`` as a path, with ``~`` expanded to the home folder.

    Raises:
        ValueError: if ``text`` names the home folder of an unknown user.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(f"'{text}' names the home folder of an unknown user") from error


def check_folder(text: str) -> str:
    """Validate a folder key: empty, absolute, or starting with ``~``.

    Flower starts server and client processes in different working folders, so a relative path would name a
    different place in each of them.
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
    """Parse a comma-separated list of whole numbers ≥ 1, at least one."""
    if min(numbers := parse_counts(text)) < 1:
        raise ValueError(f"'{text}' is not a comma-separated list of whole numbers ≥ 1")
    return numbers
