"""The JSON schema of recipes, by which editors complete and check TOML (taplo, Even Better TOML)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from florilegium.apps.settings.configuration import sections
from florilegium.apps.settings.keys import groups, installed_sections
from florilegium.apps.sweeps.sweep import Sweep
from florilegium.apps.tuning.space import Range, Tune
from florilegium.common.settings import Section

_KEYS = "#/definitions/keys"


def recipe_schema() -> dict[str, Any]:
    """Return the schema of a recipe: the suite's keys and those of installed packages, variants, sweeps, tuning.

    Tables of methods that are named by reference (``module:attribute``) are not known; they may hold anything.
    """
    tables = sections() | installed_sections()
    told = {key.name: key.values for group in groups(tables) for key in group.keys}
    keys = _properties(tables[""], "", told)
    keys |= {name: _closed(_properties(section, name, told)) for name, section in tables.items() if name}
    definitions = {"keys": {"type": "object", "properties": keys, "additionalProperties": {"type": "object"}}}
    named: dict[str, Any] = {}
    for name, model, meaning in (
        ("sweeps", Sweep, "runs of variants, values of a key and seeds, reported in one table: `florilegium sweep`"),
        ("tune", Tune, "keys that are tuned for methods on held-out examples: `florilegium tune`"),
    ):
        own = _model(model)
        definitions |= own.pop("$defs", {})
        own.pop("required", None)  # a recipe may extend another's table
        named[name] = {"description": meaning, "type": "object", "additionalProperties": own}
    tried = {"$ref": f"#/definitions/{Range.__name__}"}  # a dotted key is a table of its own
    ranges = {"anyOf": [tried, {"type": "object", "additionalProperties": tried}]}
    tune = named["tune"]["additionalProperties"]["properties"]
    tune["keys"]["additionalProperties"] = tune["own"]["additionalProperties"]["additionalProperties"] = ranges
    variants = {"description": "keys that `RECIPE:VARIANT` adds", "additionalProperties": {"$ref": _KEYS}}
    published = {"description": "published figures, by source", "type": "object"}
    properties = {
        "extends": {"description": "the recipe whose keys come first", "type": "string"},
        **{name: {"$ref": f"{_KEYS}/properties/{name}"} for name in keys},
        "variants": variants, **named, "published": published,
    }  # fmt: skip
    return {
        "$schema": "http://json-schema.org/draft-07/schema#", "title": "Recipe of Florilegium", "type": "object",
        "properties": properties, "additionalProperties": {"type": "object"}, "definitions": definitions,
    }  # fmt: skip


def _model(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(ref_template="#/definitions/{model}")


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _properties(section: type[Section], table: str, told: dict[str, str]) -> dict[str, Any]:
    """Return the schema of each key of a table, with its meaning and, where types say less, its allowed values."""
    found = {}
    for name, schema in _model(section)["properties"].items():
        if (key := f"{table}.{name}" if table else name) not in told:
            continue  # another table
        own = {word: schema[word] for word in schema if word not in ("title", "values", "where", "also")}
        if own.get("type") == "string" and told[key] != "text":
            own["description"] = f"{own['description']}\n\nvalues: {told[key]}"
        found[name] = own
    return found
