"""Tests of common.settings: strict frozen sections, folders and lists of numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from florilegium.common.settings import NAME, Section, check_folder, folder, parse_numbers


class Example(Section):
    local_epochs: int
    learning_rate: float = 0.1


class TestSection:
    def test_kebab_case_keys_and_field_names_mean_the_same(self):
        assert Example(**{"local-epochs": 3}) == Example(local_epochs=3)

    def test_equal_sections_are_one_key_of_a_cache(self):
        assert len({Example(local_epochs=3), Example(local_epochs=3), Example(local_epochs=4)}) == 2

    def test_sections_are_frozen(self):
        with pytest.raises(ValidationError, match="frozen"):
            Example(local_epochs=3).local_epochs = 4

    @pytest.mark.parametrize(
        ("values", "key"),
        [
            ({"local-epochs": "3"}, "local-epochs"),  # no silent casts
            ({"local-epochs": 3.0}, "local-epochs"),
            ({"local-epochs": True}, "local-epochs"),
            ({"local-epochs": 3, "learning-rate": float("nan")}, "learning-rate"),
            ({"local-epochs": 3, "learning-rate": float("inf")}, "learning-rate"),
            ({"local-epochs": 3, "local-epoch": 3}, "local-epoch"),  # an unknown key
            ({}, "local-epochs"),
        ],
    )
    def test_wrong_values_are_refused_by_key(self, values, key):
        with pytest.raises(ValidationError) as caught:
            Example.model_validate(values)
        assert [error["loc"] for error in caught.value.errors()] == [(key,)]


class TestFolders:
    @pytest.mark.parametrize("text", ["", "/data", "~", "~/runs"])
    def test_empty_absolute_and_home_folders_are_allowed(self, text):
        assert check_folder(text) == text

    @pytest.mark.parametrize("text", ["data", "./data", "../data", "a/~"])
    def test_relative_folders_are_refused(self, text):
        with pytest.raises(ValueError, match=f"'{re.escape(text)}' is a relative path; give an absolute one"):
            check_folder(text)

    def test_the_home_of_an_unknown_user_is_refused(self):
        with pytest.raises(ValueError, match="~no-such-user"):
            check_folder("~no-such-user/data")

    def test_tilde_is_the_home_folder(self, monkeypatch):
        monkeypatch.setenv("HOME", "/somewhere")
        assert folder("~/runs") == Path("/somewhere/runs")
        assert folder("/runs") == Path("/runs")


class TestNumbers:
    @given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5))
    def test_printed_numbers_are_read_back(self, numbers):
        assert parse_numbers(", ".join(map(repr, numbers))) == numbers

    @pytest.mark.parametrize(("text", "numbers"), [("", []), (" , ", []), ("1,,2,", [1, 2]), ("-90, 1e2", [-90, 100])])
    def test_blanks_and_empty_parts_do_not_count(self, text, numbers):
        assert parse_numbers(text) == numbers

    @pytest.mark.parametrize("text", ["a", "1;2", "1 2", "0,90,x"])
    def test_other_texts_are_refused_with_an_example(self, text):
        with pytest.raises(ValueError, match=f"'{text}' is not a comma-separated list of numbers, such as '0,90,180'"):
            parse_numbers(text)


@pytest.mark.parametrize("name", ["0", "client-1", "a.b_c"])
def test_names_that_can_be_folders(name):
    assert re.fullmatch(NAME, name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a b", "é", "a\n"])
def test_names_that_cannot_be_folders(name):
    assert not re.fullmatch(NAME, name)
