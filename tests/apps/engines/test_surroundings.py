"""What is wrong around a run is said at once, in a line with the variable, key or file: proxies, Ray, TMPDIR, disks."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from florilegium.apps.engines.one_process import run_here
from florilegium.apps.engines.ray import check_cluster, named_cluster
from florilegium.apps.engines.ray_simulation import without_proxy
from florilegium.apps.engines.registry import engine
from florilegium.apps.runs.experiment import resolve
from florilegium.apps.settings.configuration import complete, parse
from florilegium.common.errors import ConfigurationError, DataError, FileError
from florilegium.common.places import read_utf8, short_temporary_folder
from florilegium.partitions.device_data import read_device_schema
from florilegium.partitions.sources.folders import _table
from florilegium.partitions.sources.schema import read_schema
from florilegium.partitions.sources.table_files import read_parquet
from florilegium.strategies.folder.claim import read_status
from florilegium.strategies.folder.run_folder import RunFolder, read_config
from tests.support import config


class TestProxies:
    @pytest.mark.parametrize(
        ("variables", "hosts"),
        [
            ({}, "127.0.0.1,localhost,::1"),
            ({"no_proxy": ""}, "127.0.0.1,localhost,::1"),
            ({"no_proxy": "a.org, b.org", "NO_PROXY": "b.org,c.org"}, "a.org,b.org,c.org,127.0.0.1,localhost,::1"),
            ({"no_grpc_proxy": "127.0.0.1"}, "127.0.0.1,localhost,::1"),
        ],
    )
    def test_this_machine_is_reached_without(self, variables: dict[str, str], hosts: str) -> None:
        assert without_proxy(variables) == hosts


@pytest.fixture
def listening() -> Iterator[int]:
    """Return a port at which something listens that is no Ray cluster."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield int(taken.getsockname()[1])


