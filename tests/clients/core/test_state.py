"""Tests of clients.state: staged until the work succeeded, exact after every resume, no older than needed."""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from florilegium.clients.core.state import ClientState
from florilegium.common.errors import DataError, RunError
from florilegium.common.files import write_tensors
from florilegium.models.frozen import Frozen


def _ask(folder, round, lineage=(), checkpoint=0, identity="0") -> int | None:
    """Return the number a client finds in its state in ``round``; None if it has no state."""
    found = ClientState(folder, round, lineage, checkpoint, identity).load()
    return None if found is None else int(found["number"])


def _keep(folder, number, round, lineage=(), checkpoint=0, identity="0") -> None:
    """Let a client keep ``number`` in ``round``."""
    state = ClientState(folder, round, lineage, checkpoint, identity)
    state.save({"number": np.array(number)})
    state.commit()


def _full(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_second_network_with_names_that_end_alike_is_no_frozen_parameter(tmp_path):
    """Only a file of an earlier version is searched for frozen parameters, by the ends of names."""
    fixed = Frozen({"0.weight": np.ones(2)}, frozenset({"1.weight"}))
    own = {"cluster.0.weight": np.array([2.0, 3.0]), "beside.0.weight": np.zeros(2), "1.weight": np.ones(1)}
    state = ClientState(tmp_path, 1, [], 0, "0", fixed)
    state.save(own)
    state.share(own, "common")
    state.commit()
    again = ClientState(tmp_path, 2, [], 0, "0", fixed)
    for found in (again.load(), again.load_shared("common")):
        assert {name: array.tolist() for name, array in found.items()} == {n: a.tolist() for n, a in own.items()}
    _path(tmp_path).unlink()
    write_tensors(_path(tmp_path), {"beside.0.weight": np.zeros(2), "1.weight": np.ones(1)})
    assert again.load().keys() == {"1.weight"}


def _path(folder):
    return folder / "state-000001-0-0.safetensors"


class TestSaving:
    def test_a_client_without_history_has_no_state(self, tmp_path):
        assert ClientState(tmp_path / "never-made", 1, [], 0, "0").load() is None

    def test_nothing_reaches_the_disk_before_the_commit(self, tmp_path):
        state = ClientState(tmp_path / "client", 1, [], 0, "0")
        state.save({"number": np.array(1)})
        assert not (tmp_path / "client").exists()
        assert _ask(tmp_path / "client", 1) is None  # another process, or the next message after a failure
        state.commit()
        assert _ask(tmp_path / "client", 1) == 1

    def test_a_draft_counts_when_it_is_published_and_not_before(self, tmp_path):
        _keep(tmp_path / "client", 1, round=1)
        state = ClientState(tmp_path / "client", 2, [], 1, "0")
        assert state.draft() is None
        state.save({"number": np.array(2)})
        change = state.draft()
        change.flush()
        assert _ask(tmp_path / "client", 2) == 1
        elsewhere = pickle.loads(pickle.dumps(change))
        with ThreadPoolExecutor(1) as other:
            other.submit(elsewhere.publish).result()
        assert _ask(tmp_path / "client", 2) == 2
        change.publish()  # which has been done
        assert _ask(tmp_path / "client", 2) == 2
        assert len(os.listdir(tmp_path / "client")) == 2  # of the checkpoint's round, and of this one

    @pytest.mark.parametrize("failing", ["write", "flush"])
    def test_parts_that_cannot_be_written_leave_no_drafts(self, tmp_path, monkeypatch, failing):
        state = ClientState(tmp_path, 1, [], 0, "0")
        state.save({"number": np.array(1)}, "first")
        state.save({"number": np.array(2)}, "second")
        if failing == "write":
            monkeypatch.setattr(state, "_path", lambda part: tmp_path / ("no" * 200 if part == "second" else part))
        else:
            monkeypatch.setattr(os, "fsync", _full)
        with pytest.raises(RunError, match="cannot write"):
            state.commit()
        assert os.listdir(tmp_path) == []

    def test_the_saver_itself_sees_what_it_saved(self, tmp_path):
        _keep(tmp_path, 1, round=1)
        state = ClientState(tmp_path, 2, [], 0, "0")
        assert state.load()["number"] == 1
        state.save({"number": np.array(2)})
        assert state.load()["number"] == 2

    def test_commit_without_save_writes_nothing(self, tmp_path):
        ClientState(tmp_path / "client", 1, [], 0, "0").commit()
        assert not (tmp_path / "client").exists()

    def test_the_last_of_several_saves_counts(self, tmp_path):
        state = ClientState(tmp_path, 1, [], 0, "0")
        for number in (1, 2, 3):
            state.save({"number": np.array(number)})
        state.commit()
        assert _ask(tmp_path, 1) == 3

    def test_a_second_exchange_of_the_same_round_goes_on_from_the_first(self, tmp_path):
        _keep(tmp_path, 1, round=4)
        assert _ask(tmp_path, 4) == 1
        _keep(tmp_path, 2, round=4)
        assert _ask(tmp_path, 4) == 2
        assert len(list(tmp_path.iterdir())) == 1

    def test_names_shapes_types_and_values_come_back(self, tmp_path):
        arrays = {
            "fc3.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
            "steps": np.array(7, dtype=np.int64),
            "empty": np.zeros((0, 3)),
        }
        state = ClientState(tmp_path, 1, [], 0, "0")
        state.save(arrays)
        state.commit()
        found = ClientState(tmp_path, 1, [], 0, "0").load()
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)

    @pytest.mark.parametrize(
        "array",
        [np.arange(6.0).reshape(2, 3).T, np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(6.0)[::-1]],
        ids=["transposed", "fortran", "reversed"],
    )
    def test_arrays_of_any_memory_order_come_back(self, tmp_path, array):
        state = ClientState(tmp_path, 1, [], 0, "0")
        state.save({"x": array})
        state.commit()
        np.testing.assert_array_equal(ClientState(tmp_path, 1, [], 0, "0").load()["x"], array)

    def test_clients_do_not_share(self, tmp_path):
        _keep(tmp_path / "0", 10, round=1)
        _keep(tmp_path / "1", 11, round=1)
        assert (_ask(tmp_path / "0", 2), _ask(tmp_path / "1", 2)) == (10, 11)


