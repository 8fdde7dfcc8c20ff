"""The pages in Chromium: they open, stay live, compare, fit a phone, and follow the reader's theme."""

from __future__ import annotations

import csv
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from florilegium.ui.app import make_app
from florilegium.ui.guard import Access
from tests.browser import BROWSER, Tab
from tests.processes import free_port
from tests.ui.made import CLIENTS, line, made, write

pytestmark = [pytest.mark.long, pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")]

LONG = "a" * 150
PAGES = ["/", "/runs/run", f"/runs/{LONG}", "/compare?run=run&run=other", "/runs/run/predict", "/nothing"]
LAYOUT = """
  (() => {
    const width = document.documentElement.clientWidth;
    const shown = one => one.getClientRects().length && !one.closest("thead, datalist, option");
    const wide = [...document.querySelectorAll("body *")]
      .filter(one => shown(one) && !one.closest(".wide *") && one.getBoundingClientRect().right > width + 1);
    const light = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number);
    const blank = [...document.images].filter(one => !one.naturalWidth || !one.alt).length;
    return {wide: wide.map(one => one.outerHTML.slice(0, 80)), light: Math.max(...light), blank,
      scroll: document.documentElement.scrollWidth - width};
  })()
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """Yield a tab of a browser."""
    with Tab(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with runs, one of a long name and clients of long names that failed for long reasons."""
    root = tmp_path_factory.mktemp("runs")
    failures = [
        {"round": n, "phase": "train", "client": f"{name}{'x' * 200}", "reason": "y" * 300}
        for n in (1, 3) for name in CLIENTS
    ]  # fmt: skip
    made(root, "run", failures=failures, further={"warnings": ["w" * 300]})
    made(root, "other", method="fedprox", clients={**CLIENTS, "a": 0.9})
    made(root, LONG, [line(1)], state="running")
    return root


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    """Yield the address of a server of the runs."""
    port = free_port()
    app = make_app(root, Access(frozenset({"127.0.0.1"})))
    config = uvicorn.Config(app, port=port, log_level="error", ws="none", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("page", PAGES)
def test_pages_fit_and_follow_the_theme(tab: Tab, address: str, page: str, width: int, dark: bool) -> None:
    tab.show(width, dark=dark)
    tab.open(address + page)
    tab.ask("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    seen = tab.ask(LAYOUT)
    assert (seen["wide"], seen["scroll"], seen["blank"]) == ([], 0, 0)
    assert (seen["light"] < 60) == dark


def test_a_page_is_live_while_a_run_writes(tab: Tab, address: str, root: Path) -> None:
    path = made(root, "live", [line(1)], state="running", rounds=3)
    tab.show(1200)
    tab.open(f"{address}/runs/live")
    assert "running, round 1 of 3" in tab.ask("document.body.innerText")
    tab.ask("document.querySelector('[data-part=origins] details').open = true")
    write(path, [line(1), line(2, 0.5)], "running", 3)
    tab.wait("document.body.innerText.includes('running, round 2 of 3')")
    assert "left, until about" in tab.ask("document.getElementById('head').innerText")
    tab.wait("[...document.images].some(one => one.alt === 'Mean accuracy of clients over rounds')")
    assert tab.ask("document.querySelector('progress').value") == 2
    write(path, [line(1), line(2, 0.5), line(3, 0.75)], "completed", 3)
    tab.wait("document.body.innerText.includes('completed, round 3 of 3')")
    assert tab.ask("document.querySelector('[data-part=origins] details').open")  # what was opened stays so
    shutil.rmtree(path)
    tab.wait("document.getElementById('notice').innerText.includes('is gone')")
    assert "completed, round 3 of 3" in tab.ask("document.body.innerText")


def test_the_list_is_renewed_while_nothing_is_chosen(tab: Tab, address: str, root: Path) -> None:
    tab.show(1200)
    tab.open(f"{address}/")
    path = made(root, "new", [line(1)], state="running")
    tab.wait("document.querySelector('input[value=new]') !== null")
    tab.ask("document.querySelector('input[value=new]').click()")
    shutil.rmtree(path)
    time.sleep(6)
    assert tab.ask("document.querySelector('input[value=new]').checked")


def test_runs_are_chosen_and_compared(tab: Tab, address: str) -> None:
    tab.show(1200)
    tab.open(f"{address}/")
    tab.ask("document.querySelectorAll('input[value=run], input[value=other]').forEach(one => one.click())")
    tab.ask("document.querySelector('form button').click()")
    tab.wait("location.pathname === '/compare' && document.readyState === 'complete'")
    text = tab.ask("document.body.innerText")
    assert "Paired differences" in text
    mean = 100 * (0.9 - CLIENTS["a"]) / len(CLIENTS)
    assert f"{-mean:.1f}" in text  # of the older run, the second of the list, less the newer one


def test_a_prediction_that_fails_is_explained_on_the_page(tab: Tab, address: str) -> None:
    tab.open(f"{address}/runs/run/predict")
    tab.ask("document.querySelector('textarea').value = 'a,b\\n1,2\\n'")
    tab.ask("document.querySelector('form button:not([type])').click()")
    tab.wait("document.getElementById('predicted').innerText.includes('do not fit into a CSV file')", 300)


def test_a_row_is_typed_field_by_field(tab: Tab, address: str, root: Path) -> None:
    made(root, "table", dataset="adult")
    tab.show(400)
    tab.open(f"{address}/runs/table/predict")
    tab.ask("document.getElementById('ask').click()")
    tab.wait("document.querySelectorAll('[data-column]').length === 14", 300)
    assert tab.ask("document.documentElement.scrollWidth") <= 400
    fill = "(name, value) => { document.querySelector(`[data-column='${name}']`).value = value; }"
    tab.ask(f"[['age', '39'], ['sex', 'Male'], ['education.num', '1,5']].forEach(one => ({fill})(...one))")
    tab.ask("window.fetch = async (where, what) => { window.sent = await what.body.text(); return new Response('x'); }")
    tab.ask("document.querySelector('form button:not([type])').click()")
    tab.wait("window.sent !== undefined")
    head, row = csv.reader(tab.ask("window.sent").splitlines())
    filled = {name: value for name, value in zip(head, row, strict=True) if value}
    assert filled == {"age": "39", "sex": "Male", "education.num": "1,5"}


def test_the_policy_lets_no_script_in_a_page_run(tab: Tab, address: str) -> None:
    tab.open(f"{address}/")
    tab.ask("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.done = 1\">')")
    tab.ask("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.done = 1'}))")
    refused = tab.ask("fetch('http://127.0.0.1:1/').then(() => 'sent', error => 'refused')")
    assert (tab.ask("window.done"), refused) == (None, "refused")
