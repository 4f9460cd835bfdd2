"""`/v1/completions`: texts continued as they stand."""

from __future__ import annotations

from typing import Any

import pytest

from paretune.server import schema
from server.conftest import Running
from server.test_chat import events

PATH = "/v1/completions"


def body(prompt: Any = "Tea is", **fields: Any) -> dict[str, Any]:
    """A completion's body."""
    return {"model": "tea", "prompt": prompt} | fields


def test_a_text_is_continued_without_profile(tea: Running) -> None:
    status, answer = tea.post(PATH, body())
    assert status == 200
    schema.CompletionAnswer.model_validate(answer)
    assert answer["choices"] == [{"index": 0, "text": "Tea is a drink.", "logprobs": None, "finish_reason": "stop"}]
    ask = tea.engine.tickets[-1].ask
    assert ask.text == "Tea is" and ask.messages == [] and not ask.sense and ask.max_new_tokens == 16 and not ask.fit
    assert "paretune" not in answer


def test_answer_k_of_prompt_i_is_choice_i_n_plus_k(tea: Running) -> None:
    status, answer = tea.post(PATH, body(["a", "b"], n=2, seed=2**63 - 1, max_tokens=1))
    assert status == 200 and [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    asks = [ticket.ask for ticket in tea.engine.tickets]
    assert [ask.text for ask in asks] == ["a", "b"] and [ask.seed for ask in asks] == [2**63 - 1, -(2**63)]
    assert answer["usage"]["prompt_tokens"] == 22 and answer["usage"]["completion_tokens"] == 4


def test_log_probabilities_stand_in_columns(tea: Running) -> None:
    answer = tea.post(PATH, body(logprobs=1))[1]
    schema.CompletionAnswer.model_validate(answer)
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["Tea", " is", " a", " drink."],
        "token_logprobs": [-0.5] * 4,
        "top_logprobs": [{"Tea": -0.5}, {" is": -0.5}, {" a": -0.5}, {" drink.": -0.5}],
        "text_offset": [0, 3, 6, 8],
    }
    tea.engine.pace = 0.02
    told = [each["choices"][0]["logprobs"] for each in events(tea, body(logprobs=1), PATH)[:-1]]
    assert [offset for each in told if each for offset in each["text_offset"]] == [0, 3, 6, 8]


def test_a_stream(tea: Running) -> None:
    told = events(tea, body(["a", "b"], stream_options={"include_usage": True}), PATH)
    assert told.pop() == "[DONE]"
    assert told.pop()["usage"]["prompt_tokens"] == 22
    assert all(each["object"] == "text_completion" and each["usage"] is None for each in told)
    for index in (0, 1):
        own = [each["choices"][0] for each in told if each["choices"][0]["index"] == index]
        assert "".join(each["text"] for each in own) == "Tea is a drink." and own[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"prompt": [1, 2, 3]}, "prompt", "arrays of tokens are not supported"),
        ({"prompt": [[1], [2]]}, "prompt", "arrays of tokens are not supported"),
        ({"prompt": []}, "prompt", "a text, or a list of texts"),
        ({"prompt": [None]}, "prompt", "a text, or a list of texts"),
        ({"prompt": ""}, "prompt[0]", "empty"),
        ({"prompt": ["a", ""]}, "prompt[1]", "empty"),
        ({"prompt": ["a"] * 5}, "prompt", "4 prompts, found 5"),
        ({"prompt": ["a"] * 3, "n": 2}, "n", "4 answers, found 6"),
        ({"logprobs": 6}, "logprobs", "less than or equal to 5"),
        ({"logprobs": True}, "logprobs", "integer"),
        ({"echo": True}, "echo", "not supported"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"best_of": 3}, "best_of", "use n"),
        ({"profile": {"cheer": 1}}, "profile", "/v1/chat/completions"),
        ({"weights": {"cheer": 1}}, "weights", "/v1/chat/completions"),
        ({"sense": True}, "sense", "/v1/chat/completions"),
    ],
)
def test_what_is_refused(tea: Running, fields: dict[str, Any], param: str, said: str) -> None:
    status, answer = tea.post(PATH, body() | fields)
    assert status == 400, answer
    assert answer["error"]["param"] == param and said in answer["error"]["message"]
    assert tea.engine.tickets == []


def test_all_prompts_are_admitted_or_none(tea: Running) -> None:
    def second(ask: Any) -> None:
        tea.engine.busy = ask.text == "b"

    tea.engine.on_submit, tea.engine.pace = second, 0.2
    status, answer = tea.post(PATH, body(["a", "b"]))
    assert status == 429 and answer["error"]["code"] == "rate_limit_exceeded"
    assert tea.engine.tickets[0].cancelled.wait(5)
