"""Shared fixtures, and drawn examples that are the same in every run."""

from __future__ import annotations

import hypothesis
import pytest
from flwr.supercore.task_identity import TaskIdentity

from tests import support

hypothesis.settings.register_profile("florilegium", derandomize=True, deadline=None, database=None, max_examples=40)
hypothesis.settings.load_profile("florilegium")


@pytest.fixture(scope="session", autouse=True)
def _identity() -> None:
    """Let messages be made outside of a run: Flower asks this for their sender and their run."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


@pytest.fixture(scope="session")
def cache_dir() -> str:
    """The cache folder of :func:`tests.support.settings`, shared by the whole session."""
    return str(support.CACHE)
