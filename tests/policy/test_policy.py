"""What a policy does: sense, generate under a condition, weigh answers, merge; each against transformers alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paretune.errors import InputError


def user(text):
    return [{"role": "user", "content": text}]


@pytest.fixture
def policy(tiny_model, make_policy):
    return make_policy(tiny_model)


@pytest.fixture
def llama(tiny_llama, make_policy):
    return make_policy(tiny_llama)


def approx(profiles, tolerance=1e-5):
    return [pytest.approx(each, abs=tolerance) for each in profiles]


# --- sense --------------------------------------------------------------------------------------------------------


def test_sensing_reads_the_last_token_of_the_raw_prompt(policy, prompts):
    for messages, sensed in zip(prompts, policy.sense(prompts), strict=True):
        ids = torch.tensor([policy.renderer.prefix(messages)])
        with torch.no_grad():
            hidden = policy.causal(ids, output_hidden_states=True).hidden_states[-1][:, -1]
            wanted = policy.head.profile(policy.head(hidden))[0].tolist()
        assert list(sensed) == ["brevity", "cheer", "rude_words"]
        assert list(sensed.values()) == pytest.approx(wanted, abs=1e-5)
    assert len({round(each["cheer"], 6) for each in policy.sense(prompts)}) == len(prompts)


def test_sensing_is_the_same_alone_in_any_batch_and_on_either_padding_side(policy, prompts):
    together = policy.sense(prompts)
    assert [policy.sense([each])[0] for each in prompts] == approx(together)
    assert policy.sense(prompts[::-1], batch_size=2)[::-1] == approx(together)
    for side in ("left", "right"):
        policy.tokenizer.padding_side = side
        assert policy.sense(prompts) == approx(together)


def calibrate(policy, prompts, correlation=0.8):
    """Give the head residuals in which brevity and cheer go together and rude_words goes alone."""
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(500, policy.head.layers[1].in_features, generator=draw)
    with torch.no_grad():
        raw = policy.head(hidden)
        noise = torch.randn(500, 3, generator=draw)
        noise[:, 1] = correlation * noise[:, 0] + (1 - correlation**2) ** 0.5 * noise[:, 1]
        targets = torch.special.ndtr(torch.special.ndtri(policy.head.profile(raw)) + 0.5 * noise)
    policy.head.calibrate(raw, raw, targets, targets)


def test_pins_are_kept_and_the_rest_is_sensed_given_them(llama, prompts):
    free, pinned = llama.sense(prompts), llama.sense(prompts, pins={"cheer": 1})
    for one, two in zip(free, pinned, strict=True):  # nothing is known yet of how objectives go together
        assert two == pytest.approx(one | {"cheer": 1.0}, abs=1e-5) and two["cheer"] == 1
    calibrate(llama, prompts)
    high, low = llama.sense(prompts, pins={"cheer": 0.9}), llama.sense(prompts, pins={"cheer": 0.1})
    for one, two, three in zip(free, high, low, strict=True):
        assert two["brevity"] > one["brevity"] + 0.05 and three["brevity"] < one["brevity"] - 0.05
        assert two["rude_words"] == pytest.approx(one["rude_words"], abs=0.05)
    with pytest.raises(InputError, match="Did you mean 'cheer'"):
        llama.sense(prompts, pins={"cheers": 1})


def test_pins_may_differ_from_prompt_to_prompt(llama, prompts):
    calibrate(llama, prompts)
    pins = [{"cheer": 0.9}, {}, None, {"brevity": 0.2, "rude_words": 0.0}, {"cheer": 0.9}]
    together = llama.sense(prompts, pins, batch_size=3)
    for messages, each, own in zip(prompts, pins, together, strict=True):
        assert own == pytest.approx(llama.sense([messages], each)[0], abs=1e-5)
        assert own.items() >= (each or {}).items()
    with pytest.raises(InputError, match="1 pins were given for 5 prompts"):
        llama.sense(prompts, [{"cheer": 1}])


def test_intervals_come_once_they_are_calibrated(llama, prompts):
    assert all(each.interval is None for each in llama.predict(prompts))
    assert llama.generate(prompts[:1], max_new_tokens=1)[0].interval is None
    calibrate(llama, prompts)
    for each, wide in zip(llama.predict(prompts), llama.predict(prompts, level=0.95), strict=True):
        for name, (low, high) in each.interval.items():
            assert 0 <= wide.interval[name][0] < low < each.profile[name] < high < wide.interval[name][1] <= 1
    given = llama.predict(prompts[:2], {"cheer": 0.123456789})
    assert given[0].interval["cheer"] == (0.123456789, 0.123456789) and given[0].profile["cheer"] == 0.123456789
    with pytest.raises(InputError, match=r"level must be one of 0\.5, 0\.8"):
        llama.predict(prompts, level=0.85)


def test_an_answers_sensed_is_of_the_prompt_alone_and_its_profile_given_the_pins(llama, prompts):
    calibrate(llama, prompts)
    pins = [{"cheer": 0.9}, {}, {"brevity": 0.1}, {"rude_words": 0.5}, {"cheer": 0.2}]
    alone, given = llama.predict(prompts), llama.sense(prompts, pins)
    for i, answer in enumerate(llama.generate(prompts, pins=pins, max_new_tokens=1)):
        assert answer.sensed == pytest.approx(alone[i].profile, abs=1e-5)
        assert answer.profile == pytest.approx(given[i], abs=1e-5)
        assert answer.interval["cheer"] == pytest.approx(alone[i].interval["cheer"], abs=1e-5)
    fixed = llama.generate(prompts[:1], condition="ones", pins={"cheer": 0.2}, max_new_tokens=1)[0]
    assert fixed.profile == {"brevity": 1.0, "cheer": 0.2, "rude_words": 1.0}
    assert fixed.sensed == pytest.approx(alone[0].profile, abs=1e-5)


def test_a_policy_without_a_head_says_so(llama, prompts):
    llama.head, llama.method = None, "dpo"
    assert not llama.has_head
    with pytest.raises(InputError, match="'dpo' has no sensing head"):
        llama.sense(prompts)
    with pytest.raises(InputError, match="'dpo' has no sensing head"):
        llama.generate(prompts, condition="sensed")
    answer = llama.generate(prompts[:1], condition="none", max_new_tokens=3)[0]
    assert llama.generate(prompts[:1], max_new_tokens=3) == [answer]  # without a head, nothing is the default
    assert answer.sensed is None and answer.profile is None


def test_a_prompt_beyond_the_context_is_bad_input(llama):
    with pytest.raises(InputError, match="context is 512"):
        llama.sense([user("word " * 900)])
    with pytest.raises(InputError, match="context is 512"):
        llama.generate([user("Hi")], max_new_tokens=512)
    room = 512 - len(llama.renderer.prefix(user("Hi")))
    with pytest.raises(InputError, match="prompt and answer need"):  # the rendered profile is what does not fit
        llama.generate([user("Hi")], condition="ones", max_new_tokens=room - 2)


def test_nothing_asked_nothing_answered(llama):
    assert llama.sense([]) == [] and llama.generate([]) == [] and llama.loglik([], [], []) == []


# --- generate -----------------------------------------------------------------------------------------------------


def plain_answer(policy, messages, profile, count):
    """The greedy answer by transformers' generate, on the ids of prefix and suffix."""
    ids = torch.tensor([[*policy.renderer.prefix(messages), *policy.renderer.suffix(messages, profile)]])
    stop = policy.renderer.stop_ids(policy.causal.generation_config.eos_token_id)
    out = policy.causal.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, eos_token_id=sorted(stop),
        pad_token_id=policy.tokenizer.pad_token_id,
    )  # fmt: skip
    return policy.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("condition", ["sensed", "mean", "ones", "none", {"cheer": 0.3}])
