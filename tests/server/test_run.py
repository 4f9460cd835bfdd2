"""Sockets, addresses and files: what happens around a server, before and after it serves."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Callable

import pytest

from paretune.errors import InputError
from paretune.server.app import create_app
from paretune.server.run import Server, address_of, allow_files, bind, configured, serve
from server.conftest import SERVED, Running, chat_body, soon
from server.fake_engine import FakeEngine


def test_a_free_port_is_told_by_its_number() -> None:
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert port and address_of(sock) == f"http://127.0.0.1:{port}"
    with bind("localhost", 0) as sock:
        assert address_of(sock).startswith("http://")


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    try:
        with bind("::1", 0) as sock:
            assert address_of(sock) == f"http://[::1]:{sock.getsockname()[1]}"
    except InputError as error:
        pytest.skip(f"no IPv6 here: {error}")


def test_a_port_that_another_takes_between_binding_and_listening() -> None:
    engine = FakeEngine()
    ours = bind("127.0.0.1", 0)
    port = ours.getsockname()[1]
    theirs = bind("127.0.0.1", port)  # neither listens yet, so both may bind
    theirs.listen()
    try:
        with pytest.raises(InputError, match=f"port {port} of 127.0.0.1 is in use"):
            serve(create_app(engine, SERVED), ours)
        assert engine.closed
    finally:
        ours.close()
        theirs.close()


def test_connections_get_the_files_they_need() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
        allow_files(200)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(264, hard)
        allow_files(10)  # never less than there is
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(264, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_server_that_stops_finishes_answers_and_closes_its_engine(start: Callable[..., Running]) -> None:
    tea = start(FakeEngine(pace=0.1), drain=10)
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(tea.chat()))
    thread.start()
    assert soon(lambda: len(tea.engine.tickets) == 1)
    idle = tea.raw()
    tea.server.should_exit = True
    thread.join(10)
    assert found and found[0][0] == 200, found  # type: ignore[index]
    assert soon(lambda: tea.engine.closed)
    assert idle.recv(1) == b""
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", tea.port), timeout=2)


def test_what_does_not_finish_in_time_is_cancelled_and_told(start: Callable[..., Running]) -> None:
    tea = start(FakeEngine(words=("tea ",) * 1000, pace=0.02), drain=0)
    found: list[bytes] = []
    body = chat_body(stream=True, max_tokens=1000)
    thread = threading.Thread(target=lambda: found.append(tea.ask("POST", "/v1/chat/completions", body)[2]))
    thread.start()
    assert soon(lambda: len(tea.engine.tickets) == 1)
    tea.server.should_exit = True
    thread.join(20)
    assert b'"code":"stopping"' in found[0] and b"[DONE]" not in found[0]


def test_a_drain_of_any_length() -> None:
    engine = FakeEngine()
    app = create_app(engine, SERVED)
    server = Server(configured(app, 1e300), app.state.server, 1e300, lambda: None)
    assert threading.Lock().acquire(timeout=server._drain)  # which refuses to wait for longer than it can count
