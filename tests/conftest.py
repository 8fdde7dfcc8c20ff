"""Shared fixtures, and drawn examples that are the same in every run."""

from __future__ import annotations

import hypothesis
import pytest

from tests import support

hypothesis.settings.register_profile("florilegium", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("florilegium")


@pytest.fixture(scope="session")
def cache_dir() -> str:
    """The cache folder of :func:`tests.support.settings`, shared by the whole session."""
    return str(support.CACHE)