def test_greedy_answers_under_each_condition_are_transformers_own(policy, prompts, condition):
    policy.head.target_mean.copy_(torch.tensor([0.2, 0.4, 0.6]))
    for messages, answer in zip(prompts, policy.generate(prompts, condition=condition, max_new_tokens=12), strict=True):
        wanted = {
            "sensed": policy.sense([messages])[0],
            "mean": {"brevity": 0.2, "cheer": 0.4, "rude_words": 0.6},
            "ones": dict.fromkeys(policy.names, 1.0),
            "none": None,
        }.get(condition if isinstance(condition, str) else "", condition)
        assert answer.profile == (pytest.approx(wanted, abs=1e-5) if wanted else None)
        assert answer.sensed == pytest.approx(policy.sense([messages])[0], abs=1e-5)
        assert answer.text == plain_answer(policy, messages, answer.profile, 12)


def test_one_profile_a_prompt_and_pins_over_any_condition(llama, prompts):
    profiles = [{"brevity": 0.1}, None, {"cheer": 0.9, "brevity": 1.0}, {}, {"rude_words": 0.0}]
    given = llama.generate(prompts, condition=profiles, max_new_tokens=4)
    assert [each.profile for each in given] == [{"brevity": 0.1}, None, profiles[2], None, {"rude_words": 0.0}]
    pinned = llama.generate(prompts, condition=profiles, pins={"brevity": 0.5}, max_new_tokens=4)
    assert [each.profile["brevity"] for each in pinned] == [0.5] * 5
    assert pinned[2].profile["cheer"] == 0.9
    alone = llama.generate(prompts[:1], condition="none", pins={"cheer": 1}, max_new_tokens=2)[0]
    assert alone.profile == {"cheer": 1.0}
    sensed = llama.generate(prompts[:1], pins={"cheer": 1}, max_new_tokens=2)[0]
    assert sensed.profile == pytest.approx(llama.sense(prompts[:1], {"cheer": 1})[0])


