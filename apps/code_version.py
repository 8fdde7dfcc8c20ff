"""A hash of the running code, so that server and clients can tell whether they run the same."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from apps.settings import ROOT

PACKAGES = ("apps", "clients", "common", "models", "partitions", "privacy", "strategies")


@lru_cache(maxsize=1)
def code_version() -> str:
    """Return twelve hex digits that change whenever a line of the app's packages does."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
