"""Connections that misbehave: no HTTP, slow heads and bodies, clients that leave or do not read, too many of them."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable

import pytest

from paretune.server.limits import ServerLimits
from server.conftest import Running, chat_body, soon
from server.fake_engine import FakeEngine

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def request(**fields: object) -> bytes:
    """A whole chat request."""
    body = json.dumps(chat_body(**fields)).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def read_all(sock: socket.socket) -> bytes:
    """All until the server closes."""
    parts = []
    try:
        while part := sock.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    sock.close()
    return b"".join(parts)


def slam(sock: socket.socket) -> None:
    """Leave without a word (RST)."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * (1 << 17) + b"\r\n\r\n",
    ],
)
def test_what_is_no_http_is_told_and_closed(tea: Running, data: bytes) -> None:
    answer = read_all(tea.raw(data))
    assert answer.startswith(b"HTTP/1.1 400") or answer == b"", answer  # or it was reset while still sending
    if answer:
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert tea.chat()[0] == 200


def test_a_head_or_a_body_that_does_not_come(start: Callable[..., Running]) -> None:
    tea = start(limits=ServerLimits(header_seconds=0.3, body_seconds=0.3))
    for data in (b"", b"GET / HTTP/1.1\r\nHost: x\r\n", HEAD + b"Content-Length: 50\r\n\r\n{", HEAD + b"Expect: 1"):
        began = time.monotonic()
        answer = read_all(tea.raw(data))
        assert answer.startswith(b"HTTP/1.1 408") and time.monotonic() - began < 5
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "timeout"


def test_a_head_that_dribbles_is_not_waited_for(start: Callable[..., Running]) -> None:
    tea = start(limits=ServerLimits(header_seconds=0.4))
    sock = tea.raw(b"GET / HTTP/1.1\r\n")
    with pytest.raises(OSError):
        for at in range(200):
            sock.sendall(b"X-%d: a\r\n" % at)
            time.sleep(0.02)
    sock.close()


def test_a_connection_is_used_again_and_pipelined(tea: Running) -> None:
    sock = tea.raw(request() + request() + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = read_all(sock)
    assert answer.count(b"HTTP/1.1 200 OK") == 3 and answer.count(b"Tea is a drink.") == 2


def test_a_body_in_chunks_is_cut_while_it_is_read(tea: Running) -> None:
    sock = tea.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with pytest.raises(OSError):  # it stops listening, however much is sent
        for _ in range(2000):
            sock.sendall(chunk)
    sock.close()
    small = tea.raw(HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunk * 2 + b"0\r\n\r\n")
    assert read_all(small).startswith(b"HTTP/1.1 413")
    assert tea.engine.tickets == []


def test_a_body_that_waits_to_be_asked_for(tea: Running) -> None:
    body = json.dumps(chat_body()).encode()
    head = HEAD + b"Connection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    sock = tea.raw(head)
    assert sock.recv(100).startswith(b"HTTP/1.1 100")
    sock.sendall(body)
    assert b"Tea is a drink." in read_all(sock)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_cancelled(start: Callable[..., Running], stream: bool) -> None:
    tea = start(FakeEngine(words=("a",) * 1000, pace=0.01))
    sock = tea.raw(request(stream=stream))
    assert soon(lambda: len(tea.engine.tickets) == 1)
    if stream:
        assert b"200 OK" in sock.recv(1000)
    slam(sock)
    assert tea.engine.tickets[0].cancelled.wait(5)
    assert soon(lambda: b"paretune_cancelled_total 1.0" in tea.ask("GET", "/metrics")[2])


def test_a_client_that_leaves_while_it_waits_is_cancelled(start: Callable[..., Running]) -> None:
    import threading

    engine = FakeEngine()
    engine.waits = threading.Event()
    tea = start(engine)
    socks = [tea.raw(request(stream=stream)) for stream in (False, True)]
    assert soon(lambda: len(engine.tickets) == 2)
    for sock in socks:
        slam(sock)
    assert all(ticket.cancelled.wait(5) for ticket in engine.tickets)


def test_a_client_that_leaves_while_it_is_admitted_is_cancelled(start: Callable[..., Running]) -> None:
    engine = FakeEngine(words=("a",) * 1000, pace=0.01)
    engine.on_submit = lambda ask: time.sleep(0.5)
    tea = start(engine)
    sock = tea.raw(request())
    time.sleep(0.2)
    slam(sock)
    assert soon(lambda: len(engine.tickets) == 1)
    assert engine.tickets[0].cancelled.wait(5)


def test_a_body_cut_off_by_its_client_reaches_no_engine(tea: Running) -> None:
    slam(tea.raw(HEAD + b"Content-Length: 500\r\n\r\n{"))
    assert tea.chat()[0] == 200 and len(tea.engine.tickets) == 1


def test_a_slow_reader_slows_nobody_and_gets_all(start: Callable[..., Running]) -> None:
    words = tuple(f"{'word' * 50}{at} " for at in range(4000))
    tea = start(FakeEngine(words=words), limits=ServerLimits(output_tokens=5000, default_tokens=5000))
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", tea.port))
    slow.settimeout(30)
    slow.sendall(request(stream=True).replace(b"Host: x", b"Host: x\r\nConnection: close"))
    assert tea.engine.on_submit and soon(lambda: len(tea.engine.tickets) == 1)
    assert tea.engine.tickets[0].over.wait(10)  # its place is free, though little was read
    began = time.monotonic()
    assert tea.chat(max_tokens=5)[0] == 200 and time.monotonic() - began < 5
    body = read_all(slow)
    text = b"".join(
        json.loads(line[6:])["choices"][0]["delta"].get("content", "").encode()
        for line in body.replace(b"\r\n", b"\n").split(b"\n")
        if line.startswith(b"data: {")
    )
    assert text.decode() == "".join(words) and b"data: [DONE]" in body


def test_a_reader_that_never_reads_is_dropped(start: Callable[..., Running]) -> None:
    tea = start(
        FakeEngine(words=("x" * 2000,) * 8000),
        limits=ServerLimits(output_tokens=9000, default_tokens=9000, deadline=1.0),
    )
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", tea.port))
    sock.sendall(request(stream=True))
    assert soon(lambda: len(tea.server.server_state.connections) == 1)
    assert soon(lambda: not tea.server.server_state.connections)
    assert b"data: [DONE]" not in read_all(sock)


def test_one_connection_too_many_is_told(start: Callable[..., Running]) -> None:
    tea = start(limits=ServerLimits(connections=3))
    held = [tea.raw() for _ in range(3)]
    time.sleep(0.1)
    status, headers, data = tea.ask("GET", "/health")
    assert status == 503 and headers["retry-after"] == "1"
    assert json.loads(data)["error"]["code"] == "too_many_connections"
    held.pop().close()
    assert soon(lambda: tea.ask("GET", "/health")[0] == 200)
    for each in held:
        each.close()


def test_an_idle_connection_is_closed(start: Callable[..., Running]) -> None:
    tea = start(limits=ServerLimits(idle_seconds=1))
    began = time.monotonic()
    answer = read_all(tea.raw(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"))
    assert b"200 OK" in answer and 0.5 < time.monotonic() - began < 10
