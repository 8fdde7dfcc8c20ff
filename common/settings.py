"""The base of every settings model: frozen, strictly typed, kebab-case keys, no unknown key.

Each layer declares the keys it reads (``partitions.settings``, ``clients.settings``, ``strategies.settings``);
``apps.settings`` merges them into the one model of a run. Defaults live in ``pyproject.toml`` alone.
"""

from __future__ import annotations

import math
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

Value = bool | int | float | str
"""What a key of Flower's run configuration can hold."""

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
"""Names of clients and runs: they become names of folders."""


PARAMETER_FILES = (".safetensors", ".pt", ".pth")
"""How files of a network's parameters end, which key ``init`` may name."""


class Section(BaseModel):
    """A group of configuration keys. Field ``local_epochs`` is the key ``local-epochs``."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
        allow_inf_nan=False,
    )


class RateSettings(Section):
    """The clients' learning rate, which a server may have to know."""

    learning_rate: float = Field(gt=0)
    learning_rate_decay: float = Field(gt=0, le=1)
    decay_rounds: int = Field(ge=1)

    def decay(self, server_round: int) -> float:
        """Return a round's factor on the learning rate: ``learning-rate-decay`` for every ``decay-rounds`` so far."""
        return self.learning_rate_decay ** (max(0, server_round - 1) // self.decay_rounds)


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