class TestRayAddress:
    @pytest.mark.parametrize(
        "address", ["nonsense", "127.0.0.1", "127.0.0.1:", ":6379", "127.0.0.1:abc", "a:99999", "http://a:1", "a b:1"]
    )  # fmt: skip
    def test_what_is_no_address(self, address: str) -> None:
        with pytest.raises(ConfigurationError, match=r"RAY_ADDRESS: '.*' is no address of a Ray cluster"):
            check_cluster(address)

    @pytest.mark.parametrize("prefix", ["", "ray://"])
    def test_nobody_there(self, prefix: str) -> None:
        with pytest.raises(
            ConfigurationError, match=r"RAY_ADDRESS: there is no Ray cluster at 127\.0\.0\.1:9 .*refused"
        ):
            check_cluster(f"{prefix}127.0.0.1:9")

    def test_somebody_else_there(self, listening: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("florilegium.apps.engines.ray._PATIENCE", 0.3)
        started = time.monotonic()
        with pytest.raises(ConfigurationError, match=f"what listens at 127.0.0.1:{listening} is no Ray cluster"):
            check_cluster(f"127.0.0.1:{listening}")
        assert time.monotonic() - started < 5

    def test_a_server_of_grpc_is_taken_for_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        server = grpc.server(futures.ThreadPoolExecutor(1))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            check_cluster(f"127.0.0.1:{port}")
        finally:
            server.stop(None)

    def test_auto_without_a_cluster(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        with pytest.raises(ConfigurationError, match="RAY_ADDRESS: 'auto', but no Ray cluster runs on this machine"):
            check_cluster("auto")

    @pytest.mark.parametrize(("value", "cluster"), [("", ""), (" ", ""), ("local", ""), (" a:1 ", "a:1")])
    def test_what_names_none(self, value: str, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_ADDRESS", value)
        assert named_cluster() == cluster

    def test_it_is_said_before_anything_starts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
        with pytest.raises(ConfigurationError, match="there is no Ray cluster"), engine("auto", 1, [config()]):
            pytest.fail("the engine has started")


class TestTemporaryFolder:
    @pytest.mark.parametrize("length", [10, 28, 29, 90])
    def test_it_is_short_enough_for_sockets(self, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
        usual = "/" + "x" * (length - 1)
        monkeypatch.setattr(tempfile, "tempdir", usual)
        assert short_temporary_folder() == (usual if length <= 28 else "/tmp")

    def test_none_is_short_enough(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", "/" + "x" * 80)
        monkeypatch.setattr(os, "access", lambda *_: False)
        with pytest.raises(ConfigurationError, match=r"TMPDIR: .* has 81 bytes, too many for the sockets"):
            short_temporary_folder()


LATIN, WIDE, MARKED = b"# caf\xe9\nrounds = 1\n", "rounds = 1\n".encode("utf-16"), b"\xef\xbb\xbfrounds = 1\r\n"


class TestUTF8:
    @pytest.mark.parametrize(
        ("content", "where"),
        [(LATIN, "line 1 has the byte 0xe9"), (b"a = 1\n# \xff", "line 2"), (WIDE, "it is UTF-16")],
    )
    def test_other_encodings_are_named(self, content: bytes, where: str, tmp_path: Path) -> None:
        (tmp_path / "a.toml").write_bytes(content)
        with pytest.raises(ConfigurationError, match=f"a.toml is not UTF-8: {where}.*Save it as UTF-8"):
            read_utf8(tmp_path / "a.toml")

    @pytest.mark.parametrize(
        ("file", "read"),
        [
            ("recipe.toml", lambda path: resolve(path, [], {})),
            ("config.toml", lambda path: read_config(path.parent)),
            ("schema.toml", lambda path: read_schema(path.parent)),
            ("device.toml", read_device_schema),
        ],
    )
    def test_in_every_file(self, file: str, read: Any, tmp_path: Path) -> None:
        (tmp_path / file).write_bytes(LATIN)
        with pytest.raises(ConfigurationError, match=f"{file} is not UTF-8"):
            read(tmp_path / file)

    def test_a_byte_order_mark_is_skipped(self, tmp_path: Path) -> None:
        (tmp_path / "recipe.toml").write_bytes(MARKED)
        assert resolve(tmp_path / "recipe.toml", [], {}) == {"rounds": 1}


class TestTwins:
    TABLE = pa.table([[1.0], [2.0], ["a"]], names=["x", "x", "y"])

    def test_parquet(self, tmp_path: Path) -> None:
        pq.write_table(self.TABLE, tmp_path / "train.parquet")
        with pytest.raises(DataError, match=r"train\.parquet has 2 columns 'x'; rename all but one"):
            read_parquet(tmp_path / "train.parquet")

    def test_csv(self, tmp_path: Path) -> None:
        (tmp_path / "train.csv").write_text("x,y,x\n1,a,2\n")
        with pytest.raises(DataError, match=r"train\.csv has 2 columns 'x'"):
            _table(tmp_path / "train.csv")


class TestValues:
    """Numbers and truth as Python writes them, and not TOML."""

    @pytest.mark.parametrize(
        ("assignment", "value"),
        [
            ("alpha=.5", 0.5), ("alpha=5.", 5.0), ("alpha=-.5e-3", -0.0005), ("balanced=True", True),
            ("balanced=False", False), ("seed=007", 7), ("rounds=1e3", 1000), ("rounds=1_000", 1000),
            ("angles=[0,90]", "0,90"), ("run-name=007", "007"), ("run-name=1.10", "1.10"), ("run-name=True", "True"),
            ("run-name='a b'", "a b"), ("alpha=1.5.2", "1.5.2"), ("classes-per-client=2", 2),
        ],
    )  # fmt: skip
    def test_taken(self, assignment: str, value: Any) -> None:
        (found,) = resolve(None, [assignment], {}).values()
        assert (found, type(found)) == (value, type(value))

    @pytest.mark.parametrize(
        ("assignment", "message"),
        [
            ("rounds=1.5", "rounds: input should be a valid integer .*found: 1.5"),
            (
                "seed=18446744073709551616",
                r"seed: whole numbers lie between .*18446744073709551616",
            ),
            ("rounds=1e300", r"rounds: whole numbers lie between"),
            ("seed=-1", "seed: input should be greater than or equal to 0 .*found: -1"),
            ("alpha=five", "alpha: input should be a valid number .*found: 'five'"),
            ("alpha=nan", "alpha: input should be"),
            ("tracker=None", "--set tracker=None: None is not a value; leave the key out"),
        ],
    )
    def test_refused(self, assignment: str, message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            parse(complete(resolve(None, [assignment], {})))


class TestFullDisk:
    """Every file that a run writes is named by the error, and the run is not said to be running."""

    @pytest.mark.parametrize(
        "file",
        ["metrics.prom", *(pytest.param(name, marks=pytest.mark.long) for name in (
            "metrics.jsonl", "summary.json", "clients.csv", "round-000001.safetensors", "config.toml", "origins.json",
            "provenance.json"))],
    )  # fmt: skip
    def test_a_run(self, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        full = OSError(errno.ENOSPC, "No space left on device")
        written: list[str] = []

        def replace(self: Path, target: Path) -> Path:
            written.append(target.name)
            if target.name == file or (file in written and target.parent == tmp_path / "run"):
                raise full
            return original(self, target)

        def opened(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if self.name == file and mode == "a":
                written.append(file)
                raise full
            return original_open(self, mode, *args, **kwargs)

        original, original_open = Path.replace, Path.open
        monkeypatch.setattr(Path, "replace", replace)
        monkeypatch.setattr(Path, "open", opened)
        keys = config(num_clients=2, rounds=1, local_epochs=1, model="linear", checkpoint_every=1)
        with pytest.raises(FileError, match=f"cannot write .*{file}: No space left on device. Free some space"):
            run_here({**keys, "runs-dir": str(tmp_path), "run-name": "run"}, tmp_path / "run")
        if (tmp_path / "run" / "status.json").exists():
            assert read_status(tmp_path / "run")["state"] == "failed"

    def test_a_status_replaces_a_longer_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """There is no room for a file beside it."""
        run = RunFolder(tmp_path, {}, "")
        run.status("running", figures="x" * 1000)

        def refuse(path: Path, text: str) -> None:
            raise FileError(f"cannot write {path}")

        monkeypatch.setattr("florilegium.strategies.folder.run_folder.write_text", refuse)
        run.status("failed", error="the disk is full")
        assert json.loads((tmp_path / "status.json").read_text()) == {"state": "failed", "error": "the disk is full"}
        with pytest.raises(FileError):
            run.status("running")

    def test_a_log_line_that_cannot_be_written_prints_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        from florilegium.apps.engines.process import _logged

        with _logged(Path("/dev/full")):
            logging.getLogger("flwr").warning("on a full disk")
        assert "Traceback" not in capsys.readouterr().err
