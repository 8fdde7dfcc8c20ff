"""The HTML report: complete, of one file, and the same in a browser."""

from __future__ import annotations

import base64
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from florilegium.apps.reports.html import _anywhere, write_html
from florilegium.apps.reports.page_parts import picture_of
from florilegium.apps.reports.pictures import plot_curves
from florilegium.apps.reports.pools import sections
from florilegium.common.figures import ShownFigure
from florilegium.common.layout import csv_of
from florilegium.common.pages import Table
from tests.apps.reports.made import made_run
from tests.browser import BROWSER, dom, framed, seen_in
from tests.support import CACHE

ASK = """
  const all = name => [...document.querySelectorAll(name)], width = document.documentElement.clientWidth;
  const colour = text => text.match(/[\\d.]+/g).map(Number);
  const light = colour => colour.slice(0, 3).map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const found = colour(getComputedStyle(element).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const contrast = element => {
    const [a, b] = [light(colour(getComputedStyle(element).color)), light(behind(element))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const shown = element => element.getClientRects().length && !element.closest("thead, option, script, style");
  const worded = element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  const texts = all("body *").filter(one => shown(one) && worded(one));
  const html = found => found.map(one => one.outerHTML.slice(0, 80));
  const left = element => element.getBoundingClientRect().left;
  const right = element => element.getBoundingClientRect().right;
  const table = document.querySelector("table"), body = table.tBodies[0];
  const names = () => [...body.rows].filter(row => !row.hidden).map(row => row.cells[0].textContent);
  const sorted = [];
  for (let click = 0; click < 2; click++) { table.tHead.querySelector("button").click(); sorted.push(names()); }
  const box = table.closest(".wide");
  box.style.width = "300px";
  box.scrollLeft = 100;
  const moved = Math.round(left(body.rows[0].cells[0]) - left(box));
  box.style.width = "";
  const words = document.querySelector("input[type=search]"), long = words.parentElement.nextElementSibling;
  words.value = "num-clients";
  words.oninput();
  const filtered = [...long.querySelectorAll("tbody tr")].filter(shown).map(row => row.cells[0].textContent);
  return {
    pictures: all("img").length, tables: all("table").length,
    blank: all("img").filter(img => !img.naturalWidth || img.clientWidth < 150 || !img.alt).map(img => img.alt),
    empty: all("tbody").filter(body => !body.rows.length).length,
    wide: html(all("body *").filter(one => shown(one) && !one.closest(".wide *") && right(one) > width + 1)),
    small: html(texts.filter(one => parseFloat(getComputedStyle(one).fontSize) < 12)),
    faint: html(texts.filter(one => contrast(one) < 4.5)),
    cards: getComputedStyle(body.rows[0]).display === "block",
    label: getComputedStyle(body.rows[0].cells[1], "::before").content,
    overflowing: all(".wide").filter(box => box.scrollWidth > box.clientWidth + 1).length,
    moved, filtered,
    dark: light(behind(document.body)) < 0.1, sorted, csv: all("a[download]").length,
  };
"""


MANY: dict[str, Any] = {
    "num-clients": 7, "rounds": 31, "batch-size": 11, "learning-rate": 0.06, "participation": 0.6, "local-epochs": 4,
    "evaluate-every": 3, "momentum": 0.1,
}  # fmt: skip
"""Settings that differ from the defaults, enough for a table that can be filtered."""


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
        runs.append(made_run("local", **MANY))
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
    @pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
    @pytest.mark.parametrize("width", [400, 900, 1600])
    def test_a_browser_shows_all_of_it(self, file: Path, width: int, dark: bool, tmp_path: Path) -> None:
        """No element is wider than the page, no text small or faint; rows are cards on a phone; tables sort."""
        asking = framed(file.read_text(encoding="utf-8"), width, ASK, tmp_path / "asking.html")
        seen = seen_in(dom(asking.as_uri(), tmp_path / "profile", 1700, dark=dark))
        assert seen["pictures"] > 8
        assert seen["tables"] > 8
        assert (seen["blank"], seen["empty"]) == ([], 0)
        assert (seen["wide"], seen["small"], seen["faint"]) == ([], [], [])
        assert seen["dark"] == dark
        assert seen["cards"] == (width < 700)
        assert seen["label"] == ('"clients"' if width < 700 else "none")
        assert width < 700 or seen["moved"] == 0  # the first column stays where it is
        assert seen["overflowing"] == 0 or 700 <= width < 1600
        assert seen["sorted"] == [["fedavg", "fedprox"], ["fedprox", "fedavg"]]
        assert seen["filtered"] == ["num-clients"]
        assert seen["csv"] > seen["tables"]


def test_numbers_of_pictures_are_given_as_csv() -> None:
    figure = ShownFigure(3, 3)
    axes = figure.subplots()
    axes.plot([1, 2], [0.5, 0.25], label="fedavg, new")
    axes.plot([1, 1], [0, 1])  # without a name: no data
    axes.set(xlabel="round", ylabel="loss")
    assert _csv(picture_of(figure, "a").csv) == 'line,round,loss\r\n"fedavg, new",1,0.5\r\n"fedavg, new",2,0.25\r\n'
    heat = ShownFigure(3, 3)
    heat.subplots().imshow(np.ma.masked_equal([[3, 0]], 0))
    assert _csv(picture_of(heat, "b").csv) == "y,x,value\r\n0,0,3\r\n0,1,0\r\n"
    assert picture_of(heat, "b").panel
    assert _csv(csv_of(Table("", ["method", "mean"], [["a|b", "1,5"]]))) == 'method,mean\r\na|b,"1,5"\r\n'
    assert picture_of(ShownFigure(3, 3), "c").csv == ""


def _csv(address: str) -> str:
    return base64.b64decode(address.removeprefix("data:text/csv;charset=utf-8;base64,")).decode()


def test_commands_are_shown_without_the_folders_of_whoever_typed_them() -> None:
    words = ["florilegium", "board", "own", "--runs-dir", "/home/me/runs", "--seeds", "1-3", "--output=/home/me/pages"]
    assert _anywhere(words) == ["florilegium", "board", "own", "--seeds", "1-3"]
