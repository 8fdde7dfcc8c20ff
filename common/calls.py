"""Names with literal arguments, as users write them in one line: ``RandomRotation(degrees=10)+RandomGrayscale``."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple


class Call(NamedTuple):
    """A name and the arguments that it is to be called with."""

    name: str
    positional: tuple[Any, ...]
    named: dict[str, Any]


def parse_calls(text: str) -> list[Call]:
    """Parse names, each with arguments in parentheses or none, joined by ``+``.

    Arguments are Python literals: numbers, strings, lists, tuples, ``True``, ``False``, ``None``.

    Raises:
        ValueError: if the text is anything else.
    """
    try:
        return [_call(part) for part in _parts(ast.parse(text.strip(), mode="eval").body)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(
            f"'{text}' is not a name or several joined by '+', such as 'RandomRotation(degrees=10)+RandomGrayscale'"
        ) from None


def _parts(tree: ast.expr) -> list[ast.expr]:
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
        return [*_parts(tree.left), *_parts(tree.right)]
    return [tree]


def _call(tree: ast.expr) -> Call:
    if isinstance(tree, ast.Name):
        return Call(tree.id, (), {})
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        raise ValueError
    named = {}
    for word in tree.keywords:
        if word.arg is None:
            raise ValueError
        named[word.arg] = ast.literal_eval(word.value)
    return Call(tree.func.id, tuple(map(ast.literal_eval, tree.args)), named)
