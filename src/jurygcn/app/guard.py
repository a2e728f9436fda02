"""Who may talk to the server: a token in the path, the right Host and Origin, small bodies."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGEST_BODY = 64 << 10  # bytes
# The body of a refused request is still read up to this size: a server that closes before it has read all resets the
# connection, and the client may lose the reply.
READ_AND_DROPPED = 1 << 20
TOO_LARGE = (413, "The request is too large.")
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Guard:
    """Middleware before the application.

    Attributes:
        app: the application. It sees paths without the token.
        token: the first part of every path.
        host, port: where the server listens. On loopback only loopback names are accepted as Host. Else also IP
            addresses and the host itself: a page of another site reaches the server only under that site's name.
        policy: the Content-Security-Policy of every reply.
        browsers: whether browsers use the application. If not, a request with an Origin is refused.
        largest: the most bytes of a body.
    """

    app: Asgi
    token: str
    host: str
    port: int
    policy: str = "default-src 'none'"
    browsers: bool = True
    largest: int = LARGEST_BODY

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}

        async def guarded_send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                extra = {**HEADERS, "content-security-policy": self.policy}
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in extra.items())]
            await send(message)

        refused = self.refusal(scope, headers)
        body = None if refused else await _read(receive, self.largest)
        if body is None:
            if refused and len(headers.get("content-length", "")) <= 7:  # not where 10 MB or more are announced
                await _read(receive, READ_AND_DROPPED)
            await _reply(guarded_send, *(refused or TOO_LARGE))
            return
        inner = {**scope, "path": scope["path"][len(self.token) + 1 :], "raw_path": None, "root_path": ""}
        await self.app(inner, _replayed(body, receive), guarded_send)

    def refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Status and words of the refusal; None if the request may pass."""
        if not self.right_host(headers.get("host", "")):
            return 421, "This server does not answer to that name."
        first, slash, _ = scope["path"][1:].partition("/")
        if not (slash and secrets.compare_digest(first.encode("utf-8", "surrogatepass"), self.token.encode())):
            return 404, "Open the address that jurygcn printed."
        if not self.same_origin(scope, headers):
            return 403, "Requests from other sites are refused."
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length) > self.largest:
            return TOO_LARGE
        return None

    def right_host(self, given: str) -> bool:
        """Whether the Host header names this server."""
        name, _, port = given.rpartition(":") if given.rpartition(":")[2].isdigit() else (given, "", "80")
        name = name.removeprefix("[").removesuffix("]").lower()
        if port != str(self.port):
            return False
        if name in LOOPBACK:
            return True
        return self.host not in LOOPBACK and (name == self.host.lower() or _is_address(name))

    def same_origin(self, scope: Scope, headers: dict[str, str]) -> bool:
        """Whether the request comes from the page itself, or from a program that is no browser.

        A person may follow a link to the page from anywhere: this is a GET of the page alone.
        """
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if not self.browsers:
            return origin is None and "sec-fetch-site" not in headers
        if origin is not None and origin != f"http://{headers.get('host', '')}":
            return False
        opened = scope["method"] == "GET" and scope["path"] == f"/{self.token}/"
        return site in ("same-origin", "none") or (opened and headers.get("sec-fetch-mode") == "navigate")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _read(receive: Receive, largest: int) -> bytes | None:
    """The body of the request; None if it is too large or cut."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > largest or message["type"] != "http.request":
            return None
    return body


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body once, and then what comes after it."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> MutableMapping[str, Any]:
        return next(messages, None) or await receive()

    return replay


async def _reply(send: Send, status: int, words: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": words.encode()})
