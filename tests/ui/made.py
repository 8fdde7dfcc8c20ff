"""Folders of runs made up for tests of the pages, and the pages' server without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import tomli_w
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from florilegium.common.settings import Value
from florilegium.common.toml import nested
from florilegium.ui.app import make_app
from florilegium.ui.guard import Access
from tests.support import config

HOST = "http://127.0.0.1"
CLIENTS = {"a": 0.2, "b": 0.4, "c": 0.6, "d": 0.8, "e": 1.0}
"""Final accuracies of the clients of a run, by name."""


def line(round: int, accuracy: float | None = None, failed: int = 0) -> dict[str, Any]:
    """Return a line of ``metrics.jsonl``: rounds last two seconds, and four clients take part in each."""
    found: dict[str, Any] = {
        "round": round,
        "seconds": 2.0 * round,
        "bytes_down": 1000 * round,
        "bytes_up": 500 * round,
    }
    found["training"] = {"loss": 1 / round, "clients": 4, "failed": failed, "seconds": {"train": 2.0}}
    if accuracy is not None:
        found |= {"evaluation_seconds": 0.1, "seen": {"accuracy": accuracy, "loss": 1 - accuracy, "std": 0.1}}
    return found


def made(
    root: Path,
    name: str,
    lines: Sequence[Mapping[str, Any]] = (line(1), line(2, 0.5), line(3), line(4, 0.6)),
    *,
    state: str = "completed",
    rounds: int = 4,
    clients: Mapping[str, float] = CLIENTS,
    failures: Sequence[Mapping[str, Any]] = (),
    further: Mapping[str, Any] | None = None,
    **keys: Value,
) -> Path:
    """Write the folder of a run; ``further`` are entries of ``summary.json``."""
    path = root / name
    path.mkdir(parents=True)
    (path / "config.toml").write_text(tomli_w.dumps(nested(config(rounds=rounds, **keys))))
    (path / "origins.json").write_text(json.dumps({"dataset": "d", "partition": "p"}))
    write(path, lines, state, rounds)
    (path / "failures.jsonl").write_text("".join(json.dumps(one) + "\n" for one in failures))
    if state == "completed":
        head = "client,name,group,train_examples,test_examples,loss,accuracy\n"
        rows = [f'{at},"{who}",seen,80,20,{1 - value},{value}\n' for at, (who, value) in enumerate(clients.items())]
        (path / "clients.csv").write_text(head + "".join(rows))
        final = {"seen": lines[-1]["seen"]} if lines and "seen" in lines[-1] else {}
        summary = {
            "method": "fedavg", "dataset": "digits", "seed": 1, "rounds": rounds, "clients": len(clients),
            "seconds": 8.0, "seconds_per_round": 2.0, "bytes_down": 4000, "bytes_up": 2000, "final": final,
        }  # fmt: skip
        (path / "summary.json").write_text(json.dumps({**summary, **(further or {})}))
    return path


def write(path: Path, lines: Sequence[Mapping[str, Any]], state: str, rounds: int) -> None:
    """Write what changes while a run goes on: the rounds so far, and how far it is."""
    (path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    evaluated = [one for one in lines if "seen" in one]
    status: dict[str, Any] = {"state": state, "round": lines[-1]["round"] if lines else 0, "rounds": rounds}
    if evaluated:
        status |= {"evaluated": evaluated[-1]["round"], "figures": {"seen": evaluated[-1]["seen"]}}
    (path / "status.json").write_text(json.dumps(status) + "\n")


def browsing(root: Path, token: str = "", names: Sequence[str] = ("127.0.0.1", "localhost"), **more: Any) -> TestClient:
    """Return a client of the pages of the runs in ``root``; errors of the server are pages, not exceptions."""
    app = make_app(root, Access(frozenset(names), token), **more)
    return TestClient(app, base_url=HOST, raise_server_exceptions=False, follow_redirects=False)


def asked(app: ASGIApp, address: str) -> tuple[int, str]:
    """Return status and text of a reply to a GET request whose path is sent as it is, which no browser would do."""
    path, _, query = address.partition("?")
    scope = {
        "type": "http", "method": "GET", "path": unquote(path), "raw_path": path.encode(),
        "query_string": query.encode(), "headers": [(b"host", b"127.0.0.1")],
        "http_version": "1.1", "scheme": "http", "root_path": "",
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent).decode()
