"""A headless Chromium, where one is installed: the page after its scripts have run, and pictures of it."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


def dom(address: str, folder: Path, width: int = 1200, *, dark: bool = False) -> str:
    """Return a page's HTML after its scripts have run.

    Args:
        address: the page, such as ``file.as_uri()``.
        folder: empty; for the browser's own files.
        width: of the window, in pixels; Chromium has no window narrower than 500.
        dark: whether the reader prefers dark pages.
    """
    return _call(address, folder, width, dark, "--dump-dom")


def framed(page: str, width: int, script: str, file: Path) -> Path:
    """Write a page that shows another one in a frame of any width, and return its file.

    Args:
        page: the HTML of the page that is shown.
        width: of the frame, in pixels, which is what the page sees as its window's.
        script: carried out in the frame when all is loaded; what it returns is shown as JSON in an element ``#seen``.
        file: the file to write.
    """
    ask = (
        "<script>addEventListener('load', async () => { const seen = await (async () => {" + script + "})();"
        "const pre = parent.document.createElement('pre'); pre.id = 'seen'; pre.textContent = JSON.stringify(seen);"
        "parent.document.body.append(pre); });</script></body>"
    )
    shown = html.escape(page.replace("</body>", ask))
    file.write_text(
        "<!DOCTYPE html><meta charset='utf-8'><style>:root { color-scheme: light dark }</style>"
        f"<body><iframe width='{width}' height='2000' frameborder='0' srcdoc=\"{shown}\"></iframe></body>",
        encoding="utf-8",
    )
    return file


def seen_in(page: str) -> Any:
    """Return what the script of a framed page has returned."""
    match = re.search(r'<pre id="seen">(.*?)</pre>', page, re.DOTALL)
    assert match is not None, page[:500]
    return json.loads(html.unescape(match[1]))


def _call(address: str, folder: Path, width: int, dark: bool, what: str) -> str:
    options = [
        *OPTIONS, f"--user-data-dir={folder}", f"--window-size={width},900", "--virtual-time-budget=8000",
        *(["--blink-settings=preferredColorScheme=0"] if dark else []),
    ]  # fmt: skip
    done = subprocess.run(
        [str(BROWSER), *options, what, address], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


class Tab:
    """A page in a browser of its own, which stays open: it is driven by the protocol of Chromium's developer tools.

    Args:
        folder: empty; for the browser's own files.
    """

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [str(BROWSER), *OPTIONS, f"--user-data-dir={folder}", "--remote-debugging-port=0", "about:blank"],
            stderr=subprocess.DEVNULL,
        )
        port, limit = folder / "DevToolsActivePort", time.monotonic() + 60
        while not (port.exists() and "\n" in port.read_text()):
            assert time.monotonic() < limit, "the browser does not start"
            time.sleep(0.05)
        pages = f"http://127.0.0.1:{port.read_text().splitlines()[0]}/json"
        with urllib.request.urlopen(pages, timeout=10) as reply:
            address = next(page["webSocketDebuggerUrl"] for page in json.load(reply) if page["type"] == "page")
        self._socket = connect(address, max_size=None)
        self._number = 0

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return what a method of the protocol returns."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            reply = json.loads(self._socket.recv(timeout=60))
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                return dict(reply["result"])

    def show(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Set the size of the window in pixels, and whether the reader prefers dark pages."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Open a page and wait until it and its scripts are loaded."""
        self.call("Page.navigate", url=address)
        self.wait(f"location.href === {json.dumps(address)} && document.readyState === 'complete'")

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, which may be a promise, as JSON."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Wait until a JavaScript expression is true."""
        limit = time.monotonic() + seconds
        while not self.ask(condition):
            assert time.monotonic() < limit, f"{condition}: {self.ask('document.body.innerText')[:2000]}"
            time.sleep(0.05)

    def picture(self, file: Path) -> None:
        """Write a picture of the whole page as PNG."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(found["data"]))
