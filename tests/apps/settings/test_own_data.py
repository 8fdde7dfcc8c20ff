"""Runs on data without a schema: names of clients, models that describe their inputs, devices, relative paths."""

from __future__ import annotations

import csv
import json
import logging
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.apps.runs.experiment import resolve
from florilegium.apps.settings.configuration import parse
from florilegium.clients.core.export import load_model
from florilegium.common.errors import ConfigurationError
from florilegium.partitions.datasets import find_spec
from florilegium.partitions.device_data import read_device
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.sources.arrays import array_dataset
from florilegium.partitions.split_files import file_hash
from tests.grid import run_app
from tests.support import CACHE, config, settings


def _call(*words: str) -> str:
    result = CliRunner().invoke(cli, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def _clients(folder: Path, *names: str) -> Path:
    rng = np.random.default_rng(1)
    folder.mkdir(parents=True)
    for name in names:
        rows = "".join(f"{x:.3f},{x + y:.3f},{'in' if x > 0 else 'out'}\n" for x, y in rng.normal(size=(20, 2)))
        (folder / f"{name}.csv").write_text(f"a,b,label\n{rows}")
    return folder


def test_clients_are_called_by_their_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = _clients(tmp_path / "own", "alice", "bob", "0")
    keys = {"dataset": str(own), "partitioner": "natural", "num-clients": 0, "model": "linear", "rounds": 1}
    run_app(config(**keys, **{"runs-dir": str(tmp_path), "run-name": "run"}))
    rows = list(csv.DictReader((tmp_path / "run" / "clients.csv").open()))
    numbers = {row["name"]: row["client"] for row in rows}
    assert numbers == {"0": "0", "alice": "1", "bob": "2"}
    _call("export", "run", "--client", "alice", "--output", str(tmp_path / "named"), "--runs-dir", str(tmp_path))
    _call("personalise", "run", "--client", "1", "--output", str(tmp_path / "number"), "--runs-dir", str(tmp_path))
    cards = [json.loads((tmp_path / name / "card.json").read_text()) for name in ("named", "number")]
    assert cards[0] == cards[1]
    assert (cards[0]["client"], cards[0]["name"]) == ("1", "alice")
    with pytest.raises(
        ConfigurationError, match=r"no client 'alicia'.*did you mean 'alice'.*0 to 2, or one of the names"
    ):
        _call("export", "run", "--client", "alicia", "--output", str(tmp_path / "x"), "--runs-dir", str(tmp_path))
    # The model describes its inputs, where the data are gone.
    (tmp_path / "rows.csv").write_text("a,b\n9,9\n-9,-9\n")
    own.rename(tmp_path / "gone")
    assert len(_call("predict", str(tmp_path / "named"), str(tmp_path / "rows.csv")).splitlines()) == 3
    assert load_model(tmp_path / "named")[1].dataset == own.name
    assert not [record for record in caplog.records if "is taken as a number" in record.message]


def test_the_log_of_a_run_says_what_was_inferred(tmp_path: Path) -> None:
    own = _clients(tmp_path / "own", "alice", "bob")
    keys = {"dataset": own, "partitioner": "natural", "num-clients": 0, "model": "linear", "rounds": 1}
    words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    run = Path(_call("run", "--workers", "1", "--runs-dir", str(tmp_path), *words).splitlines()[-1])
    log = (run / "run.log").read_text(encoding="utf-8")
    assert log.count("dataset: label: column 'label', 2 classes: in, out") == 1
    assert log.count("dataset: natural clients: column 'client'") == 1


def test_a_number_goes_before_a_name_that_looks_like_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = _clients(tmp_path / "own", "1", "2")  # clients 0 and 1
    keys = {"dataset": str(own), "partitioner": "natural", "num-clients": 0, "model": "linear", "rounds": 1}
    run_app(config(**keys, **{"runs-dir": str(tmp_path), "run-name": "run"}))
    with caplog.at_level(logging.WARNING, "flwr"):
        _call("export", "run", "--client", "1", "--output", str(tmp_path / "one"), "--runs-dir", str(tmp_path))
    assert json.loads((tmp_path / "one" / "card.json").read_text())["name"] == "2"
    assert "is the client named '2'. The client named '1' has number 0" in caplog.text
    _call("export", "run", "--client", "2", "--output", str(tmp_path / "two"), "--runs-dir", str(tmp_path))
    assert json.loads((tmp_path / "two" / "card.json").read_text())["client"] == "1"


def test_devices_take_the_schema_that_was_inferred(tmp_path: Path) -> None:
    own = _clients(tmp_path / "own", "alice", "bob")
    cache = ("--set", f"cache-dir={CACHE}")
    shown = _call("schema", str(own), *cache)
    assert "# label: column 'label', 2 classes: in, out" in shown
    assert _call("schema", str(own), "--output", str(tmp_path / "copy"), *cache).strip() == str(tmp_path / "copy")
    assert (tmp_path / "copy" / "schema.toml").read_text() == shown
    assert tomllib.loads(shown)["labels"] == ["in", "out"]
    device = tmp_path / "device"
    device.mkdir()
    (own / "alice.csv").rename(device / "train.csv")
    (device / "test.csv").write_text("a,b,label\n1,2,in\n")
    data = read_device(device, find_spec(str(tmp_path / "copy")))
    whole = load_dataset(settings(dataset=str(own), model="linear"))
    rows = np.asarray(whole.train.x[whole.train.clients["client"] == "alice"])
    np.testing.assert_allclose(data.train.x.numpy(), rows, atol=1e-5)
    with pytest.raises(ConfigurationError, match="'digits' is a built-in dataset"):
        _call("schema", "digits")
    with pytest.raises(ConfigurationError, match="rounds: a schema depends on other keys only"):
        _call("schema", str(own), "--set", "rounds=3")


def test_a_schema_may_name_the_column_of_clients(tmp_path: Path) -> None:
    """Where several columns may name clients, the schema's own output asks for the key."""
    (tmp_path / "own").mkdir()
    rows = "".join(f"{n * 0.5},{'ab'[n % 2]},{'xyz'[n % 3]},{n % 5},{n // 3 % 2}\n" for n in range(60))
    (tmp_path / "own" / "train.csv").write_text("x,user,hospital,ward,label\n" + rows)
    cache = ("--set", f"cache-dir={CACHE}")
    plain = _call("schema", str(tmp_path / "own"), *cache)
    assert "named by client-column, one of user, hospital" in plain
    for column, clients in (("hospital", ["hospital"]), ("ward+user", ["ward", "user"])):
        shown = tomllib.loads(_call("schema", str(tmp_path / "own"), "--set", f"client-column={column}", *cache))
        assert shown == {**tomllib.loads(plain), "clients": clients}
    with pytest.raises(ConfigurationError, match=r"client-column: 'hospitl' .*did you mean 'hospital'"):
        _call("schema", str(tmp_path / "own"), "--set", "client-column=hospitl", *cache)


def test_relative_folders_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "mine.toml").write_text('dataset = "data/own"\ntransfer-target = "../other"\n')
    for given, expected in (
        ("./own", tmp_path / "own"), (".", tmp_path), ("~/own", tmp_path / "home" / "own"),
        ("a/b", tmp_path / "a" / "b"),
        ("/abs", "/abs"), ("hub:org/own", "hub:org/own"), ("mnist", "mnist"), ("pack.age:data", "pack.age:data"),
    ):  # fmt: skip
        assert resolve(None, [f"dataset={given}"], {})["dataset"] == str(expected)
    keys = resolve("mine.toml", [], {})
    assert (keys["dataset"], keys["transfer-target"]) == (str(tmp_path / "data/own"), str(tmp_path.parent / "other"))


