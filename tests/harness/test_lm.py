"""A policy as lm-eval's model: the numbers are lm-eval's own on the same weights, and chats go by the renderer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness_requests import request
from paretune.errors import InputError
from paretune.harness.lm import PolicyLM
from paretune.policy import Policy
from several_adapters import NAMES, several, with_deltas

TOLERANCE = 2e-4
"""Summed log-probabilities in float32, against passes of another shape."""

PAIRS = [
    ("Question: what is tea?\nAnswer:", " a drink"),
    ("Question: what is tea?\nAnswer:", " the sky over the sea"),
    ("Question: what is tea?\nAnswer:", " tea"),
    ("Why is the sky blue? ", "Because air scatters short waves."),
    ("", "The capital of France is Paris."),
    ("", "No"),
    ("Tell me a joke. " * 80, " Why did the scarecrow win a prize?"),  # longer than any tiny model's context
]
TEXTS = ["A drink.", "Why is the sky blue? Because air scatters short waves of light. " * 30, "x"]


def hflm(causal: Any, tokenizer: Any, batch_size: int = 3) -> Any:
    """lm-eval's own model around the same weights."""
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=causal, tokenizer=tokenizer, batch_size=batch_size)


def loglik(lm: Any) -> list[tuple[float, bool]]:
    """What a model says of all pairs."""
    return lm.loglikelihood([request("loglikelihood", *pair) for pair in PAIRS], disable_tqdm=True)


def test_plain_likelihoods_are_lm_evals_own(tiny_model: Path, make_policy: Callable[..., Policy]) -> None:
    policy = make_policy(tiny_model)
    ours, base = PolicyLM(policy, batch_size=3), PolicyLM(policy, base=True)
    found, found_base = loglik(ours), loglik(base)
    rolling = [request("loglikelihood_rolling", text) for text in TEXTS]
    windows = ours.loglikelihood_rolling(rolling)
    assert ours.counts.to_dict() == {"plain": 10, "chat": 0, "conditioned": 0, "truncated": 1}
    with policy.peft.disable_adapter():
        for mine, theirs in zip(found_base, loglik(hflm(policy.causal, policy.tokenizer)), strict=True):
            assert mine == (pytest.approx(theirs[0], abs=TOLERANCE), theirs[1])
    merged = hflm(policy.fuse().causal, policy.tokenizer)
    for mine, theirs in zip(found, loglik(merged), strict=True):
        assert mine == (pytest.approx(theirs[0], abs=TOLERANCE), theirs[1])
    assert windows == pytest.approx(merged.loglikelihood_rolling(rolling, disable_tqdm=True), rel=1e-6, abs=TOLERANCE)
    assert all(abs(one[0] - two[0]) > 0.01 for one, two in zip(found, found_base, strict=True))


def test_greedy_is_said_of_what_greedy_decoding_gives(tiny_qwen: Path, make_policy: Callable[..., Policy]) -> None:
    lm = PolicyLM(make_policy(tiny_qwen))
    context = lm.tok_encode("Question: what is tea?\nAnswer:")
    ids = torch.tensor([context])
    for _ in range(3):
        with torch.no_grad():
            ids = torch.cat([ids, lm.policy.causal(ids).logits[:, -1:].argmax(-1)], dim=1)
    likely = ids[0, len(context) :].tolist()
    pairs = [("", context, likely), ("", context, [*likely[:2], (likely[2] + 1) % 300])]
    assert [greedy for _, greedy in lm._loglikelihood_tokens(pairs)] == [True, False]


def test_plain_answers_are_lm_evals_own(tiny_model: Path, make_policy: Callable[..., Policy]) -> None:
    policy = make_policy(tiny_model)
    given = [
        request("generate_until", "Question: what is tea?", {"until": [" "], "max_gen_toks": 24}),
        request("generate_until", "Why is the sky blue?", {"until": ["zzz"], "max_gen_toks": 24}),
        request("generate_until", "Tell me a joke. " * 80, {"until": ["e", "a"], "max_gen_toks": 12}),
        request("generate_until", "Explain", {"until": "\n", "max_new_tokens": 5, "do_sample": False, "top_k": 3}),
    ]
    ours = PolicyLM(policy)
    found = ours.generate_until(given)
    assert ours.counts.truncated == 1 and any(found)
    theirs = hflm(policy.fuse().causal, policy.tokenizer, batch_size=1).generate_until(given, disable_tqdm=True)
    assert found == theirs


CHAT = [
    {"role": "system", "content": "You are a poet."},
    {"role": "user", "content": "What is tea?"},
    {"role": "assistant", "content": "A drink."},
    {"role": "user", "content": "And what is coffee then?"},
]


