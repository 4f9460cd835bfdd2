"""CPO: both stages' losses are their formulas, and what stage 1 made is the reference of stage 2."""

from __future__ import annotations

import math
import re

import pytest
import torch
from safetensors.torch import load_file

from paretune.errors import InputError
from paretune.methods.cpo.method import CpoConfig, CpoLearner
from paretune.policy import load_policy


def items(bench, epoch):
    return [bench.learner.item(i, epoch) for i in range(len(bench.examples))]


def level(value):
    """The level 1 to 5 of a value in [0, 1]: fifths, the last of them closed."""
    return min(5, 1 + math.floor(5 * value))


def asked(bench, branch):
    """The levels that a branch's prompt asks for, read off its text."""
    text = bench.renderer.tokenizer.decode(branch.suffix)
    return {name: int(digit) for name, digit in re.findall(r"<(brevity|cheer):(\d)>", text)}


def text_of(bench, example, branch):
    """The completion of a branch."""
    ids = {tuple(bench.renderer.completion(each.text)): each.text for each in example.row.completions}
    return ids[tuple(branch.completion)]


def at_level(wanted):
    """Values in the middle of the wanted levels, which are rendered as these."""
    return {name: (number - 0.5) / 5 for name, number in wanted.items()}


def test_stage_one_is_the_likelihood_of_completions_under_some_of_their_own_levels(tiny_model, bench):
    b = bench("cpo", tiny_model, "completions=3")
    batch = items(b, 0)
    nll = tokens = 0.0
    controlled = set()
    for example, item in zip(b.examples, batch, strict=True):
        assert item.preference is None and len(item.likelihood) == 3
        for branch in item.branches:
            wanted, text = asked(b, branch), text_of(b, example, branch)
            own = {name: level(value) for name, value in b.profile(example, text).items()}
            assert wanted and wanted == {name: own[name] for name in wanted}
            controlled.add(tuple(wanted))
            nll -= b.logp(b.module.causal, example, text, at_level(wanted))
            tokens += len(b.renderer.completion(text))
    assert controlled == {("brevity",), ("cheer",), ("brevity", "cheer")}
    b.learner.begin_epoch(0, b.module)
    assert not b.learner.needs_reference and b.module.reference is None
    assert b.batch(batch)["loss"] == pytest.approx(nll / tokens, abs=1e-9)


def reward(bench, example, text, wanted, penalty):
    """R, written out for two objectives on the scale of 1 to 5."""
    total = 0.0
    for name, value in bench.profile(example, text).items():
        total += -penalty * abs(wanted[name] - level(value)) if name in wanted else 1 + 4 * value
    return total / 2


@pytest.mark.parametrize("penalty", [1.0, 3.0])
def test_stage_two_is_dpo_whose_winner_has_the_higher_reward_under_the_request(tiny_llama, bench, penalty):
    b = bench("cpo", tiny_llama, "epochs=2", f"penalty={penalty}", "beta=0.2")
    b.learner.begin_epoch(1, b.module)
    assert b.learner.needs_reference
    batch, seen, before = items(b, 1), [], []
    for example, item in zip(b.examples, batch, strict=True):
        if item.preference is None:
            continue
        winner, loser = (item.branches[i] for i in item.preference)
        wanted = asked(b, winner)
        assert wanted == asked(b, loser)
        texts = [text_of(b, example, each) for each in (winner, loser)]
        assert reward(b, example, texts[0], wanted, penalty) > reward(b, example, texts[1], wanted, penalty)
        seen.append((example, texts, at_level(wanted)))
        before.append([b.logp(b.module.causal, example, text, at_level(wanted)) for text in texts])
    assert len(seen) >= 4 and {} in [wanted for _, _, wanted in seen]
    with torch.no_grad():  # a step of training: the reference must not move with it
        for name, each in b.module.named_parameters():
            if "lora_" in name:
                each.add_(0.03 * torch.randn_like(each))
    loss = 0.0
    for (example, texts, profile), (ref_w, ref_l) in zip(seen, before, strict=True):
        won, lost = (b.logp(b.module.causal, example, text, profile) for text in texts)
        loss += math.log1p(math.exp(-0.2 * ((won - lost) - (ref_w - ref_l)))) / len(seen)
    logged = b.batch(batch)
    assert logged["dpo"] == logged["loss"] == pytest.approx(loss, abs=1e-9)
    assert abs(loss - math.log(2)) > 1e-3 and "likelihood" not in logged