@pytest.mark.parametrize(
    ("tokens", "model", "said"),
    [
        (80, "char-lstm", ""),
        (81, "char-lstm", "model: 'char-lstm' does not take the inputs"),
        (5, "mlp", "Allowed: char-lstm"),
    ],
)
def test_tokens_need_a_network_that_reads_them(tmp_path: Path, tokens: int, model: str, said: str) -> None:
    x = np.arange(12).reshape(4, 3) % 4
    x[0, 0] = tokens
    keys: dict[str, Any] = {"dataset": array_dataset((x, [0, 1, 0, 1]), cache_dir=str(tmp_path)), "model": model}
    if not said:
        parse(config(**keys))
        return
    with pytest.raises(ConfigurationError, match=said):
        parse(config(**keys))


def test_what_is_wrong_with_the_data_is_said_before_a_run(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.csv").write_text("size,label\n1,x\n2,\n")
    with pytest.raises(ConfigurationError, match=r"(?s)run configuration is wrong.*'label' has no label in row 1"):
        parse(config(dataset=str(tmp_path / "own")))


def test_clients_of_a_split_of_ones_own_have_its_names(tmp_path: Path) -> None:
    split = tmp_path / "split.json"
    named = [{"name": "north", "train": [0, 5, 6]}, {"name": "south", "train": [7, 8]}]
    keys = {"partitioner": "file", "file.path": str(split), "num-clients": 0, "runs-dir": str(tmp_path), "rounds": 1}
    for names in (("north", "south"), ("site", "site")):  # a domain's name names none of its clients
        clients = [{**one, "name": name} for one, name in zip(named, names, strict=True)]
        split.write_text(json.dumps({"clients": clients}))
        name = names[1]
        run_app(config(**{**keys, "file.hash": file_hash(split), "run-name": name}))
        rows = list(csv.DictReader((tmp_path / name / "clients.csv").open()))
        assert [row.get("name") for row in rows] == (["north", "south"] if name == "south" else [None, None])
