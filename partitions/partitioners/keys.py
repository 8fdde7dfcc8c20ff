"""The configuration keys that partitioners have of their own, each in a table that is named after the partitioner.

They are declared apart from the partitioners, so that listing keys does not import flwr-datasets, which takes seconds.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from florilegium.common.settings import Section, check_folder, key, parse_whole
from florilegium.partitions.settings import MOST_ALPHA


def _check_sizes(text: str) -> str:
    if text:
        parse_whole(text)
    return text


Sizes = Annotated[str, AfterValidator(_check_sizes)]
File = Annotated[str, AfterValidator(check_folder)]


class ShardKeys(Section):
    """Keys of ``shard``."""

    title = "Partitioner `shard`"

    per_client: int = key(
        2, "shards of each client; 0: as many as there are shards of `shard.size` rows, shared out evenly", ge=0
    )
    size: int = key(0, "rows in a shard; 0: as many as divide the rows into `num-clients` × `per-client` shards", ge=0)
    keep_incomplete: bool = key(
        False, "with `per-client` = 0: also use the last shard if it is smaller; otherwise its rows have no owner"
    )


class SizeKeys(Section):
    """Keys of ``size``."""

    title = "Partitioner `size`"

    sizes: Sizes = key(
        "", 'training examples of each client; one number: of all clients; "": equal shares of all rows',
        values='numbers ≥ 1, such as `"300,100,50"`, or ""',
    )  # fmt: skip


class InnerDirichletKeys(Section):
    """Keys of ``inner-dirichlet``."""

    title = "Partitioner `inner-dirichlet`"

    sizes: Sizes = key(
        "", 'training examples of each client; one number: of all clients; "": equal shares of all rows',
        values='numbers ≥ 1, such as `"300,100,50"`, or ""',
    )  # fmt: skip
    alpha: float = key(0.5, "α, concentration of each client's distribution over the classes", gt=0, le=MOST_ALPHA)


class DistributionKeys(Section):
    """Keys of ``distribution``."""

    title = "Partitioner `distribution`"

    file: File = key(
        "",
        "CSV without a header: a row per class, with a number for each of its `num-clients` × `classes` / C clients; "
        '"": log-normal numbers',
        values='file, ""',
    )
    sigma: float = key(2.0, "σ of the log-normal numbers, with μ = 0", ge=0)
    classes: int = key(2, "number of classes of each client", ge=1)
    preassigned: int = key(
        5, "examples of each of its classes that a client gets before the others are divided; with `rescale`", ge=0
    )
    rescale: bool = key(
        True, "numbers are proportions in which all rows are divided; otherwise they are numbers of rows"
    )


class PathologicalKeys(Section):
    """Keys of ``pathological``."""

    title = "Partitioner `pathological`"

    classes: int = key(2, "number of classes of each client", ge=1)
    assignment: Literal["random", "deterministic", "first-deterministic"] = key(
        "first-deterministic",
        "classes of client i: all random; i, i + 1, … modulo C; or the first is i modulo C and the others are random",
    )


class PfllibPathologicalKeys(Section):
    """Keys of ``pfllib-pathological``."""

    title = "Partitioner `pfllib-pathological`"

    classes: int = key(2, "number of classes of each client", ge=1)
    balanced: bool = key(False, "divide a class equally among its clients, instead of in random amounts")


class PfllibPracticalKeys(Section):
    """Keys of ``pfllib-practical``."""

    title = "Partitioner `pfllib-practical`"

    alpha: float = key(0.1, "α, concentration of each class's distribution over the clients", gt=0, le=MOST_ALPHA)
    min_examples: int = key(
        40,
        "a draw that leaves a client with fewer rows, training and test together, is repeated; at most half the mean "
        "of all clients counts",
        ge=2,
    )


class ExtendedDirichletKeys(Section):
    """Keys of ``extended-dirichlet``."""

    title = "Partitioner `extended-dirichlet`"

    classes: int = key(2, "C, number of classes of each client, drawn at random; 0: all", ge=0)
    alpha: float = key(10.0, "α, concentration of each class's distribution over its clients", gt=0, le=MOST_ALPHA)
    min_examples: int = key(10, "a draw that leaves a client with fewer training examples is repeated", ge=1)


class QuantitySkewKeys(Section):
    """Keys of ``quantity-skew``."""

    title = "Partitioner `quantity-skew`"

    alpha: float = key(0.5, "α, concentration of the distribution of all rows over the clients", gt=0, le=MOST_ALPHA)
    min_examples: int = key(10, "a draw that leaves a client with fewer training examples is repeated", ge=1)


class NoiseKeys(Section):
    """Keys of ``noise``."""

    title = "Partitioner `noise`"

    sigma: float = key(
        0.1,
        "σ: client i of 1..n has noise of standard deviation σ·i/n, times the largest pixel value, 255 (`digits`: 16)",
        ge=0,
        le=100,
    )


class ContinuousKeys(Section):
    """Keys of ``continuous``."""

    title = "Partitioner `continuous`"

    by: str = key(
        "",
        "what rows are sorted by: a numeric column of a table, or a column of names that are numbers; \"\": the label",
        values='column, ""',
    )  # fmt: skip
    strictness: float = key(
        0.5, "σ: rows are sorted by σ·z + (1 − σ)·ε, with the standardised number z and ε ~ N(0, 1)", ge=0, le=1
    )


class GroupedNaturalKeys(Section):
    """Keys of ``grouped-natural``."""

    title = "Partitioner `grouped-natural`"

    group_size: int = key(2, "natural clients that are joined to one client", ge=1)
    mode: Literal["allow-smaller", "allow-bigger", "drop-remainder", "strict"] = key(
        "allow-smaller",
        "if groups do not divide evenly: the last is smaller; the first are bigger; the remaining natural clients are "
        "left out; or this is an error",
    )
    sort: bool = key(False, "group natural clients in the order of their names, instead of a random order")


class FileKeys(Section):
    """Keys of ``file``."""

    title = "Partitioner `file`"

    path: File = key(
        "", "file of your own split, `.json`, `.csv` or `.npz` ([formats](partitions.md#a-split-of-your-own))",
        values='file, ""',
    )  # fmt: skip
    hash: str = key(
        "",
        "first 16 hexadecimal digits of the file's SHA-256, checked if given; `florilegium run` fills it in, so that a "
        "resumed run notices a changed file",
        pattern=r"^([0-9a-f]{16})?$", values='16 digits, ""',
    )  # fmt: skip