class TestResume:
    """Rounds 1 to 7 of a run with a checkpoint at round 5; then the run dies and is resumed from there."""

    @pytest.fixture
    def folder(self, tmp_path):
        for round_ in range(1, 8):
            _keep(tmp_path, round_, round_, lineage=[], checkpoint=5 if round_ > 5 else 0)
        return tmp_path

    def test_without_a_resume_the_newest_state_counts(self, folder):
        assert _ask(folder, 8, lineage=[], checkpoint=5) == 7

    def test_states_after_the_checkpoint_are_ignored(self, folder):
        assert _ask(folder, 6, lineage=[5], checkpoint=5) == 5
        assert _ask(folder, 9, lineage=[5], checkpoint=5) == 5  # also in rounds the dead attempt did reach

    def test_the_new_attempt_goes_on_from_its_own_states(self, folder):
        _keep(folder, 60, 6, lineage=[5], checkpoint=5)
        assert _ask(folder, 7, lineage=[5], checkpoint=5) == 60

    def test_a_second_resume_from_the_same_checkpoint_ignores_both_dead_attempts(self, folder):
        _keep(folder, 60, 6, lineage=[5], checkpoint=5)
        assert _ask(folder, 6, lineage=[5, 5], checkpoint=5) == 5
        assert _ask(folder, 7, lineage=[5, 5], checkpoint=5) == 5

    def test_a_second_resume_from_a_later_checkpoint_keeps_what_it_had_seen(self, folder):
        for round_ in (6, 7, 8):
            _keep(folder, 10 * round_, round_, lineage=[5], checkpoint=7 if round_ > 7 else 5)
        # The second attempt had a checkpoint at round 7 and died in round 8.
        assert _ask(folder, 8, lineage=[5, 7], checkpoint=7) == 70
        assert _ask(folder, 20, lineage=[5, 7], checkpoint=7) == 70

    def test_a_client_unasked_since_before_the_checkpoint_keeps_its_old_state(self, tmp_path):
        _keep(tmp_path, 2, round=2)
        assert _ask(tmp_path, 9, lineage=[5, 7], checkpoint=7) == 2

    @given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=14))
    def test_any_history_reads_as_if_the_dead_attempts_had_never_been(self, history):
        """Against a model that keeps the state in memory and takes it back to the checkpoint at every resume."""
        numbers = count(1)
        number = saved = None
        round_, lineage, checkpoint = 1, [], 0
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for asked, saves, dies in history:
                assert _ask(folder, round_, lineage, checkpoint) == number
                if asked:
                    number = next(numbers)
                    _keep(folder, number, round_, lineage, checkpoint)
                    assert _ask(folder, round_, lineage, checkpoint) == number
                if saves:
                    saved, checkpoint = number, round_
                round_ += 1
                if dies and checkpoint:
                    number, round_, lineage = saved, checkpoint + 1, [*lineage, checkpoint]


class TestNamesakes:
    """A device may have states of an earlier run that had the name of the present one."""

    def test_states_of_another_run_of_the_name_are_ignored(self, tmp_path):
        _keep(tmp_path, 1, round=1, identity="a")
        assert _ask(tmp_path, 1, identity="b") is _ask(tmp_path, 9, [5], 5, identity="b") is None
        assert _ask(tmp_path, 2, identity="a") == 1

    def test_they_are_deleted_once_there_are_own_ones(self, tmp_path):
        _keep(tmp_path, 1, round=7, identity="a")
        _keep(tmp_path, 2, round=1, identity="b")
        assert [path.name for path in tmp_path.iterdir()] == ["state-000001-0-b.safetensors"]

    def test_what_a_node_shares_is_the_runs_too(self, tmp_path):
        state = ClientState(tmp_path / "client", 1, [], 0, "a")
        state.share({"number": np.array(1)}, "body")
        state.commit()
        assert ClientState(tmp_path / "client", 2, [], 0, "a").load_shared("body")["number"] == 1
        assert ClientState(tmp_path / "client", 2, [], 0, "b").load_shared("body") is None


