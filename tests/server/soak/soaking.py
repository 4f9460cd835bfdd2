"""Many requests at once to a server, of every kind, a third of them cancelled; each answer held against its question.

What a question's answer is, is asked of the same server beforehand, when it has nothing else to do.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from server.engine.listening import PROMPTS, user

CHAT, COMPLETIONS, SENSE = "/v1/chat/completions", "/v1/completions", "/v1/sense"
CLIENTS = 24
"""Requests under way at a time."""
BAD: list[tuple[str, Any, int]] = [
    (CHAT, b'{"model": "tea", "messages"', 400),
    (CHAT, {"messages": [{"role": "user", "content": "a" * 100_000}]}, 400),
    (CHAT, {"messages": user("tea " * 600)}, 400),
    (CHAT, {"messages": []}, 400),
    (CHAT, {"messages": user("Hi"), "n": -1}, 400),
    (CHAT, {"messages": user("Hi"), "profile": {"cheer": 1.5}}, 400),
    (CHAT, {"messages": user("Hi"), "tools": [{"type": "function"}]}, 400),
    (CHAT, {"messages": user("Hi"), "model": "coffee"}, 404),
    (CHAT, {"messages": user("Hi"), "stream": "yes"}, 400),
    (COMPLETIONS, {"prompt": ["Hi"] * 200}, 400),
    (COMPLETIONS, {"prompt": [""]}, 400),
    (SENSE, {"input": ["Hi", " "]}, 400),
]
"""(route, body, status) of what is refused."""


@dataclass(frozen=True)
class Question:
    """A request with an answer that can be told from those to the others."""

    path: str
    body: Mapping[str, Any]

    @property
    def answers(self) -> int:
        """How many it asks for."""
        return int(self.body.get("n", 1)) * (len(self.body["prompt"]) if "prompt" in self.body else 1)


def questions(prompts: int = len(PROMPTS)) -> list[Question]:
    """Six for each of some prompts: chats as they are, with pins and `n`, without sensing and with stop texts, with a
    history; a text to continue, and one to sense."""
    out = []
    history = [*user("Hello"), {"role": "assistant", "content": "Hello! What can I do?"}]
    for number, text in enumerate(PROMPTS[:prompts]):
        chat: dict[str, Any] = {"messages": user(text), "temperature": 0, "max_tokens": 6 + number}
        out.append(Question(CHAT, chat))
        out.append(Question(CHAT, chat | {"profile": {"cheer": number / len(PROMPTS)}, "n": 1 + number % 3}))
        out.append(Question(CHAT, chat | {"sense": False, "stop": ["e", "zz"], "logprobs": True}))
        out.append(Question(CHAT, chat | {"messages": [*history, *user(text)]}))
        out.append(Question(COMPLETIONS, {"prompt": [text, text[::-1]], "temperature": 0, "max_tokens": 5, "n": 2}))
        out.append(Question(SENSE, {"input": text, "profile": {"brevity": 0.5}}))
    return out


@dataclass
class Soak:
    """What came of the requests. `wrong`: what should not have come."""

    url: str
    asked: list[Question] = field(default_factory=questions)
    wanted: list[Any] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def client(self) -> httpx2.AsyncClient:
        """A client without patience for what hangs."""
        return httpx2.AsyncClient(base_url=self.url, timeout=60, limits=httpx2.Limits(max_connections=CLIENTS))

    async def alone(self) -> list[Any]:
        """What each question is answered by itself."""
        async with self.client() as client:
            return [await ask(client, question, stream=False) for question in self.asked]

    async def run(self, requests: int, patience: float, watch: Callable[[int], None] = lambda done: None) -> None:
        """All requests, `CLIENTS` at a time; a third is cancelled within `patience` seconds. `watch` is told, every
        hundred requests, how many are over."""
        numbers, done = iter(range(requests)), 0

        async def work(client: httpx2.AsyncClient) -> None:
            nonlocal done
            for number in numbers:
                await self._one(client, random.Random(number), number, patience)
                done += 1
                if done % 100 == 0:
                    watch(done)

        async with self.client() as client, asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(work(client))

    async def _one(self, client: httpx2.AsyncClient, draw: random.Random, number: int, patience: float) -> None:
        at = draw.randrange(len(self.asked))
        kind = draw.choices(("known", "new", "bad"), (8, 1, 1))[0]
        stream, leaves = draw.random() < 0.5, draw.random() < 1 / 3
        try:
            async with asyncio.timeout(draw.uniform(0, patience) if leaves else None):
                if kind == "known":
                    found = await ask(client, self.asked[at], stream=stream and self.asked[at].path != SENSE)
                    if found != self.wanted[at]:
                        self.wrong.append(f"{self.asked[at]}: {found}, alone {self.wanted[at]}")
                elif kind == "new":  # fills what is kept of prompts
                    fields = {"messages": user(f"{number}: {PROMPTS[at % len(PROMPTS)]}"), "temperature": 1}
                    await ask(client, Question(CHAT, fields | {"max_tokens": 4}), stream=stream)
                else:
                    await self._refused(client, *draw.choice(BAD))
                self.counts[kind] += 1
        except TimeoutError:
            self.counts["cancelled"] += 1
        except (httpx2.HTTPError, AssertionError, KeyError, ValueError) as error:
            self.wrong.append(f"{kind} {number}: {error!r}")

    async def _refused(self, client: httpx2.AsyncClient, path: str, body: Any, status: int) -> None:
        data = body if isinstance(body, bytes) else json.dumps({"model": "tea"} | body).encode()
        answer = await client.post(path, content=data, headers={"content-type": "application/json"})
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["message"]


async def ask(client: httpx2.AsyncClient, question: Question, *, stream: bool) -> Any:
    """What comes of a question, in the same form whole and streamed: (text, why it ended) of each answer, and what
    guided them; of sensing, the profiles."""
    body = {"model": "tea"} | dict(question.body)
    if not stream:
        answer = await client.post(question.path, json=body)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        if question.path == SENSE:
            return [_near(each["profile"]) for each in found["data"]]
        texts = [(_text(choice), choice["finish_reason"]) for choice in found["choices"]]
        return texts, _near((found.get("paretune") or {}).get("used"))
    texts, reasons = [""] * question.answers, [""] * question.answers
    used, last = None, ""
    async with client.stream("POST", question.path, json=body | {"stream": True}) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if not line.startswith("data: "):
                continue
            last = line[6:]
            chunk = json.loads(last) if last != "[DONE]" else {"choices": []}
            assert "error" not in chunk, chunk
            used = (chunk.get("paretune") or {}).get("used", used)
            for choice in chunk["choices"]:
                texts[choice["index"]] += _text(choice)
                reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    assert last == "[DONE]"
    return list(zip(texts, reasons, strict=True)), _near(used)


def _text(choice: Mapping[str, Any]) -> str:
    held = choice.get("message") or choice.get("delta")
    return str(held.get("content") or "") if held is not None else str(choice.get("text") or "")


def _near(profile: Mapping[str, float] | None) -> dict[str, float] | None:
    """A profile up to what the company of other rows changes in its last bits."""
    return {name: round(value, 3) for name, value in profile.items()} if profile else None


def gauge(metrics: str, name: str) -> float:
    """A number of `/metrics`."""
    return next(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(f"{name} "))
