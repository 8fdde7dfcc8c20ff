"""The run configuration: flat keys from Flower, checked on server and clients, as frozen typed models."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Hashable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from pydantic import AfterValidator, ValidationError

from florilegium.apps.methods.declaration import Method
from florilegium.apps.methods.registry import METHODS, table_of
from florilegium.clients.core.settings import ClientSettings
from florilegium.common.errors import ConfigurationError, DataError, nearest
from florilegium.common.memo import remembered
from florilegium.common.model_folders import find_folder, named_folder
from florilegium.common.settings import NoHyper, Section, Value, key
from florilegium.common.toml import flatten, nested
from florilegium.models.networks import NETWORKS, network_problem, takes
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.settings import SourceSettings, check_rows
from florilegium.partitions.sources.pieces import other_vocabulary
from florilegium.partitions.sources.source import AUTO
from florilegium.partitions.spec import DatasetSpec
from florilegium.strategies.folder.run_folder import read_config
from florilegium.strategies.settings.plugged import PLUGGED
from florilegium.strategies.settings.server import TABLES, ServerSettings
from florilegium.tasks.task import CLASSES

S = TypeVar("S", bound=Section)
TARGET = "target"
"""Key of the final figures after a transfer to another dataset; it stands beside the groups of clients."""


class TransferSettings(Section):
    """Keys of the transfer to another dataset, an optional last step of a run."""

    title = "Transfer to another dataset, as the last step"

    transfer_target: str = key(
        "",
        "at the end of `florilegium run` and `sweep`, try the features on this dataset "
        "([how](methods/fedgtst.md#transfer)); after plain `flwr run` there is `florilegium transfer`",
        values='dataset, ""',
    )
    transfer_rows: Annotated[str, AfterValidator(check_rows)] = key(
        "",
        'rows of the target dataset to use; "": all',
        values="`column=value\\|value`",
        where="transfer-target!=",
    )
    transfer_train: Literal["classifier", "whole"] = key(
        "classifier", "what is trained on the target dataset, by Adam", where="transfer-target!="
    )
    transfer_epochs: int = key(20, "epochs on the target dataset", ge=1, where="transfer-target!=")
    transfer_batch_size: int = key(256, "examples in a batch on the target dataset", ge=1, where="transfer-target!=")
    transfer_learning_rate: float = key(0.001, "learning rate on the target dataset", gt=0, where="transfer-target!=")
    transfer_weight_decay: float = key(0.0, "weight decay on the target dataset", ge=0, where="transfer-target!=")


class PackageSettings(Section):
    """The key that carries the keys of other packages through Flower, whose run configuration knows ours alone."""

    title = "Methods and partitioners of other packages"

    package_keys: str = key(
        "",
        "their own keys as TOML, such as `fed-mine.strength = 0.3`, for plain `flwr run`; "
        "elsewhere they are written like any key",
        values="TOML",
    )


class Settings(PackageSettings, TransferSettings, ClientSettings, ServerSettings):
    """All common keys of a run."""


PACKAGE_KEYS = "package-keys"


def sections() -> dict[str, type[Section]]:
    """Return every table of the suite's own configuration by its name; "" holds the common keys."""
    tables: dict[str, type[Section]] = {"": Settings, **TABLES}
    own = [(table_of(name), METHODS[name].hyper()) for name in METHODS.own]
    own += [entry for one in PLUGGED.values() for entry in one.suites().items()]
    return tables | {table: section for table, section in own if section.model_fields}


def package_sections(config: Mapping[str, Value]) -> dict[str, type[Section]]:
    """Return the tables of the method and other plug-ins that ``config`` takes from other packages, by name.

    Raises:
        ConfigurationError: if two have a table of the same name.
    """
    method = str(config.get("method", ""))
    tables: dict[str, type[Section]] = {}
    if method not in METHODS.own and not METHODS.problem(method):
        tables[table_of(method)] = METHODS[method].hyper()
    for word, one in PLUGGED.items():
        for table, section in one.others(name := str(config.get(word, ""))).items():
            if table in tables:
                raise ConfigurationError(f"{word}: '{name}' and '{method}' both have the table [{table}]; rename one")
            tables[table] = section
    return {table: section for table, section in tables.items() if section.model_fields}


def _flat(tables: Mapping[str, type[Section]]) -> dict[str, Value]:
    """Return the keys of ``tables`` with their defaults, flat."""
    return {
        f"{table}.{field.alias}" if table else str(field.alias): field.default
        for table, section in tables.items()
        for field in section.model_fields.values()
        if not isinstance(field.default, Section)
    }


@lru_cache(maxsize=1)
def defaults() -> dict[str, Value]:
    """Return every key of the suite's own with its default, flat: ``{"fedprox.mu": 0.01, …}``."""
    return _flat(sections())


def called(word: str) -> str:
    """Return the common key that other programs call ``word``, such as "lr"; "" if there is none."""
    for field in sections()[""].model_fields.values():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and word in str(extra.get("also", "")).split():
            return str(field.alias)
    return ""


