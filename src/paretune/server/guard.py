"""Who may ask: API keys, the Host header, and which routes need neither. And one line a request in the log.

Keys are held as SHA-256 digests; a key that comes is compared with each of them in constant time. A server on loopback
without keys answers only to names of loopback, so that no web page can reach it by a name that it points there (DNS
rebinding); a request body must say that it is JSON, which a page of another origin cannot send without being let.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paretune.errors import InputError
from paretune.server.errors import ApiError, told
from paretune.server.metrics import Metrics

access = logging.getLogger("paretune.server.access")

OPEN = ("/", "/favicon.svg", "/favicon.ico")
"""What a browser needs before it has a key."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def digest(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def read_keys(given: Iterable[str], file: Path | None = None, environment: str | None = None) -> tuple[bytes, ...]:
    """Digests of all keys: those given, a file's (one a line, `#` begins a comment), an environment variable's (with
    commas between them). Raises `InputError`, which never shows a key; also for a place that is named and holds none:
    whoever names one does not mean an open server."""
    keys = [("an API key", key) for key in given]
    if environment is not None:
        parts = [key.strip() for key in environment.split(",") if key.strip()]
        if not parts:
            raise InputError("PARETUNE_API_KEYS is set and holds no key; unset it, or give keys with commas between")
        keys += [("PARETUNE_API_KEYS", key) for key in parts]
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise InputError("no such file", file=file) from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot be read: {type(error).__name__}", file=file) from None
        found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise InputError("holds no key; one a line is needed", file=file)
        keys += [(f"a key in {file}", key) for key in found]
    for where, key in keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise InputError(f"{where} must be printable ASCII characters without spaces")
    return tuple(dict.fromkeys(digest(key) for _, key in keys))


@dataclass(frozen=True)
class Guard:
    """`keys`: digests, empty where none is needed. `hosts`: names that a Host header may have, None for any."""

    keys: tuple[bytes, ...] = ()
    hosts: tuple[str, ...] | None = None

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Raises `ApiError` for a request that may not be answered."""
        if self.hosts is not None:
            host = _hostname(headers.get("host", ""))
            if host not in self.hosts:
                message = f"this server does not answer to the name '{host:.100}'; start it with --allow-host, or keys"
                raise ApiError(403, message, code="host_not_allowed")
        if self.keys and not is_open(method, path) and not self._knows(headers.get("authorization", "")):
            given = "is not one of this server's" if "authorization" in headers else "is needed"
            raise ApiError(
                401,
                f"an API key {given}; send the header 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _knows(self, authorization: str) -> bool:
        scheme, _, key = authorization.partition(" ")
        found, known = digest(key.strip()), False
        for each in self.keys:  # all of them, whichever fits
            known |= hmac.compare_digest(each, found)
        return known and scheme.lower() == "bearer"


def is_open(method: str, path: str) -> bool:
    """Does this need no key? `/health`, and the page's own files."""
    return path == "/health" or (method in ("GET", "HEAD") and (path in OPEN or path.startswith("/page/")))


def _hostname(host: str) -> str:
    """The Host header's name in lower case, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return (host if host.count(":") > 1 else host.partition(":")[0]).lower().rstrip(".")


def is_loopback(address: str) -> bool:
    """Can only this machine reach this IP address?"""
    return ipaddress.ip_address(address).is_loopback


def hosts_of(host: str, address: str, more: Sequence[str], keys: Sequence[bytes]) -> tuple[str, ...] | None:
    """Names to answer to: any (None) where keys guard the server or it is bound beyond loopback, unless some are
    given.

    `host` is what was asked to be bound and `address` what it came to. Raises `InputError` for what no Host header
    says.
    """
    given = []
    for each in more:
        if not re.fullmatch(r"[a-z0-9._:-]+", name := _hostname(each)) or "/" in each:
            raise InputError(f"a further host is a name such as tea.example, in ASCII, found '{each:.100}'")
        given.append(name)
    here = LOOPBACK if is_loopback(address) and not keys else ()
    return tuple(dict.fromkeys((*here, _hostname(host), address, *given))) if here or given else None


def check_origin(origin: str) -> None:
    """Raises `InputError` for what no Origin header says: a browser sends scheme, host and port, in lower case."""
    if origin != "*" and not re.fullmatch(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]+)?", origin):
        raise InputError(f"an origin is written https://example.org, found '{origin:.100}'")


class Gate:
    """The outermost layer: refuses who may not ask, counts and logs every answer."""

    def __init__(self, app: ASGIApp, guard: Guard, metrics: Metrics) -> None:
        self._app, self._guard, self._metrics = app, guard, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, started, start = 500, False, time.monotonic()
        # HEAD is answered wherever GET is; the protocol, which keeps the scope of its own, leaves the body out
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope

        async def sending(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
            await send(message)

        try:
            try:
                self._guard.check(scope["method"], scope["path"], Headers(scope=scope))
                await self._app(inner, receive, sending)
            except Exception as error:
                if started:  # a half answer: the connection is cut, so that nobody takes it for a whole one
                    raise
                # answered here, not outside: there the connection would be cut after the answer
                await told(error).response()(scope, receive, sending)
        finally:
            self._told(scope, getattr(inner.get("route"), "path", "other"), status, time.monotonic() - start)

    def _told(self, scope: Scope, route: str, status: int, seconds: float) -> None:
        """Count and log; `route` is never the path itself: anybody makes these up."""
        method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD", "OPTIONS") else "other"
        self._metrics.requests.labels(route, method, str(status)).inc()
        self._metrics.whole.labels(route).observe(seconds)
        client = scope.get("client")
        path = scope["path"][:200].encode("ascii", "backslashreplace").decode()
        shown = "".join(char if char.isprintable() else "?" for char in path)
        access.info("%s %s %s %d %.3f s", client[0] if client else "-", scope["method"][:16], shown, status, seconds)
