"""The snippets of docs/models.md work as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from florilegium.models.adapt import adapt
from florilegium.models.blocks import OneBlock, block_names
from florilegium.models.parameters import get_arrays
from florilegium.models.pretrained import read_pretrained
from tests.processes import ROOT


def test_the_snippets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    snippets: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "models.md").read_text(encoding="utf-8"), re.S):
        exec(code, snippets)
    shape, classes = (1, 8, 8), 10
    net = adapt(snippets["Net"](shape, classes), shape, classes)
    assert isinstance(net, OneBlock)
    assert get_arrays(net).keys() == read_pretrained(tmp_path / "net.pt", get_arrays(net)).keys()
    blocks = adapt(snippets["Blocks"](shape, classes), shape, classes)
    assert block_names(get_arrays(blocks)) == ["encoder", "head"]
