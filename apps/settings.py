"""The run configuration: flat keys from Flower, checked on server and clients, as frozen typed models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, ValidationError

from florilegium.apps.methods import METHODS, table_of
from florilegium.clients.core.settings import ClientSettings
from florilegium.common.errors import ConfigurationError, DataError, nearest
from florilegium.common.settings import Section, Value, key
from florilegium.models.networks import NETWORKS, takes
from florilegium.partitions.dealing import PARTITIONERS
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.settings import SourceSettings, check_rows
from florilegium.privacy.settings import PrivacySettings
from florilegium.strategies.core.run_folder import read_config
from florilegium.strategies.core.settings import ServerSettings

S = TypeVar("S", bound=Section)


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
        "", 'rows of the target dataset to use; "": all', values="`column=value\\|value`"
    )
    transfer_train: Literal["classifier", "whole"] = key("classifier", "what is trained on the target dataset, by Adam")
    transfer_epochs: int = key(20, "epochs on the target dataset", ge=1)
    transfer_batch_size: int = key(256, "examples in a batch on the target dataset", ge=1)
    transfer_learning_rate: float = key(0.001, "learning rate on the target dataset", gt=0)
    transfer_weight_decay: float = key(0.0, "weight decay on the target dataset", ge=0)


class Settings(TransferSettings, ClientSettings, ServerSettings):
    """All common keys of a run."""


def sections() -> dict[str, type[Section]]:
    """Return every table of the configuration by its name; "" holds the common keys."""
    tables: dict[str, type[Section]] = {"": Settings, "privacy": PrivacySettings}
    for name, method in METHODS.items():
        if method.hyper().model_fields:
            tables[table_of(name)] = method.hyper()
    return tables


@lru_cache(maxsize=1)
def defaults() -> dict[str, Value]:
    """Return every key of the run configuration with its default, flat: ``{"fedprox.mu": 0.01, …}``."""
    return {
        f"{table}.{field.alias}" if table else str(field.alias): field.default
        for table, section in sections().items()
        for field in section.model_fields.values()
        if not isinstance(field.default, Section)
    }


def parse(config: Mapping[str, Value]) -> tuple[Settings, Section]:
    """Check a complete run configuration.

    Args:
        config: flat keys, as ``context.run_config`` has them; a method's own keys start with its name and a dot.

    Returns:
        The common settings and the hyper-parameters of the chosen method.

    Raises:
        ConfigurationError: that lists every wrong key with its value, what is allowed, and the nearest known word.
    """
    problems = []
    known = defaults()
    for name in config.keys() - known.keys():
        problems.append(f"{name}: there is no such key{nearest(name, known)}")
    for name in known.keys() - config.keys():
        problems.append(
            f"{name}: missing, though the code declares it; the app's pyproject.toml is older than its code: run 'make "
            "generate' in a checkout, or 'florilegium app' for a new one"
        )
    config = {**known, **config}  # missing keys are reported above; their defaults cause no further errors
    common: dict[str, Any] = {name: value for name, value in config.items() if "." not in name and name in known}
    private = _check(PrivacySettings, _table(config, "privacy"), "privacy.", problems)
    settings = _check(Settings, {**common, "privacy": private}, "", problems) if private else None
    for name, table in (("method", METHODS), ("partitioner", PARTITIONERS), ("model", NETWORKS)):
        word = str(config.get(name))
        if word not in table:
            problems.append(f"{name}: '{word}' is unknown{nearest(word, table)} Allowed: {', '.join(table)}")
    names = {str(field.alias) for field in SourceSettings.model_fields.values()}
    source = _check(SourceSettings, {name: value for name, value in common.items() if name in names}, "", [])
    try:
        spec, model = dataset_of(source or SourceSettings()), str(config.get("model"))
        if model in NETWORKS and not takes(model, spec.kind, spec.tokens):
            fitting = [name for name in NETWORKS if takes(name, spec.kind, spec.tokens)]
            problems.append(
                f"model: '{model}' does not take the inputs of '{spec.name}'. Allowed: {', '.join(fitting)}"
            )
        tasks = {"regression"} if spec.kind == "regression" else {"classification", "clustering", "histograms"}
        fitting = [name for name, method in METHODS.items() if method.task in tasks]
        if config.get("method") in METHODS and config["method"] not in fitting:
            problems.append(
                f"method: '{config['method']}' does not predict the labels of '{spec.name}'. Allowed: "
                f"{', '.join(fitting)}"
            )
        clustering = config.get("method") in METHODS and METHODS[str(config["method"])].task == "clustering"
        if model in NETWORKS and clustering != (model == "centers"):
            problems.append(
                f"model: '{config.get('method')}' "
                + ("finds centres: it needs model = 'centers'" if clustering else "trains a network, not 'centers'")
                + f" (found: '{model}')"
            )
    except (ConfigurationError, DataError) as error:
        problems.append(str(error))
    method = str(config.get("method"))
    if settings and settings.validation_fraction and method in METHODS and METHODS[method].task != "classification":
        problems.append(f"validation-fraction: method '{method}' has no classes to predict; set it to 0")
    if settings and settings.finetune_bn != "running" and not settings.finetune_epochs:
        problems.append(f"finetune-bn: nothing is tuned with finetune-epochs = 0 (found: '{settings.finetune_bn}')")
    hyper = None
    if method in METHODS:
        hyper = _check(METHODS[method].hyper(), _table(config, table_of(method)), f"{table_of(method)}.", problems)
    if problems or settings is None or hyper is None:
        raise ConfigurationError(
            "The run configuration is wrong.\n" + "\n".join(f"  {line}" for line in sorted(problems))
        )
    return settings, hyper


def read_settings(run: Path) -> tuple[Settings, Section]:
    """Return the settings and hyper-parameters of the run in folder ``run``; keys newer than it have their defaults.

    Raises:
        ConfigurationError: if ``run`` is not the folder of a run, or uses keys or values that no longer exist.
    """
    return parse({**defaults(), **read_config(run)})


def _table(config: Mapping[str, Value], name: str) -> dict[str, Value]:
    """Return the known keys of table ``name`` without the prefix ``name.``."""
    return {
        word.removeprefix(f"{name}."): value
        for word, value in config.items()
        if word.startswith(f"{name}.") and word in defaults()
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
