"""The HTML report: complete, of one file, and the same in a browser."""

from __future__ import annotations

import base64
import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from florilegium.apps.reports.html import _anywhere, picture_of, write_html
from florilegium.apps.reports.pictures import plot_curves
from florilegium.apps.reports.pools import sections
from tests.apps.reports.made import made_run
from tests.browser import BROWSER, dom
from tests.support import CACHE

ASK = """
addEventListener("load", () => {
  const all = name => [...document.querySelectorAll(name)];
  const seen = {
    pictures: all("img").length, tables: all("table").length,
    blank: all("img").filter(img => !img.naturalWidth || img.clientWidth < 150).map(img => img.alt),
    empty: all("tbody").filter(body => !body.rows.length).length,
    wide: Math.max(0, document.documentElement.scrollWidth - document.documentElement.clientWidth),
  };
  const pre = document.createElement("pre");
  pre.id = "seen";
  pre.textContent = JSON.stringify(seen);
  document.body.append(pre);
});
"""


class _Page(HTMLParser):
    """Collects what a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.pictures: list[dict[str, str | None]] = []
        self.addresses: list[str] = []
        self.texts: list[str] = []
        self.tables = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = dict(attrs)
        self.pictures += [own] if tag == "img" else []
        self.tables += tag == "table"
        self.addresses += [value for name, value in attrs if name in ("href", "src") and value]

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


class TestHtml:
    @pytest.fixture(scope="class")
    def file(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Return the file of a report on two methods with two seeds each, and on another federation."""
        runs = [made_run(method, seed) for method in ("fedavg", "fedprox") for seed in (1, 2)]
        runs[0].summary["privacy"] = {"unit": "client", "epsilon": 8.125}  # type: ignore[index]
        runs.append(made_run("local", **{"num-clients": 7}))
        runs = [replace(run, config={**run.config, "cache-dir": str(CACHE)}) for run in runs]
        file: Path = tmp_path_factory.mktemp("page") / "report.html"
        write_html(sections(runs), ["Not in this report: x."], file, "A <title>")
        return file

    @pytest.fixture(scope="class")
    def page(self, file: Path) -> _Page:
        """Return what the page consists of."""
        return _Page(file.read_text(encoding="utf-8"))

    def test_it_needs_no_other_file_and_its_pictures_are_vectors(self, page: _Page) -> None:
        assert all(address.startswith(("data:", "#")) for address in page.addresses)
        for picture in page.pictures:
            source = base64.b64decode(str(picture["src"]).removeprefix("data:image/svg+xml;base64,"))
            assert ElementTree.fromstring(source).tag.endswith("svg")
        texts = [picture["alt"] for picture in page.pictures]
        assert texts.count("Training examples of each client and class") == 2
        assert texts.count("Mean accuracy of clients over round") == 2
        assert texts.count("Paired differences between methods") == 1

    def test_texts_are_texts(self, page: _Page) -> None:
        assert {"A <title>", "Not in this report: x."} <= {*page.texts}

    def test_it_says_what_was_run_and_what_it_cost(self, page: _Page) -> None:
        for words in ("8.125", "p1", "num-clients", "7", "round 2, 2.0 MB, 1.5 s", "fedavg-1"):
            assert words in page.texts

    def test_it_is_the_same_twice(self, page: _Page) -> None:
        first, second = (plot_curves(sections([made_run()])[0].pools, "round") for _ in range(2))
        assert picture_of(first, "a") == picture_of(second, "a")

    @pytest.mark.long
    @pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
    @pytest.mark.parametrize("width", [500, 820, 1400])
    def test_a_browser_shows_all_of_it(self, file: Path, width: int, tmp_path: Path) -> None:
        """Every picture is drawn, every table has rows, and only tables in their boxes are wider than the page."""
        asking = tmp_path / "asking.html"
        asking.write_text(file.read_text(encoding="utf-8").replace("</body>", f"<script>{ASK}</script></body>"))
        shown = dom(asking.as_uri(), tmp_path / "profile", width)
        match = re.search(r'<pre id="seen">(.*?)</pre>', shown)
        assert match is not None
        seen = json.loads(html.unescape(match[1]))
        assert seen["pictures"] > 8
        assert seen["tables"] > 8
        assert (seen["blank"], seen["empty"], seen["wide"]) == ([], 0, 0)


def test_commands_are_shown_without_the_folders_of_whoever_typed_them() -> None:
    words = ["florilegium", "board", "own", "--runs-dir", "/home/me/runs", "--seeds", "1-3", "--output=/home/me/pages"]
    assert _anywhere(words) == ["florilegium", "board", "own", "--seeds", "1-3"]
