"""The kinds of processors on which the quick tests run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processors import KINDS, executable, kind_of, of_the_day, variables

ROOT = Path(__file__).parents[1]


def test_a_machine_without_the_instructions_is_given_none_of_their_kinds() -> None:
    assert executable(set()) == ["default-1", "default-2", "default-1-COMPATIBLE"]
    assert not [kind for kind in executable({"avx2", "fma"}) if "avx512" in kind]
    assert executable({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}) == list(KINDS)


def test_days_draw_two_different_kinds_and_among_them_all() -> None:
    days = [of_the_day(f"2026-11-{day:02}", list(KINDS)) for day in range(1, 31)]
    assert all(len(set(two)) == 2 for two in days)
    assert {kind for two in days for kind in two} == set(KINDS)


def test_workers_take_the_kinds_in_turn() -> None:
    assert [kind_of(worker, ["a", "b"]) for worker in ("gw0", "gw1", "gw2", "")] == ["a", "b", "a", "a"]
    chosen = variables("avx2-2-AVX2,STRICT")
    assert chosen == {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "2", "MKL_CBWR": "AVX2,STRICT"}
    with pytest.raises(ValueError, match="'sse-1'; allowed are default-1"):
        variables("sse-1")


def test_pytorch_computes_with_what_the_plugin_states(tmp_path: Path) -> None:
    test = "from torch import backends, get_num_threads\n\n\ndef test_it():\n    assert get_num_threads() == 2\n"
    (tmp_path / "test_it.py").write_text(test + "    assert backends.cpu.get_cpu_capability() == 'DEFAULT'\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-p", "tests.processors", "-c", os.devnull, "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, str(tmp_path)],
        cwd=ROOT,
        env=environment | {"PROCESSORS": "default-2"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
