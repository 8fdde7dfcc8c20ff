"""All configuration keys for documentation: values, default, meaning, and the methods they belong to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from florilegium.apps.methods.registry import METHODS, table_of
from florilegium.apps.settings.configuration import sections
from florilegium.common.settings import Section, Value

_WORD = re.compile(r"`([A-Za-z0-9][\w.-]*\+?)`")
_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))


@dataclass(frozen=True)
class Key:
    """One configuration key.

    Attributes:
        name: its flat name, such as ``fedprox.mu``.
        default: its default value.
        values: the allowed values, in Markdown.
        meaning: what it does, in Markdown.
        also: what other programs call it.
    """

    name: str
    default: Value
    values: str
    meaning: str
    also: tuple[str, ...] = ()

    @property
    def shown_default(self) -> str:
        """The default as TOML."""
        return json.dumps(self.default, ensure_ascii=False)

    @property
    def words(self) -> list[str]:
        """Values to offer, as typed after ``--set``: the default, and words that ``values`` lists; no placeholders."""
        default = self.default if isinstance(self.default, str) else self.shown_default
        listed = _WORD.findall(self.values) if self.values.startswith("`") else []
        return [*dict.fromkeys([default, *listed])]


@dataclass(frozen=True)
class Group:
    """Keys that are listed together in the documentation.

    Attributes:
        title: the heading of the list.
        table: the configuration table of the keys; "" for common keys.
        keys: the keys, in the order of their declaration.
    """

    title: str
    table: str
    keys: list[Key]


def groups(tables: Mapping[str, type[Section]] | None = None) -> Iterator[Group]:
    """Yield the keys of ``tables``, by default the suite's own, grouped by the section that declares them."""
    for table, section in (sections() if tables is None else tables).items():
        declared: dict[type[Section], list[Key]] = {}
        for name, field in section.model_fields.items():
            if not isinstance(field.default, Section):
                owner = _owner(section, name) if not table else section
                declared.setdefault(owner, []).append(_key(table, field))
        order = [cls for cls in reversed(section.__mro__) if cls in declared]
        for owner in order:
            yield Group(owner.title or _methods(table), table, declared[owner])


def method_keys(method: str) -> list[Key]:
    """Return the keys of a method's configuration table, which other methods may share."""
    table = table_of(method)
    return [key for group in groups({table: METHODS[method].hyper()}) for key in group.keys]


def installed_sections() -> dict[str, type[Section]]:
    """Return the tables of the methods that other installed packages provide; broken packages are skipped."""
    foreign = [name for name in METHODS if name not in METHODS.own and not METHODS.problem(name)]
    return {table_of(name): METHODS[name].hyper() for name in foreign}


def _owner(section: type[Section], name: str) -> type[Section]:
    """Return the class, ``section`` or a base of it, that declares the field ``name``."""
    return next(cls for cls in reversed(section.__mro__) if name in getattr(cls, "model_fields", {}))


def _methods(table: str) -> str:
    names = [name for name, method in METHODS.items() if (method.table or name) == table]
    return ", ".join(names)


def _key(table: str, field: FieldInfo) -> Key:
    name = f"{table}.{field.alias}" if table else str(field.alias)
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    return Key(name, field.default, _values(field), field.description or "", tuple(str(extra.get("also", "")).split()))


def _values(field: FieldInfo) -> str:
    """Return the allowed values of a field in Markdown: as declared, or derived from its type and bounds."""
    extra = field.json_schema_extra
    if isinstance(extra, dict) and extra.get("values"):
        return str(extra["values"])
    annotation: Any = field.annotation
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if annotation is bool:
        return "`true`, `false`"
    if annotation not in (int, float):
        return "text"
    bounds = {
        name: getattr(constraint, name)
        for constraint in field.metadata
        for name, _ in _BOUNDS
        if getattr(constraint, name, None) is not None
    }
    low = bounds.get("ge", bounds.get("gt"))
    high = bounds.get("le", bounds.get("lt"))
    if low is not None and high is not None:
        return f"{'[' if 'ge' in bounds else '('}{low:g}, {high:g}{']' if 'le' in bounds else ')'}"
    return ", ".join(f"{sign} {bounds[name]:g}" for name, sign in _BOUNDS if name in bounds) or "number"
