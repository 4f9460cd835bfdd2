"""A thousand connections, readers that do not read, a server that is killed, and two at one port."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from paretune.policy import save_policy
from paretune.server.run import allow_files
from server.conftest import Running, chat_body, soon
from server.engine.listening import make
from server.fake_engine import FakeEngine
from server.soak.process import serving

CHAT = "/v1/chat/completions"
THOUSAND = 1000


def request(**fields: object) -> bytes:
    """A whole request, whose connection is closed after the answer."""
    body = json.dumps(chat_body(**fields)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def read_all(sock: socket.socket) -> bytes:
    """All until the server closes."""
    with sock:
        return b"".join(iter(lambda: sock.recv(65536), b""))


def test_a_thousand_connections_at_once(start: Callable[..., Running]) -> None:
    allow_files(3 * THOUSAND)  # both ends of each are in this process
    tea = start(FakeEngine(words=("Tea ",) * 5))
    with ExitStack() as stack:
        socks = [stack.enter_context(tea.raw()) for _ in range(THOUSAND)]
        assert soon(lambda: len(tea.server.server_state.connections) == THOUSAND)
        assert tea.chat()[0] == 200  # one more
        for number, sock in enumerate(socks[::2]):
            sock.sendall(request(text=f"What is {number}?", stream=number % 2 == 0))
        for number, sock in enumerate(socks[::2]):
            answer = read_all(sock)
            assert answer.startswith(b"HTTP/1.1 200"), answer
            assert answer.count(b"Tea ") == 5 and (b"[DONE]" in answer) == (number % 2 == 0)
        idle = socks[1]  # which waited all the while, is answered like any other
        idle.sendall(request())
        assert read_all(idle).startswith(b"HTTP/1.1 200")
    assert soon(lambda: not tea.server.server_state.connections)
    assert len({str(ticket.ask.messages) for ticket in tea.engine.tickets}) == THOUSAND // 2 + 1


def test_readers_that_do_not_read_hold_little_memory(start: Callable[..., Running]) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    length = 2000  # words of 500 bytes: a megabyte an answer, of which a chunk each would be ten times that
    tea = start(FakeEngine(words=("x" * 500,) * length))
    before, slow = resident(), []
    for _ in range(20):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", tea.port))
        sock.sendall(request(stream=True, max_tokens=length))
        slow.append(sock)
    assert soon(lambda: len(tea.engine.tickets) == 20)
    assert all(ticket.over.wait(20) for ticket in tea.engine.tickets)  # their places are free
    assert tea.chat(max_tokens=3)[0] == 200
    assert resident() - before < 20 * 16 * (1 << 20)
    for sock in slow:
        sock.close()
    assert soon(lambda: not tea.server.server_state.connections)


# --- processes ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policy(tiny_qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy's folder."""
    folder = tmp_path_factory.mktemp("soak") / "tea"
    save_policy(make(tiny_qwen), folder, metrics={})
    return folder


def ask(port: int, **fields: object) -> http.client.HTTPResponse:
    """An answer whose body is still to be read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", CHAT, json.dumps(chat_body(**fields)), {"content-type": "application/json"})
    return connection.getresponse()


def greedy(port: int) -> str:
    """A greedy answer."""
    answer = json.loads(ask(port, temperature=0, max_tokens=8).read())
    return str(answer["choices"][0]["message"]["content"])


@pytest.mark.slow  # three processes
def test_two_at_one_port_and_one_killed_in_mid_answer(policy: Path) -> None:
    with serving(policy, "--port", 0, "--no-access-log") as server:
        before, port = greedy(server.port), server.port
        words = [sys.executable, "-m", "paretune", "serve", str(policy), "--port", str(port)]
        second = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert second.returncode == 2 and f"port {port} of 127.0.0.1 is in use" in second.stderr
        assert "Traceback" not in second.stderr and greedy(port) == before

        stream = ask(port, stream=True, max_tokens=400, temperature=1)
        assert stream.status == 200 and stream.readline().startswith(b"data: ")
        waiting = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = json.dumps(chat_body(max_tokens=400, n=8, temperature=1))
        waiting.request("POST", CHAT, body, {"content-type": "application/json"})
        os.kill(server.process.pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises((http.client.HTTPException, OSError)):
            waiting.getresponse()
        rest = []
        with suppress(http.client.HTTPException, OSError):
            rest += iter(stream.readline, b"")
        assert b"data: [DONE]\n" not in rest
        assert time.monotonic() - began < 20
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    with serving(policy, "--port", port, "--no-access-log") as again:
        assert again.port == port and greedy(port) == before
