"""Which of the keys that a run is given nothing in it reads: a plug-in's own, and conditional ones."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence

from florilegium.apps.methods.registry import METHODS, table_of
from florilegium.apps.settings.configuration import defaults_of, sections
from florilegium.common.settings import Value
from florilegium.strategies.settings.plugged import PLUGGED, own_tables
from florilegium.strategies.settings.server import TABLES

log = logging.getLogger("flwr")

DESCENDS = "descends"
"""Name in conditions of :attr:`florilegium.apps.methods.declaration.Method.descends`."""


def warn_of_idle_keys(
    named: Collection[str], wanted: Sequence[Mapping[str, Value]], recipe: Sequence[Mapping[str, Value]] = ()
) -> None:
    """Log a warning for the keys that runs are given, wherever they were set, and that none of these runs reads.

    Args:
        named: the keys that the user has named for these runs.
        wanted: the configurations of the runs, where they were given.
        recipe: the configurations that their recipe offers. Its keys are no mistake if one of these reads them: it is
            for several methods.
    """
    found = [(keys, idle_keys(keys)) for keys in (*wanted, *recipe)]
    told: dict[str, list[str]] = {}
    for key in dict.fromkeys([*named, *(key for keys in wanted for key in (keys if recipe else ()))]):
        judged = found[: len(wanted)] if key in named else found
        reasons = [idle.get(key, "") for keys, idle in judged if key in keys]
        if reasons and all(reasons):
            told.setdefault(reasons[0], []).append(key)
    for reason, keys in told.items():
        log.warning("%s: no effect, %s", ", ".join(keys), reason)


def idle_keys(given: Mapping[str, Value]) -> dict[str, str]:
    """Return those of the ``given`` keys that nothing in their run reads, each with the reason.

    A method or other plug-in of another package may read any key that all runs have.

    Args:
        given: keys of a run.

    Raises:
        ConfigurationError: if the method or another plug-in does not exist.
    """
    known = defaults_of(given)
    config = {**known, **given}
    method = str(config["method"])
    config |= METHODS[method].implies
    tables = {key.partition(".")[0] for key in known if "." in key}
    read = tables & {*TABLES, table_of(method), *own_tables(config)}
    own = method in METHODS.own and all(str(config[key]) in one.registry.own for key, one in PLUGGED.items())
    conditions = _conditions(table_of(method)) if own else {}
    found = {}
    for key in [key for key in given if key in known]:
        table, dot, _ = key.partition(".")
        if dot and table not in read:
            found[key] = f"the runs read only the tables {', '.join(sorted(read))}"
        elif unmet := next(_unmet(conditions.get(key, ""), {**config, DESCENDS: METHODS[method].descends}), ""):
            found[key] = f"read only with {unmet}"
    return found


def _conditions(table: str) -> dict[str, str]:
    """Return with which values of others each key is read (:func:`florilegium.common.settings.key`), where not always.

    Args:
        table: the table of the run's method.
    """
    return {
        f"{name}.{field.alias}" if name else str(field.alias): str(extra["where"])
        for name, section in sections().items()
        if name in ("", table, *TABLES)
        for field in section.model_fields.values()
        if isinstance(extra := field.json_schema_extra, dict) and extra.get("where")
    }


def _unmet(where: str, config: Mapping[str, Value]) -> Iterator[str]:
    """Yield the conditions of ``where``, joined by " and ", that a configuration does not meet, in words."""
    for condition in where.split(" and ") if where else ():
        if not any(_holds(choice, config) for choice in condition.split(" or ")):
            words = condition.replace(f"{DESCENDS}=true", "a method that trains by descent").replace("|", " or ")
            yield words.replace("!=", " ≠ ").replace("=", " = ").removesuffix(" ")


def _holds(choice: str, config: Mapping[str, Value]) -> bool:
    name, _, values = choice.partition("=")
    equal = not name.endswith("!")
    return (_word(config[name.removesuffix("!")]) in values.split("|")) == equal


def _word(value: Value) -> str:
    """Return a value as conditions have it."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else f"{value:g}"
