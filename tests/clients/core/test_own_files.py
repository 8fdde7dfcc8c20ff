"""Tests of clients.core.own_files: bounded folders, few inodes, runs of earlier versions, deletion by client."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from florilegium.clients.core.own_files import SINGLE, OwnFiles, shelf_of
from florilegium.clients.core.state import ClientState

MILLION = 1_000_000


def _keep(own: OwnFiles, number: int, round: int, checkpoint: int = 0) -> None:
    state = ClientState(own, round, [], checkpoint, "a")
    state.save({"number": np.array(number)})
    state.commit()


def _ask(own: OwnFiles, round: int = 9) -> int | None:
    found = ClientState(own, round, [], 0, "a").load()
    return None if found is None else int(found["number"])


def test_no_folder_of_a_million_clients_has_many_entries_and_folders_are_a_tenth_of_the_files() -> None:
    files = Counter(shelf_of(str(number)) for number in range(MILLION))
    assert files.pop("") == SINGLE
    outer = Counter(shelf.partition("/")[0] for shelf in files)
    assert len(outer) + SINGLE < 2_000
    assert max(outer.values()) == 100
    assert max(files.values()) == 10
    assert (len(files) + len(outer) + SINGLE) / MILLION < 0.102


@pytest.mark.parametrize("client", ["0", "999", "hospital-a", "01000", "1000-1999", "1" * 10, "١٢٣٤", "-5000"])
def test_few_clients_and_names_have_folders_of_their_own(tmp_path: Path, client: str) -> None:
    own = OwnFiles.within(tmp_path, client)
    assert own.file("state") == tmp_path / client / "state"
    assert own == OwnFiles.alone(tmp_path / client)


def test_a_client_reads_its_own_files_among_those_of_others(tmp_path: Path) -> None:
    """Names of which one begins as the other; the same rounds; parts and files of other kinds."""
    clients = ["1234", "12340", "12345", "1235", "1239"]
    for client in clients:
        own = OwnFiles.within(tmp_path, client)
        for round_ in (1, 2, 3):
            _keep(own, 10 * int(client) + round_, round_, checkpoint=round_ - 1)
        own.file("account.json").write_text(client)
    for client in clients:
        own = OwnFiles.within(tmp_path, client)
        assert _ask(own) == 10 * int(client) + 3
        assert own.file("account.json").read_text() == client
        assert sorted(path.name for path in own.folder.glob(f"{client}-state-*")) == [
            f"{client}-state-{round_:06d}-0-a.safetensors" for round_ in (2, 3)
        ]
    assert (tmp_path / "1000-1999" / "1230-1239" / "1234-account.json").is_file()


def test_what_is_deleted_of_a_client_by_its_name_is_all_and_nothing_else(tmp_path: Path) -> None:
    """As docs/run-folder.md says: RUN/clients/*/*/1234-*, or the folder RUN/clients/7."""
    for client in ("7", "1234", "1235", "12340", "123"):
        _keep(OwnFiles.within(tmp_path, client), int(client), 1)
    for path in tmp_path.glob("*/*/1234-*"):
        path.unlink()
    assert [_ask(OwnFiles.within(tmp_path, client)) for client in ("7", "1234", "1235", "12340", "123")] == [
        7, None, 1235, 12340, 123
    ]  # fmt: skip


def test_a_client_with_a_folder_of_an_earlier_version_goes_on_there(tmp_path: Path) -> None:
    """Also if others of the same run begin now."""
    _keep(OwnFiles.alone(tmp_path / "5000"), 1, 1)
    assert _ask(OwnFiles.within(tmp_path, "5000")) == 1
    _keep(OwnFiles.within(tmp_path, "5000"), 2, 2, checkpoint=1)
    _keep(OwnFiles.within(tmp_path, "5001"), 3, 2, checkpoint=1)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.safetensors")) == [
        "5000-5999/5000-5009/5001-state-000002-0-a.safetensors",
        "5000/state-000001-0-a.safetensors", "5000/state-000002-0-a.safetensors",
    ]  # fmt: skip
    assert _ask(OwnFiles.within(tmp_path, "5000")) == 2


def test_clients_of_all_folders_share_what_is_their_nodes(tmp_path: Path) -> None:
    own = OwnFiles.within(tmp_path, "123456")
    state = ClientState(own, 1, [], 0, "a")
    state.share({"number": np.array(4)}, "body")
    state.commit()
    for client in ("3", "7000", "hospital-a"):
        found = ClientState(OwnFiles.within(tmp_path, client), 1, [], 0, "a").load_shared("body")
        assert found is not None
        assert found["number"] == 4
    assert [path.name for path in tmp_path.iterdir()] == ["_node"]


def test_a_draft_of_a_worker_that_was_killed_does_not_count_and_the_next_one_does(tmp_path: Path) -> None:
    own = OwnFiles.within(tmp_path, "4321")
    _keep(own, 1, 1)
    left = ClientState(own, 2, [], 1, "a")
    left.save({"number": np.array(2)})
    left.draft()  # and the worker is killed
    assert _ask(own, 2) == 1
    _keep(own, 2, 2, checkpoint=1)
    assert _ask(own, 2) == 2
