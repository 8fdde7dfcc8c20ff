"""The generated part of ``docs/stability.md``: public names, groups of entry points, and what is deprecated."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import florilegium as fl
from docs.generate.method_pages import table
from florilegium.apps.origins.code import LAYERS
from florilegium.common.plugins import Registry

_REGISTRY = re.compile(r"^([A-Z_]+): Registry\[", re.MULTILINE)


@dataclass(frozen=True)
class Deprecation:
    """What a decorator ``deprecated`` states: where and of what, the advice, versions and the day (ISO)."""

    where: str
    name: str
    instead: str
    since: str
    until: str
    day: str


def deprecations(root: Path) -> list[Deprecation]:
    """Return all uses of :func:`florilegium.common.deprecation.deprecated` in the layers below ``root``."""
    texts = (
        (path, path.read_text(encoding="utf-8")) for layer in LAYERS for path in sorted((root / layer).rglob("*.py"))
    )
    return [
        Deprecation(path.relative_to(root).as_posix(), node.name, ast.literal_eval(call.args[0]), **{
            str(word.arg): ast.literal_eval(word.value) for word in call.keywords
        })
        for path, text in texts if "@deprecated(" in text for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for call in node.decorator_list
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "deprecated"
    ]  # fmt: skip


def registries(root: Path) -> Iterator[Registry[object]]:
    """Yield the registries that other packages extend, wherever a module of the layers declares one."""
    for layer in LAYERS:
        for path in sorted((root / layer).rglob("*.py")):
            for name in _REGISTRY.findall(path.read_text(encoding="utf-8")):
                module = ".".join(("florilegium", *path.relative_to(root).with_suffix("").parts))
                yield getattr(import_module(module), name)


def public_tables(root: Path) -> str:
    """Return the tables of ``docs/stability.md`` in Markdown."""
    names = [[f"`fl.{name}`", _kind(getattr(fl, name)), _fact(getattr(fl, name))] for name in fl.__all__]
    groups = [
        [f"`{one.group}`", one.title.partition(",")[0]] for one in sorted(registries(root), key=lambda one: one.group)
    ]
    marked = [
        [f"`{one.name}`", one.since, f"{one.until}, after {one.day}", one.instead] for one in deprecations(root)
    ]  # fmt: skip
    gone = table(["name", "deprecated since", "may be gone from", "instead"], marked) if marked else "Nothing is.\n"
    return "\n".join((
        "### Names of `import florilegium as fl`\n\n" + table(["name", "", ""], names),
        "### Groups of entry points\n\n" + table(["group", "each entry is"], groups),
        "### Deprecated at present\n\n" + gone,
    ))  # fmt: skip


def _kind(found: object) -> str:
    return "class" if inspect.isclass(found) else "function" if inspect.isroutine(found) else "type"


def _fact(found: object) -> str:
    """Return the first sentence of a docstring; "" for a type's other name."""
    if _kind(found) == "type":
        return ""
    first = (inspect.getdoc(found) or "").partition("\n\n")[0]
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", " ".join(first.split())).replace("``", "`")