@pytest.mark.parametrize("condition", ["sensed", "mean", "ones", "none", {"brevity": 0.25}])
def test_a_chat_is_conditioned_as_every_prompt(
    tiny_model: Path, make_policy: Callable[..., Policy], condition: Any
) -> None:
    policy = make_policy(tiny_model)
    lm = PolicyLM(policy, condition=condition, pins={"cheer": 0.5})
    context = lm.apply_chat_template(CHAT)
    (value, _), (raw, _) = lm.loglikelihood(
        [request("loglikelihood", context, "A drink too."), request("loglikelihood", "And coffee?", "A drink too.")]
    )
    profile = policy.profiles([CHAT], condition=condition, pins={"cheer": 0.5})[0]
    assert profile["cheer"] == 0.5
    ids = [*policy.renderer.prefix(CHAT), *policy.renderer.suffix(CHAT, profile)]
    answer = policy.tokenizer("A drink too.", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logp = torch.log_softmax(policy.causal(torch.tensor([[*ids, *answer]])).logits[0], -1)
    assert value == pytest.approx(sum(logp[len(ids) - 1 + i, t].item() for i, t in enumerate(answer)), abs=TOLERANCE)
    assert lm.counts.to_dict() == {"plain": 1, "chat": 1, "conditioned": 1, "truncated": 0}
    plain = PolicyLM(policy, condition="none").loglikelihood([request("loglikelihood", "And coffee?", "A drink too.")])
    assert raw == pytest.approx(plain[0][0], abs=TOLERANCE)


def test_profiles_are_those_of_generate(tiny_qwen: Path, make_policy: Callable[..., Policy]) -> None:
    policy = make_policy(tiny_qwen, snap="paper")
    prompts = ["What is tea?", "Explain at length how bees came to be."]
    for options in ({}, {"pins": {"cheer": 0.3}}, {"condition": "ones", "pins": {"cheer": 0.3}}, {"condition": "none"}):
        used = [each.profile or {} for each in policy.generate(prompts, max_new_tokens=1, **options)]
        assert policy.profiles(prompts, **options) == [pytest.approx(each, abs=1e-6) for each in used]


def test_chat_answers_are_those_of_generate(tiny_model: Path, make_policy: Callable[..., Policy]) -> None:
    policy = make_policy(tiny_model)
    lm = PolicyLM(policy, pins={"brevity": 1.0})
    found = lm.generate_until([request("generate_until", lm.apply_chat_template(CHAT), {"until": [], "max_tokens": 9})])
    assert found == [policy.generate([CHAT], pins={"brevity": 1.0}, max_new_tokens=9)[0].text]


def test_the_task_may_begin_the_answer(tiny_llama: Path, make_policy: Callable[..., Policy]) -> None:
    policy = make_policy(tiny_llama)
    lm = PolicyLM(policy, condition="none")
    context = lm.apply_chat_template([*CHAT, {"role": "assistant", "content": "It is "}], add_generation_prompt=False)
    assert context.endswith("It is ")
    value = lm.loglikelihood([request("loglikelihood", context, "tea")])[0][0]
    ids = [*policy.renderer.prefix(CHAT), *policy.renderer.suffix(CHAT, None)]
    lead, whole = (policy.tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("It is", "It is tea"))
    with torch.no_grad():
        logp = torch.log_softmax(policy.causal(torch.tensor([[*ids, *whole]])).logits[0], -1)
    expected = sum(logp[len(ids) - 1 + i, whole[i]].item() for i in range(len(lead), len(whole)))
    assert value == pytest.approx(expected, abs=TOLERANCE)


def test_a_chat_that_does_not_fit_is_cut_from_the_left_and_counted(
    tiny_model: Path, make_policy: Callable[..., Policy]
) -> None:
    policy = make_policy(tiny_model)
    lm = PolicyLM(policy)
    long = [{"role": "user", "content": "Tell me a joke. " * 80 + "Now!"}]
    context = lm.apply_chat_template(long)
    value = lm.loglikelihood([request("loglikelihood", context, "No.")])[0][0]
    assert lm.generate_until([request("generate_until", context, {"until": [], "max_gen_toks": 4})])
    assert value < 0 and lm.counts.to_dict() == {"plain": 0, "chat": 2, "conditioned": 2, "truncated": 2}


def test_the_base_is_the_model_without_adapter_and_profile(tiny_qwen: Path, make_policy: Callable[..., Policy]) -> None:
    policy = make_policy(tiny_qwen)
    lm = PolicyLM(policy, base=True)
    value = lm.loglikelihood([request("loglikelihood", lm.apply_chat_template(CHAT), "No.")])[0][0]
    with policy.peft.disable_adapter():
        other = PolicyLM(policy, condition="none")
        expected = other.loglikelihood([request("loglikelihood", other.apply_chat_template(CHAT), "No.")])[0][0]
    assert value == pytest.approx(expected, abs=TOLERANCE) and lm.counts.conditioned == 0
    after = PolicyLM(policy, condition="none")
    again = after.loglikelihood([request("loglikelihood", after.apply_chat_template(CHAT), "No.")])[0][0]
    assert abs(again - value) > 0.01  # the adapter is on again


def test_sampled_answers_hold_for_a_seed(tiny_qwen: Path, make_policy: Callable[..., Policy]) -> None:
    policy = make_policy(tiny_qwen)
    given = [
        request("generate_until", "Tell me a joke.", {"do_sample": True, "temperature": 1.0, "max_gen_toks": 12})
    ] * 2
    one, two = (PolicyLM(policy, seed=3, batch_size=size).generate_until(given) for size in (1, 2))
    assert one == two and one[0] != one[1] and PolicyLM(policy, seed=4).generate_until(given) != one


def test_what_cannot_be_is_said(tiny_qwen: Path, make_policy: Callable[..., Policy]) -> None:
    policy = make_policy(tiny_qwen)
    lm = PolicyLM(policy)
    for kind, arguments, text in [
        ("loglikelihood", ("a", ""), "empty continuation"),
        ("loglikelihood", ("a", "word " * 600), "context is 512"),
        ("generate_until", ("a", {"max_gen_toks": 512}), "answers of 512 tokens"),
        ("generate_until", ("a", {"do_sample": True, "temperature": 1.0, "top_k": 5}), "top_k"),
        ("generate_until", ("a", {"num_beams": 4}), "num_beams"),
    ]:
        with pytest.raises(InputError, match=text):
            getattr(lm, kind)([request(kind, *arguments)])
    for options, text in [
        ({"condition": "sensible"}, "unknown condition"),
        ({"pins": {"chear": 1}}, "chear"),
        ({"weights": {"cheer": 1.0}}, "takes no preference weights"),
        ({"base": True, "condition": "ones"}, "not conditioned"),
        ({"base": True, "pins": {"cheer": 1}}, "not conditioned"),
        ({"batch_size": 0}, "batch_size"),
    ]:
        with pytest.raises(InputError, match=text):
            PolicyLM(policy, **options)
    with pytest.raises(InputError, match="no sensing head"):
        PolicyLM(make_policy(tiny_qwen, head=False), condition="sensed")
    with pytest.raises(InputError, match="fused"):
        PolicyLM(policy.fuse(), base=True)
    with pytest.raises(InputError, match="end with a user message"):
        lm.apply_chat_template([{"role": "assistant", "content": "Hello"}])


def test_continuations_of_one_context_share_its_pass(tiny_qwen: Path, make_policy: Callable[..., Policy]) -> None:
    from paretune.harness.likelihood import ROW_TOKENS, _packed, likelihoods

    policy = make_policy(tiny_qwen)
    pairs = [([5, 6, 7], [8 + k, 9]) for k in range(700)]
    rows, members = _packed(pairs)
    assert sorted(k for own in members for k in own) == list(range(700))
    assert 1 < len(rows) < 5 and all(row.length <= ROW_TOKENS for row in rows)
    few = [*pairs[:4], pairs[0], ([5], [6])]
    alone = [likelihoods(policy.causal, [pair], 0, batch_size=1)[0] for pair in few]
    for one, two in zip(likelihoods(policy.causal, few, 0, batch_size=2), alone, strict=True):
        assert one == (pytest.approx(two[0], abs=TOLERANCE), two[1])


def test_of_several_adapters_the_weights_choose_the_model(tiny_qwen: Path) -> None:
    policy, tensors = several(tiny_qwen, dtype="float32")
    asked = [request("loglikelihood", "What is tea?", " A drink.")]
    values = {}
    for weights in ({"brevity": 1.0}, {"brevity": 0.5, "cheer": 0.5}):
        values[len(weights)] = PolicyLM(policy, weights=weights).loglikelihood(asked)[0][0]
        full = [weights.get(name, 0.0) for name in NAMES]
        by_hand = with_deltas(tiny_qwen, dict(enumerate(full)), tensors, "float32")
        expected = hflm(by_hand, policy.tokenizer).loglikelihood(asked, disable_tqdm=True)[0][0]
        assert values[len(weights)] == pytest.approx(expected, abs=TOLERANCE)
    assert abs(values[1] - values[2]) > 0.01
    plain = PolicyLM(policy, base=True).loglikelihood(asked)[0][0]
    base = hflm(with_deltas(tiny_qwen, {}, tensors, "float32"), policy.tokenizer)
    assert plain == pytest.approx(base.loglikelihood(asked, disable_tqdm=True)[0][0], abs=TOLERANCE)


def test_a_mix_of_models_has_no_likelihood_but_each_of_them(tiny_qwen: Path) -> None:
    policy, _ = several(tiny_qwen, rule="mix", dtype="float32")
    with pytest.raises(InputError, match="mixes 3 models"):
        PolicyLM(policy)
    with pytest.raises(InputError, match="sum to 1"):
        PolicyLM(policy, weights={"cheer": 0.4})
    asked = [request("loglikelihood", "What is tea?", " A drink.")]
    alone = PolicyLM(policy, weights={"cheer": 1.0}).loglikelihood(asked)[0][0]
    soup, _ = several(tiny_qwen, dtype="float32")
    assert alone == pytest.approx(PolicyLM(soup, weights={"cheer": 1.0}).loglikelihood(asked)[0][0], abs=TOLERANCE)