def test_only_sensed_values_are_snapped(tiny_llama, make_policy, prompts):
    policy = make_policy(tiny_llama, snap="paper")
    sensed = policy.generate(prompts, pins={"cheer": 0.33}, max_new_tokens=1)
    for each in sensed:
        assert each.profile["cheer"] == 0.33
        assert each.profile["brevity"] * 4 % 1 == 0 != each.sensed["brevity"] * 4 % 1
    assert policy.generate(prompts[:1], condition={"cheer": 0.33}, max_new_tokens=1)[0].profile == {"cheer": 0.33}


def test_answers_do_not_depend_on_the_batch(policy, prompts):
    one = policy.generate(prompts, max_new_tokens=10, batch_size=1)
    assert [each.text for each in policy.generate(prompts, max_new_tokens=10, batch_size=5)] == [e.text for e in one]


def test_sampling_is_seeded_and_does_not_depend_on_the_batch(tiny_qwen, make_policy, prompts):
    policy = make_policy(tiny_qwen, dtype="float64")
    options = dict(max_new_tokens=10, temperature=0.9, top_p=0.95, condition="ones")
    first = policy.generate(prompts, seed=1, **options)
    assert [each.text for each in policy.generate(prompts, seed=1, batch_size=1, **options)] == [e.text for e in first]
    assert [each.text for each in policy.generate(prompts, seed=2, **options)] != [each.text for each in first]


