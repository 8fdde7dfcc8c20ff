"""Requests and run folders by somebody who means harm: nothing outside of the runs is read, nothing is carried out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from florilegium.common.errors import RunError
from florilegium.ui.folders import LIMITS, Folders, GoneError, mark_of
from florilegium.ui.guard import HEADERS, MOST, Access
from tests.ui.made import asked, browsing, line, made

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'`$\\alpha^{$"
TOKEN = "a token of many letters"


class _Tags(HTMLParser):
    """Collects the tags of a page, its attributes that carry out scripts, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.scripts: list[str] = []
        self.loaded: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.scripts += [name for name, _ in attrs if name.startswith("on")]
        if tag in ("script", "link", "img"):
            self.loaded |= {str(value)[:5] for name, value in attrs if name in ("src", "href")}

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script":
            assert not data.strip()


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a folder of runs of which one has markup wherever a file holds a text."""
    failure = {"round": 1, "phase": EVIL, "client": EVIL, "reason": EVIL}
    clients = {EVIL.replace('"', ""): 0.5, "b": 0.7}
    further = {"warnings": [EVIL], "left_out": {EVIL: EVIL}, "refused": [EVIL]}
    path = made(tmp_path / "runs", "run", failures=[failure], clients=clients, further=further, method="fedavg")
    for key in ("method", "dataset"):
        text = (path / "config.toml").read_text()
        (path / "config.toml").write_text(re.sub(f"^{key} = .*$", f"{key} = {json.dumps(EVIL)}", text, flags=re.M))
    status = json.loads((path / "status.json").read_text())
    figures = {**status["figures"], EVIL: {"accuracy": 0.5}}
    (path / "status.json").write_text(json.dumps({**status, "error": EVIL, "figures": figures}))
    (path / "metrics.prom").write_text('florilegium_exchanges_total{phase="<b>"} 1\n')
    return tmp_path / "runs"


@pytest.mark.parametrize("page", ["/", "/runs/run", "/compare?run=run", "/runs/run/predict", "/compare?run=<b>"])
def test_markup_in_files_and_addresses_is_text(hostile: Path, page: str) -> None:
    reply = browsing(hostile).get(page)
    found = _Tags(reply.text)
    assert not found.scripts
    assert found.tags.isdisjoint({"b", "iframe", "object", "style", "base"})
    assert found.loaded <= {"/page", "/ui.j", "data:"}
    assert HEADERS["Content-Security-Policy"] == reply.headers["content-security-policy"]
    if page == "/runs/run":
        assert "alert(1)" in reply.text  # it is shown
        assert "Rounds in which clients were skipped" in reply.text  # also in pictures


@pytest.mark.parametrize(
    "name",
    [
        "..", "../runs", "%2e%2e", "..%2f..%2fetc", "%2e%2e%2fsecret", "..%5csecret", "link", "run%00",
        "run/../../secret", ".hidden", "", "x" * 300, "run%0a", "%c0%ae%c0%ae", "//etc", "file",
    ],
)  # fmt: skip
def test_names_lead_to_runs_alone(tmp_path: Path, name: str) -> None:
    made(tmp_path, "secret", method="fedprox")
    root = tmp_path / "runs"
    made(root, "run")
    made(root, ".hidden", method="fedprox")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "file").write_text("method")
    browser = browsing(root)
    for address in (f"/runs/{name}", f"/runs/{name}/parts?progress=", f"/runs/{name}/predict", f"/compare?run={name}"):
        status, text = asked(browser.app, address)
        assert status in (307, 404), address
        assert "fedprox" not in text
    assert re.findall(r'href="/runs/([^"]*)"', browser.get("/").text) == ["run"]


def test_only_files_of_bounded_size_are_read(tmp_path: Path) -> None:
    """A pipe would never end, a link leads elsewhere, and a sparse file of a terabyte takes no room on the disk."""
    outside = tmp_path / "outside.json"
    outside.write_text('{"state": "completed", "error": "outside"}')
    for name in LIMITS:
        for kind in ("pipe", "link", "large", "folder"):
            path = made(tmp_path / kind, f"run-{name.strip('.')}")
            (path / name).unlink(missing_ok=True)
            if kind == "pipe":
                os.mkfifo(path / name)
            elif kind == "link":
                (path / name).symlink_to(outside)
            elif kind == "folder":
                (path / name).mkdir()
            else:
                with (path / name).open("wb") as file:
                    file.truncate(1 << 40)
            with pytest.raises(RunError, match=rf"{name} (is a link|is no file|has 1099512 MB)"):
                mark_of(path)
    for kind in ("pipe", "link", "large", "folder"):
        browser = browsing(tmp_path / kind)
        assert browser.get("/").text.count("damaged") >= 3
        for name in ("status.json", "clients.csv"):
            page = browser.get(f"/runs/run-{name}")
            assert "This part cannot be shown" in page.text
            assert "outside" not in page.text
        assert "cannot be shown" in browser.get("/compare?run=run-summary.json").text


def test_no_code_that_a_folder_names_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the user of the server allows it."""
    (tmp_path / "mined.py").write_text(f"open({str(tmp_path / 'proof')!r}, 'w').close()\nMETHOD = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    keys = ("method", "partitioner", "dataset", "task")
    for key in keys:
        path = made(tmp_path / "runs", f"run-{key}")
        text = (path / "config.toml").read_text()
        (path / "config.toml").write_text(re.sub(f'^{key} = ".*"$', f'{key} = "mined:METHOD"', text, flags=re.M))
    browser = browsing(tmp_path / "runs")
    assert browser.get("/runs/run-method").status_code == 200
    for key in keys:
        assert browser.get(f"/compare?run=run-{key}").status_code == 200
    assert "names code of your own" in browser.get("/compare?run=run-method").text
    assert not (tmp_path / "proof").exists()
    browsing(tmp_path / "runs", own_code=True).get("/compare?run=run-method")
    assert (tmp_path / "proof").exists()


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80@127.0.0.1", "", "[::1", "a b"]
)
def test_other_names_of_this_machine_are_refused(tmp_path: Path, host: str) -> None:
    """As a page would use whose name resolves to the loopback address (DNS rebinding)."""
    reply = browsing(tmp_path).get("/", headers={"Host": host})
    assert reply.status_code == 400
    assert browsing(tmp_path).get("/", headers={"Host": "localhost:8000"}).status_code == 200


def test_two_names_at_once_are_refused(tmp_path: Path) -> None:
    headers = [("Host", "127.0.0.1"), ("Host", "evil.example")]
    assert browsing(tmp_path).get("/", headers=headers).status_code == 400


@pytest.mark.parametrize(
    ("method", "address", "headers", "status"),
    [
        ("PUT", "/", {}, 405),
        ("DELETE", "/runs/run", {}, 405),
        ("GET", "/runs/run/parts", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ("GET", "/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ("POST", "/runs/run/predict", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
        ("POST", "/runs/run/predict", {"Origin": "http://evil.example"}, 403),
        ("POST", "/runs/run/predict", {"Origin": "null"}, 403),
        ("POST", "/runs/run/predict", {"Origin": "http://127.0.0.1:1"}, 403),
        ("POST", "/runs/run/predict?kind=.exe", {"Origin": "http://127.0.0.1"}, 422),
        ("POST", "/runs/run", {}, 405),
        ("GET", "/nothing", {}, 404),
    ],
)
def test_other_pages_can_ask_nothing(
    tmp_path: Path, method: str, address: str, headers: dict[str, str], status: int
) -> None:
    made(tmp_path, "run")
    assert browsing(tmp_path).request(method, address, headers=headers).status_code == status


def test_uploads_are_bounded_before_they_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, "run")
    browser, sent = browsing(tmp_path), 0
    address = "/runs/run/predict?kind=.csv"
    for length in (str(MOST + 1), "-1", "1e3", "9" * 30):
        assert browser.post(address, headers={"Content-Length": length}).status_code == 413

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 4 * MOST:
            sent += 1 << 20
            yield bytes(1 << 20)

    assert browser.post(address, content=endless()).status_code == 413


def _enter(browser: TestClient, token: str) -> int:
    return browser.post("/enter", content=f"token={token.replace(' ', '+')}").status_code


def test_with_a_token_nothing_is_shown_without_it(tmp_path: Path) -> None:
    made(tmp_path, "run")
    browser = browsing(tmp_path, TOKEN)
    for address in ("/", "/runs/run", "/compare?run=run", "/runs/run/predict"):
        reply = browser.get(address)
        assert (reply.status_code, reply.headers["location"]) == (303, "/enter")
    assert browser.get("/runs/run/parts", headers={"Sec-Fetch-Mode": "cors"}).status_code == 401
    assert browser.post("/runs/run/predict?kind=.csv").status_code == 401
    for wrong in ("", "x", TOKEN[:-1], TOKEN + "x"):
        assert _enter(browser, wrong) == 403
        assert browser.get("/", headers={"Authorization": f"Bearer {wrong}"}).status_code == 303
    browser.cookies.set("florilegium-ui", TOKEN)
    assert browser.get("/").status_code == 303
    browser.cookies.clear()
    assert browser.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert _enter(browser, TOKEN) == 303
    assert browser.get("/runs/run").status_code == 200
    assert TOKEN not in str(browser.cookies.get("florilegium-ui"))


def test_the_cookie_is_kept_from_scripts_and_other_sites(tmp_path: Path) -> None:
    reply = browsing(tmp_path, TOKEN).post("/enter", content=f"token={TOKEN.replace(' ', '+')}")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(reply.headers["set-cookie"].split("; "))


def test_without_a_token_no_word_is_one() -> None:
    assert not Access(frozenset(), "").knows("")


def test_a_folder_that_goes_while_it_is_listed(tmp_path: Path) -> None:
    made(tmp_path, "run", [line(1)])
    found = Folders(tmp_path)
    assert found.find("run") == tmp_path / "run"
    (tmp_path / "run" / "config.toml").unlink()
    assert found.listed() == []
    with pytest.raises(GoneError, match="there is no run 'run'"):
        found.find("run")
