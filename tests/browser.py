"""A headless Chromium, where one is installed: the page after its scripts have run, and pictures of it."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


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
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        f"--user-data-dir={folder}", f"--window-size={width},900", "--virtual-time-budget=8000",
        *(["--blink-settings=preferredColorScheme=0"] if dark else []),
    ]  # fmt: skip
    done = subprocess.run(
        [str(BROWSER), *options, what, address], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout
