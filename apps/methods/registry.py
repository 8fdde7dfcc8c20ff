"""The registry of methods: the suite's own, and those of other packages."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from florilegium.apps.methods.declaration import Method
from florilegium.apps.methods.suite import OWN_METHODS
from florilegium.common.plugins import Registry
from florilegium.common.settings import Section
from florilegium.strategies.settings.server import TABLES

_MESSAGES, _TRAINING = "messages = fl.Messages(…)", "training = fl.Training(…)"
EARLIER = {
    "privacy_gap": _MESSAGES, "secure_gap": _MESSAGES, "compression_gap": _MESSAGES, "buffer_gap": _MESSAGES,
    "transfer_gap": _MESSAGES, "example_gap": _TRAINING, "vectorise_gap": _TRAINING,
    "init_gap": "the class method own_start(hyper)",
}  # fmt: skip
"""What classes stated in earlier versions, and what they state now in its place (docs/extending.md)."""


def table_of(method: str) -> str:
    """Return the name of the configuration table that holds a method's own keys."""
    return METHODS[method].table or method


def _read(found: Any, reference: str) -> Method:
    """Return the method that another package provides: a :class:`Method`, or a client class for FedAvg's strategy.

    Raises:
        TypeError: if ``found`` is neither, or its parts are of other types.
        ValueError: if its keys would stand in a table of the suite's own.
    """
    from florilegium.clients.core.base import BaseClient
    from florilegium.strategies.core.cohort import CohortStrategy

    if isinstance(found, type) and issubclass(found, BaseClient):
        found = Method((found.__doc__ or found.__name__).strip().splitlines()[0], reference, client=reference)
    if not isinstance(found, Method):
        raise TypeError(f"expected a florilegium.Method or a subclass of BaseClient (found: {_described(found)})")
    parts = (
        ("strategy", found.strategy_class(), CohortStrategy), ("client", found.client_class(), BaseClient),
        ("keys", found.hyper(), Section),
    )  # fmt: skip
    for what, part, base in parts:
        if not (isinstance(part, type) and issubclass(part, base)):
            raise TypeError(f"its {what} must be a subclass of {base.__name__} (found: {_described(part)})")
        if stale := sorted(vars(part).keys() & EARLIER.keys()):
            raise TypeError(f"its {what} states {stale[0]}, as in earlier versions; state {EARLIER[stale[0]]} instead")
    table = found.table or _kebab(found.client_class().__name__.removesuffix("Client"))
    if (
        table in {method.table or name for name, method in OWN_METHODS.items()} | TABLES.keys()
        and found.hyper().model_fields
    ):
        raise ValueError(f"its keys would stand in table [{table}], which is the suite's own; set Method.table")
    return replace(found, table=table)


def _described(found: Any) -> str:
    return f"class {found.__name__}" if isinstance(found, type) else f"{type(found).__name__} {found!r:.60}"


def _kebab(name: str) -> str:
    """Return a class name in lower case with hyphens: ``FedMine`` gives "fed-mine"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


METHODS: Registry[Method] = Registry("method", "a method", OWN_METHODS, _read)
"""All methods by name: the suite's own, and those of other packages (:mod:`florilegium.common.plugins`)."""
