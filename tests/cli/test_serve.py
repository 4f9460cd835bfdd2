"""`paretune serve` as a process: ready, cut off, started again and drained by SIGTERM; and what it refuses."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.conftest import Invoke
from paretune.cli.app import app as cli
from server.conftest import soon

CHAT = "/v1/chat/completions"
PROMPT = {"model": "tea", "messages": [{"role": "user", "content": "What is tea?"}]}


@pytest.fixture(scope="module")
def tea(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy's folder, with an evaluation beside it."""
    from paretune.policy import save_policy
    from server.engine.listening import make

    folder = tmp_path_factory.mktemp("served")
    save_policy(make(tiny_llama), folder / "tea", metrics={})
    points = [{"name": "sensed", "values": {"brevity": 0.5, "cheer": 0.25}, "on_front": True}]
    front = {"objectives": ["brevity", "cheer"], "points": points}
    (folder / "report").mkdir()
    (folder / "report" / "metrics.json").write_text(json.dumps({"policies": {"tea": {"front": front}}}))
    return folder / "tea"


@contextlib.contextmanager
def served(*arguments: object, **environment: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command in a process of its own, when it is ready, and its port."""
    given = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | environment
    process = subprocess.Popen(
        [sys.executable, "-m", "paretune", "serve", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=given,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert " is served at http://127.0.0.1:" in line, process.stderr.read()
        yield process, int(line.rpartition(":")[2])
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def held_up(port: int) -> Iterator[None]:
    """A request whose body does not come, which a server that drains would wait for."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"POST /v1/sense HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        sock.sendall(b"Content-Length: 50\r\nExpect: 100-continue\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 100")  # it waits for the body now
        yield


def is_closed(port: int) -> bool:
    """Does nobody accept connections?"""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


def ask(port: int, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
    """An answer whose body is still to be read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    data = json.dumps(body).encode() if body is not None else None
    connection.request(method, path, data, {"content-type": "application/json"} | headers)
    return connection.getresponse()


def answer(port: int, **headers: str) -> str:
    """A greedy answer."""
    body = PROMPT | {"temperature": 0, "max_tokens": 8}
    return str(json.loads(ask(port, "POST", CHAT, body, **headers).read())["choices"][0]["message"]["content"])


def test_from_ready_to_cut_off_and_from_ready_again_to_drained(tea: Path) -> None:
    # processes are what this file costs: one ends at once, and the next one, at the same port, when its work is done
    with served(tea, "--port", 0, "--drain", 60, "--no-access-log") as (process, port):
        before = answer(port)
        streaming = ask(port, "POST", CHAT, PROMPT | {"stream": True, "max_tokens": 300})
        assert streaming.status == 200
        with held_up(port):
            process.send_signal(signal.SIGTERM)
            assert soon(lambda: is_closed(port)) and process.poll() is None
            process.send_signal(signal.SIGTERM)  # a second time: now, as if it were killed
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM and not errors

    key = {"authorization": "Bearer sesame"}
    with served(tea, "--port", port, "--drain", 60, "--api-key", "sesame") as (process, same):
        assert same == port and answer(port, **key) == before
        assert ask(port, "GET", "/v1/models").status == 401
        told = json.loads(ask(port, "GET", "/v1/objectives", **key).read())
        assert told["model"] == "tea" and told["front"]["points"][0]["values"] == {"brevity": 0.5, "cheer": 0.25}
        body = PROMPT | {"stream": True, "max_tokens": 200, "temperature": 0, "seed": 1}
        stream = ask(port, "POST", CHAT, body, **key)
        assert stream.status == 200 and stream.readline().startswith(b"data: ")
        process.send_signal(signal.SIGTERM)
        assert stream.read().endswith(b"data: [DONE]\n\n")
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert f"POST {CHAT} 200" in errors
        assert "sesame" not in errors and "What is tea" not in errors and "Traceback" not in errors


def test_a_port_that_is_taken(tea: Path, refused: Invoke, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refused("serve", tea, "--port", port, folder=tmp_path)
    assert f"port {port} of 127.0.0.1 is in use" in message and "--port" in message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--engine", "tgi"), "unknown engine 'tgi'"),
        (("--api-key", ""), "printable ASCII"),
        (("--api-key-file", "nowhere"), "no such file"),
        (("--allow-origin", "example.org"), "an origin is written https://example.org"),
        (("--host", "no.such.host.invalid"), "cannot bind to host 'no.such.host.invalid'"),
        (("--host", "203.0.113.1"), "cannot bind to 203.0.113.1"),
        (("--max-body", "0"), "limit body_bytes must be above 0"),
        (("--max-body", "inf"), "--max-body must be a finite number"),
        (("--drain", "inf"), "--drain must be a finite number"),
        (("--allow-origin", "https://example.org/"), "an origin is written https://example.org"),
        (("--allow-host", "http://tea.example"), "a further host is a name"),
        (("--deadline", "nan"), "limit deadline must be a finite number"),
        (("--report", "nowhere"), "no such file"),
        (("--name", ""), "name must be printable"),
        (("--dtype", "float8"), "float8"),
        (("--engine", "vllm", "--prefix-cache", "1"), "for --engine batch"),
    ],
)
def test_what_is_refused(tea: Path, refused: Invoke, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("serve", tea, "--port", 0, *arguments, folder=tmp_path)


def test_vllm_where_it_is_not_installed(tea: Path, refused: Invoke, tmp_path: Path) -> None:
    if find_spec("vllm") is not None:
        pytest.skip("vLLM is installed")
    assert "vllm" in refused("serve", tea, "--port", 0, "--engine", "vllm", folder=tmp_path)


def test_what_the_engine_gets(tea: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paretune.server import run

    seen: list[Any] = []

    def serving(app: Any, sock: Any, **_: Any) -> None:
        seen.append(app.state.server.engine.limits)
        app.state.server.engine.close()

    monkeypatch.setattr(run, "serve", serving)
    words = ["serve", str(tea), "--port", "0", "--max-batch", "3", "--max-batch-tokens", "999", "--queue", "5"]
    assert CliRunner().invoke(cli, [*words, "--prefix-cache", "0"]).exit_code == 0
    assert CliRunner().invoke(cli, words[:4]).exit_code == 0
    given, default = seen
    assert (given.max_batch, given.max_batch_tokens, given.max_queue, given.prefix_cache_mib) == (3, 999, 5, 0)
    assert (default.max_batch, default.max_batch_tokens, default.max_queue, default.prefix_cache_mib) == (
        (32, 32768, 256, 256)
    )


def test_no_policy_no_server(refused: Invoke, tmp_path: Path) -> None:
    assert "policy" in refused("serve", tmp_path / "missing", "--port", 0, folder=tmp_path)


def test_keys_of_the_environment_and_a_file(tea: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paretune.server import run
    from paretune.server.guard import digest

    seen: dict[str, Any] = {}

    def serving(app: Any, sock: Any, *, drain: float, ready: Callable[[], None]) -> None:
        seen.update(keys=app.state.guard.keys, hosts=app.state.guard.hosts, drain=drain, limits=app.state.limits)
        seen["name"] = app.state.server.rules.served.name
        seen["temperature"] = app.state.server.rules.temperature
        app.state.server.engine.close()

    monkeypatch.setattr(run, "serve", serving)
    monkeypatch.setenv("PARETUNE_API_KEYS", "one,two")
    (tmp_path / "keys").write_text("three\n")
    words = ["serve", str(tea), "--port", "0", "--api-key-file", str(tmp_path / "keys"), "--drain", "3"]
    words += ["--temperature", "0.5", "--max-tokens", "99", "--default-tokens", "9", "--max-n", "3"]
    words += ["--max-body", "0.5", "--deadline", "7", "--host", "0.0.0.0", "--name", "house/tea"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert seen["keys"] == tuple(map(digest, ("one", "two", "three"))) and seen["hosts"] is None
    assert seen["drain"] == 3 and seen["temperature"] == 0.5 and "warning" not in done.stderr
    limits = seen["limits"]
    assert (limits.output_tokens, limits.default_tokens, limits.n, limits.body_bytes) == (99, 9, 3, 1 << 19)
    assert limits.deadline == 7 and seen["name"] == "house/tea"
    monkeypatch.delenv("PARETUNE_API_KEYS")
    done = CliRunner().invoke(cli, ["serve", str(tea), "--port", "0", "--host", "0.0.0.0"])
    assert "warning: bound to 0.0.0.0 without an API key" in done.stderr
    done = CliRunner().invoke(cli, ["serve", str(tea), "--port", "0", "--allow-host", "tea.example"])
    assert {"tea.example", "localhost"} <= set(seen["hosts"]) and "warning" not in done.stderr
