"""What the shell completes after ``--set``, and bash's words put together again.

Typer writes the scripts of the shells (``florilegium --install-completion``).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from click.shell_completion import CompletionItem, add_completion_class
from typer._completion_classes import BashComplete

from florilegium.common.references import resolve

NAMED = {
    "method": "florilegium.apps.methods.registry:METHODS",
    "dataset": "florilegium.partitions.datasets:DATASETS",
    "model": "florilegium.models.networks:NETWORKS",
    "partitioner": "florilegium.partitions.registry:PARTITIONERS",
    "tracker": "florilegium.apps.trackers.registry:TRACKERS",
}
"""Keys whose values are names in a registry."""
_BREAKS = re.compile("[=:]+")


def names_in(registry: str, *others: str) -> Callable[[str], list[str]]:
    """Return a function that returns the names in a registry, given by reference, and ``others`` that begin so."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in (*others, *resolve(registry)) if name.startswith(incomplete)]

    return complete


def complete_assignment(incomplete: str) -> list[str]:
    """Return the assignments ``key=value`` that begin so.

    While several keys begin so, each is given with "=" alone. A single one is given with its values too, or "…" for
    them, so that the shell completes up to "=" and adds no blank.
    """
    from florilegium.apps.settings.configuration import sections
    from florilegium.apps.settings.keys import groups, installed_sections

    known = {key.name: key for group in groups(sections() | installed_sections()) for key in group.keys}
    name, chosen, _ = incomplete.partition("=")
    found = [one for one in known if one == name] if chosen else [one for one in known if one.startswith(name)]
    values: list[str] = []
    if len(found) == 1:
        key = known[found[0]]
        offered = names_in(NAMED[key.name])("") if key.name in NAMED else key.words
        values = [f"{key.name}={value}" for value in offered if value] or ["" if chosen else f"{key.name}=…"]
    return [one for one in [*(f"{one}=" for one in found), *values] if one.startswith(incomplete) and one != incomplete]


class Bash(BashComplete):
    """Completion in bash, which hands over ``method=fedavg`` as three words, and completes the last one.

    Words around "=" and ":" are put together, since a command's parameters are whole words; of what is offered, bash
    gets the part after those that it has split off.
    """

    _before = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the whole words before the one to complete, and that one."""
        args, last = super().get_completion_args()
        whole: list[str] = []
        joins = False  # whether the next word goes with the one before it
        for word in [*args, last]:
            breaks = bool(_BREAKS.fullmatch(word))
            if whole and (breaks or joins):
                whole[-1] += word
            else:
                whole.append(word)
            joins = breaks
        *before, incomplete = whole
        self._before = incomplete if _BREAKS.fullmatch(last) else incomplete.removesuffix(last)
        return before, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Return the part of an offered word that bash is to put in place of its last one."""
        return str(item.value).removeprefix(self._before)


def use_bash() -> None:
    """Let :class:`Bash` complete in place of Typer's class; to be called after Typer has registered its own."""
    add_completion_class(Bash, "bash")
