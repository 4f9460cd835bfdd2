"""A server in a thread of this process, over the fake engine or a tiny policy's, and raw connections to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from paretune.profile import Objective, Scale
from paretune.server.app import create_app
from paretune.server.guard import digest
from paretune.server.limits import ServerLimits
from paretune.server.request import Engine
from paretune.server.run import Server, address_of, bind, configured
from paretune.server.served import Served
from server.fake_engine import FakeEngine

OBJECTIVES = (
    Objective("brevity", "lexical:brevity", scale=Scale("fixed", low=-100, high=0), scale_kind="fixed"),
    Objective("cheer", "column:cheer", scale=Scale("fixed"), scale_kind="fixed"),
)
SERVED = Served("tea", "sga", "tiny", OBJECTIVES, True, True, None, {"brevity": 0.5, "cheer": 0.5})


@dataclass
class Running:
    """A server that listens: its engine, and its address."""

    engine: Any
    url: str
    port: int
    server: Server

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
        """(status, JSON) of a POST; bytes are sent as they are."""
        status, _, data = self.ask("POST", path, body, **headers)
        return status, json.loads(data)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body) of any request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        given = {key.replace("_", "-"): value for key, value in headers.items()}
        given.setdefault("content-type", "application/json")
        connection.request(method, path, data, given)
        answer = connection.getresponse()
        found = answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def raw(self, data: bytes = b"") -> socket.socket:
        """A connection on which `data` was sent."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        sock.sendall(data)
        return sock

    def chat(self, text: str = "What is tea?", **fields: Any) -> tuple[int, dict[str, Any]]:
        """A chat of one message."""
        return self.post("/v1/chat/completions", chat_body(text, **fields))


def chat_body(text: str = "What is tea?", **fields: Any) -> dict[str, Any]:
    """The body of a chat of one message."""
    return {"model": "tea", "messages": [{"role": "user", "content": text}]} | fields


def soon(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Does it become true in time?"""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Starter:
    """Starts servers in threads, and stops them."""

    def __init__(self) -> None:
        self._running: list[tuple[Running, threading.Thread]] = []

    def __call__(
        self, engine: Engine | None = None, *, drain: float = 0.2, served: Served = SERVED, **settings: Any
    ) -> Running:
        engine = engine if engine is not None else FakeEngine()
        settings["keys"] = tuple(map(digest, settings.get("keys", ())))
        app = create_app(engine, served, **settings)
        sock, ready = bind("127.0.0.1", 0), threading.Event()
        url = address_of(sock)
        server = Server(configured(app, drain), app.state.server, drain, ready.set)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])), daemon=True)
        thread.start()
        assert ready.wait(20)
        self._running.append((Running(engine, url, int(url.rpartition(":")[2]), server), thread))
        return self._running[-1][0]

    def stop(self) -> None:
        """Stop all that were started."""
        for each, _ in self._running:
            each.server.should_exit = True
        for _, thread in self._running:
            thread.join(20)
            assert not thread.is_alive()


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Starts a server; all that were started stop with the test."""
    starter = Starter()
    yield starter
    starter.stop()


@pytest.fixture(scope="module")
def module_tea() -> Iterator[Running]:
    """The server of `tea`."""
    starter = Starter()
    yield starter(limits=ServerLimits(body_bytes=1 << 16, output_tokens=64, n=4, messages=10, prompts=4))
    starter.stop()


@pytest.fixture
def tea(module_tea: Running) -> Running:
    """A server over the fake engine as new, with short limits."""
    module_tea.engine.__init__()
    return module_tea
