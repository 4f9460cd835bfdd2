"""`/v1/chat/completions`: what the engine is asked, and what is answered, whole and in a stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from paretune.profile import Objective, Scale
from paretune.server import schema
from paretune.server.limits import ServerLimits
from paretune.server.request import Ask
from paretune.server.served import Served
from server.conftest import OBJECTIVES, Running, chat_body
from server.fake_engine import FakeEngine


def asked(tea: Running, **fields: Any) -> Ask:
    """What the engine got of a chat with these fields."""
    status, answer = tea.chat(**fields)
    assert status == 200, answer
    return tea.engine.tickets[-1].ask


def events(tea: Running, body: dict[str, Any], path: str = "/v1/chat/completions") -> list[Any]:
    """A stream's data, parsed."""
    status, headers, data = tea.ask("POST", path, body | {"stream": True})
    assert status == 200 and headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = data.decode().split("\n\n")
    assert lines.pop() == ""
    lines = [line for line in lines if not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line[6:]) if line != "data: [DONE]" else "[DONE]" for line in lines]


def test_an_answer_has_openai_s_form_and_says_what_guided_it(tea: Running) -> None:
    status, answer = tea.chat()
    assert status == 200
    schema.ChatAnswer.model_validate(answer, strict=False)
    (choice,) = answer["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "Tea is a drink.", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert answer["usage"] == {
        "prompt_tokens": 11,
        "completion_tokens": 4,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    assert answer["paretune"] == {
        "sensed": {"brevity": 0.75, "cheer": 0.5},
        "interval": {"brevity": [0.6, 0.9], "cheer": [0.25, 0.75]},
        "used": {"brevity": 0.75, "cheer": 0.5},
        "weights": None,
        "obtained": [{"brevity": {"value": 0.96, "score": -4.0}, "cheer": None}],  # four words of a hundred
    }


def test_what_openai_s_defaults_ask_of_the_engine(tea: Running) -> None:
    ask = asked(tea)
    assert ask.messages == [{"role": "user", "content": "What is tea?"}]
    assert (ask.n, ask.temperature, ask.top_p, ask.stop, ask.logprobs) == (1, 1.0, 1.0, (), None)
    assert (ask.max_new_tokens, ask.fit) == (64, True)
    assert ask.sense and ask.pins == {} and ask.weights is None
    assert ask.deadline == 600.0
    assert asked(tea).seed != ask.seed  # no seed: another draw


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"temperature": 0}, {"temperature": 0}),
        ({"temperature": None}, {"temperature": 1.0}),
        ({"top_p": 0}, {"top_p": 1e-6}),
        ({"seed": -5}, {"seed": -5}),
        ({"seed": 2**63 - 1}, {"seed": 2**63 - 1}),
        ({"n": 3}, {"n": 3}),
        ({"stop": "\n"}, {"stop": ("\n",)}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"max_tokens": 5}, {"max_new_tokens": 5, "fit": False}),
        ({"max_completion_tokens": 6, "max_tokens": 5}, {"max_new_tokens": 6, "fit": False}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 4}, {"logprobs": 4}),
        ({"logprobs": False}, {"logprobs": None}),
        ({"sense": False}, {"sense": False}),
        ({"sense": True}, {"sense": True}),
        ({"profile": {"brevity": 1}}, {"pins": {"brevity": 1.0}, "sense": True}),
        ({"profile": {"brevity": 0.25}, "sense": False}, {"pins": {"brevity": 0.25}, "sense": False}),
        ({"user": "u", "metadata": {"a": "b"}, "store": True, "made_up": [1]}, {"n": 1}),
        ({"tools": [], "tool_choice": "none", "logit_bias": {}, "presence_penalty": 0}, {"n": 1}),
        ({"response_format": {"type": "text"}, "frequency_penalty": 0.0, "modalities": ["text"]}, {"n": 1}),
    ],
)
def test_fields_reach_the_engine(tea: Running, fields: dict[str, Any], wanted: dict[str, Any]) -> None:
    ask = asked(tea, **fields)
    assert {key: getattr(ask, key) for key in wanted} == wanted


def test_roles_and_content_parts(tea: Running) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "tea?"}]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi", "name": "Ann"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": parts},
    ]
    assert asked(tea, messages=messages).messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "What is tea?"},
    ]


def test_weights_take_the_place_of_sensing(start: Callable[..., Running]) -> None:
    served = Served("tea", "pro", "tiny", OBJECTIVES, True, True, "profile", {})
    tea = start(served=served)
    ask = asked(tea, weights={"brevity": 0.25, "cheer": 0.75})
    assert ask.weights == {"brevity": 0.25, "cheer": 0.75} and not ask.sense
    status, answer = tea.chat(weights={"brevity": 0.25, "cheer": 0.75}, sense=True)
    assert status == 400 and answer["error"]["param"] == "sense"
    status, answer = tea.chat(weights={"brevity": 0.25, "cheer": 0.25})
    assert status == 400 and answer["error"]["param"] == "weights" and "sum to 1" in answer["error"]["message"]


def test_a_policy_without_a_head_is_not_asked_to_sense(start: Callable[..., Running]) -> None:
    tea = start(served=Served("tea", "dpo", "tiny", OBJECTIVES, False, False, None, {}))
    assert not asked(tea).sense
    for fields, param in (({"sense": True}, "sense"), ({"profile": {"cheer": 1}}, "profile")):
        status, answer = tea.chat(**fields)
        assert status == 400 and answer["error"]["param"] == param and "'dpo'" in answer["error"]["message"]
    status, answer = tea.post("/v1/sense", {"input": "Hi"})
    assert status == 400 and "no sensing head" in answer["error"]["message"]


