"""Tests of common.errors: exit statuses and the nearest word."""

from __future__ import annotations

import pytest

from florilegium.common.errors import ConfigurationError, DataError, FlorilegiumError, RunError, nearest


def test_a_typing_error_is_recognised():
    assert nearest("fedprx", ["fedavg", "fedprox", "local"]) == "; did you mean 'fedprox'?"


def test_nothing_is_suggested_where_nothing_is_near():
    assert nearest("zebra", ["fedavg", "fedprox", "local"]) == "."


@pytest.mark.parametrize(("error", "status"), [(ConfigurationError, 2), (DataError, 2), (RunError, 1)])
def test_the_exit_status_tells_wrong_input_from_a_failed_run(error, status):
    assert issubclass(error, FlorilegiumError)
    assert error.exit_status == status
