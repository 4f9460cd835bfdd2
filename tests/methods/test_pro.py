"""Pro: a head that senses weights, taught by KL divergence, and a generator that follows weights."""

from __future__ import annotations

import math

import pytest
import torch

from paretune.errors import InputError
from paretune.files import read_json
from paretune.policy import load_policy

PRO_QUICK = ("head.width=16", "head.depth=1", "head_epochs=3")
PROMPTS = ["What is tea?", "Explain at length how bees came to be.", "Hi"]


def items(bench, epoch=0):
    return [bench.learner.item(i, epoch) for i in range(len(bench.examples))]


def softmax(values, temperature):
    parts = {name: math.exp(value / temperature) for name, value in values.items()}
    return {name: part / sum(parts.values()) for name, part in parts.items()}


def test_the_loss_is_likelihood_plus_the_divergence_from_the_chosen_completions_weights(tiny_model, bench):
    b = bench("pro", tiny_model, "weight_sense=3", "weight_temperature=0.5")
    logged = b.batch(items(b))
    divergence = 0.0
    for example in b.examples:
        values = {name: round(value, 2) for name, value in b.profile(example, b.texts(example)[0]).items()}
        target, sensed = softmax(values, 0.5), b.predicted(example).tolist()
        divergence += sum(t * math.log(t / p) for t, p in zip(target.values(), sensed, strict=True)) / len(b.examples)
    assert logged["sense"] == pytest.approx(divergence, rel=1e-4)  # the head is float32
    nll = tokens = 0.0
    for example, item in zip(b.examples, items(b), strict=True):
        for branch in item.branches:
            shown = b.renderer.tokenizer.decode(branch.suffix)
            text = next(
                each.text for each in example.row.completions if b.renderer.completion(each.text) == branch.completion
            )
            brevity, cheer = (int(part.split("%")[0].split()[-1]) / 100 for part in shown.split(": ")[1].split(", "))
            nll -= b.logp(b.module.causal, example, text, {"brevity": brevity, "cheer": cheer})
            tokens += len(branch.completion)
    assert logged["likelihood"] == pytest.approx(nll / tokens, abs=1e-9)
    assert logged["loss"] == pytest.approx(nll / tokens + 3 * logged["sense"], rel=1e-7)


def test_accumulation_changes_nothing(tiny_llama, bench):
    b = bench("pro", tiny_llama)
    whole, parts = b.batch(items(b)), b.batch(items(b), micro_tokens=1)
    assert parts == pytest.approx(whole, rel=1e-6)


def test_a_policy_senses_weights_and_answers_under_them(quick):
    policy = load_policy(quick("p", *PRO_QUICK, method="pro"))
    for sensed, answer in zip(policy.predict(PROMPTS), policy.generate(PROMPTS, max_new_tokens=2), strict=True):
        assert sum(sensed.profile.values()) == pytest.approx(1) and sensed.interval is None
        assert answer.profile == answer.sensed == pytest.approx(sensed.profile, abs=1e-5)
    assert sum(policy.mean_profile.values()) == pytest.approx(1, abs=1e-3)
    assert policy.generate(PROMPTS[:1], condition="mean", max_new_tokens=1)[0].profile == policy.mean_profile


def test_pinned_weights_are_kept_and_the_rest_fills_what_is_left(quick):
    policy = load_policy(quick("p", *PRO_QUICK, method="pro"))
    for pins in ({"cheer": 0.8}, {"brevity": 0.0}, {"cheer": 1.0}):
        sensed = policy.sense(PROMPTS[:1], pins)[0]
        (name, value), other = next(iter(pins.items())), next(each for each in policy.names if each not in pins)
        assert sensed[name] == value and sensed[other] == pytest.approx(1 - value, abs=1e-6)
        answer = policy.generate(PROMPTS[:1], pins=pins, max_new_tokens=1)[0]
        assert answer.profile == pytest.approx(sensed, abs=1e-6)
    with pytest.raises(InputError, match="sum to 1 at most"):
        policy.sense(PROMPTS, {"cheer": 0.8, "brevity": 0.4})


def test_targets_and_statistics_are_weights(quick):
    folder = quick("p", *PRO_QUICK, "weight_temperature=0.1", method="pro")
    described = read_json(folder / "policy.json")
    assert sum(described["mean_profile"].values()) == pytest.approx(1)
    assert described["weights"] == {"rule": "direction", "temperature": 0.1}
    policy = load_policy(folder)
    target = softmax({"brevity": 0.5, "cheer": 0.9}, 0.1)
    assert policy.request({"brevity": 0.5, "cheer": 0.9}) == pytest.approx(target)
    summing = {"brevity": 0.3, "cheer": 0.7}  # weights already, unless they are known to be values
    assert policy.request(summing) == summing
    assert policy.request(summing, values=True) == pytest.approx(softmax(summing, 0.1))
    assert policy.head.target_mean.tolist() == pytest.approx(list(described["mean_profile"].values()), abs=1e-6)
    assert not bool(policy.head.calibrated) and torch.isfinite(policy.head.target_std).all()


def test_the_head_must_sense_weights_here_and_values_elsewhere(quick):
    with pytest.raises(InputError, match=r"field 'head\.kind': must be simplex for this method, found regression"):
        quick("p", "head.kind=regression", method="pro")
    with pytest.raises(InputError, match=r"field 'head\.kind': must be one that senses values .* found simplex"):
        quick("p", "head.kind=simplex", method="sga")


@pytest.mark.parametrize("setting", ["completions=0", "weight_sense=-1", "weight_temperature=0"])
def test_settings_out_of_range(quick, setting):
    with pytest.raises(InputError, match=f"field '{setting.partition('=')[0]}'"):
        quick("p", setting, method="pro")
