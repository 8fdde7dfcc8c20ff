"""The keys that name a plug-in with keys of its own: the plug-in's table, its section, and the field that holds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from florilegium.clients.attacks.registry import ATTACKS
from florilegium.common.plugins import Registry
from florilegium.common.settings import Section, Value
from florilegium.partitions.registry import PARTITIONERS
from florilegium.strategies.robust.registry import RULES


@dataclass(frozen=True)
class Plugged:
    """A key whose value is the name of a plug-in.

    Attributes:
        registry: the plug-ins by name.
        section: returns a plug-in's own section of keys, given its entry in the registry.
        table: returns the name of a plug-in's table that its entry states, "" if it states none.
        field: the field of the settings that holds the values of the chosen one's own keys.
    """

    registry: Registry[Any]
    section: Callable[[Any], type[Section]]
    table: Callable[[Any], str]
    field: str

    def keys(self, name: str) -> type[Section]:
        """Return the section of a plug-in's own keys."""
        return self.section(self.registry[name])

    def table_of(self, name: str) -> str:
        """Return the name of the table that holds a plug-in's own keys; "" if it has none.

        Raises:
            ConfigurationError: if there is no such plug-in, or its table has the name of one of the suite's own.
        """
        stated = self.table(self.registry[name])
        return self.registry.table(name, stated) if self.keys(name).model_fields else ""

    def suites(self) -> dict[str, type[Section]]:
        """Return the suite's own sections by the names of their tables, also empty ones."""
        return {name: self.keys(name) for name in self.registry.own}

    def others(self, name: str) -> dict[str, type[Section]]:
        """Return the section of a plug-in of another package by its table; {} for the suite's own and unknown ones."""
        if name in self.registry.own or self.registry.problem(name):
            return {}
        return {self.table_of(name): self.keys(name)}


PLUGGED: Mapping[str, Plugged] = {
    "partitioner": Plugged(PARTITIONERS, lambda entry: entry.section(), lambda entry: str(entry.table), "own"),
    "attack": Plugged(ATTACKS, lambda entry: entry.keys, lambda entry: "", "attack_keys"),
    "aggregation": Plugged(RULES, lambda entry: entry.keys, lambda entry: "", "rule"),
}
"""By the key that names the plug-in."""


def own_tables(config: Mapping[str, Value]) -> list[str]:
    """Return the tables of the plug-ins that a configuration names; unset keys name none."""
    return [one.table_of(str(config[key])) for key, one in PLUGGED.items() if config.get(key)]
