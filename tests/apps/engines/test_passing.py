"""Tests of apps.engines.passing: messages between two processes of a machine."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest

from florilegium.apps.engines.passing import received, send
from florilegium.common.spool import Spool, spooled


def _in_a_child(work):
    """Carry out ``work`` with a connection in a forked process; return the other end of it, and the process."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=work, args=(there,), daemon=True)
    process.start()
    there.close()
    return here, process


def _twice(connection):
    value = received(connection, connection.recv_bytes())
    numbers = np.frombuffer(value["large"].private(), np.float64)
    numbers *= 2
    send(connection, (spooled([numbers]), value["small"] * 2, type(value["large"]).__name__))


def test_large_bytes_go_as_files_and_all_else_as_it_is():
    connection, process = _in_a_child(_twice)
    numbers = np.random.default_rng(1).normal(size=300_000)
    large = spooled([numbers])
    send(connection, {"large": large, "small": np.arange(3)})
    found = connection.recv_bytes()
    assert len(found) < 1000  # 2.4 MB went as a file
    doubled, small, kind = received(connection, found)
    assert isinstance(doubled, Spool)
    assert kind == "Spool"
    np.testing.assert_array_equal(np.frombuffer(doubled, np.float64), 2 * numbers)
    np.testing.assert_array_equal(small, [0, 2, 4])
    np.testing.assert_array_equal(np.frombuffer(large, np.float64), numbers)  # the other's changes are its own
    process.join()


def _dies(connection):
    connection.send_bytes(b"\x02" + b"which says that two files follow")


def test_a_process_that_dies_before_its_files_is_an_end_of_file():
    connection, process = _in_a_child(_dies)
    found = connection.recv_bytes()
    process.join()
    with pytest.raises(EOFError):
        received(connection, found)
