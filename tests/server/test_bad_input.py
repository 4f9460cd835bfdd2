"""What no client may do: every mistake is OpenAI's error object with a status of its own, and never a 500."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from paretune.errors import InputError
from paretune.server import schema
from server.conftest import Running, chat_body, soon
from server.fake_engine import FakeEngine

CHAT = "/v1/chat/completions"


def error_of(found: tuple[int, dict[str, Any]], status: int) -> dict[str, Any]:
    """The error object of an answer with this status."""
    assert found[0] == status, found
    schema.ErrorAnswer.model_validate(found[1])
    return found[1]["error"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the body is empty"),
        (b"   ", "the body is empty"),
        (b"{", "not JSON"),
        (b"{'model': 1}", "not JSON"),
        (b'{"model": "tea"} x', "Extra data (line 1, column 18)"),
        (b"[1, 2]", "must be a JSON object, found [1, 2]"),
        (b'"text"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"temperature": NaN}', "NaN is no number"),
        (b'{"temperature": Infinity}', "Infinity is no number"),
        (b'{"temperature": -Infinity}', "-Infinity is no number"),
        (b'{"temperature": 1e999}', "beyond any float"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "too long"),
        (b'{"a": "\xff"}', "not UTF-8 (byte 7)"),
        ('{"a": "é"}'.encode("utf-16"), "not UTF-8"),
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"\\ud800": 1}', "lone surrogate"),
        (b'{"model": "a", "model": "b"}', "says 'model' twice"),
        (b'{"a": [{"b": 1, "b": 2}]}', "says 'b' twice"),
        (b"[" * 60000, "nested deeper than 64"),
        (b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", "nested deeper than 64"),
    ],
)
def test_a_body_that_is_no_json_object(tea: Running, data: bytes, said: str) -> None:
    error = error_of(tea.post(CHAT, data), 400)
    assert said in error["message"] and error["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"model": None}, "model", "string"),
        ({"model": 5}, "model", "string"),
        ({"messages": None}, "messages", "list"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "Hi"}, "messages", "list"),
        ({"messages": ["Hi"]}, "messages[0]", "dictionary"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "needed"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "content as text"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "string"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content", "empty"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "empty"),
        ({"messages": [{"role": "king", "content": "Hi"}]}, "messages[0].role", "'user'"),
        ({"messages": [{"role": "tool", "content": "Hi"}]}, "messages[0].role", "'user'"),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, "messages", "end with a user message"),
        ({"messages": [{"role": "user", "content": "Hi"}] * 11}, "messages", "10 messages, found 11"),
        (
            {"messages": [{"role": "user", "content": "Hi"}, {"role": "system", "content": "x"}]},
            "messages[1].role",
            "must be the first",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content",
            "image_url",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content", "'text'"),
        ({"messages": [{"role": "user", "content": ["Hi"]}]}, "messages[0].content", "'text'"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": -1}, "n", "greater than or equal to 1"),
        ({"n": 5}, "n", "4 answers, found 5"),
        ({"n": 10**30}, "n", ""),
        ({"n": 1.5}, "n", "integer"),
        ({"n": True}, "n", "integer"),
        ({"n": "1"}, "n", "integer"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 65}, "max_tokens", "64 tokens, found 65"),
        ({"max_completion_tokens": 65}, "max_completion_tokens", "64 tokens, found 65"),
        ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
        ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
        ({"temperature": "hot"}, "temperature", "number"),
        ({"temperature": 10**400}, "temperature", ""),
        ({"top_p": 1.1}, "top_p", "less than or equal to 1"),
        ({"seed": 2**63}, "seed", ""),
        ({"seed": 1.5}, "seed", "integer"),
        ({"stop": 5}, "stop", "list"),
        ({"stop": [5]}, "stop[0]", "string"),
        ({"stop": ""}, "stop[0]", "empty"),
        ({"stop": list("abcde")}, "stop", "4 stop texts, found 5"),
        ({"stop": "x" * 257}, "stop[0]", "256 characters, found 257"),
        ({"logprobs": 1}, "logprobs", "boolean"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "boolean"),
        ({"profile": {"brevity": 1.5}}, "profile.brevity", "less than or equal to 1"),
        ({"profile": {"brevity": -0.1}}, "profile.brevity", "greater than or equal to 0"),
        ({"profile": {"brevity": "high"}}, "profile.brevity", "number"),
        ({"profile": {"brevity": None}}, "profile.brevity", "number"),
        ({"profile": {"brevty": 0.5}}, "profile", "Did you mean 'brevity'?"),
        ({"profile": [0.5]}, "profile", "dictionary"),
        ({"weights": {"brevity": 1}}, "weights", "takes no preference weights"),
        ({"sense": 1}, "sense", "boolean"),
        ({"tools": [{"type": "function"}]}, "tools", "not supported"),
        ({"functions": [{"name": "f"}]}, "functions", "not supported"),
        ({"tool_choice": "required"}, "tool_choice", "not supported"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty", "not supported"),
        ({"frequency_penalty": -1}, "frequency_penalty", "not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"response_format": []}, "response_format", "not supported"),
        ({"modalities": ["audio"]}, "modalities", "not supported"),
        ({"web_search_options": {}}, "web_search_options", "not supported"),
    ],
)
def test_a_field_that_is_wrong_is_named(tea: Running, fields: dict[str, Any], param: str, said: str) -> None:
    error = error_of(tea.chat(**fields), 400)
    assert error["param"] == param and said in error["message"], error
    assert error["type"] == "invalid_request_error" and error["code"]
    assert tea.engine.tickets == []


def test_another_model_is_unknown(tea: Running) -> None:
    error = error_of(tea.chat(model="gpt-9"), 404)
    assert error["code"] == "model_not_found" and error["param"] == "model" and "'tea'" in error["message"]
    body = chat_body()
    del body["model"]
    assert error_of(tea.post(CHAT, body), 400)["code"] == "missing_required_parameter"


def test_a_body_beyond_the_limit_is_cut(tea: Running) -> None:
    for size in (1 << 16, 1 << 19):
        error = error_of(tea.chat("x" * size), 413)
        assert error["code"] == "body_too_large" and "65,536" in error["message"]
    assert tea.chat("x" * 60000)[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_a_body_must_say_that_it_is_json(tea: Running, kind: str) -> None:
    status, _, data = tea.ask("POST", CHAT, chat_body(), content_type=kind)
    error = error_of((status, json.loads(data)), 415)
    assert kind.partition(";")[0] in error["message"]
    status, _, _ = tea.ask("POST", CHAT, chat_body(), content_type="application/json; charset=utf-8")
    assert status == 200


def test_unknown_routes_and_methods(tea: Running) -> None:
    status, _, data = tea.ask("GET", "/v2/nothing")
    assert error_of((status, json.loads(data)), 404)["code"] == "unknown_url"
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        status, headers, data = tea.ask(method, CHAT)
        assert error_of((status, json.loads(data)), 405)["code"] == "method_not_allowed"
        assert headers["allow"] == "POST"
    assert tea.ask("POST", "/health", {})[1]["allow"] == "GET, HEAD"
    status, _, _ = tea.ask("GET", "/v1/models/%2e%2e/%2e%2e/etc/passwd")
    assert status == 404


def test_a_context_that_overflows_names_both_numbers(tea: Running) -> None:
    message = "the prompt has 600 tokens and 64 more are wanted, but the model's context is 512"
    tea.engine.refuses = InputError(message)
    error = error_of(tea.chat(), 400)
    assert error == {
        "message": message,
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    tea.engine.refuses, tea.engine.fails = None, InputError("the model's hidden states are not finite")
    assert "not finite" in error_of(tea.chat(stream=True), 400)["message"]


def test_a_full_queue_says_when_to_come_back(start: Callable[..., Running]) -> None:
    tea = start()
    tea.engine.busy = True
    for stream in (False, True):
        status, headers, data = tea.ask("POST", CHAT, chat_body(stream=stream))
        error = error_of((status, json.loads(data)), 429)
        assert headers["retry-after"] == "7" and error["type"] == "rate_limit_error"
    assert "paretune_rejected_total 2.0" in tea.ask("GET", "/metrics")[2].decode()


def test_more_prompts_than_may_wait_are_refused_for_good(start: Callable[..., Running]) -> None:
    engine = FakeEngine()
    engine.queue = 3
    tea = start(engine)
    body = {"model": "tea", "prompt": ["Tea"] * 4}
    error = error_of(tea.post("/v1/completions", body), 400)
    assert error["param"] == "prompt" and error["code"] == "limit_exceeded"
    assert "3 prompts" in error["message"] and "found 4" in error["message"] and not engine.tickets
    assert tea.post("/v1/completions", body | {"prompt": ["Tea"] * 3})[0] == 200


def test_a_body_that_is_slow_to_read_holds_up_nobody(start: Callable[..., Running]) -> None:
    tea = start()
    slow = b'{"a":[' + b"[]," * 700_000 + b"[]]}"
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(tea.post, "/v1/chat/completions", slow)
        answers = 0
        while not refused.done():
            assert tea.ask("GET", "/health")[0] == 200
            answers += 1
    assert refused.result()[0] == 400 and answers > 3
    many = chat_body(messages=[{"role": "user", "content": "a"}] * 100_000)
    assert error_of(tea.post(CHAT, many), 400)["param"] == "messages"


def test_our_own_fault_is_told_without_what_is_inside(tea: Running, caplog: pytest.LogCaptureFixture) -> None:
    tea.engine.refuses = KeyError("a secret")
    error = error_of(tea.chat(), 500)
    assert error["type"] == "server_error" and "secret" not in error["message"]
    assert soon(lambda: "a secret" in caplog.text)  # where it can be mended


def test_a_dead_engine_is_told(tea: Running) -> None:
    tea.engine.dead = True
    assert tea.ask("GET", "/health")[0] == 503
    assert json.loads(tea.ask("GET", "/health")[2])["status"] == "dead"
    assert error_of(tea.chat(), 500)["type"] == "server_error"
    assert "paretune_up 0.0" in tea.ask("GET", "/metrics")[2].decode()
