"""OpenAI's own Python client against the server: sync, async, streams, raw responses, and its exception classes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import openai
import pytest

from paretune.errors import InputError
from paretune.server.limits import ServerLimits
from server.conftest import Running, soon
from server.fake_engine import FakeEngine

MESSAGES = [{"role": "user", "content": "What is tea?"}]


@pytest.fixture
def client(tea: Running) -> Iterator[openai.OpenAI]:
    """A client that does not try again."""
    with client_of(tea) as made:
        yield made


def client_of(tea: Running, key: str = "unused") -> openai.OpenAI:
    """A client of a server."""
    return openai.OpenAI(base_url=f"{tea.url}/v1", api_key=key, max_retries=0, timeout=20)


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tea", messages=MESSAGES, n=2, logprobs=True, top_logprobs=1, extra_body={"profile": {"cheer": 0.9}}
    )
    assert [choice.message.content for choice in answer.choices] == ["Tea is a drink."] * 2
    assert answer.choices[0].finish_reason == "stop" and answer.choices[0].message.role == "assistant"
    assert answer.choices[0].logprobs.content[0].top_logprobs[0].token == "Tea"
    assert answer.usage.completion_tokens == 8 and answer.usage.prompt_tokens_details.cached_tokens == 3
    assert answer.model_extra["paretune"]["used"] == {"brevity": 0.75, "cheer": 0.9}
    assert answer.system_fingerprint.startswith("paretune-")


def test_a_stream(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="tea", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].model_extra["paretune"]["sensed"] == {"brevity": 0.75, "cheer": 0.5}
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Tea is a drink."
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == 15


def test_the_client_s_own_accumulation_of_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="tea", messages=MESSAGES) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Tea is a drink." and final.choices[0].finish_reason == "stop"


def test_completions_and_models(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tea", prompt=["a", "b"], logprobs=1)
    assert [choice.text for choice in answer.choices] == ["Tea is a drink."] * 2
    assert answer.choices[0].logprobs.tokens[0] == "Tea"
    chunks = client.completions.create(model="tea", prompt="a", stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Tea is a drink."
    assert [model.id for model in client.models.list()] == ["tea"]
    assert client.models.retrieve("tea").owned_by == "paretune"


def test_a_raw_response(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="tea", messages=MESSAGES)
    assert raw.status_code == 200 and raw.headers["content-type"] == "application/json"
    assert raw.parse().choices[0].message.content == "Tea is a drink."


def test_an_async_client(start: Callable[..., Running]) -> None:
    tea = start(FakeEngine(pace=0.02))

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{tea.url}/v1", api_key="unused", max_retries=0) as client:

            async def whole() -> str:
                answer = await client.chat.completions.create(model="tea", messages=MESSAGES)
                return answer.choices[0].message.content

            async def streamed() -> str:
                stream = await client.chat.completions.create(model="tea", messages=MESSAGES, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*[whole() for _ in range(8)], *[streamed() for _ in range(8)])

    assert asyncio.run(ask()) == ["Tea is a drink."] * 16


@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_the_client_s_classes(tea: Running, client: openai.OpenAI, stream: bool) -> None:
    def ask(**fields: object) -> object:
        return client.chat.completions.create(**({"model": "tea", "messages": MESSAGES, "stream": stream} | fields))

    with pytest.raises(openai.BadRequestError) as caught:
        ask(n=-1)
    assert caught.value.param == "n" and caught.value.type == "invalid_request_error" and caught.value.code
    with pytest.raises(openai.BadRequestError, match="context is 512") as caught:
        tea.engine.refuses = InputError("the prompt has 900 tokens, but the model's context is 512")
        ask()
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        ask(model="other")
    assert missing.value.code == "model_not_found"
    tea.engine.refuses = RuntimeError("inside")
    with pytest.raises(openai.InternalServerError):
        ask()
    tea.engine.busy = True
    with pytest.raises(openai.RateLimitError) as busy:
        ask()
    assert busy.value.response.headers["retry-after"] == "7"


def test_keys_and_the_client_s_classes(start: Callable[..., Running]) -> None:
    tea = start(keys=("sesame",))
    with client_of(tea, "wrong") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()
    with client_of(tea, "sesame") as client:
        assert client.models.list().data[0].id == "tea"


def test_an_error_in_a_stream_is_raised(tea: Running, client: openai.OpenAI) -> None:
    tea.engine.fails, tea.engine.fails_after, tea.engine.pace = RuntimeError("inside"), 2, 0.02
    got = []
    with pytest.raises(openai.APIError, match="its log says why"):
        for chunk in client.chat.completions.create(model="tea", messages=MESSAGES, stream=True):
            got.append(chunk.choices[0].delta.content or "")
    assert "".join(got) in ("Tea", "Tea is")


def test_heartbeats_do_not_reach_the_client(start: Callable[..., Running]) -> None:
    tea = start(FakeEngine(pace=0.12), limits=ServerLimits(heartbeat=0.03))
    with client_of(tea) as client:
        chunks = client.chat.completions.create(model="tea", messages=MESSAGES, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Tea is a drink."


def test_a_stream_that_is_closed_frees_its_place(start: Callable[..., Running]) -> None:
    tea = start(FakeEngine(words=("a",) * 2000, pace=0.01))
    with client_of(tea) as client:
        stream = client.chat.completions.create(model="tea", messages=MESSAGES, stream=True)
        next(iter(stream))
        stream.close()
        assert soon(lambda: tea.engine.tickets[0].cancelled.is_set())


def test_the_client_tries_again_after_429(start: Callable[..., Running]) -> None:
    tea = start()
    tea.engine.busy, tea.engine.retry_after = True, 1

    def free(ask: object) -> None:
        seen.append(ask)
        tea.engine.busy = len(seen) < 2

    seen: list[object] = []
    tea.engine.on_submit = free
    with openai.OpenAI(base_url=f"{tea.url}/v1", api_key="unused", max_retries=1, timeout=30) as client:
        answer = client.chat.completions.create(model="tea", messages=MESSAGES)
    assert answer.choices[0].message.content == "Tea is a drink." and len(seen) == 2
