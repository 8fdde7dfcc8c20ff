"""Counters of a running server for Prometheus and ``florilegium watch``."""

from __future__ import annotations

import threading
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest, start_http_server

from florilegium.common.errors import ConfigurationError
from florilegium.common.files import write_text

FILE = "metrics.prom"


class Telemetry:
    """Counters and gauges of one run; counting starts anew when a run is resumed.

    Args:
        run, method: labels of all metrics.
        port: port on 127.0.0.1 where the metrics can be read by HTTP; 0: none.
    """

    def __init__(self, run: str, method: str, port: int) -> None:
        self._registry = CollectorRegistry()
        named = {"run": run, "method": method}

        def counter(name: str, what: str) -> Counter:
            return Counter(f"florilegium_{name}", what, [*named, "phase"], registry=self._registry)

        def gauge(name: str, what: str) -> Gauge:
            return Gauge(f"florilegium_{name}", what, [*named], registry=self._registry)

        self._named = named
        self._round = gauge("round", "finished rounds")
        self._rounds = gauge("rounds", "total number of rounds in the run")
        self._clients = gauge("clients", "clients known to the server")
        self._exchanges = counter("exchanges", "exchanges: requests to the nodes and their replies")
        self._seconds = counter("exchange_seconds", "seconds from sending requests to the last reply")
        self._asked = counter("clients_asked", "clients that were sent a request")
        self._failed = counter("clients_failed", "clients that were asked but did not contribute")
        self._down = counter("bytes_down", "bytes of arrays sent to clients")
        self._up = counter("bytes_up", "bytes of arrays returned by clients")
        self._server: tuple[object, threading.Thread] | None = None
        if port:
            try:
                self._server = start_http_server(port, addr="127.0.0.1", registry=self._registry)
            except OSError as error:
                raise ConfigurationError(
                    f"metrics-port: {port} cannot be used on this machine ({error.strerror}); choose another, or 0"
                ) from error

    def exchange(self, phase: str, seconds: float, asked: int, failed: int, down: float, up: float) -> None:
        """Count one exchange of ``phase``.

        Args:
            phase: the phase that clients carried out.
            seconds: time from sending the requests to the last reply.
            asked, failed: number of clients that were sent a request, and that did not contribute.
            down, up: bytes of arrays sent to clients, and returned by them.
        """
        values = {
            self._exchanges: 1.0, self._seconds: seconds, self._asked: asked, self._failed: failed, self._down: down,
            self._up: up,
        }  # fmt: skip
        for counter, value in values.items():
            counter.labels(**self._named, phase=phase).inc(value)

    def progress(self, server_round: int, rounds: int, clients: int) -> None:
        """Set the number of finished rounds, of all rounds, and of known clients."""
        for gauge, value in ((self._round, server_round), (self._rounds, rounds), (self._clients, clients)):
            gauge.labels(**self._named).set(value)

    def write(self, folder: Path) -> None:
        """Write all metrics to ``metrics.prom`` in ``folder``, in Prometheus' text format, atomically.

        Raises:
            FileError: if it cannot be written.
        """
        write_text(folder / FILE, generate_latest(self._registry).decode())

    def end(self) -> None:
        """Close the HTTP port, if one is open."""
        if self._server is not None:
            self._server[0].shutdown()  # type: ignore[attr-defined]
            self._server[0].server_close()  # type: ignore[attr-defined]
            self._server = None
