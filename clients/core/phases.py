"""Phases: what the server may ask of a client. The typed keyword arguments of a phase are its wire contract.

    @phase
    def describe(self, arrays: Arrays, *, batch: int, follows: bool = False) -> Answer: ...

Both sides check a request against the same signature: the strategy before it sends anything, the client when the
request arrives. ``X | None = None`` marks an optional argument.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar

from florilegium.clients.core.wire import POISONING, PROTECTION, USED, Work

P = TypeVar("P", bound=Callable[..., Any])

KINDS: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "list[str]": (str,),
    "list[float]": (float, int),
}
"""The annotations that an argument may have, each with the types that values (of a list: elements) may have."""
RESERVED = frozenset(
    [
        *(field.name for field in fields(Work)), *PROTECTION, USED, POISONING, "phase", "reduce", "clients",
        "server-round", "cohort", "send", "scatter", "shapes", "evaluation", "out_of", "arrived", "base",
    ]
)  # fmt: skip
"""Names that arguments must not have: requests use them on the wire, or ``Round.ask`` as options."""


class ContractError(TypeError):
    """A request that does not fit the signature of its phase."""


@dataclass(frozen=True)
class Argument:
    """One keyword argument of a phase: its annotated type, and whether it is optional."""

    kind: str
    optional: bool

    def read(self, value: Any) -> Any:
        """Return ``value`` in the annotated type.

        Raises:
            ValueError: if it has another type, or is NaN.
        """
        types = KINDS[self.kind]
        if self.kind.startswith("list"):
            if not isinstance(value, list | tuple) or not all(_is(entry, types) for entry in value):
                raise ValueError(self.kind)
            return [float(entry) for entry in value] if self.kind == "list[float]" else list(value)
        if not _is(value, types):
            raise ValueError(f"{self.kind} and not NaN" if self.kind == "float" else self.kind)
        return float(value) if self.kind == "float" else value


def _is(value: Any, types: tuple[type, ...]) -> bool:
    """Return whether a value has one of ``types`` and is not NaN; a bool does not count as a number."""
    if isinstance(value, bool):
        return bool in types
    return isinstance(value, types) and not (isinstance(value, float) and math.isnan(value))


@dataclass(frozen=True)
class Contract:
    """The signature of a phase.

    Attributes:
        phase: the phase's name.
        arguments: its keyword arguments, by name.
    """

    phase: str
    arguments: Mapping[str, Argument]

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments ``given``, checked and converted to the annotated types, without those that are None.

        Raises:
            ContractError: if an argument is unknown, missing or of another type.
        """
        given = {name: value for name, value in given.items() if value is not None}
        known = ", ".join(f"{name}: {argument.kind}" for name, argument in self.arguments.items()) or "none"
        if unknown := [name for name in given if name not in self.arguments]:
            raise ContractError(f"phase '{self.phase}' takes no argument '{unknown[0]}'. Its arguments: {known}.")
        if missing := [name for name, one in self.arguments.items() if not one.optional and name not in given]:
            raise ContractError(f"phase '{self.phase}' needs the argument '{missing[0]}'. Its arguments: {known}.")
        read = {}
        for name, value in given.items():
            try:
                read[name] = self.arguments[name].read(value)
            except ValueError as error:
                raise ContractError(
                    f"phase '{self.phase}': argument '{name}' must be of type {error} (found: {value!r})"
                ) from None
        return read


def phase(method: P) -> P:
    """Mark a client's method as a phase, which the server may ask for by its name.

    Raises:
        TypeError: if an argument after ``(self, arrays)`` is not keyword-only, or has no type that can be sent.
    """
    arguments = {}
    for parameter in list(inspect.signature(method).parameters.values())[2:]:
        annotation = parameter.annotation
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        kind = text.removesuffix(" | None")
        optional = parameter.default is not inspect.Parameter.empty
        fits = kind in KINDS and (kind == text or parameter.default is None) and parameter.name not in RESERVED
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or not fits:
            raise TypeError(
                f"phase {method.__qualname__}: argument '{parameter.name}' must be keyword-only, have one of the types "
                f"{', '.join(KINDS)} (with '| None' only where None is the default), and none of the names "
                f"{', '.join(sorted(RESERVED))}"
            )
        arguments[parameter.name] = Argument(kind, optional)
    method.contract = Contract(method.__name__, arguments)  # type: ignore[attr-defined]
    return method


@cache
def contracts_of(client: type) -> dict[str, Contract]:
    """Return the contracts of all phases of a client class, by name."""
    members = {name: getattr(client, name) for name in dir(client)}
    return {name: member.contract for name, member in members.items() if _is_phase(member)}


def check_overrides(client: type) -> None:
    """Raise :class:`TypeError` if the class overrides a phase without ``@phase``, itself or through another base."""
    phases = {name for base in client.__mro__ for name, member in vars(base).items() if _is_phase(member)}
    for name in sorted(phases):
        if not _is_phase(getattr(client, name)):
            owner = next(base for base in client.__mro__ if name in vars(base))
            raise TypeError(f"{owner.__qualname__}.{name} overrides a phase; mark it with @phase")


def _is_phase(member: object) -> bool:
    return isinstance(getattr(member, "contract", None), Contract)