def test_several_answers_and_log_probabilities(tea: Running) -> None:
    status, answer = tea.chat(n=2, logprobs=True, top_logprobs=1, max_tokens=2)
    assert status == 200
    schema.ChatAnswer.model_validate(answer)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 4 and answer["usage"]["prompt_tokens"] == 11
    assert len(answer["paretune"]["obtained"]) == 2
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "length"
        first = choice["logprobs"]["content"][0]
        entry = {"token": "Tea", "logprob": -0.5, "bytes": [84, 101, 97]}
        assert first == entry | {"top_logprobs": [entry]}


def test_an_impossible_token_s_log_probability_is_a_number(tea: Running) -> None:
    tea.engine.logprob = float("-inf")
    for stream in (False, True):
        status, _, data = tea.ask("POST", "/v1/chat/completions", chat_body(logprobs=True, stream=stream))
        assert status == 200 and b"-9999.0" in data and b"Infinity" not in data


def test_the_grammar_of_a_stream(start: Callable[..., Running]) -> None:
    tea = start(FakeEngine(pace=0.02))
    told = events(tea, chat_body(n=2, stream_options={"include_usage": True}))
    assert told.pop() == "[DONE]"
    usage = told.pop()
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 8
    assert len({each["id"] for each in told}) == 1
    assert all(each["object"] == "chat.completion.chunk" and each["usage"] is None for each in told)
    roles, rest = told[:2], told[2:]
    assert [each["choices"][0]["index"] for each in roles] == [0, 1]
    for each in roles:
        assert each["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert roles[0]["paretune"]["used"] == {"brevity": 0.75, "cheer": 0.5} and "paretune" not in roles[1]
    for index in (0, 1):
        own = [each for each in rest if each["choices"][0]["index"] == index]
        deltas = [each["choices"][0]["delta"] for each in own]
        assert all("role" not in delta for delta in deltas)
        assert "".join(delta.get("content", "") for delta in deltas) == "Tea is a drink."
        assert len(deltas) > 2  # as it comes, not at the end
        reasons = [each["choices"][0]["finish_reason"] for each in own]
        assert reasons == [None] * (len(own) - 1) + ["stop"]
        assert own[-1]["paretune"]["obtained"]["brevity"] == {"value": 0.96, "score": -4.0}


def test_a_stream_tells_no_usage_unless_asked(tea: Running) -> None:
    told = events(tea, chat_body())
    assert all("usage" not in each for each in told[:-1]) and told[-1] == "[DONE]"
    assert told[-2]["choices"][0]["finish_reason"] == "stop"


def test_a_stream_s_log_probabilities_are_those_of_the_whole(tea: Running) -> None:
    whole = tea.chat(logprobs=True)[1]["choices"][0]["logprobs"]["content"]
    told = [each["choices"][0]["logprobs"] for each in events(tea, chat_body(logprobs=True))[:-1]]
    assert [entry for each in told if each for entry in each["content"]] == whole


def test_a_failure_before_the_first_token_has_its_status(tea: Running) -> None:
    tea.engine.fails = RuntimeError("secret of the inside")
    for stream in (False, True):
        status, answer = tea.chat(stream=stream)
        assert status == 500 and answer["error"]["type"] == "server_error"
        assert "secret" not in json.dumps(answer)


@pytest.mark.parametrize("pace", [0.0, 0.02])
def test_a_failure_in_a_stream_is_an_event_and_its_end(tea: Running, pace: float) -> None:
    tea.engine.fails, tea.engine.fails_after, tea.engine.pace = RuntimeError("secret"), 2, pace
    told = events(tea, chat_body())
    text = "".join(each["choices"][0]["delta"].get("content", "") for each in told[:-1])
    assert text == "Tea is"  # also when its last words and the failure come at once
    assert told[-1]["error"]["code"] == "internal_error" and "secret" not in json.dumps(told)
    assert told[0]["choices"][0]["delta"]["role"] == "assistant"


def test_silence_is_filled_with_comments(start: Callable[..., Running]) -> None:
    tea = start(FakeEngine(pace=0.15), limits=ServerLimits(heartbeat=0.05))
    status, _, data = tea.ask("POST", "/v1/chat/completions", chat_body(stream=True))
    assert status == 200 and b"\n\n: waiting\n\n" in data and data.endswith(b"data: [DONE]\n\n")
    assert "".join(each["choices"][0]["delta"].get("content", "") for each in events(tea, chat_body())[:-1]) == (
        "Tea is a drink."
    )


def test_an_answer_that_ran_out_of_time_is_cut(tea: Running) -> None:
    tea.engine.reason = "deadline"
    status, answer = tea.chat()
    assert status == 200 and answer["choices"][0]["finish_reason"] == "length"
    tea.engine.before_begun = True
    for stream in (False, True):
        status, answer = tea.chat(stream=stream)
        assert status == 503 and answer["error"]["code"] == "deadline"


def test_an_objective_that_cannot_be_scored_costs_no_answer(start: Callable[..., Running]) -> None:
    broken = Objective("brevity", "lexical:brevity", scale=Scale("fixed", low=-1, high=0), scale_kind="fixed")
    tea = start(served=Served("tea", "sga", "tiny", (broken,), True, True, None, {}))
    state = tea.server.config.app.state.server  # type: ignore[union-attr]

    def fail(messages: Any, text: str) -> Any:
        raise RuntimeError("broken reward")

    state.score = fail
    status, answer = tea.chat()
    assert status == 200 and answer["paretune"]["obtained"] == [None]
