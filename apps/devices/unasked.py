"""What a SuperNode asks its owner; and an owner with no policy, who allows everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flwr.app import Message, RecordDict

from florilegium.owner.cells import Room
from florilegium.owner.denied import DeniedError


class Owner(Protocol):
    """Decides what may be done on the device (:class:`florilegium.owner.keeper.Keeper`)."""

    def trust(self, run_id: int, content: bytes) -> None:
        """Raise :class:`DeniedError` if the bundle of a run's app may not run."""

    def admit(self, run_id: int, config: Mapping[str, Any], account: str) -> None:
        """Raise :class:`DeniedError` if a run of this configuration, started by this account, may not run."""

    def ask(self, message: Message) -> Any:
        """Return what a request asks for; raise :class:`DeniedError` if it may not."""

    def room(self, message: Message) -> Room:
        """Return what the process of a run has for a request."""

    def watch(self, message: Message) -> Callable[[], None] | None:
        """Return a function that raises :class:`DeniedError` once a request has to end."""

    def ended(self, run_id: int) -> None:
        """Learn that the process of a run has ended."""

    def leave(self, message: Message, asked: Any, content: RecordDict) -> RecordDict:
        """Return what may leave of a reply; raise :class:`DeniedError` if nothing may."""

    def fail(self, message: Message, why: str) -> str:
        """Return what the server learns of a failure."""

    def told(self, error: DeniedError) -> str:
        """Return what the server learns of a refusal."""


class Unasked:
    """Allows everything."""

    def trust(self, run_id: int, content: bytes) -> None:
        """Let every app run."""

    def admit(self, run_id: int, config: Mapping[str, Any], account: str) -> None:
        """Let every run use the device."""

    def ask(self, message: Message) -> None:
        """Let every request be carried out."""

    def room(self, message: Message) -> Room:
        """Confine nothing."""
        return Room()

    def watch(self, message: Message) -> None:
        """Let a request take as long as it takes."""

    def ended(self, run_id: int) -> None:
        """Keep what the run has left."""

    def leave(self, message: Message, asked: None, content: RecordDict) -> RecordDict:
        """Return the whole reply."""
        return content

    def fail(self, message: Message, why: str) -> str:
        """Return the whole reason."""
        return why

    def told(self, error: DeniedError) -> str:
        """Return the whole reason."""
        return str(error)


UNASKED: Owner = Unasked()
