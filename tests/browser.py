"""A headless Chromium, where one is installed: the page after its scripts have run, and pictures of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

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
