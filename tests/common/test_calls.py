"""Tests of common.calls: what is a name with literal arguments, and what is not."""

from __future__ import annotations

import pytest

from florilegium.common.calls import Call, parse_calls


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("A", [Call("A", (), {})]),
        (" A + B() ", [Call("A", (), {}), Call("B", (), {})]),
        ("A(1, p=-0.5)+B((1, 2), mode='x')", [Call("A", (1,), {"p": -0.5}), Call("B", ((1, 2),), {"mode": "x"})]),
    ],
)
def test_names_and_literals(text, calls):
    assert parse_calls(text) == calls


@pytest.mark.parametrize(
    "text",
    ["", "A-B", "a.b", "A(x)", "A(open('f'))", "A(**{})", "A(*[1])", "A()()", "1", "A B", "A+" * 3000 + "A", "(" * 300],
)  # fmt: skip
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="is not a name or several joined by"):
        parse_calls(text)
