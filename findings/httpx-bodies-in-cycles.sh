#!/usr/bin/env bash
# Subject: httpx
# What: A response that was read and dropped keeps its body and its request's until Python looks for reference cycles, since response and stream refer to each other.
# Symptom: A process that sends and receives models in chunks grows by about a model with every message.
# Concerns: clients and servers that move models over HTTP with httpx, as Flower 1.40 and later does
# Expected: memory of one response at a time, since nothing refers to the others.
# Seen: httpx 0.28.1, 20 responses of 5 MB, each dropped after it was read: 100 MB are held, 0 after gc.collect(). requests 2.32.5: 0.
# Here: Where chunks pass, cycles are looked for and memory is given back after every 32 MB.
# Test: tests/common/test_memory.py::test_bodies_in_reference_cycles_are_gone_after_some_have_passed
. "$(dirname "$0")/environment"
install httpx==0.28.1 httpcore==1.0.9 h11==0.16.0 requests==2.32.5 urllib3==2.5.0
python - << 'END'
import gc
import tracemalloc
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import requests

SIZE, COUNT = 5_000_000, 20


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(SIZE))
        self.end_headers()
        for _ in range(SIZE // 100_000):
            self.wfile.write(bytes(100_000))

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
Thread(target=server.serve_forever, daemon=True).start()
address = f"http://127.0.0.1:{server.server_port}/"


def held(get: Callable[[str], object]) -> tuple[int, int]:
    """Return the MB that are held after all responses were dropped, and after a search for cycles."""
    gc.collect()
    gc.disable()  # a search depends on how many objects there are; here it is made on purpose
    tracemalloc.start()
    for _ in range(COUNT):
        assert len(get(address).content) == SIZE
    before = tracemalloc.get_traced_memory()[0]
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    gc.enable()
    return round(before / 1e6), round(after / 1e6)


with httpx.Client(trust_env=False) as client, requests.Session() as session:
    session.trust_env = False
    found = {"httpx": held(client.get), "requests": held(session.get)}
print(f"MB held of {COUNT} responses of {SIZE / 1e6:g} MB, and after gc.collect():", found)
assert found["httpx"][0] >= 0.9 * COUNT * SIZE / 1e6 and found["httpx"][1] <= 5
assert max(found["requests"]) <= 5
END
