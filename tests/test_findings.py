"""The scripts of ``findings/`` say what their tables need, and name tests that there are."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from docs.generate.finding_pages import read_finding, read_findings
from florilegium.common.errors import ConfigurationError
from tests.processes import ROOT

FINDINGS = read_findings(ROOT)


def _tests(path: Path) -> set[str]:
    """Return the tests of a file as ``test_…`` and ``Class::test_…``."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.name)
def test_a_finding_names_a_test_that_exists(finding) -> None:
    path, _, name = finding.test.partition("::")
    assert not path or name in _tests(ROOT / path)
    script = ROOT / "findings" / f"{finding.name}.sh"
    assert script.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    embedded = script.read_text(encoding="utf-8").partition("python - << 'END'\n")[2].removesuffix("END\n")
    assert "florilegium" not in embedded
    assert "assert " in ast.unparse(ast.parse(embedded))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/usr/bin/env bash\n# Subject: a\n. x\ninstall a==1\n", r"lack '# What: …'"),
        (
            "# Subject: a, b\n# What: w\n# Symptom: s\n# Concerns: c\n# Expected: e\n# Seen: s\n# Here: h\n"
            ". x\ninstall a==1 b\n",
            "'b' is installed without a version",
        ),
        (
            "# Subject: a\n# What: w\n# Symptom: s\n# Concerns: c\n# Expected: e\n# Seen: s\n# Here: h\n"
            ". x\ninstall a==1\n",
            "no heading for 'a'",
        ),
    ],
)
def test_an_unfinished_head_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        read_finding(tmp_path / "a.sh")