class TestPruning:
    def test_the_checkpoints_version_and_the_newest_are_kept(self, tmp_path):
        for round_ in range(1, 12):  # with a checkpoint after round 7
            _keep(tmp_path, round_, round_, checkpoint=7 if round_ > 7 else 0)
        assert len(list(tmp_path.iterdir())) == 2  # rounds 7 (for a resume) and 11
        for resumed_at in (7, 11):  # 11: the server has a checkpoint of the round that has just ended
            assert _ask(tmp_path, resumed_at + 1, [resumed_at], resumed_at) == resumed_at

    def test_the_newest_version_before_the_checkpoint_is_kept_however_old(self, tmp_path):
        _keep(tmp_path, 1, round=1)
        _keep(tmp_path, 3, round=3)
        _keep(tmp_path, 50, round=50, checkpoint=40)
        assert _ask(tmp_path, 41, [40], 40) == 3
        assert len(list(tmp_path.iterdir())) == 2

    def test_states_of_dead_attempts_are_deleted(self, tmp_path):
        for round_ in range(1, 8):
            _keep(tmp_path, round_, round_, checkpoint=5 if round_ > 5 else 0)
        _keep(tmp_path, 60, round=6, lineage=[5], checkpoint=5)
        assert len(list(tmp_path.iterdir())) == 2  # round 5 of the first attempt, round 6 of the second

    def test_other_files_in_the_folder_are_left_alone(self, tmp_path):
        (tmp_path / "model.safetensors").write_bytes(b"exported")
        (tmp_path / "round-notes.safetensors.txt").write_text("mine")
        _keep(tmp_path, 1, round=1)
        _keep(tmp_path, 2, round=2, checkpoint=2)
        assert (tmp_path / "model.safetensors").read_bytes() == b"exported"
        assert (tmp_path / "round-notes.safetensors.txt").exists()


class TestFailure:
    @pytest.mark.parametrize("cut", [0, 5, -1])
    def test_a_damaged_file_is_named_with_the_remedy(self, tmp_path, cut):
        _keep(tmp_path, 1, round=1)
        (file,) = tmp_path.iterdir()
        file.write_bytes(file.read_bytes()[:cut])
        with pytest.raises(DataError) as caught:
            _ask(tmp_path, 2)
        assert f"the state file {file} is damaged" in str(caught.value)
        assert "delete it to start this client anew" in str(caught.value)

    def test_a_damaged_file_of_a_dead_attempt_does_no_harm(self, tmp_path):
        _keep(tmp_path, 5, round=5)
        _keep(tmp_path, 6, round=6, checkpoint=5)
        for file in tmp_path.glob("state-*6-*"):
            file.write_bytes(b"")
        assert _ask(tmp_path, 6, lineage=[5], checkpoint=5) == 5

    def test_a_folder_that_cannot_be_made_is_named(self, tmp_path):
        (tmp_path / "client").write_text("a file where the folder should be")
        with pytest.raises(RunError, match=f"cannot write {tmp_path / 'client'}"):
            _keep(tmp_path / "client", 1, round=1)


class TestParts:
    def test_parts_are_kept_apart(self, tmp_path):
        state = ClientState(tmp_path / "client", 1, [], 0, "0")
        state.save({"number": np.array(1)}, "head1")
        state.save({"number": np.array(2)}, "head11")
        state.commit()
        later = ClientState(tmp_path / "client", 2, [], 1, "0")
        assert later.load() is None
        assert later.load("head1")["number"] == 1
        later.save({"number": np.array(3)}, "head1")
        later.commit()
        assert ClientState(tmp_path / "client", 3, [], 2, "0").load("head11")["number"] == 2

    def test_what_is_shared_is_written_once_and_read_by_all(self, tmp_path):
        first, second = (ClientState(tmp_path / name, 4, [], 0, "0") for name in ("a", "b"))
        first.share({"number": np.array(1)}, "body")
        assert second.load_shared("body") is None  # not before the work has succeeded
        first.commit()
        written = [path.stat().st_mtime_ns for path in (tmp_path / "_node").iterdir()]
        second.share({"number": np.array(1)}, "body")
        second.commit()
        assert [path.stat().st_mtime_ns for path in (tmp_path / "_node").iterdir()] == written
        assert ClientState(tmp_path / "c", 5, [], 4, "0").load_shared("body")["number"] == 1

    def test_a_shared_part_of_a_dead_attempt_is_replaced(self, tmp_path):
        dead = ClientState(tmp_path / "a", 4, [], 3, "0")
        dead.share({"number": np.array(1)}, "body")
        dead.commit()
        assert ClientState(tmp_path / "a", 4, [3], 3, "0").load_shared("body") is None
        again = ClientState(tmp_path / "a", 4, [3], 3, "0")
        again.share({"number": np.array(2)}, "body")
        again.commit()
        assert ClientState(tmp_path / "b", 5, [3], 4, "0").load_shared("body")["number"] == 2
