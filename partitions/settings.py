"""The configuration keys that define a federation: the dataset and how it is shared out."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from common.settings import Section, check_folder, parse_numbers


def _check_classes(value: int | str) -> int | str:
    class_range(value)
    return value


def class_range(value: int | str) -> tuple[int, int]:
    """Return the smallest and largest number of classes per client that ``classes-per-client`` allows."""
    match = re.fullmatch(r"(\d+)(?:\s*-\s*(\d+))?", str(value))
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise ValueError(f"'{value}' is neither a number of classes, such as 2, nor a range, such as '2-3'")
    return low, high


def _check_angles(text: str) -> str:
    if not parse_numbers(text):
        raise ValueError("at least one angle is needed, such as '0,90,180,270'")
    return text


def ratio_range(text: str) -> tuple[float, float]:
    """Return the smallest and largest personalisation ratio that ``personalisation-ratio`` allows."""
    numbers = parse_numbers(text)
    if len(numbers) not in (1, 2) or not 0 <= numbers[0] <= numbers[-1] <= 1:
        raise ValueError(f"'{text}' is neither a number of 0 to 1, such as '0.5', nor a range, such as '0,1'")
    return numbers[0], numbers[-1]


def _check_ratio(text: str) -> str:
    ratio_range(text)
    return text


def parse_rows(text: str) -> tuple[str, list[str]] | None:
    """Return the column and the values of a choice of rows such as ``"workclass=Private|State-gov"``; None for ""."""
    if not text:
        return None
    column, separator, values = (part.strip() for part in text.partition("="))
    chosen = [value.strip() for value in values.split("|")]
    if not separator or not column or not all(chosen):
        raise ValueError(f"'{text}' is no choice of rows, such as 'workclass=Private|State-gov' or 'label=0|1'")
    return column, chosen


def check_rows(text: str) -> str:
    """Return ``text`` if :func:`parse_rows` takes it."""
    parse_rows(text)
    return text


class FederationSettings(Section):
    """Everything the clients' data depend on. Two runs with equal values have the same clients."""

    dataset: str
    data_dir: Annotated[str, AfterValidator(check_folder)]
    cache_dir: Annotated[str, AfterValidator(check_folder), Field(min_length=1)]
    partitioner: str
    num_clients: int = Field(ge=0)
    classes_per_client: Annotated[int | str, AfterValidator(_check_classes)]
    class_assignment: Literal["random", "even"]
    samples_per_client: int = Field(ge=0)
    alpha: float = Field(gt=0)
    dirichlet_over: Literal["clients", "classes"]
    balanced: bool
    angles: Annotated[str, AfterValidator(_check_angles)]
    client_column: str
    domain_column: str
    min_test_examples: int = Field(ge=0)
    embeddings: Annotated[str, AfterValidator(check_folder)]
    personalisation_ratio: Annotated[str, AfterValidator(_check_ratio)]
    mdm_params: str
    client_rows: Annotated[str, AfterValidator(check_rows)]
    server_examples: int = Field(ge=0)
    server_missing: int = Field(ge=0)
    server_ood_rows: Annotated[str, AfterValidator(check_rows)]
    server_ood_examples: int = Field(ge=0)
    share_out: Literal["clients", "server"]
    server_data: Annotated[str, AfterValidator(check_folder)]
    unseen_fraction: float = Field(ge=0, lt=1)
    labeled_fraction: float = Field(gt=0, le=1)
    canaries: int = Field(ge=0)
    canary_unit: Literal["example", "client"]
    seed: int = Field(ge=0)
