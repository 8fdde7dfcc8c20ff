"""The run configuration: flat keys from Flower, checked once on both sides, as frozen typed models."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError

from apps.methods import METHODS, table_of
from clients.settings import ClientSettings
from common.errors import ConfigurationError, nearest
from common.settings import Section, Value
from common.toml import flatten
from models.networks import FOR_TEXT, NETWORKS
from partitions.datasets import find_spec
from partitions.dealing import PARTITIONERS
from partitions.settings import check_rows
from privacy.settings import PrivacySettings
from strategies.run_folder import read_config
from strategies.settings import ServerSettings

S = TypeVar("S", bound=Section)
ROOT = Path(__file__).resolve().parent.parent
"""The app's folder: the checkout, or the place where Flower unpacked it."""


class TransferSettings(Section):
    """What a run's features are tried on at its end."""

    transfer_target: str
    transfer_rows: Annotated[str, AfterValidator(check_rows)]
    transfer_train: Literal["classifier", "whole"]
    transfer_epochs: int = Field(ge=1)
    transfer_batch_size: int = Field(ge=1)
    transfer_learning_rate: float = Field(gt=0)
    transfer_weight_decay: float = Field(ge=0)


class Settings(ClientSettings, ServerSettings, TransferSettings):
    """All common keys of a run."""


@lru_cache(maxsize=1)
def defaults() -> dict[str, Value]:
    """Return every default of the run configuration, flat, from ``pyproject.toml``."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return flatten(tomllib.load(file)["tool"]["flwr"]["app"]["config"])


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
    for key in config.keys() - known.keys():
        problems.append(f"{key}: there is no such key{nearest(key, known)}")
    common: dict[str, Any] = {key: value for key, value in config.items() if "." not in key and key in known}
    private = _check(PrivacySettings, _table(config, "privacy"), "privacy.", problems)
    settings = _check(Settings, {**common, "privacy": private}, "", problems) if private else None
    for key, table in (("method", METHODS), ("partitioner", PARTITIONERS), ("model", NETWORKS)):
        word = str(config.get(key))
        if word not in table:
            problems.append(f"{key}: '{word}' is unknown{nearest(word, table)} Allowed: {', '.join(table)}")
    try:
        spec, model = find_spec(str(config.get("dataset"))), str(config.get("model"))
        text = spec.kind if spec.kind in FOR_TEXT.values() else None
        if model in NETWORKS and FOR_TEXT.get(model) != text:
            fitting = [name for name in NETWORKS if FOR_TEXT.get(name) == text]
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
    except ConfigurationError as error:
        problems.append(str(error))
    method = str(config.get("method"))
    if settings and settings.validation_fraction and method in METHODS and METHODS[method].task != "classification":
        problems.append(f"validation-fraction: method '{method}' has no classes to predict; set it to 0")
    if settings and settings.finetune_bn != "running" and not settings.finetune_epochs:
        problems.append(f"finetune-bn: nothing is tuned with finetune-epochs = 0 (found: '{settings.finetune_bn}')")
    hyper = None
    if method in METHODS:
        hyper = _check(METHODS[method].hyper, _table(config, table_of(method)), f"{table_of(method)}.", problems)
    if problems or settings is None or hyper is None:
        raise ConfigurationError(
            "The run configuration is wrong.\n" + "\n".join(f"  {line}" for line in sorted(problems))
        )
    return settings, hyper


def read_settings(run: Path) -> tuple[Settings, Section]:
    """Return ``parse`` of the configuration of the run in ``run``; keys that it did not know yet have their defaults.

    Raises:
        ConfigurationError: if it is not the folder of a run, or has keys or values that are no longer known.
    """
    return parse({**defaults(), **read_config(run)})


def _table(config: Mapping[str, Value], name: str) -> dict[str, Value]:
    """Return the known keys of a table, without its name."""
    return {
        key.removeprefix(f"{name}."): value
        for key, value in config.items()
        if key.startswith(f"{name}.") and key in defaults()
    }


def _check(model: type[S], values: Mapping[str, Any], prefix: str, problems: list[str]) -> S | None:
    coerced = {key: _as_float(model, key, value) for key, value in values.items()}
    try:
        return model.model_validate(coerced)
    except ValidationError as error:
        for problem in error.errors():
            key = str(problem["loc"][0]) if problem["loc"] else ""  # none: several do not go together
            found = "" if problem["type"] == "missing" or not key else f" (found: {values.get(key)!r})"
            message = problem["msg"].removeprefix("Value error, ")
            problems.append(f"{f'{prefix}{key}'.removesuffix('.')}: {message[0].lower()}{message[1:]}{found}")
        return None


def _as_float(model: type[Section], key: str, value: Any) -> Any:
    """TOML tells 1 from 1.0; people do not. Everything else is typed strictly."""
    field = model.model_fields.get(key.replace("-", "_"))
    wants_float = field is not None and field.annotation is float
    return float(value) if wants_float and type(value) is int else value
