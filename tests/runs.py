"""Whole runs in this process, for the tests of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from florilegium.common.settings import Value
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.grid import InProcessGrid, run_app
from tests.support import assert_rounded, config


def timeless(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's ``metrics.jsonl`` without what two equal runs differ in: seconds."""

    def without(entry: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: without(value) if isinstance(value, Mapping) else value
            for name, value in entry.items()
            if "seconds" not in name
        }

    return [without(line) for line in read_metrics(path)]


def vanishing(client: str, after: int) -> Callable[[Message], Message | None]:
    """Return what lets as many requests to a client pass, and lets its node vanish then: one node has each client."""
    asked = count()

    def lose(message: Message) -> Message | None:
        config = message.content.config_records.get("config", {})
        if [*config.get("clients", ())] != [client] or next(asked) < after:  # type: ignore[misc]
            return None
        return Message(Error(ErrorCode.NODE_UNAVAILABLE, "vanished"), reply_to=message)

    return lose


class Runs:
    """Carries out runs with common keys; each leaves its folder in ``folder``.

    Attributes:
        grid: what carried the messages of the last run.
    """

    grid: InProcessGrid

    def __init__(self, folder: Path, keys: Mapping[str, Value]) -> None:
        self.folder, self._keys = folder, keys

    def __call__(
        self,
        name: str,
        nodes: int | list[dict[str, Any]] = 2,
        intercept: Callable[[Message], Message | None] | None = None,
        **keys: Value,
    ) -> Path:
        """Carry out a run and return its folder; with the key ``resume`` go on with one of this name."""
        names = {} if "resume" in keys else {"run-name": name}
        settings = config(**{**self._keys, **keys, **names, "runs-dir": str(self.folder)})
        self.grid = run_app(settings, nodes, intercept=intercept)
        return self.folder / name

    def whole_and_broken(self, broken_in: int, **keys: Value) -> tuple[Path, Path]:
        """Carry out a run twice, the second time broken off in a round and resumed; return both folders."""

        def stop(message: Message) -> None:
            if message.metadata.message_type == "train" and message.content["config"]["round"] == broken_in:
                raise KeyboardInterrupt

        whole = self("whole", nodes=1, **keys)
        with pytest.raises(KeyboardInterrupt):
            self("broken", nodes=1, intercept=stop, **keys)
        return whole, self("broken", nodes=1, resume="broken", **keys)

    def check_resume_and_packing(self, **keys: Value) -> None:
        """Check that a run broken off in round 3 and resumed is the whole one bit for bit, in any packing."""
        whole, broken = self.whole_and_broken(3, **keys)
        packed = self("packed", nodes=3, **keys)
        first, second, third = (read_checkpoint(path) for path in (whole, broken, packed))
        assert first.facts["own"] == second.facts["own"]
        for part in ("arrays", "state"):
            for name, array in getattr(first, part).items():
                assert np.array_equal(getattr(second, part)[name], array)
                assert_rounded(getattr(third, part)[name], array)
