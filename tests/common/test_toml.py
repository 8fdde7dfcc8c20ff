"""Tests of common.toml: nested tables and flat dotted keys."""

from __future__ import annotations

import tomllib

import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from florilegium.common.toml import flatten, nested

words = st.text(alphabet="abc-", min_size=1, max_size=3)
values = st.integers(-5, 5) | st.booleans() | st.text(alphabet="xyz", max_size=3)
tables = st.recursive(
    st.dictionaries(words, values, min_size=1, max_size=3),
    lambda inner: st.dictionaries(words, values | inner, min_size=1, max_size=3),
)


def test_a_table_of_tables_by_hand():
    table = {"seed": 1, "fedprox": {"mu": 0.1, "inner": {"x": "y"}}}
    flat = {"seed": 1, "fedprox.mu": 0.1, "fedprox.inner.x": "y"}
    assert flatten(table) == flat
    assert nested(flat) == table


@given(tables)
def test_nested_is_the_inverse_of_flatten(table):
    assert nested(flatten(table)) == table


@given(tables)
def test_what_is_written_as_toml_is_read_back(table):
    assert tomllib.loads(tomli_w.dumps(nested(flatten(table)))) == table


def test_plain_keys_come_before_tables():
    flat = {"fedprox.mu": 0.1, "seed": 1, "dp.noise": 2, "rounds": 3}
    assert list(nested(flat)) == ["seed", "rounds", "fedprox", "dp"]
