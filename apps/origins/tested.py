"""With which versions of other packages ``make test-versions`` has passed."""

from __future__ import annotations

DATE = "2026-11-29"
"""When it was run last."""

TESTED = {
    "flwr": ("1.40.0", "1.41.0", "1.42.0"),
    "flwr-datasets": ("0.6.1",),
    "datasets": ("4.0.0", "4.8.5"),
    "torch": ("2.11.0", "2.15.0"),
    "opacus": ("1.5.4", "1.6.0"),
    "dp-accounting": ("0.5.0", "0.6.0"),
}
"""Versions by package, the lowest that ``pyproject.toml`` allows first, the newest of the registry last."""

PYTHONS = ("3.11", "3.12", "3.13")
"""Versions of Python that are supported, the lowest that ``pyproject.toml`` allows first."""


def tested_line() -> str:
    """Return these versions in a line."""
    return "; ".join(f"{package} {', '.join(versions)}" for package, versions in TESTED.items())
