"""Counters of a running server, for Prometheus and for ``florilegium watch``."""

from __future__ import annotations

import threading
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server, write_to_textfile

FILE = "metrics.prom"


class Telemetry:
    """The counters of one run, since the start of its process.

    Args:
        run, method: labels of all counters.
        port: port on 127.0.0.1 where they can be read by HTTP; 0: none.
    """

    def __init__(self, run: str, method: str, port: int) -> None:
        self._registry = CollectorRegistry()
        named = {"run": run, "method": method}

        def counter(name: str, what: str) -> Counter:
            return Counter(f"florilegium_{name}", what, [*named, "phase"], registry=self._registry)

        def gauge(name: str, what: str) -> Gauge:
            return Gauge(f"florilegium_{name}", what, [*named], registry=self._registry)

        self._named = named
        self._round = gauge("round", "rounds that are done")
        self._rounds = gauge("rounds", "rounds that the run has")
        self._clients = gauge("clients", "clients that are there")
        self._exchanges = counter("exchanges", "exchanges with clients")
        self._seconds = counter("exchange_seconds", "seconds from requests to the last answer")
        self._asked = counter("clients_asked", "clients asked")
        self._failed = counter("clients_failed", "clients that did not contribute")
        self._down = counter("bytes_down", "bytes of arrays that clients were sent")
        self._up = counter("bytes_up", "bytes of arrays that clients answered")
        self._server: tuple[object, threading.Thread] | None = None
        if port:
            self._server = start_http_server(port, addr="127.0.0.1", registry=self._registry)

    def exchange(self, phase: str, seconds: float, asked: int, failed: int, down: float, up: float) -> None:
        """Count an exchange: its phase, how long it took, clients, and bytes of arrays."""
        values = {
            self._exchanges: 1.0, self._seconds: seconds, self._asked: asked, self._failed: failed, self._down: down,
            self._up: up,
        }  # fmt: skip
        for counter, value in values.items():
            counter.labels(**self._named, phase=phase).inc(value)

    def progress(self, server_round: int, rounds: int, clients: int) -> None:
        """Set the number of finished rounds, of all rounds, and of clients."""
        for gauge, value in ((self._round, server_round), (self._rounds, rounds), (self._clients, clients)):
            gauge.labels(**self._named).set(value)

    def write(self, folder: Path) -> None:
        """Write all counters to ``metrics.prom`` in ``folder``, in Prometheus' text format, atomically."""
        write_to_textfile(str(folder / FILE), self._registry)

    def end(self) -> None:
        """Close the HTTP port, if one is open."""
        if self._server is not None:
            self._server[0].shutdown()  # type: ignore[attr-defined]
            self._server[0].server_close()  # type: ignore[attr-defined]
            self._server = None
