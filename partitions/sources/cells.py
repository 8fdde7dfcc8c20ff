"""When two cells hold the same value: one rule for labels, categories, and names of clients.

1. Texts are compared in Unicode's form C, without entities (``&amp;``) and outer blanks.
2. A whole number is the same with and without zeros behind the point: 1, 1.0, "1.00". Text such as "007" and "1.10"
   is a name, and stays what it is.
3. In a column of labels or categories that holds nothing but truth values, true is 1 and false is 0, in any case.

Values that differ in anything else, as in case, are different.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

_TRUTH = {"true": "1", "false": "0"}
_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+", re.ASCII)


def spelled(text: str) -> str:
    """Return a text in the spelling of its value, by rules 1 and 2."""
    text = unicodedata.normalize("NFC", html.unescape(text)).strip()
    return whole[1] if (whole := _WHOLE.fullmatch(text)) else text


def spellings(words: Iterable[str]) -> dict[str, str]:
    """Return the spelling of each word of a column of labels or categories, by all rules.

    Truth values become digits if some are digits, and lower case if their cases differ.
    """
    found = {word: spelled(word) for word in words}
    distinct = {value for value in found.values() if value}
    if _is_truth(distinct):
        if distinct & {*_TRUTH.values()}:
            return {word: _TRUTH.get(value.casefold(), value) for word, value in found.items()}
        if len({value.casefold() for value in distinct}) < len(distinct):
            return {word: value.casefold() for word, value in found.items()}
    return found


def _is_truth(words: Iterable[str]) -> bool:
    return {word.casefold() for word in words} <= {*_TRUTH, *_TRUTH.values()}


def meant(words: Iterable[str], known: Iterable[Any], values: Iterable[Any] | None = None) -> dict[str, Any]:
    """Return the value of each word that is known: of the same text, the same spelling, number or truth value.

    A hospital writes code 1 as "1.0" where another writes "1".

    Args:
        words: the words.
        known: texts or numbers.
        values: what each of ``known`` stands for; None: itself.
    """
    names = [*map(str, known := [*known])]
    texts = dict(zip(names, known if values is None else values, strict=True))
    ways: list[Mapping[Any, Any]] = [texts]
    keys = [lambda word: word, spelled, _number]
    if _is_truth(name for name in names if name):
        keys.append(lambda word: _TRUTH.get(word.strip().casefold(), word.strip()))
    ways += [{key(name): texts[name] for name in reversed(names)} for key in keys[1:]]
    found = {}
    for word in words:
        for key, way in zip(keys, ways, strict=True):
            if (place := key(word)) is not None and place in way:
                found[word] = way[place]
                break
    return found


def _number(word: str) -> Decimal | None:
    """Return the number that a plain numeral such as "3" or "-1.50" is; None for all else, such as "007"."""
    return Decimal(word) if re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?", word, re.ASCII) else None
