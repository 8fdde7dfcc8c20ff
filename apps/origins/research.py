"""The way to ``florilegium.research``: studies of papers, attacks, boards and the ledger, which no wheel holds."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from florilegium.common.errors import ConfigurationError
from florilegium.common.references import resolve

RESEARCH = "florilegium.research"


def has_research() -> bool:
    """Return whether this package has its research tools: in a checkout, or installed from one as editable."""
    return find_spec(RESEARCH) is not None


def research(reference: str, what: str) -> Any:
    """Return the object behind a reference into ``florilegium.research``.

    Args:
        reference: ``florilegium.research.module:attribute``.
        what: what needs it, for the error message.

    Raises:
        ConfigurationError: if this is an installed package without them; the message says how to get them.
    """
    if not has_research():
        raise ConfigurationError(
            f"{what}: the wheel has no research tools (studies of papers, attacks, boards, the ledger); they come with "
            "a checkout: pip install -e /path/to/checkout"
        )
    return resolve(reference)
