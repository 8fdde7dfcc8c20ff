"""Errors for people: what was found, what is allowed, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FlorilegiumError(Exception):
    """A problem the user can mend. Its message stands alone, without a traceback.

    Attributes:
        exit_status: what the command line returns for it.
    """

    exit_status = 2


class ConfigurationError(FlorilegiumError):
    """One or more wrong keys or values of the run configuration."""


class DataError(FlorilegiumError):
    """Data that are missing, malformed, or not enough for the requested federation."""


class RunError(FlorilegiumError):
    """A run that cannot go on: too few clients answered, a worker died, a checkpoint is unreadable."""

    exit_status = 1


class FileError(RunError):
    """A file that cannot be written. Its message names the file."""


class BudgetSpentError(RunError):
    """A client whose privacy budget does not suffice for another training."""


def nearest(word: str, words: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest of ``words``, or a full stop where none is close."""
    close = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else "."