def defaults_of(config: Mapping[str, Value]) -> dict[str, Value]:
    """Return every key that a run with the method and partitioner of ``config`` may have, with its default."""
    return {**defaults(), **_flat(package_sections(config))}


def complete(given: Mapping[str, Value]) -> dict[str, Value]:
    """Return a complete run configuration: the given keys, and the defaults of all others that the run may have.

    Raises:
        ConfigurationError: if key ``package-keys`` is not valid TOML.
    """
    return received({**defaults(), **given})


def received(config: Mapping[str, Value]) -> dict[str, Value]:
    """Return a run configuration as Flower delivers it, with the keys of other packages in their own places.

    Raises:
        ConfigurationError: if key ``package-keys`` is not valid TOML.
    """
    try:
        own = flatten(tomllib.loads(str(config.get(PACKAGE_KEYS, ""))))
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise ConfigurationError(
            f"{PACKAGE_KEYS}: {config[PACKAGE_KEYS]!r} is not valid TOML such as 'fed-mine.strength = 0.3': {error}"
        ) from error
    spread = {**config, **({PACKAGE_KEYS: ""} if PACKAGE_KEYS in config else {}), **own}
    return {**_flat(package_sections(spread)), **spread}


def packed(given: Mapping[str, Value]) -> dict[str, Value]:
    """Return given keys as Flower accepts them: those of other packages as one text, in key ``package-keys``."""
    foreign = {name: value for name, value in given.items() if name not in defaults()}
    known = {name: value for name, value in given.items() if name in defaults()}
    return known | ({PACKAGE_KEYS: tomli_w.dumps(nested(foreign))} if foreign else {})


def parse(config: Mapping[str, Value]) -> tuple[Settings, Section]:
    """Check a complete run configuration.

    Args:
        config: flat keys, as :func:`complete` and :func:`received` return them; a method's own keys start with the
            name of its table and a dot.

    Returns:
        The common settings and the hyper-parameters of the chosen method.

    Raises:
        ConfigurationError: that lists every wrong key with its value, what is allowed, and the nearest known word.
    """
    # The checks before a run, the run, and its parts ask for the same; 1, 1.0 and True are equal, but not the same.
    given = tuple((name, type(value), value) for name, value in config.items())
    usual = all(isinstance(value, Hashable) for value in config.values())  # others are refused
    return (_parsed if usual else _parsed.__wrapped__)(given)


@remembered(16)
def _parsed(given: tuple[tuple[str, type[Value], Value], ...]) -> tuple[Settings, Section]:
    config: Mapping[str, Value] = {name: value for name, _, value in given}
    problems = []
    known = {**defaults(), **_flat(package_sections(config))}
    for name in config.keys() - known.keys():
        meant = called(name)
        hint = f"; it is called '{meant}' here" if meant else nearest(name, known)
        problems.append(f"{name}: there is no such key{hint}")
    for name in known.keys() - config.keys():
        problems.append(
            f"{name}: missing, though the code declares it; the app's pyproject.toml is older than its code: run 'make "
            "generate' in a checkout, or 'florilegium app' for a new one"
        )
    for name, value in config.items():
        if type(value) is int and not -(2**63) <= value < 2**63:
            problems.append(f"{name}: whole numbers lie between -2^63 and 2^63 - 1 (found: {value})")
    config = dict(known) | dict(config)  # missing keys are reported above; their defaults cause no further errors
    problems += _implied(config)
    common: dict[str, Any] = {name: value for name, value in config.items() if "." not in name and name in known}
    tables = {n: _check(section, _table(config, n, known), f"{n}.", problems) for n, section in TABLES.items()}
    if common["tokenizer"] == AUTO:
        common["tokenizer"] = named_folder(str(config["model"]))
    method, model = str(config["method"]), str(config["model"])
    chosen = [(one, str(config[key])) for key, one in PLUGGED.items()]
    named = (METHODS.problem(method), network_problem(model), *(one.registry.problem(n) for one, n in chosen))
    problems += [problem for problem in named if problem]
    parts: dict[str, Section | None] = {**tables}
    for one, name in chosen:
        if not one.registry.problem(name):
            table = one.table_of(name)
            own = _check(one.keys(name), _table(config, table, known), f"{table}.", problems)
            parts[one.field] = own or NoHyper()
    settings = _check(Settings, {**common, **parts}, "", problems) if all(tables.values()) else None
    entry = METHODS[method] if not METHODS.problem(method) else None
    names = {str(field.alias) for field in SourceSettings.model_fields.values()}
    source = _check(SourceSettings, {name: value for name, value in common.items() if name in names}, "", [])
    try:
        problems += _unsuitable(dataset_of(source or SourceSettings()), method, entry, model)
    except (ConfigurationError, DataError) as error:
        problems.append(str(error))
    if settings and settings.validation_fraction and entry and entry.task != "targets":
        problems.append(f"validation-fraction: method '{method}' predicts no targets; set it to 0")
    if settings and settings.finetune_bn != "running" and not settings.finetune_epochs:
        problems.append(f"finetune-bn: nothing is tuned with finetune-epochs = 0 (found: '{settings.finetune_bn}')")
    hyper = None
    if entry:
        table = table_of(method)
        hyper = _check(entry.hyper(), _table(config, table, known), f"{table}.", problems)
    if problems or settings is None or hyper is None:
        raise ConfigurationError(
            "The run configuration is wrong.\n" + "\n".join(f"  {line}" for line in sorted(problems))
        )
    return settings, hyper


