"""A connection of uvicorn's that cannot be held for nothing: a head that does not come, a client that does not read.

uvicorn bounds neither, and tells broken HTTP in plain text; here it is OpenAI's error object as everywhere.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from paretune.server.errors import JSON, ApiError, dump
from paretune.server.limits import ServerLimits


def bounded(limits: ServerLimits) -> type[H11Protocol]:
    """The protocol under these limits: uvicorn makes one of its class a connection, and hands it nothing of ours."""

    class Bounded(Connection):
        """A connection under `limits`."""

        bounds = limits

    return Bounded


class Connection(H11Protocol):
    """HTTP/1.1 with bounds on how long a head, and a reader, may take, and on how many connections there are."""

    bounds = ServerLimits()
    _head: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a head; one connection too many gets 503 for an answer."""
        super().connection_made(transport)
        if len(self.connections) > self.bounds.connections:
            self.app = _full
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Some bytes came: the head is whole, or goes on being waited for."""
        super().data_received(data)
        self._await_head()

    def on_response_complete(self) -> None:
        """A response is out; the time for the next head starts with its first byte, till then the idle time counts."""
        self._stop("_head")
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._stop("_head")
        self._stop("_reader")
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read what it is sent."""
        super().pause_writing()
        self._reader = self._reader or self.loop.call_later(self.bounds.deadline, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        self._stop("_reader")

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP."""
        self._refuse(ApiError(400, "the request is no valid HTTP/1.1", code="invalid_http"))

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        if self._answering or self.transport.is_closing():
            self._stop("_head")
        elif self._head is None:
            self._head = self.loop.call_later(self.bounds.header_seconds, self._late)

    def _late(self) -> None:
        self._head = None
        if not self._answering and not self.transport.is_closing():
            seconds = f"{self.bounds.header_seconds:g} s"
            self._refuse(ApiError(408, f"the request's head did not arrive within {seconds}", code="timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Answer without a request, if the connection is in a state for it, and close."""
        body = dump(error.to_dict())
        headers = [("content-type", JSON), ("content-length", str(len(body))), ("connection", "close")]
        try:
            for event in (
                h11.Response(status_code=error.status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:  # an answer is under way already
            pass
        self.transport.close()

    def _stop(self, timer: str) -> None:
        handle = getattr(self, timer)
        if handle is not None:
            handle.cancel()
            setattr(self, timer, None)


async def _full(scope: Scope, receive: Receive, send: Send) -> None:
    headers = {"Retry-After": "1", "Connection": "close"}
    error = ApiError(503, "too many connections; try again in 1 s", code="too_many_connections", headers=headers)
    await error.response()(scope, receive, send)
