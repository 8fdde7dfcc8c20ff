"""Tests of common.text: LEAF's alphabet, padding and cutting."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from florilegium.common.text import ALPHABET, OTHER, VOCABULARY_SIZE, encode


def _decode(codes):
    return "".join(ALPHABET[code] if code < OTHER else "\0" for code in codes)


def test_the_alphabet_has_leafs_80_different_characters():
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    assert set(string.ascii_letters + string.digits + "\n ") <= set(ALPHABET)
    assert OTHER == 80
    assert VOCABULARY_SIZE == 81


def test_a_characters_code_is_its_position():
    assert encode(ALPHABET, 80).tolist() == list(range(80))


def test_short_texts_are_padded_in_front():
    assert encode("ab", 5).tolist() == [OTHER, OTHER, OTHER, ALPHABET.index("a"), ALPHABET.index("b")]


def test_of_long_texts_the_last_characters_are_kept():
    assert _decode(encode("to be or not to be", 5)) == "to be"


def test_an_empty_text_is_all_padding():
    assert encode("", 3).tolist() == [OTHER] * 3


@given(st.text(alphabet=ALPHABET, max_size=20), st.integers(1, 15))
def test_decoding_gives_the_text_back(text, length):
    codes = encode(text, length)
    assert codes.shape == (length,)
    assert _decode(codes) == text[-length:].rjust(length, "\0")


@pytest.mark.parametrize("character", [c for c in map(chr, range(128)) if c not in ALPHABET])
def test_every_other_ascii_character_is_other(character):
    assert encode(character, 1).tolist() == [OTHER]


@pytest.mark.parametrize("character", ["é", "–", "日", "😀"])
def test_characters_beyond_ascii_are_other_too(character):
    assert encode(character, 1).tolist() == [OTHER]
