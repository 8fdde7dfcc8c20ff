"""Tests of partitions.tables: UCI Adult against scikit-learn's encoders, and its errors."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from florilegium.common.errors import DataError
from florilegium.partitions.sources.tables import ADULT, ADULT_COLUMNS, encode_table
from tests.partitions.made import make

REAL = Path(os.environ.get("FLORILEGIUM_DATA", "/nowhere")) / "adult"
NUMBERS = ["age", "fnlwgt", "education.num", "capital.gain", "capital.loss", "hours.per.week"]
WORDS = [
    "workclass", "education", "marital.status", "occupation", "relationship", "race", "sex", "native.country"
]  # fmt: skip


def _columns(rows: int = 2) -> dict[str, list]:
    return make("adult", rows).table.drop_columns("income").to_pydict()


def test_two_rows_by_hand():
    made = make("adult", 2)
    features = encode_table(ADULT, _columns(), "here")
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, made.x, rtol=1e-3, atol=1e-4)


def test_all_columns_but_the_label_are_used():
    assert sorted(ADULT_COLUMNS) == sorted(NUMBERS + WORDS)


def test_html_entities_and_blanks_are_understood():
    columns, plain = _columns(), _columns()
    columns["native.country"][1] = " Trinadad&amp;Tobago"
    columns["sex"][0] = " Male "
    np.testing.assert_array_equal(encode_table(ADULT, columns, "here"), encode_table(ADULT, plain, "here"))


@pytest.mark.skipif(not (REAL / "train.parquet").is_file(), reason="needs the real files of $FLORILEGIUM_DATA")
def test_the_real_rows_are_encoded_as_scikit_learn_does():
    train, test = (pyarrow.parquet.read_table(REAL / f"{part}.parquet").to_pydict() for part in ("train", "test"))
    numbers, words = (
        [np.array([part[column] for column in columns], dtype=kind).T for part in (train, test)]
        for columns, kind in ((NUMBERS, np.float64), (WORDS, object))
    )
    scaler = StandardScaler().fit(numbers[0])
    # The categories of both files together, in alphabetical order: a device cannot learn them from its own rows.
    encoder = OneHotEncoder(sparse_output=False).fit(np.concatenate(words))
    for i, part in enumerate((train, test)):
        expected = np.concatenate([scaler.transform(numbers[i]), encoder.transform(words[i])], axis=1)
        np.testing.assert_allclose(encode_table(ADULT, part, "here"), expected, atol=2e-3)


class TestFailure:
    @pytest.mark.parametrize("column", WORDS)
    def test_an_unknown_category_is_named_with_those_known(self, column):
        columns = _columns()
        known = columns[column][0]
        columns[column][1] = "Martian"
        with pytest.raises(DataError) as caught:
            encode_table(ADULT, columns, "a.parquet")
        message = str(caught.value)
        assert message.startswith(f"a.parquet: column '{column}' has the unknown category 'Martian'. Known: ")
        assert known in message

    def test_a_missing_number_is_named(self):
        columns = _columns()
        columns["age"][1] = None
        with pytest.raises(DataError, match=r"a\.parquet: column 'age'"):
            encode_table(ADULT, columns, "a.parquet")

    def test_a_word_among_the_numbers_is_named(self):
        columns = _columns()
        columns["age"][1] = "old"
        with pytest.raises(DataError, match=r"a\.parquet: column 'age'"):
            encode_table(ADULT, columns, "a.parquet")
