"""Serve the pages over HTTP until Ctrl-C."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from florilegium.common.errors import ConfigurationError

SHORTEST = 16
"""Letters that a token must have."""
_CONNECTIONS = 100


def serve(root: Path, host: str, port: int, names: Sequence[str], token: str, *, own_code: bool = False) -> None:
    """Serve the runs in folder ``root`` until Ctrl-C or SIGTERM; print the address.

    Args:
        root: the folder of runs.
        host: the address to listen on.
        port: the port; 0: any that is free.
        names: further names by which browsers call this machine.
        token: the word that every request needs; "": none, on this machine alone.
        own_code: as for :func:`florilegium.ui.app.make_app`.

    Raises:
        ConfigurationError: if the packages are missing, there is no such folder, others could reach the server without
            a token, or the address cannot be used.
    """
    try:
        import uvicorn

        from florilegium.ui.app import make_app
        from florilegium.ui.guard import Access, is_loopback
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise ConfigurationError(
            f"florilegium ui needs the package {package}: install Florilegium with its extra [ui]"
        ) from error
    if not root.is_dir():
        raise ConfigurationError(
            f"runs-dir: there is no folder {root}. The first run makes it; --runs-dir names another"
        )
    if (token and len(token) < SHORTEST) or not token.isascii():
        raise ConfigurationError(f"FLORILEGIUM_UI_TOKEN: a token has at least {SHORTEST} ASCII letters")
    own = is_loopback(host)
    if not own and not token:
        raise ConfigurationError(
            f"--host {host}: other machines can reach it, which needs a token of at least {SHORTEST} letters in the "
            "environment variable FLORILEGIUM_UI_TOKEN. Without one, listen on 127.0.0.1 and use `ssh -L`"
        )
    if host in ("0.0.0.0", "::") and not names:
        raise ConfigurationError(f"--host {host}: name the address that browsers will use, with --name")
    known = {"localhost", "127.0.0.1", "::1", host, *names} if own else {host, *names}
    app = make_app(root, Access(frozenset(map(str.lower, known)), token), own_code=own_code)
    with _listening(host, port) as listening:
        address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/"
        print(f"{root} at {address} (Ctrl-C ends it)", flush=True)
        if not own:
            print("The token and the pages travel without encryption: use it in a network that you trust", flush=True)
        config = uvicorn.Config(
            app, log_level="error", server_header=False, http="h11", ws="none", lifespan="off", proxy_headers=False,
            limit_concurrency=_CONNECTIONS, timeout_graceful_shutdown=1,
        )  # fmt: skip
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(f"--host {host} --port {port}: it cannot be used ({error.strerror})") from error