def test_tokens_and_finished(llama, prompts):
    answer = llama.generate(prompts[:1], max_new_tokens=7)[0]
    assert answer.tokens <= 7 and (answer.finished or answer.tokens == 7)
    llama.renderer.__dict__["end_of_turn"] = llama.renderer.completion(answer.text)[2]  # the answer's third token
    ended = llama.generate(prompts[:1], max_new_tokens=7)[0]
    assert ended.finished and ended.tokens <= 2 and answer.text.startswith(ended.text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"condition": "sensd"}, "Did you mean 'sensed'"),
        ({"condition": {"cheers": 1}}, "Did you mean 'cheer'"),
        ({"condition": {"cheer": 2}}, r"\[0, 1\]"),
        ({"condition": [{"cheer": 1}]}, "1 profiles were given for 5 prompts"),
        ({"pins": {"cheer": float("nan")}}, r"\[0, 1\]"),
        ({"temperature": -1}, "temperature"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
    ],
)
def test_bad_requests(llama, prompts, options, message):
    with pytest.raises(InputError, match=message):
        llama.generate(prompts, **options)


# --- weighing, features, merging ------------------------------------------------------------------------------------


def test_loglik_is_the_sum_over_the_answer_and_the_end_of_its_turn(tiny_model, make_policy, prompts):
    policy = make_policy(tiny_model, dtype="float64")
    texts = ["Tea.", "A long answer about rivers and stars", "", "No", "yes yes yes"]
    profiles = [None, {"cheer": 0.4}, {"brevity": 1.0}, {}, dict.fromkeys(policy.names, 0.0)]
    found = policy.loglik(prompts, texts, profiles, batch_size=2)
    for messages, text, profile, value in zip(prompts, texts, profiles, found, strict=True):
        start = [*policy.renderer.prefix(messages), *policy.renderer.suffix(messages, profile)]
        answer = policy.renderer.completion(text)
        with torch.no_grad():
            logp = torch.log_softmax(policy.causal(torch.tensor([[*start, *answer]])).logits[0], -1)
        wanted = sum(logp[len(start) - 1 + i, token].item() for i, token in enumerate(answer))
        assert value == pytest.approx(wanted, abs=1e-6)


def test_features_are_the_base_models(policy, prompts, plain_model, tiny_model):
    base, _ = plain_model(tiny_model)
    found = policy.features(prompts, batch_size=2)
    assert found.dtype == np.float32 and found.shape == (len(prompts), 32)
    for messages, row in zip(prompts, found, strict=True):
        ids = torch.tensor([policy.renderer.prefix(messages)])
        with torch.no_grad():
            wanted = base(ids, output_hidden_states=True).hidden_states[-1][0, -1]
            adapted = policy.causal(ids, output_hidden_states=True).hidden_states[-1][0, -1]
        np.testing.assert_allclose(row, wanted.numpy(), atol=1e-4)
        assert not np.allclose(row, adapted.numpy(), atol=1e-2)
    assert policy.sense(prompts) == policy.sense(prompts)  # the adapter is on again


def test_merged_answers_and_logits_are_those_of_the_adapter(policy, prompts):
    ids = torch.tensor([policy.renderer.prefix(prompts[1])])
    with torch.no_grad():
        logits = policy.causal(ids).logits
    before = policy.generate(prompts, max_new_tokens=12)
    sensed = policy.sense(prompts)
    assert policy.fuse() is policy and policy.peft is None
    with torch.no_grad():
        torch.testing.assert_close(policy.causal(ids).logits, logits, atol=1e-4, rtol=1e-4)
    assert [each.text for each in policy.generate(prompts, max_new_tokens=12)] == [each.text for each in before]
    assert policy.sense(prompts) == approx(sensed)
    with pytest.raises(RuntimeError, match="fused"):
        policy.features(prompts)
    assert policy.fuse().peft is None  # twice is once


@pytest.mark.parametrize("verb", ["sense", "predict", "generate", "features"])
@pytest.mark.parametrize("prompts", ["What is tea?", [{"role": "user", "content": "What is tea?"}]])
def test_one_prompt_in_place_of_a_list_is_refused(make_policy, tiny_llama, verb, prompts):
    with pytest.raises(InputError, match=r"for one prompt give \[prompt\]"):
        getattr(make_policy(tiny_llama), verb)(prompts)
