"""Registries that other packages can extend: methods, networks, tasks, datasets, partitioners, …

A name in the configuration is one of three things: an entry of the suite's own table, an entry point that an installed
package declares (groups ``florilegium.methods``, ``.networks`` and so on), or a
reference ``package.module:attribute``. The object behind a name is imported only when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from florilegium.common.errors import ConfigurationError, nearest
from florilegium.common.references import resolve

T = TypeVar("T")
_PLURALS = {"model": "networks", "metrics": "metrics", "loss": "losses"}
"""How groups of entry points are called whose name is not the key's with an s."""

_INSTALLED_ONLY: ContextVar[bool] = ContextVar("installed_only", default=False)


@contextmanager
def installed_only() -> Iterator[None]:
    """Context in which registries refuse references, so that a configuration chooses no module to be imported."""
    before = _INSTALLED_ONLY.set(True)
    try:
        yield
    finally:
        _INSTALLED_ONLY.reset(before)


@cache
def _points() -> Any:  # with method `select`; the class depends on Python's version
    """Return all entry points of installed packages, which are read once, since there are hundreds of files."""
    return entry_points()


def subclass_of(base: type[Any], name: str) -> Callable[[Any, str], Any]:
    """Return ``read`` of a registry of classes: it takes subclasses of ``base``, called ``name``, alone."""

    def read(found: Any, reference: str) -> Any:
        if not (isinstance(found, type) and issubclass(found, base)):
            raise TypeError(f"expected a subclass of {name} (found: {type(found).__name__} {found!r:.60})")
        return found

    return read


class Registry(Mapping[str, T], Generic[T]):
    """Entries of one kind by name; looking up an unknown name raises :class:`ConfigurationError`.

    Args:
        key: the configuration key whose values the names are.
        what: what an entry is, with its article, for error messages.
        own: the suite's own entries: objects, or references to them.
        read: turns the object that a package provides into an entry. It receives the object and its reference, and
            raises ``TypeError`` or ``ValueError`` that says what the object should be.
        others: further ways to name one of your own, for error messages.

    Attributes:
        own: the suite's own entries.
        title: as ``what``.
        group: group of the entry points with which packages provide entries.
    """

    def __init__(
        self,
        key: str,
        what: str,
        own: Mapping[str, T | str],
        read: Callable[[Any, str], T] = lambda found, _: found,
        others: tuple[str, ...] = (),
    ) -> None:
        self.own = dict(own)
        self._key = key
        self.title = what
        self.group = f"florilegium.{_PLURALS.get(key, f'{key}s')}"
        self._read = read
        self._ways = " or ".join((*others, "'package.module:attribute'"))
        self._found: dict[str, tuple[Any, T]] = {}  # by name: the object of the package, and its entry

    @cached_property
    def _installed(self) -> dict[str, EntryPoint]:
        """Entry points of installed packages, by name; the suite's own names come first."""
        return {point.name: point for point in _points().select(group=self.group) if point.name not in self.own}

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from sorted(self._installed)

    def __len__(self) -> int:
        return len(self.own) + len(self._installed)

    def __contains__(self, name: object) -> bool:
        return not self.problem(str(name))

    def __getitem__(self, name: str) -> T:
        """Return the entry of this name.

        Args:
            name: a name of the suite's own or of an installed package's, or a reference.

        Raises:
            ConfigurationError: if there is no such entry, or the object behind the name is not what is needed. The
                message names the configuration key.
        """
        if name in self.own:
            entry = self.own[name]
            return resolve(entry) if isinstance(entry, str) else entry
        reference = self.reference(name)
        if not reference:
            raise ConfigurationError(
                f"{self._key}: '{name}' is not {self.title}{nearest(name, self)} Known: {', '.join(self)}. One of your "
                f"own is named {self._ways}"
            )
        if _INSTALLED_ONLY.get() and name not in self._installed:
            raise ConfigurationError(f"{self._key}: '{name}' names code of your own, which is not imported here")
        try:
            found = resolve(reference)
        except Exception as error:  # the code of another package may raise anything
            said = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
            raise ConfigurationError(f"{self._key}: '{name}' cannot be imported: {said}") from error
        # A notebook may define a name anew, or reload a module.
        if name not in self._found or self._found[name][0] is not found:
            try:
                self._found[name] = found, self._read(found, reference)
            except (TypeError, ValueError) as error:
                raise ConfigurationError(f"{self._key}: '{name}' is not {self.title}: {error}") from error
        return self._found[name][1]

    def problem(self, name: str) -> str:
        """Return why there is no entry of this name, "" if there is one; the suite's own are not imported for it."""
        if name in self.own:
            return ""
        try:
            self[name]
        except ConfigurationError as error:
            return str(error)
        return ""

    def reference(self, name: str) -> str:
        """Return the reference ``package.module:attribute`` behind a name; "" for a name of the suite's own."""
        if name in self.own:
            return ""
        if name in self._installed:
            return self._installed[name].value
        return name if ":" in name else ""

    def table(self, name: str, stated: str = "") -> str:
        """Return the name of the configuration table that holds an entry's own keys.

        Args:
            name: the entry.
            stated: the table that it states; "": its name or, if it is a reference, the attribute in lower case.

        Raises:
            ConfigurationError: if the table of another package's entry has the name of one of the suite's own.
        """
        if name in self.own:
            return name
        table = stated or name.rpartition(":")[2].replace("_", "-").lower()
        if table in self.own:
            raise ConfigurationError(
                f"{self._key}: the keys of '{name}' would stand in table [{table}], which is the suite's own; state "
                "another table"
            )
        return table

    def origin(self, name: str) -> str:
        """Return where an entry comes from: "florilegium", or a package's name and version, or its module."""
        if name in self.own:
            return "florilegium"
        point = self._installed.get(name)
        if point is not None and point.dist is not None:
            return f"{point.dist.name} {point.dist.version}"
        return name.partition(":")[0]
