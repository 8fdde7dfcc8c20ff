"""The configuration keys that define a federation: the dataset, and how it is divided among clients."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, SerializeAsAny

from florilegium.common.errors import DataError
from florilegium.common.settings import DataSettings, NoHyper, Section, check_folder, folder, key, parse_numbers
from florilegium.common.text import listed
from florilegium.partitions.sources.date_parts import PARTS
from florilegium.tasks.measured import LOSSES, METRICS
from florilegium.tasks.registry import TASKS

S = TypeVar("S", bound=Section)

MOST_ALPHA = 1e9
"""Largest concentration of a Dirichlet distribution; shares are equal by then, and far above, sums overflow."""


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


def check_classes(most: int, known: int) -> None:
    """Raise :class:`DataError` if clients are to have up to ``most`` classes, and the data have only ``known``."""
    if most > known:
        raise DataError(
            f"classes-per-client: a client cannot have {most} classes, the data have only {known}; lower it, or divide "
            "the rows otherwise: partitioner = 'iid' or 'dirichlet', or 'natural' with num-clients = 0 if the data "
            "name clients"
        )


def _check_parts(text: str) -> str:
    if unknown := {*listed(text)} - {*PARTS}:
        raise ValueError(f"there is no part '{min(unknown)}' of a date; possible are {', '.join(PARTS)}")
    if not listed(text):
        raise ValueError("name at least one part of dates, such as 'days'")
    return text


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
    """Parse a selection of rows such as ``"workclass=Private|State-gov"`` into column and values; "" gives None."""
    if not text:
        return None
    column, separator, values = (part.strip() for part in text.partition("="))
    chosen = [value.strip() for value in values.split("|")]
    if not separator or not column or not all(chosen):
        raise ValueError(f"'{text}' is not a choice of rows, such as 'workclass=Private|State-gov' or 'label=0|1'")
    return column, chosen


def check_rows(text: str) -> str:
    """Return ``text`` unchanged if :func:`parse_rows` accepts it, else raise its ``ValueError``."""
    parse_rows(text)
    return text


class SourceSettings(DataSettings):
    """The keys that say where the dataset comes from, and what it is if nothing describes its columns."""

    title = "The dataset"

    data_dir: Annotated[str, AfterValidator(check_folder)] = key(
        "",
        'local data, `<data-dir>/<dataset>/train.parquet`; "": `$FLORILEGIUM_DATA`, then the hub',
        values='folder, ""',
    )
    cache_dir: Annotated[str, AfterValidator(check_folder)] = key(
        "~/.florilegium/cache", "folder for decoded datasets and index tables", values="folder", min_length=1
    )
    dataset_revision: str = key(
        "",
        'commit, tag or branch of a dataset of the hub; "": the commit that the suite names, else `main` '
        "([more](data.md#revisions))",
        values='revision, ""',
    )
    task: str = key(
        "",
        'what is learned from the targets ([more](tasks.md)); "": the dataset\'s own task, classes of labels or '
        "regression of numbers",
        values=", ".join((*(f"`{name}`" for name in TASKS.own), "`package.module:attribute`", '""')),
    )
    loss: str = key(
        "",
        'what training minimises ([more](tasks.md#losses)); "": the task\'s own loss',
        values=", ".join((*(f"`{name}`" for name in LOSSES.own), "`package.module:function`", '""')),
    )
    metrics: str = key(
        "",
        "the figures of evaluations, the main one first, separated by commas "
        '([more](tasks.md#figures-of-all-clients-together)); "": the task\'s own',
        values=", ".join((*(f"`{name}`" for name in METRICS.own), "`package.module:function`", '""')),
    )
    positive: str = key(
        "",
        'for `binary`: the classes that count as positive, separated by commas; "": the last of two',
        values='classes, ""',
    )
    class_weights: str = key(
        "",
        "weights of training examples by class ([more](tasks.md#weights)): inverse to the frequency among the client's "
        "own, or all clients' (simulation only), or a number for each class",
        values='`balanced`, `balanced-federation`, numbers, ""',
    )
    target_scale: Literal["none", "standard"] = key(
        "none",
        "unit of a regression's outputs: that of the targets, or deviations from the training rows' mean; figures and "
        "predictions are in the targets' unit either way",
    )
    focal_gamma: float = key(2.0, "γ of the focal loss", ge=0, le=100)
    label_smoothing: float = key(0.1, "ε of the loss `label-smoothing`", ge=0, le=1)
    tokenizer: str = key(
        "auto",
        "what reads the texts of a pretrained model ([more](pretrained.md#texts)): `auto`, the tokenizer of `model = "
        '"transformers:…"`; or that of another folder; "": none, texts are characters or words',
        values='`auto`, folder, name in `$FLORILEGIUM_MODELS`, hub id, ""',
    )
    input_column: str = key(
        "", "input columns of a [dataset without a schema](data.md); several are joined by `+`",
        values='column, `a+b`, ""',
    )  # fmt: skip
    input_columns: str = key(
        "",
        "input columns of a table without a schema, separated by commas; other columns are not used",
        values='columns, ""',
    )
    drop_columns: str = key(
        "", "columns of a table without a schema that are no inputs, separated by commas", values='columns, ""'
    )
    missing: Literal["refuse", "drop", "median", "indicator"] = key(
        "refuse",
        "what missing inputs of a table without a schema are: an error, dropped rows, or filled in "
        "([more](data.md#missing-values))",
    )
    standardise: Literal["federation", "client", "none"] = key(
        "federation",
        "whose training rows give means, deviations and medians of a table's numbers; `none`: numbers stay as they are",
    )
    fitted_scales: str = key(
        "",
        "means, deviations, medians and most frequent categories that a run of `describe` has fitted, in place of the "
        "schema's ([more](data.md#fitted-scales)); \"\": the schema's, or those of the training rows",
        values='run of `describe`, content of its `scales.json`, ""',
    )
    date_parts: Annotated[str, AfterValidator(_check_parts)] = key(
        "days",
        "features of each date of a table, separated by commas: days, sine and cosine of the time of year, week, day",
        values="`days`, `year`, `week`, `day`",
    )
    date_format: str = key(
        "",
        'how dates are written as text, such as `%d.%m.%Y`; "": found out, if the data leave no doubt',
        values='format, ""',
    )
    weight_column: str = key(
        "", "column of weights of rows in the training loss ([more](tasks.md#weights))", values='column, ""'
    )
    label_column: str = key(
        "",
        "label column of a dataset without a schema; several columns of numbers are joined by `+`",
        values='column, `a+b`, ""',
    )
    response_column: str = key(
        "",
        "column of responses to the prompts in `input-column`, instead of a label, for `task = next-token`: the loss "
        "is that of the responses ([more](pretrained.md#prompts-and-responses))",
        values='column, ""',
    )
    text_length: int = key(
        0,
        "characters of each text without a schema, 0: the longest training text, at most 200; or with a `tokenizer` "
        "tokens, 0: as many as its model reads",
        ge=0,
    )
    image_size: int = key(
        0, "height and width to which images of a dataset without a schema are resized; 0: all must have one size",
        ge=0,
    )  # fmt: skip

    duplicates: Literal["warn", "drop", "refuse"] = key(
        "warn",
        "what equal rows are: a warning if many test rows equal training rows, used once, or an error "
        "([more](data.md#equal-rows))",
    )

    @property
    def cache(self) -> Path:
        """The folder of the cache."""
        return folder(self.cache_dir)


class FederationSettings(SourceSettings):
    """All keys that the clients' data depend on. Two runs with equal values have the same clients.

    Attributes:
        own: the chosen partitioner's own keys, from its own table of the configuration.
    """

    title = "Data and clients"

    partitioner: str = key(
        "classes", "how rows are divided among clients",
        values="`iid`, `classes`, `dirichlet`, `rotation`, `natural`, `mdm`, `shard`, `size`, `linear`, `square`, "
        "`exponential`, `inner-dirichlet`, `distribution`, `pathological`, `continuous`, `grouped-natural`, `file`, "
        "`pfllib-pathological`, `pfllib-practical`, `extended-dirichlet`, `quantity-skew`, `noise`, or "
        "[one of your own](partitions.md#a-partitioner-of-your-own)",
        also="partition partitioning",
    )  # fmt: skip
    num_clients: int = key(
        20,
        "number of clients; 0 with `natural`, `grouped-natural`, `file`: all; on devices: how many to wait for before "
        "round 1",
        ge=0,
        also="clients num-partitions num-supernodes n-clients num-users",
    )
    classes_per_client: Annotated[int | str, AfterValidator(_check_classes)] = key(
        "2-3",
        "S, for `classes`: number of classes per client; with a range every client draws its own S",
        values='number, or a range such as `"2-3"`',
        where="partitioner=classes",
    )
    class_assignment: Literal["random", "even", "shards"] = key(
        "even",
        "classes of each client: at random (PPFE, FLowDUP, FedGTST), evenly (PeFLL, pFedHN), or as shuffled shards, "
        "several of which may be of one class (LG-FedAvg's code)",
        where="partitioner=classes",
    )
    samples_per_client: int = key(
        0,
        "training examples m of each client, on average if sizes differ "
        "([details](configuration.md#numbers-of-examples)); 0: all rows are used",
        ge=0,
    )
    alpha: float = key(
        0.5,
        "α, concentration of the Dirichlet distribution, for `dirichlet`",
        gt=0,
        le=MOST_ALPHA,
        where="partitioner=dirichlet",
    )
    dirichlet_over: Literal["clients", "classes"] = key(
        "clients",
        "draw the distribution of each class over the clients, or of each client over the classes",
        where="partitioner=dirichlet",
    )
    balanced: bool = key(
        False,
        "for `dirichlet-over = clients`: a client that has its share of all examples gets none of the remaining "
        "classes; sizes still differ",
        where="partitioner=dirichlet and dirichlet-over=clients",
    )
    angles: Annotated[str, AfterValidator(_check_angles)] = key(
        "0,90,180,270",
        "degrees from which each client's rotation is drawn, for `rotation`",
        values="numbers",
        where="partitioner=rotation",
    )
    client_column: str = key(
        "",
        "column that names the clients, for `natural` and `grouped-natural`; several are joined by `+`",
        values='column, `a+b`, ""',
        where="partitioner=natural|grouped-natural",
    )
    domain_column: str = key(
        "",
        "column whose values are domains; each domain's rows go to an equal number of clients; not for `natural`",
        values='column, ""',
    )
    min_test_examples: int = key(0, "natural clients with fewer test examples are skipped", ge=0)
    embeddings: Annotated[str, AfterValidator(check_folder)] = key(
        "", "word vectors in GloVe's text format, for datasets of words", values='file, ""'
    )
    personalisation_ratio: Annotated[str, AfterValidator(_check_ratio)] = key(
        "0.5",
        "for `synthetic-linear`: weight of each client's own model",
        values='0..1, or a range `"0,1"`',
        where="dataset=synthetic-linear",
    )
    mdm_params: str = key(
        "",
        "distribution of clients' histograms, for `mdm` and `histograms` ([forms](methods/mdm.md#simulated-clients))",
        values='name, file, run folder, ""',
        where="partitioner=mdm or dataset=histograms",
    )
    client_rows: Annotated[str, AfterValidator(check_rows)] = key(
        "",
        'rows that are divided among the clients, selected by a column of names or by `label`; "": all',
        values="`column=value\\|value`",
    )
    server_examples: int = key(0, "examples like the clients' that only the server holds", ge=0)
    server_missing: int = key(0, "the server has no examples of this many classes, the last ones", ge=0)
    server_ood_rows: Annotated[str, AfterValidator(check_rows)] = key(
        "", "rows from which the server's out-of-distribution examples are chosen", values="`column=value\\|value`"
    )
    server_ood_examples: int = key(0, "number of the server's out-of-distribution examples", ge=0)
    server_data: Annotated[str, AfterValidator(check_folder)] = key(
        "", "parquet file of the server's examples, instead of chosen rows; required on real devices", values='file, ""'
    )
    share_out: Literal["clients", "server"] = key(
        "clients", "rows for the clients: all but the server's, or only the server's, to simulate clients on these"
    )
    unseen_fraction: float = key(
        0.0, "share of unseen clients, which take no part in training; simulation only", ge=0, lt=1
    )
    unseen_clients: str = key(
        "",
        "clients that take no part in training, by name or number, separated by commas; simulation only",
        values='clients, ""',
    )
    labeled_fraction: float = key(
        1.0, "p, share of the seen clients whose labels may be used; simulation only", gt=0, le=1
    )
    canaries: int = key(
        0, "number of canaries with wrong classes, for an [audit](privacy.md#audit); about half take part in training",
        ge=0,
    )  # fmt: skip
    canary_unit: Literal["example", "client"] = key(
        "example", "whether a canary is one example or a whole client", where="canaries!=0"
    )
    own: SerializeAsAny[Section] = NoHyper()

    def own_keys(self, kind: type[S]) -> S:
        """Return the chosen partitioner's own keys.

        Args:
            kind: the section that declares them; its defaults are returned if the settings were made without any.

        Raises:
            TypeError: if the settings hold the keys of another partitioner.
        """
        if isinstance(self.own, kind):
            return self.own
        if type(self.own) is NoHyper:
            return kind()
        raise TypeError(f"the settings hold {type(self.own).__name__}, not {kind.__name__}")
