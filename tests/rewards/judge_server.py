"""An OpenAI-compatible endpoint on this machine that does as a test tells it: judges, fails, hangs, talks rubbish.

    with JudgeServer(lambda asked: verdict(7)) as server:
        ...  # server.url is the API's base; server.asked is what was asked so far

The function gets each request and gives the reply; a request's `number` says how often the same answer was asked about
before.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from paretune.data.rows import Messages
from paretune.rewards.judge import parse_spec
from paretune.rewards.judge.endpoint import Clock, Endpoint
from paretune.rewards.judge.reward import JudgeReward

_ANSWER = re.compile(r"\[answer (?P<code>[0-9a-f]{16})\]\n(?P<text>.*)\n\[end of answer (?P=code)\]", re.DOTALL)


@dataclass(frozen=True)
class Asked:
    """One request: what the judge is to read, which answer that is about, and how it wants the reply."""

    body: dict[str, Any]
    headers: dict[str, str]
    number: int

    @property
    def text(self) -> str:
        return str(self.body["messages"][0]["content"])

    @property
    def answer(self) -> str:
        return answer_in(self.body)

    @property
    def form(self) -> str:
        """The type of `response_format`, or "" without one."""
        return str(self.body.get("response_format", {}).get("type", ""))


@dataclass(frozen=True)
class Reply:
    """What the server sends, `after` seconds; `hang` sends nothing until the server is closed, `drip` waits so many
    seconds after each byte."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    after: float = 0.0
    hang: bool = False
    drip: float = 0.0


def answer_in(body: dict[str, Any]) -> str:
    found = _ANSWER.search(body["messages"][0]["content"])
    assert found, "the request holds no answer"
    return found["text"]


def says(content: Any, *, after: float = 0.0, tokens: tuple[int, int] = (100, 20)) -> Reply:
    """A completion whose text is `content`."""
    body = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}],
        "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)},
    }
    return Reply(json.dumps(body).encode(), after=after)


def verdict(score: Any, reason: str = "because", *, after: float = 0.0) -> Reply:
    """A completion that is a verdict in JSON."""
    return says(json.dumps({"reason": reason, "score": score}), after=after)


def error(status: int, message: str = "no", code: str = "", **headers: str) -> Reply:
    """OpenAI's error object; header names are given with underscores."""
    body = {"error": {"message": message, "type": "error", "code": code or None}}
    return Reply(json.dumps(body).encode(), status, {name.replace("_", "-"): text for name, text in headers.items()})


HANG = Reply(b"", hang=True)


class JudgeServer:
    """A server in a thread, on a free port. `most` is the greatest number of requests it had at one time."""

    def __init__(self, reply: Callable[[Asked], Reply]) -> None:
        self.reply = reply
        self.asked: list[Asked] = []
        self.most = 0
        self.failures: list[BaseException] = []
        self._now = 0
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> JudgeServer:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        assert not self.failures, self.failures

    def take(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            answer = answer_in(body)
            asked = Asked(body, headers, self._seen[answer])
            self._seen[answer] += 1
            self.asked.append(asked)
        try:
            reply = self.reply(asked)
            if reply.hang:
                self.closing.wait()
            time.sleep(reply.after)
            return reply
        finally:
            with self._lock:
                self._now -= 1

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each reply waits 40 ms for an acknowledgement

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                raw = self.rfile.read(length)
                if len(raw) < length:  # the client has gone
                    self.close_connection = True
                    return
                try:
                    assert self.path == "/v1/chat/completions", self.path
                    reply = outer.take(json.loads(raw), {name.lower(): text for name, text in self.headers.items()})
                except BaseException as failure:
                    outer.failures.append(failure)
                    raise
                try:
                    self.send_response(reply.status)
                    for name, text in {"Content-Type": "application/json", **reply.headers}.items():
                        self.send_header(name, text)
                    self.send_header("Content-Length", str(len(reply.body)))
                    self.end_headers()
                    for piece in [reply.body] if not reply.drip else map(bytes, zip(reply.body, strict=True)):
                        self.wfile.write(piece)
                        outer.closing.wait(reply.drip)
                except OSError:  # the client has gone
                    self.close_connection = True

            def log_message(self, format: str, *arguments: object) -> None:
                return

        return Handler


class FakeClock(Clock):
    """A clock whose sleepers wake at once, at the time they wanted to wake."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


def judge_of(server: JudgeServer, cache: Path | str, clock: Clock | None = None, **options: Any) -> JudgeReward:
    """The judge of a server, impatient and by helpfulness unless told otherwise."""
    spec = parse_spec(rest_of(server, cache, **options))
    return JudgeReward(spec, Endpoint(spec.url, clock) if clock is not None else None)


def rest_of(server: JudgeServer, cache: Path | str, **options: Any) -> str:
    """The same as a spec, without `judge:`."""
    given = {"rubric": "helpfulness", "backoff": 0.01, "cache": cache} | options
    return f"m@{server.url}?" + "&".join(f"{name}={value}" for name, value in given.items())


def prompts(count: int) -> list[Messages]:
    """As many prompts, all different."""
    return [[{"role": "user", "content": f"question {at}"}] for at in range(count)]