def test_the_reference_of_stage_two_is_no_part_of_what_is_trained_or_saved(tiny_llama, bench):
    b = bench("cpo", tiny_llama)
    names = [name for name, _ in b.module.named_parameters()]
    b.learner.begin_epoch(1, b.module)
    frozen = {name: each.clone() for name, each in b.module.reference.items()}
    assert [name for name, _ in b.module.named_parameters()] == names == list(b.module.state_dict())
    trained = dict(b.module.named_parameters())
    assert frozen.keys() == {name for name, each in trained.items() if each.requires_grad}
    b.batch(items(b, 1))
    with torch.no_grad():
        for name in frozen:
            trained[name].add_(1.0)
    assert all(torch.equal(b.module.reference[name], each) for name, each in frozen.items())
    assert all(trained[name].grad is not None and trained[name].requires_grad for name in frozen)


def test_the_reference_comes_back_after_an_interruption(tiny_llama, bench):
    b = bench("cpo", tiny_llama, "epochs=3")
    assert b.learner.state() == {}
    b.learner.begin_epoch(1, b.module)
    saved = {name: each.clone() for name, each in b.learner.state().items()}
    fresh = CpoLearner(b.examples, b.config, b.learner.names)
    b.module.reference = None
    fresh.begin_epoch(2, b.module)
    fresh.restore(saved, b.module)
    assert fresh.needs_reference and b.module.reference.keys() == saved.keys()
    assert fresh.state().keys() == saved.keys()


def test_a_row_whose_completions_the_request_does_not_tell_apart_teaches_nothing(tiny_llama, bench):
    b = bench("cpo", tiny_llama, "control=1")
    answer = type(b.examples[0].answers[0])
    b.examples[0].answers = [answer([5, 6], {"brevity": 0.5}), answer([7], {"brevity": 0.5})]
    b.learner.begin_epoch(1, b.module)
    item = b.learner.item(0, 1)
    assert item.preference is None and not item.likelihood
    assert b.batch([item])["loss"] == 0


def test_the_reward_by_hand():
    learner = CpoLearner([], CpoConfig(penalty=2.0), ["a", "b"])
    assert learner.reward({"a": 0.5, "b": 0.25}, {}) == (3 + 2) / 2
    assert learner.reward({"a": 0.5, "b": 0.25}, {"a": 0.95}) == (-2 * 2 + 2) / 2
    assert learner.reward({"a": 0.95}, {"a": 1.0, "b": 0.0}) == 0  # a missing score takes no part


@pytest.mark.parametrize(("epochs", "stage"), [(1, 1), (1, 0)])
def test_one_stage_alone_trains_and_the_policy_holds_the_trained_adapter_only(quick, epochs, stage):
    folder = quick("p", f"epochs={epochs}", f"sft_epochs={stage}", method="cpo")
    tensors = load_file(str(folder / "adapter" / "adapter_model.safetensors"))
    assert not any("reference" in name for name in tensors)
    policy = load_policy(folder)
    answer = policy.generate(["What is tea?"], condition={"cheer": 1.0, "brevity": 0.1}, max_new_tokens=1)[0]
    assert policy.renderer.profile_text(answer.profile) == "\n<brevity:1> <cheer:5>"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("sft_epochs=3", "field 'sft_epochs': must lie between 0 and epochs=1"),
        ("completions=0", "field 'completions'"),
        ("control=1.5", "field 'control'"),
        ("penalty=0", "field 'penalty'"),
        ("beta=-1", "field 'beta'"),
    ],
)
def test_settings_out_of_range(quick, setting, message):
    with pytest.raises(InputError, match=message):
        quick("p", setting, method="cpo")
