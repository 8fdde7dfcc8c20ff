"""Shared fixtures, drawn examples that are the same in every run, and what keeps thousands of tests fast."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import hypothesis
import pytest
import typer.testing

from florilegium.strategies.exchange.flower_inside import identify
from tests import support
from tests.installed import Installed, build_wheel

hypothesis.settings.register_profile("florilegium", derandomize=True, deadline=None, database=None, max_examples=40)
hypothesis.settings.load_profile("florilegium")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector ignore the packages, modules and tests, which stay until the session ends."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Let files be written without waiting for the disk, twenty times a run; ``test_files.py`` tests the flushes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _made_once() -> Iterator[None]:
    """Build the command line once, not for each command, and list once which package each module comes from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.testing._get_command))
        patch.setattr(metadata, "packages_distributions", cache(metadata.packages_distributions))
        yield


@pytest.fixture(scope="session", autouse=True)
def _identity() -> None:
    """Let messages be made outside of a run: Flower asks this for their sender and their run."""
    identify()


@pytest.fixture(scope="session")
def cache_dir() -> str:
    """The cache folder of :func:`tests.support.settings`, shared by the whole session."""
    return str(support.CACHE)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built once in a session."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installed:
    """The wheel, installed once in a session."""
    return Installed(tmp_path_factory.mktemp("installed"), wheel)
