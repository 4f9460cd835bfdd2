"""Running the application: the socket, one line when it is ready, and an end that finishes what was begun.

The socket is bound before the model is loaded, so that a busy port is told at once. SIGTERM (or Ctrl-C) stops
accepting, lets running answers finish for a while, cancels the rest and ends with status 0; a second signal does not
wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from paretune.errors import InputError
from paretune.server.connection import bounded
from paretune.server.limits import ServerLimits
from paretune.server.state import State

log = logging.getLogger("paretune.server")

BACKLOG = 1024
GRACE = 5.0
"""Seconds for the last bytes to go out, once nothing runs any more."""
SPARE_FILES = 64
"""File descriptors for what is not a connection."""


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet; port 0 takes a free one. Raises `InputError`."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError, OverflowError) as error:
        raise InputError(f"cannot bind to host '{host}': {getattr(error, 'strerror', None) or error}") from None
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except (OSError, OverflowError) as error:
        sock.close()
        raise _unbound(host, port, error) from None
    return sock


def _unbound(host: str, port: int, error: Exception) -> InputError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return InputError(f"port {port} of {host} is in use; choose another one with --port, or 0 for a free one")
    said = error.strerror if isinstance(error, OSError) else str(error)
    return InputError(f"cannot bind to {host}, port {port}: {said}")


def address_of(sock: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def allow_files(connections: int) -> None:
    """Raise the soft limit on open files to what the connections need, as far as the hard one lets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class Server(uvicorn.Server):
    """uvicorn's server with an engine to drain."""

    def __init__(self, config: uvicorn.Config, state: State, drain: float, ready: Callable[[], None]) -> None:
        super().__init__(config)
        # no lock waits longer
        self._state, self._drain, self._ready = state, min(drain, threading.TIMEOUT_MAX), ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more, and give what runs its time."""
        self._state.draining = True
        drained = asyncio.create_task(asyncio.to_thread(self._state.engine.drain, self._drain))
        await super().shutdown(sockets)
        if not await drained:
            log.warning("answers were cancelled: they did not finish within %g s", self._drain)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals end the server, not the process that runs it."""
        if threading.current_thread() is not threading.main_thread():  # where no signal arrives
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second one does not wait: not for threads either."""
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True


def configured(app: FastAPI, drain: float) -> uvicorn.Config:
    """uvicorn's settings for an application and its limits."""
    limits = app.state.limits
    assert isinstance(limits, ServerLimits)
    return uvicorn.Config(
        app,
        http=bounded(limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=max(1, int(limits.idle_seconds)),
        timeout_graceful_shutdown=math.ceil(drain + GRACE),
    )


def serve(app: FastAPI, sock: socket.socket, *, drain: float = 30.0, ready: Callable[[], None] = lambda: None) -> None:
    """Serve on a bound socket until a signal comes; `ready` is called when requests are taken.

    Raises `InputError` where another process took the port meanwhile.
    """
    state = app.state.server
    assert isinstance(state, State)
    allow_files(app.state.limits.connections)
    host, port = sock.getsockname()[:2]
    try:
        asyncio.run(Server(configured(app, drain), state, drain, ready).serve(sockets=[sock]))
    except OSError as error:
        state.engine.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise _unbound(host, port, error) from None
