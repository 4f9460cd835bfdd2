"""Policies that take preference weights: several adapters, each blend with a batch of its own, and one adapter."""

from __future__ import annotations

import pytest

from paretune.errors import InputError
from paretune.policy.several import Part
from paretune.policy.weights import WeightMap
from paretune.server.request import Ask
from server.engine.listening import PROMPTS, make, send, user
from several_adapters import NAMES, several

WEIGHTS = [
    {"brevity": 1.0},
    {"cheer": 1.0},
    {"brevity": 0.5, "cheer": 0.5},
    {"brevity": 0.2, "cheer": 0.3, "rude_words": 0.5},
    None,
]
NEAREST = [
    Part("short", {"brevity": 0.8, "cheer": 0.1, "rude_words": 0.1}),
    Part("happy", {"brevity": 0.1, "cheer": 0.8, "rude_words": 0.1}),
]


@pytest.mark.parametrize("rule", ["soup", "mix", "nearest"])
def test_answers_under_different_weights_at_once_are_those_of_generate(tiny_llama, engine_of, rule):
    policy, _ = several(tiny_llama, rule, NEAREST if rule == "nearest" else None)
    pairs = [(prompt, weights) for prompt in PROMPTS[:3] for weights in WEIGHTS]
    wanted = [
        policy.generate([user(prompt)], weights=weights, max_new_tokens=10, batch_size=1)[0]
        for prompt, weights in pairs
    ]
    engine = engine_of(policy, prefill_tokens=32)
    heard = [
        send(engine, Ask(user(prompt), weights=weights, max_new_tokens=10, logprobs=1)) for prompt, weights in pairs
    ]
    assert [each.text for each in heard] == [each.text for each in wanted]
    for found, each in zip(heard, wanted, strict=True):
        assert found.begun.weights == pytest.approx(each.weights)
        assert (found.begun.sensed, found.begun.used) == (None, None)
    assert len({each.text for each in heard}) > 3
    # the same prompt under the same weights is known to the prefix cache, under others it is not
    again = send(engine, Ask(user(PROMPTS[1]), weights=WEIGHTS[0], max_new_tokens=10))
    assert again.text == heard[5].text
    assert again.begun.cached_tokens > 0


def test_a_plain_text_is_continued_under_weights_too(tiny_llama, engine_of):
    policy, _ = several(tiny_llama, "nearest", NEAREST)
    engine = engine_of(policy)
    texts = [send(engine, Ask(text="Human: Tea", weights=each, max_new_tokens=10)) for each in (*WEIGHTS[:2], None)]
    assert texts[0].text == texts[2].text != texts[1].text  # the first of two as near as each other
    assert texts[0].begun.weights == NEAREST[0].weights


def test_a_policy_conditioned_on_weights_is_asked_for_them(tiny_qwen, engine_of):
    policy = make(tiny_qwen)
    policy.weight_map = WeightMap("direction")
    engine = engine_of(policy)
    weights = {"brevity": 0.7, "cheer": 0.2, "rude_words": 0.1}
    found = send(engine, Ask(user(PROMPTS[1]), weights=weights, max_new_tokens=10))
    (wanted,) = policy.generate([user(PROMPTS[1])], weights=weights, max_new_tokens=10)
    assert (found.text, found.begun.used) == (wanted.text, pytest.approx(weights))
    found = send(engine, Ask(user(PROMPTS[1]), pins={"cheer": 0.6}, sense=False, max_new_tokens=10))
    assert found.begun.used == pytest.approx({"brevity": 0.2, "cheer": 0.6, "rude_words": 0.2})
    with pytest.raises(InputError, match="sum to 1 at most"):
        send(engine, Ask(user("Hi"), pins={"cheer": 0.6, "brevity": 0.6}))


def test_a_policy_that_takes_weights_alone_refuses_pins(tiny_qwen, engine_of):
    policy, _ = several(tiny_qwen, "soup")
    with pytest.raises(InputError, match="takes preference weights, not pins"):
        send(engine_of(policy), Ask(user("Hi"), pins={NAMES[0]: 0.5}))


def test_models_that_answer_together_share_the_memory(tiny_qwen, engine_of):
    policy, _ = several(tiny_qwen, "mix")
    engine = engine_of(policy, max_batch_tokens=300)
    with pytest.raises(InputError, match="the limit for each of 1 answers at once is 100"):
        send(engine, Ask(user("Hi"), max_new_tokens=90))
    assert send(engine, Ask(user("Hi"), max_new_tokens=20)).reasons[0] in ("stop", "length")
