"""A client whose state cannot be flushed to disk has failed, however late that is found out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from florilegium.apps.engines.one_process import run_here
from florilegium.common.errors import FileError
from florilegium.common.files import Draft
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.support import config


@pytest.mark.parametrize("vectorise", [1, 4])
def test_a_client_without_its_state_on_disk_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectorise: int
) -> None:
    for name, step in (("begun", "__init__"), ("flushed", "publish")):
        with monkeypatch.context() as patched:
            real = getattr(Draft, step)

            def fail(draft: Draft, *args: object, step: str = step, real: object = real) -> None:
                path = draft._path if step == "publish" else args[0]
                if isinstance(path, Path) and path.parent.name == "3":
                    raise FileError(f"cannot write {path}: the disk is full")
                real(draft, *args)  # type: ignore[operator]

            patched.setattr(Draft, step, fail)
            keys = {"method": "lg-fedavg", "num-clients": 6, "rounds": 1, "local-epochs": 1, "vectorise": vectorise}
            run_here(config(**keys, **{"runs-dir": str(tmp_path), "run-name": name}), tmp_path / name)
        failures = [json.loads(line) for line in (tmp_path / name / "failures.jsonl").read_text().splitlines()]
        assert [(one["client"], one["phase"]) for one in failures] == [("3", "train")]
        assert "the disk is full" in failures[0]["reason"]
    begun, flushed = (read_checkpoint(tmp_path / name).arrays for name in ("begun", "flushed"))
    for array in begun:  # the same sums, without client 3
        np.testing.assert_array_equal(begun[array], flushed[array])