def _implied(config: dict[str, Value]) -> list[str]:
    """Set the keys that the method sets itself; return what is wrong with those that have another value."""
    method = str(config["method"])
    problems = []
    for name, value in METHODS[method].implies.items() if not METHODS.problem(method) else ():
        if config[name] not in (value, defaults()[name]):
            problems.append(f"{name}: method '{method}' sets it to {value!r}; leave it out (found: {config[name]!r})")
        config[name] = value
    return problems


def parse_source(keys: Mapping[str, Value]) -> SourceSettings:
    """Check the keys that say what the dataset is and what is learned from it, without those of a whole run.

    Raises:
        ConfigurationError: that lists every wrong key.
    """
    known = [str(field.alias) for field in SourceSettings.model_fields.values()]
    problems = [
        f"{key}: no key that says what the data are{nearest(key, known)} Possible are: {', '.join(known)}"
        for key in keys
        if key not in known
    ]
    settings = _check(SourceSettings, {key: keys[key] for key in keys if key in known}, "", problems)
    if problems or settings is None:
        raise ConfigurationError("The keys of the data are wrong.\n" + "\n".join(f"  {line}" for line in problems))
    return settings


def _unsuitable(spec: DatasetSpec, method: str, entry: Method | None, model: str) -> Iterator[str]:
    """Yield what does not go together: the dataset's inputs, the network, and what the method learns."""
    if not takes(model, spec.kind, spec.tokens):
        fitting = [name for name in NETWORKS.own if takes(name, spec.kind, spec.tokens)]
        allowed = ", ".join(fitting) or "transformers:… with tokenizer = 'auto'"
        yield f"model: '{model}' does not take the inputs of '{spec.name}'. Allowed: {allowed}"
    if (pretrained := named_folder(model)) and spec.tokenizer and not network_problem(model):
        yield from other_vocabulary(Path(spec.tokenizer), find_folder(pretrained, "model"))
    if entry is None:
        return
    of_classes = entry.task in ("clustering", "histograms")
    if (task := spec.learned) and of_classes and CLASSES not in task.provides:
        fitting = [name for name in METHODS.own if METHODS[name].task == "targets"]
        yield (
            f"method: '{method}' learns {entry.task}, and '{spec.name}' has targets that are no classes. Allowed: "
            f"{', '.join(fitting)}"
        )
    if not network_problem(model) and (entry.task == "clustering") != (model == "centers"):
        needs = "finds centres: it needs model = 'centers'" if entry.task == "clustering" else (
            "trains a network, not 'centers'")  # fmt: skip
        yield f"model: '{method}' {needs} (found: '{model}')"
    if model == "trees" and entry.implies.get("model") != model:
        yield f"model: '{method}' trains a network, not 'trees', which method 'trees' grows (found: '{model}')"


def read_settings(run: Path) -> tuple[Settings, Section]:
    """Return the settings and hyper-parameters of the run in folder ``run``; keys newer than it have their defaults.

    Raises:
        ConfigurationError: if ``run`` is not the folder of a run, or uses keys or values that no longer exist.
    """
    return parse(complete(read_config(run)))


def _table(config: Mapping[str, Value], name: str, known: Collection[str]) -> dict[str, Value]:
    """Return the ``known`` keys of table ``name`` without the prefix ``name.``."""
    return {
        word.removeprefix(f"{name}."): value
        for word, value in config.items()
        if word.startswith(f"{name}.") and word in known
    }


def _check(model: type[S], values: Mapping[str, Any], prefix: str, problems: list[str]) -> S | None:
    coerced = {name: _as_float(model, name, value) for name, value in values.items()}
    try:
        return model.model_validate(coerced)
    except ValidationError as error:
        for problem in error.errors():
            name = str(problem["loc"][0]) if problem["loc"] else ""  # no "loc": a combination of keys is wrong
            found = f" (found: {values.get(name)!r})" if name else ""
            message = problem["msg"].removeprefix("Value error, ")
            problems.append(f"{f'{prefix}{name}'.removesuffix('.')}: {message[0].lower()}{message[1:]}{found}")
        return None


def _as_float(model: type[Section], name: str, value: Any) -> Any:
    """Convert an integer to a float if the key is a float, so that ``1`` may be written for ``1.0``."""
    field = model.model_fields.get(name.replace("-", "_"))
    wants_float = field is not None and field.annotation is float
    return float(value) if wants_float and type(value) is int else value
