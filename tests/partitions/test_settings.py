"""Tests of partitions.settings: the keys of a federation, each refused by name where it is wrong."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from florilegium.common.errors import ConfigurationError
from florilegium.partitions.settings import FederationSettings, class_range
from tests.support import settings


class TestClassRange:
    @pytest.mark.parametrize(
        ("value", "low", "high"), [(2, 2, 2), ("2", 2, 2), ("2-3", 2, 3), ("1 - 10", 1, 10), ("4-4", 4, 4)]
    )
    def test_numbers_and_ranges(self, value, low, high):
        assert class_range(value) == (low, high)
        assert class_range(settings(classes_per_client=value).classes_per_client) == (low, high)

    @pytest.mark.parametrize("value", [0, -1, "0", "3-2", "0-2", "two", "", "2-", "-2", "2-3-4", "1.5", "2,3"])
    def test_others_are_refused_with_examples(self, value):
        with pytest.raises(ValueError, match=r"neither a number of classes, such as 2, nor a range, such as '2-3'"):
            class_range(value)
        with pytest.raises(ConfigurationError, match=r"classes-per-client: .*such as '2-3'"):
            settings(classes_per_client=value)


class TestRanges:
    @pytest.mark.parametrize(
        ("key", "value", "allowed"),
        [
            ("num-clients", -1, "greater than or equal to 0"),
            ("num-clients", "20", "valid integer"),
            ("samples-per-client", -1, "greater than or equal to 0"),
            ("alpha", 0.0, "greater than 0"),
            ("class-assignment", "evenly", "'random', 'even' or 'shards'"),
            ("balanced", 1, "valid boolean"),
            ("angles", "", "at least one angle is needed, such as '0,90,180,270'"),
            ("angles", "0;90", "is not a comma-separated list of numbers"),
            ("unseen-fraction", 1.0, "less than 1"),
            ("unseen-fraction", -0.1, "greater than or equal to 0"),
            ("labeled-fraction", 0.0, "greater than 0"),
            ("labeled-fraction", 1.1, "less than or equal to 1"),
            ("data-dir", "data", "is a relative path; give an absolute one"),
            ("cache-dir", "cache", "is a relative path; give an absolute one"),
            ("cache-dir", "", "at least 1"),
            ("seed", -1, "greater than or equal to 0"),
        ],
    )
    def test_a_wrong_value_is_refused_with_its_key_and_what_is_allowed(self, key, value, allowed):
        with pytest.raises(ConfigurationError) as caught:
            settings(**{key: value})
        (line,) = [line for line in str(caught.value).splitlines() if line.strip().startswith(f"{key}:")]
        assert allowed in line
        assert f"(found: {value!r})" in line

    @pytest.mark.parametrize("angles", ["nan", "0,inf"])
    def test_angles_must_be_finite(self, angles):
        with pytest.raises(ConfigurationError, match="angles"):
            settings(angles=angles)

    def test_an_unknown_key_is_refused(self):
        with pytest.raises(ValidationError, match="num-client"):
            FederationSettings.model_validate({"num-client": 3})
