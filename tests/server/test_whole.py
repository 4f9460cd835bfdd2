"""The API over the real engine and a tiny policy: the same answers as `Policy.generate`, alone and all at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from paretune.policy import Policy
from paretune.server.engine import BatchEngine, EngineLimits
from paretune.server.limits import ServerLimits
from paretune.server.served import Served
from server.conftest import Running, Starter, chat_body, soon
from server.engine.listening import PROMPTS, make, user


@pytest.fixture(scope="module")
def policy(tiny_llama: Path) -> Policy:
    """The policy that the engine has."""
    return make(tiny_llama)


@pytest.fixture(scope="module")
def whole(policy: Policy) -> Iterator[Running]:
    """A server of it."""
    starter = Starter()
    engine = BatchEngine(policy, EngineLimits(max_batch=4))
    yield starter(engine, served=Served.of(policy, "tea"), limits=ServerLimits(output_tokens=400))
    starter.stop()


@pytest.fixture(scope="module")
def wanted(tiny_llama: Path) -> dict[str, tuple[str, dict[str, float]]]:
    """Prompt -> (greedy answer, profile) of the same policy without a server."""
    answers = make(tiny_llama).generate([user(text) for text in PROMPTS], max_new_tokens=12)
    return {text: (answer.text, answer.profile or {}) for text, answer in zip(PROMPTS, answers, strict=True)}


def test_greedy_answers_are_generate_s_whole_and_streamed_at_once(
    whole: Running, wanted: dict[str, tuple[str, dict[str, float]]]
) -> None:
    async def ask() -> list[tuple[str, dict[str, float]]]:
        async with openai.AsyncOpenAI(base_url=f"{whole.url}/v1", api_key="x", max_retries=0) as client:

            async def one(text: str, stream: bool) -> tuple[str, dict[str, float]]:
                asked: dict[str, Any] = {"model": "tea", "messages": user(text), "temperature": 0, "max_tokens": 12}
                answer = await client.chat.completions.create(**asked, stream=stream)
                if not stream:
                    return answer.choices[0].message.content, answer.model_extra["paretune"]["used"]
                chunks = [chunk async for chunk in answer]
                said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
                return said, chunks[0].model_extra["paretune"]["used"]

            return await asyncio.gather(*[one(text, stream) for stream in (False, True) for text in PROMPTS])

    for text, (said, used) in zip(PROMPTS * 2, asyncio.run(ask()), strict=True):
        assert said == wanted[text][0]
        assert used == pytest.approx(wanted[text][1], abs=1e-5)


def test_the_same_seed_is_the_same_answer(whole: Running) -> None:
    def ask(seed: int) -> list[str]:
        status, answer = whole.chat(seed=seed, n=2, max_tokens=10, temperature=1.5)
        assert status == 200
        return [choice["message"]["content"] for choice in answer["choices"]]

    first = ask(-7)
    assert first == ask(-7) and first != ask(8) and first[0] != first[1]


def test_pins_sense_and_stop(whole: Running) -> None:
    pinned = whole.chat(profile={"cheer": 1}, max_tokens=4)[1]["paretune"]
    assert pinned["used"]["cheer"] == 1 and pinned["sensed"]["cheer"] != 1
    plain = whole.chat(sense=False, max_tokens=4)[1]["paretune"]
    assert plain["sensed"] is None and plain["used"] is None
    sensed = whole.post("/v1/sense", {"input": "What is tea?"})[1]["data"][0]
    assert sensed["profile"] == pytest.approx(pinned["sensed"], abs=1e-5)
    text = whole.chat(temperature=0, max_tokens=12)[1]["choices"][0]["message"]["content"]
    stop = text[4:6]
    choice = whole.chat(temperature=0, max_tokens=12, stop=stop)[1]["choices"][0]
    assert choice["message"]["content"] == text[: text.index(stop)] and choice["finish_reason"] == "stop"


def test_a_context_that_overflows(whole: Running) -> None:
    status, answer = whole.chat("tea " * 600)
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
    assert answer["error"]["param"] == "messages" and "512" in answer["error"]["message"]
    status, answer = whole.chat("tea " * 150, max_tokens=400)
    assert status == 400 and "400" in answer["error"]["message"] and "512" in answer["error"]["message"]
    status, answer = whole.chat("tea " * 60)  # no length named: what the context leaves
    assert status == 200 and answer["usage"]["total_tokens"] <= 512


def test_the_prefix_cache_is_told(whole: Running) -> None:
    chat = [{"role": "system", "content": "You are a poet. " * 8}, {"role": "user", "content": "Hi"}]
    first = whole.post("/v1/chat/completions", chat_body(messages=chat, max_tokens=2, temperature=0))[1]
    again = whole.post("/v1/chat/completions", chat_body(messages=chat, max_tokens=2, temperature=0))[1]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert again["choices"] == first["choices"]


def test_clients_that_leave_free_their_places(whole: Running) -> None:
    body = json.dumps(chat_body(stream=True, max_tokens=300)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    socks = [whole.raw(head + b"Content-Length: %d\r\n\r\n" % len(body) + body) for _ in range(8)]
    assert soon(lambda: whole.engine.load().running == 4 and whole.engine.load().waiting == 4)
    for sock in socks:
        sock.close()
    assert soon(lambda: whole.engine.load().running == 0 and whole.engine.load().waiting == 0, 3)
    assert whole.chat(max_tokens=2)[0] == 200
