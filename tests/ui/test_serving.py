"""The command ``florilegium ui``: what it refuses, and that it serves until it is stopped."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.common.errors import ConfigurationError
from florilegium.ui.serving import serve
from tests.processes import ROOT
from tests.ui.made import made

TOKEN = "a-token-of-many-letters"


@pytest.mark.parametrize(
    ("host", "names", "token", "words"),
    [
        ("0.0.0.0", [], "", "needs a token of at least 16 letters"),
        ("192.0.2.7", ["here"], "", "needs a token of at least 16 letters"),
        ("::", ["here"], "", "needs a token of at least 16 letters"),
        ("example.org", [], "", "needs a token of at least 16 letters"),
        ("127.0.0.1", [], "short", "a token has at least 16 ASCII letters"),
        ("127.0.0.1", [], "ä" * 20, "a token has at least 16 ASCII letters"),
        ("0.0.0.0", [], TOKEN, "name the address that browsers will use, with --name"),
        ("192.0.2.7", [], TOKEN, "it cannot be used"),  # an address for documentation, which no machine has
    ],
)
def test_a_server_that_others_could_use_needs_a_token(
    tmp_path: Path, host: str, names: list[str], token: str, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        serve(tmp_path, host, 0, names, token)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no folder .*missing.*--runs-dir names another"):
        serve(tmp_path / "missing", "127.0.0.1", 0, [], "")


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_its_packages_the_command_names_the_extra(
    tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        name for name in sys.modules if name.partition(".")[0] == package or name.startswith("florilegium.ui.")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    result = CliRunner().invoke(cli, ["ui", "--runs-dir", str(tmp_path)])
    assert isinstance(result.exception, ConfigurationError)
    assert (
        str(result.exception) == f"florilegium ui needs the package {package}: install Florilegium with its extra [ui]"
    )


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    made(tmp_path, "run")
    server = subprocess.Popen(
        [sys.executable, "-m", "florilegium", "ui", "--runs-dir", str(tmp_path), "--port", "0"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    said = server.stdout.readline()
    port = int(said.partition("http://127.0.0.1:")[2].partition("/")[0])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/")
    reply = connection.getresponse()
    assert reply.status == 200
    assert reply.getheader("server") is None
    assert 'href="/runs/run"' in reply.read().decode()
    for request in ("GET / HTTP/1.0\r\n\r\n", "\x16\x03\x01\x02\r\n\r\n", f"GET / HTTP/1.1\r\nX: {'x' * 1_000_000}"):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
            try:  # a header without end is refused before all of it is sent
                raw.sendall(request.encode())
                replied = raw.recv(100)
            except ConnectionError:
                replied = b"HTTP/1.1 400 "
            assert replied.startswith(b"HTTP/1.1 400 ")
    os.kill(server.pid, number)
    _, errors = server.communicate(timeout=60)
    assert (server.returncode, errors) == (0, "")
