"""Exceptions whose messages are written for users: what was found, what is allowed, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FlorilegiumError(Exception):
    """Base of all errors that the user can fix. The command line shows the message without a traceback.

    Attributes:
        exit_status: exit status of the command line.
    """

    exit_status = 2


class ConfigurationError(FlorilegiumError):
    """The run configuration has one or more wrong keys or values."""


class DataError(FlorilegiumError):
    """Data are missing, malformed, or not enough for the requested federation."""


class RunError(FlorilegiumError):
    """The run cannot continue: for example too few clients replied, a worker died or a checkpoint is unreadable."""

    exit_status = 1


class FileError(RunError):
    """A file cannot be written. The message names the file."""


class Interrupted(KeyboardInterrupt):
    """The user has stopped a run after a whole round, which is in its checkpoint, so that it can be resumed."""


class StoppedError(RunError):
    """The user or the system has stopped a command; the message says how to go on."""

    exit_status = 130


class PreemptedError(StoppedError):
    """A scheduler has asked the run to stop, and is to start its job again."""

    exit_status = 75  # EX_TEMPFAIL in <sysexits.h>


class BudgetSpentError(RunError):
    """The remaining privacy budget of a client does not suffice for another round of training."""


class RefusedError(RunError):
    """The owner of a device does not let it take part in this run. The message tells nothing of its data."""


def nearest(word: str, words: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` with the closest match among ``words``, or ``"."`` if none is close."""
    close = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else "."
