"""What leaves a device: every message of runs on devices is searched for their data, labels and names of files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from PIL import Image

from florilegium.apps import client_app
from florilegium.clients.core.wire import Reply, flat, pack, unpack
from florilegium.clients.node.host import Host
from florilegium.common import files
from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from tests.grid import InProcessGrid
from tests.partitions.made import make
from tests.runs import Runs

SECRET = "patient-4711"
KEYS: dict[str, Value] = {
    "dataset": "mnist", "model": "linear", "num-clients": 3, "participation": 1.0, "rounds": 1, "local-epochs": 1,
    "batch-size": 8, "evaluate-every": 0, "min-success": 0.3, "start-timeout": 1.0,
}  # fmt: skip
METHODS: dict[str, dict[str, Value]] = {
    "fedavg": {},
    "fedper": {"model": "mlp"},
    "ppfe": {"model": "mlp", "ppfe.personal-blocks": "0", "ppfe.stage-rounds": "1", "ppfe.ranks": ""},
    "pefll": {"pefll.hidden-width": 8, "pefll.descriptor-size": 4, "local-steps": 2},
    "flowdup": {"flowdup.dimensions": 30, "flowdup.features": 7, "flowdup.width": 6},
}


@pytest.fixture
def nodes(tmp_path: Path) -> list[dict[str, Any]]:
    """Three devices with pictures in files and folders that tell too much."""
    found = []
    for device in range(3):
        made = make("mnist", 20, device)
        for row, (pixels, label) in enumerate(zip(made.x, made.y, strict=True)):
            folder = tmp_path / f"{SECRET}-{device}" / "train" / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.squeeze()).save(folder / f"{SECRET}-{row}.png")
        node = {"client-id": f"d{device}", "data-path": str(tmp_path / f"{SECRET}-{device}")}
        found.append(node | {"state-dir": str(tmp_path / f"state-{SECRET}")})
    return found


def _bytes(message: Message) -> bytes:
    if message.has_error():
        return str(message.error.reason).encode()
    return message_to_proto(message).SerializeToString()


def _arrays(message: Message) -> Iterator[np.ndarray]:
    if not message.has_error():
        assert set(message.content) <= {"arrays", "outcome", "roster", "metrics"}
        if "arrays" in message.content:
            yield from unpack(message.content["arrays"]).values()  # type: ignore[arg-type]


def _assert_silent(grid: InProcessGrid, nodes: list[dict[str, Any]]) -> None:
    """Search all that came from the devices: as bytes for names, as arrays for rows of pictures and for labels."""
    hosts = [client_app._host_of(_context(grid, number))[0] for number in range(len(nodes))]
    data = [host._source.data(node["client-id"]) for host, node in zip(hosts, nodes, strict=True)]
    pictures = np.concatenate([part.x.flatten(1).numpy() for one in data for part in (one.train, one.test)])
    rows = {row.astype(np.float32).tobytes() for row in pictures}
    labels = [tuple(part.y.tolist()) for one in data for part in (one.train, one.test)]
    assert grid.received
    for message in grid.received:
        assert SECRET.encode() not in _bytes(message)
        for array in _arrays(message):
            flat = array.astype(np.float32).reshape(-1)
            for row in flat.reshape(-1, pictures.shape[1]) if flat.size % pictures.shape[1] == 0 else ():
                assert row.tobytes() not in rows
            assert not any(tuple(flat[: len(one)].tolist()) == one for one in labels)
        if not message.has_error() and "outcome" in message.content:  # one number of each kind for the one client
            assert all(len(values) <= 1 for values in Reply.unpack(message.content).metrics.values())


def _context(grid: InProcessGrid, number: int) -> Any:
    return list(grid._contexts.values())[number]


@pytest.mark.parametrize("method", METHODS)
def test_no_data_leave_a_device(tmp_path: Path, nodes: list[dict[str, Any]], method: str) -> None:
    runs = Runs(tmp_path, {**KEYS, "method": method, **METHODS[method]})
    runs("run", nodes=nodes)
    _assert_silent(runs.grid, nodes)


def test_the_search_finds_what_must_not_be_there(tmp_path: Path, nodes: list[dict[str, Any]]) -> None:
    """A picture among a model's changes, and a file's name in an error."""
    runs = Runs(tmp_path, {**KEYS, "method": "fedavg"})
    runs("run", nodes=nodes)
    host, _ = client_app._host_of(_context(runs.grid, 0))
    reply = next(message for message in runs.grid.received if "arrays" in message.content)
    name, weights = next(iter(unpack(reply.content["arrays"]).items()))  # type: ignore[arg-type]
    weights = weights.copy()
    weights[3] = host._source.data("d0").train.x[2].flatten().numpy()
    reply.content["arrays"] = flat({name: weights})
    with pytest.raises(AssertionError):
        _assert_silent(runs.grid, nodes)


def test_errors_tell_no_secrets(
    tmp_path: Path, nodes: list[dict[str, Any]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A label that is none, an error in the midst of training, and a full disk: said in the devices' logs alone."""
    (Path(nodes[0]["data-path"]) / "train" / f"{SECRET}-class").mkdir()
    Image.new("L", (28, 28)).save(Path(nodes[0]["data-path"]) / "train" / f"{SECRET}-class" / "x.png")
    runs = Runs(tmp_path, {**KEYS, "method": "fedper", "model": "mlp", "num-clients": 2})
    state = Path(nodes[1]["state-dir"])
    save = files.save_file

    def full(arrays: Mapping[str, Any], path: Path, **rest: Any) -> None:
        if state in Path(path).parents:
            raise OSError(28, f"No space left for {SECRET}")
        save(arrays, path, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(files, "save_file", full)
        with pytest.raises(RunError, match=r"only 0 of 2 clients .* FileError; the device's log") as caught:
            runs("full", nodes=nodes)
    assert SECRET not in str(caught.value)
    assert "the label in row" in caplog.text
    assert f"{SECRET}-class" in caplog.text
    assert f"No space left for {SECRET}" in caplog.text
    path = runs("room", nodes=nodes)  # with room again they take part, and the first is still left out
    assert len((path / "clients.csv").read_text().splitlines()) == 3
    assert any(message.has_error() for message in runs.grid.received)
    assert not any(SECRET.encode() in _bytes(message) for message in runs.grid.received)


def test_the_disk_of_one_device_is_full(
    tmp_path: Path, nodes: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on without it, and it keeps what it had."""
    save = files.save_file
    nodes[2]["state-dir"] = str(tmp_path / "small")
    runs = Runs(tmp_path, {**KEYS, "method": "fedper", "model": "mlp", "rounds": 3})
    asked: list[int] = []

    def note(message: Message) -> None:
        if message.metadata.message_type == "train":
            asked.append(int(message.content["config"]["round"]))  # type: ignore[index,arg-type]

    def full(arrays: Mapping[str, Any], path: Path, **rest: Any) -> None:
        if tmp_path / "small" in Path(path).parents and asked[-1] > 1:
            raise OSError(28, "No space left on device")
        save(arrays, path, **rest)

    monkeypatch.setattr(files, "save_file", full)
    path = runs("run", nodes=nodes, intercept=note)
    lines = [json.loads(line) for line in (path / "failures.jsonl").read_text().splitlines()]
    assert [(line["round"], line["phase"], line["client"]) for line in lines] == [
        (2, "train", "d2"), (3, "train", "d2"), (3, "test", "d2")
    ]  # fmt: skip
    assert all(line["reason"] == "FileError; the device's log says why" for line in lines)
    (head,) = (tmp_path / "small" / "run" / "d2").glob("*.safetensors")
    assert head.name.startswith("state-000001-")


@pytest.mark.parametrize("field", ["run", "identity"])
def test_a_server_cannot_name_files_outside_of_the_states_folder(
    tmp_path: Path, nodes: list[dict[str, Any]], field: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The devices' logs say so; to a server that changes identities on the way, a reply is one to another request."""
    runs = Runs(tmp_path, {**KEYS, "method": "fedper", "model": "mlp", "rounds": 1})

    def mislead(message: Message) -> None:
        if message.metadata.message_type == "train":
            message.content["config"][field] = "x/../../../elsewhere"  # type: ignore[index]

    with pytest.raises(RunError, match="only 0 of 3 clients succeeded"):
        runs("run", nodes=nodes, intercept=mislead)
    assert caplog.text.count("RunError: 'x/../../../elsewhere' cannot name a folder or file") >= 3
    assert not [path for path in tmp_path.rglob("*.safetensors") if "checkpoint" not in path.parts]


HOOK = f"""
import numpy as np

def broken():
    raise ValueError("{SECRET}")

def odd():
    yield np.zeros((3, 28, 28, 1), np.uint8), ["{SECRET}", ["a", "list"], 2]

def nothing():
    yield np.zeros((3, 28, 28, 1), np.uint8), None
"""


@pytest.mark.parametrize("kind", ["label", "broken", "odd", "nothing", "own dataset", "schema", "stock"])
def test_whatever_goes_wrong_tells_no_secrets(
    tmp_path: Path, nodes: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """In the data of the third device, in what its owner has written, and in answers to a stock strategy."""
    node, folder = nodes[2], tmp_path / SECRET
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    if kind == "label":
        table = make("mnist", 4).table
        labels = [["cat", SECRET, "cat", "cat"]]
        table = table.set_column(table.column_names.index("label"), "label", labels)
        pyarrow.parquet.write_table(table, folder / "train.parquet")
        (folder / "schema.toml").write_text("[classes]\ncat = 1\n")
        node |= {"data-path": str(folder), "schema": str(folder / "schema.toml")}
    elif kind in ("broken", "odd", "nothing"):
        (folder / "hook_of_a_test.py").write_text(HOOK)
        node["data-path"] = f"hook_of_a_test:{kind}"
    elif kind == "own dataset":
        node["dataset"] = str(folder / "none")
    elif kind == "schema":
        (folder / "schema.toml").write_bytes(b"\xff\xfe")
        node["schema"] = str(folder / "schema.toml")
    runs = Runs(tmp_path, {**KEYS, "method": "fedper", "model": "mlp", "num-clients": 2})
    if kind == "stock":
        runs("run", nodes=nodes)
        monkeypatch.setattr(Host, "_client", lambda *_: (_ for _ in ()).throw(OSError(SECRET)))
        context = _context(runs.grid, 2)
        asked = RecordDict({"arrays": pack({}), "config": ConfigRecord({"server-round": 1})})
        with pytest.raises(RunError, match="the device's own configuration or data") as caught:
            client_app.app(Message(asked, context.node_id, "train"), context)
        assert SECRET not in str(caught.value)
        return
    runs("run", nodes=nodes)
    errors = [message for message in runs.grid.received if message.has_error()]
    assert {message.metadata.src_node_id for message in errors} == {_context(runs.grid, 2).node_id}
    assert all("its log says why" in str(message.error.reason) for message in errors)
    assert not any(SECRET.encode() in _bytes(message) for message in runs.grid.received)
    sys.modules.pop("hook_of_a_test", None)


def test_tables_from_csv(tmp_path: Path) -> None:
    """Names of columns are the dataset's, which everybody knows; values stay, also one that is none."""
    nodes = []
    for device in range(3):
        folder = tmp_path / f"{SECRET}-{device}"
        folder.mkdir()
        table = make("adult", 30, device).table
        if device == 2:
            ages = [SECRET, *map(str, table.column("age").to_pylist()[1:])]
            table = table.set_column(table.column_names.index("age"), "age", [ages])
        pyarrow.csv.write_csv(table, folder / "train.csv")
        nodes.append({"client-id": f"d{device}", "data-path": str(folder)})
    runs = Runs(tmp_path, {**KEYS, "method": "fedavg", "dataset": "adult", "num-clients": 2})
    runs("run", nodes=nodes, **{"state-dir": str(tmp_path / "state")})
    failed = {message.metadata.src_node_id for message in runs.grid.received if message.has_error()}
    assert failed == {_context(runs.grid, 2).node_id}
    _assert_silent(runs.grid, nodes[:2])
