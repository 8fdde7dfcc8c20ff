"""The page for owners: each attack that it lists has a test, and its example is a policy that is accepted."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.owner.made import made
from tests.processes import ROOT

PAGE = (ROOT / "docs" / "owner.md").read_text(encoding="utf-8")


def test_every_attack_has_a_test() -> None:
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \| `([\w/]+\.py)::(\w+)` \|$", PAGE, re.MULTILINE)
    assert len(rows) >= 30
    for path, name in rows:
        tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
        assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)], (path, name)


def test_the_example_is_a_policy(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    policy = made(tmp_path / "owner", example).policy()
    assert policy.data.columns == ["age", "sex", "pressure", "outcome"]
    assert [rule.phase for rule in policy.reply] == ["train", "test"]
