"""What every request passes first: the host's name, the token, the size of what is sent, and headers of the reply."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ENTRY = "/enter"
"""Where the token is asked for."""
COOKIE = "florilegium-ui"
PUBLIC = (ENTRY, "/page.css")
"""What is served without the token."""
MOST = 16 << 20
"""Bytes that may be sent to the server at once."""
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}  # fmt: skip
"""Headers of every reply: nothing is loaded from elsewhere, no script stands in a page, no other page shows these."""


@dataclass(frozen=True)
class Access:
    """Who may use the server.

    Attributes:
        names: names of hosts that requests may name, in lower case: a page of another name that resolves to this
            machine (DNS rebinding) is refused.
        token: the word that every request needs; "": none is needed.
    """

    names: frozenset[str]
    token: str = ""

    @property
    def seal(self) -> str:
        """What the cookie holds in place of the token."""
        return hmac.new(self.token.encode(), b"florilegium ui", hashlib.sha256).hexdigest()

    def knows(self, token: str) -> bool:
        """Return whether ``token`` is the token, in a time that does not depend on how much of it is right."""
        return bool(self.token) and hmac.compare_digest(token.encode(), self.token.encode())

    def admits(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request with these headers has the token, as a cookie or as a bearer's."""
        if not self.token:
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        if cookie is not None and hmac.compare_digest(cookie.value.encode(), self.seal.encode()):
            return True
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self.knows(token.strip())


class Guard:
    """An ASGI application around another one, which it protects.

    Args:
        app: the application.
        access: who may use it.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        if refusal := self._refusal(scope):
            await refusal(scope, receive, guarded)
            return
        await self._app(scope, _bounded(receive), guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return why a request is refused; None if it is not."""
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        headers, host = dict(pairs), [value for name, value in pairs if name == "host"]
        if len(host) != 1 or not self._is_ours(host[0]):
            return _refused(400, "this server is not known by that name; `florilegium ui --name` adds one")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _refused(405, "only GET, HEAD and POST are known")
        site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "")
        if site not in ("same-origin", "none") and (mode != "navigate" or scope["method"] == "POST"):
            return _refused(403, "another page may not ask this")
        origin = headers.get("origin")
        if scope["method"] == "POST" and origin is not None and urlsplit(origin).netloc.lower() != host[0].lower():
            return _refused(403, "another page may not send this")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit() and len(length) < 20) or int(length) > MOST:
            return _refused(413, f"at most {MOST >> 20} MB can be sent")
        if scope["path"] not in PUBLIC and not self._access.admits(headers):
            if scope["method"] == "GET" and mode in ("", "navigate"):
                return RedirectResponse(ENTRY, 303)
            return _refused(401, "the token is needed")
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            name = (parts.hostname or "").lower()
            return name in self._access.names and not parts.path and parts.username is None and parts.port != 0
        except ValueError:
            return False


def _refused(status: int, why: str) -> Response:
    return PlainTextResponse(why + "\n", status)


class TooLargeError(Exception):
    """More is sent than the server takes."""


def _bounded(receive: Receive) -> Receive:
    """Return ``receive`` with a bound on the whole body, also of one that does not say its length."""
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MOST:
            raise TooLargeError
        return message

    return bounded


def is_loopback(host: str) -> bool:
    """Return whether a host to listen on can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
