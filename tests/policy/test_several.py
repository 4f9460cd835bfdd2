"""Several adapters in one policy: the soup is the sum of the deltas, folders are whole, requests choose."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from paretune.errors import InputError
from paretune.files import read_json
from paretune.policy import load_policy, save_policy
from paretune.policy.seal import seal
from paretune.policy.several import Blend, Part
from several_adapters import NAMES, one_hot, several, with_deltas

IDS = torch.tensor([[5, 9, 11, 300, 42, 7, 17, 18]])
W = {"brevity": 0.5, "cheer": 0.3, "rude_words": 0.2}
VECTORS = [
    Part("vector1", {"brevity": 1.0, "cheer": 0.0, "rude_words": 0.0}),
    Part("vector2", {"brevity": 0.0, "cheer": 1.0, "rude_words": 0.0}),
    Part("vector3", {"brevity": 0.4, "cheer": 0.4, "rude_words": 0.2}),
]


def logits(causal):
    with torch.no_grad():
        return causal(IDS).logits


def texts(answers):
    return [each.text for each in answers]


# --- the soup -----------------------------------------------------------------------------------------------------


def test_a_soup_is_the_sum_of_the_weighed_deltas(tiny_model):
    policy, tensors = several(tiny_model, dtype="float64")
    for weights in (W, {"cheer": 0.25, "rude_words": 0.75}, dict.fromkeys(NAMES, 1 / 3)):
        full = {name: weights.get(name, 0.0) for name in NAMES}
        (blend,) = policy.parts.blends(full)
        policy.parts.use(blend)
        by_hand = with_deltas(tiny_model, dict(enumerate(full.values())), tensors, "float64")
        torch.testing.assert_close(logits(policy.causal), logits(by_hand), atol=1e-6, rtol=0)
        assert (logits(policy.causal) - logits(with_deltas(tiny_model, {}, tensors, "float64"))).abs().max() > 0.1


def test_averaging_a_and_b_apart_is_another_model(tiny_llama):
    policy, tensors = several(tiny_llama, dtype="float64")
    policy.parts.use(policy.parts.blends(W)[0])
    mean = {name: sum(w * each[name] for w, each in zip(W.values(), tensors, strict=True)) for name in tensors[0]}
    apart = with_deltas(tiny_llama, {0: 1.0}, [mean], "float64")
    assert (logits(policy.causal) - logits(apart)).abs().max() > 0.1


def test_all_weight_on_one_is_that_adapter_alone(tiny_model, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    policy, _ = several(tiny_model)
    save_policy(policy, tmp_path / "p", metrics={})
    for at, name in enumerate(NAMES):
        blends = policy.parts.blends({each: float(each == name) for each in NAMES})
        assert blends == (Blend(((at, 1.0),)),)
        policy.parts.use(blends[0])
        plain = AutoModelForCausalLM.from_pretrained(tiny_model)
        alone = PeftModel.from_pretrained(plain, str(tmp_path / "p" / "adapters" / name)).eval()
        torch.testing.assert_close(logits(policy.causal), logits(alone), atol=1e-5, rtol=0)


def test_fused_for_weights_it_answers_as_it_did(tiny_model, prompts):
    policy, _ = several(tiny_model, dtype="float64")
    wanted = policy.generate(prompts, weights=W, max_new_tokens=8)
    assert policy.fuse() is policy and policy.parts is not None  # there is no one model for all weights
    assert policy.generate(prompts, weights=W, max_new_tokens=8) == wanted
    policy.fuse(W)
    assert policy.peft is None and not policy.takes_weights
    assert texts(policy.generate(prompts, max_new_tokens=8)) == texts(wanted)
    with pytest.raises(InputError, match="takes no preference weights"):
        policy.generate(prompts, weights=W)
    with pytest.raises(InputError, match="a policy of one adapter is fused without weights"):
        policy.fuse(W)


def test_likelihoods_are_the_equal_soups(tiny_llama, prompts):
    policy, tensors = several(tiny_llama, dtype="float64")
    policy.generate(prompts[:1], weights={"cheer": 1.0}, max_new_tokens=1)  # whatever was asked for before
    (found,) = policy.loglik([prompts[0]], ["A drink."], [None])
    model = with_deltas(tiny_llama, dict.fromkeys(range(3), 1 / 3), tensors, "float64")
    start = [*policy.renderer.prefix(prompts[0]), *policy.renderer.suffix(prompts[0], None)]
    answer = policy.renderer.completion("A drink.")
    with torch.no_grad():
        logp = torch.log_softmax(model(torch.tensor([[*start, *answer]])).logits[0], -1)
    wanted = sum(logp[len(start) - 1 + i, token].item() for i, token in enumerate(answer))
    assert found == pytest.approx(wanted, abs=1e-5)


def test_features_are_the_base_models(tiny_llama, make_policy, prompts):
    policy, _ = several(tiny_llama)
    plain = make_policy(tiny_llama)
    plain.head = None
    torch.testing.assert_close(
        torch.from_numpy(policy.features(prompts)), torch.from_numpy(plain.features(prompts)), atol=1e-5, rtol=0
    )
    assert texts(policy.generate(prompts[:1], weights=W, max_new_tokens=4)) == texts(
        several(tiny_llama)[0].generate(prompts[:1], weights=W, max_new_tokens=4)
    )  # the adapters are on again


@pytest.mark.parametrize("rule", ["soup", "mix"])
def test_with_adapters_off_the_base_model_answers(tiny_llama, prompts, rule):
    policy, tensors = several(tiny_llama, rule)
    wanted = policy.generate(prompts, weights=W, max_new_tokens=6)
    with policy.peft.disable_adapter():
        off = texts(policy.generate(prompts, max_new_tokens=6))
    policy.parts.use(Blend(((1, 1.0),)))
    assert policy.generate(prompts, weights=W, max_new_tokens=6) == wanted  # and on again
    policy.causal, policy.parts, policy.weight_map = with_deltas(tiny_llama, {}, tensors, "float32"), None, None
    assert off == texts(policy.generate(prompts, max_new_tokens=6)) != texts(wanted)


# --- requests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "parts"), [("soup", None), ("mix", None), ("nearest", VECTORS)])
def test_weights_are_a_prompts_own_and_an_answer_the_same_alone_and_in_any_batch(tiny_model, prompts, rule, parts):
    policy, _ = several(tiny_model, rule, parts)
    asked = [{"brevity": 1.0}, W, {"cheer": 1.0}, W, {"rude_words": 0.5, "cheer": 0.5}]
    together = policy.generate(prompts, weights=asked, max_new_tokens=8)
    assert len(set(texts(together))) > 2
    assert policy.generate(prompts, weights=asked, max_new_tokens=8, batch_size=2) == together
    for prompt, weights, answer in zip(prompts, asked, together, strict=True):
        assert policy.generate([prompt], weights=weights, max_new_tokens=8) == [answer]


def test_sampled_answers_are_keyed_by_the_prompts_place(tiny_llama, prompts):
    policy, _ = several(tiny_llama)
    warm = {"max_new_tokens": 8, "temperature": 1.0, "seed": 3}
    same = policy.generate(prompts, weights=W, **warm)
    others = [{"cheer": 1.0}, W, {"cheer": 1.0}, W, W]
    mixed = policy.generate(prompts, weights=others, **warm)
    assert [mixed[i] for i in (1, 3, 4)] == [same[i] for i in (1, 3, 4)]
    assert mixed[0] != same[0]


def test_without_weights_all_objectives_count_alike(tiny_llama, prompts):
    policy, _ = several(tiny_llama)
    natural = policy.generate(prompts, max_new_tokens=8)
    assert natural == policy.generate(prompts, weights=dict.fromkeys(NAMES, 1 / 3), max_new_tokens=8)
    assert natural == policy.generate(prompts, condition="none", max_new_tokens=8)
    assert natural[0].weights == pytest.approx(dict.fromkeys(NAMES, 1 / 3))
    assert natural[0].profile is None and natural[0].sensed is None


def test_the_nearest_vector_answers_and_says_so(tiny_llama, prompts):
    policy, _ = several(tiny_llama, "nearest", VECTORS)
    answers = policy.generate(
        prompts[:3], weights=[W, {"cheer": 0.9, "brevity": 0.1}, {"brevity": 1}], max_new_tokens=4
    )
    assert [each.weights for each in answers] == [VECTORS[2].weights, VECTORS[1].weights, VECTORS[0].weights]
    # by hand: |W - v3|^2 = .01 + .01 + 0, |W - v1|^2 = .25 + .09 + .04
    assert policy.parts.nearest(W) == 2
    between = {"brevity": 0.5, "cheer": 0.5, "rude_words": 0.0}
    assert policy.parts.nearest(between) == 2
    tie = [Part("one", {"brevity": 1.0, "cheer": 0.0}), Part("two", {"brevity": 0.0, "cheer": 1.0})]
    two, _ = several(tiny_llama, "nearest", tie, names=("brevity", "cheer"))
    assert two.parts.nearest({"brevity": 0.5, "cheer": 0.5}) == 0  # the first of those at one distance


def test_what_each_rule_costs_and_takes(tiny_llama):
    for rule, parts, models in (("soup", None, 1), ("mix", None, 3), ("nearest", VECTORS, 1)):
        policy, _ = several(tiny_llama, rule, parts)
        assert (policy.models_at_inference, policy.takes_weights, policy.takes_profile) == (models, True, False)
        assert not policy.has_head


def test_weights_and_a_condition_are_one_too_many(tiny_llama, prompts):
    policy, _ = several(tiny_llama)
    with pytest.raises(InputError, match="give one of the two"):
        policy.generate(prompts, weights=W, condition="none")
    with pytest.raises(InputError, match="2 weights were given for 5 prompts"):
        policy.generate(prompts, weights=[W, W])
    with pytest.raises(InputError, match="sum to 1"):
        policy.generate(prompts, weights={"cheer": 0.4})


# --- the folder ---------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tiny_llama, tmp_path):
    policy, tensors = several(tiny_llama)
    save_policy(policy, tmp_path / "policy", metrics={"loss": 0.5})
    return policy, tensors, tmp_path / "policy"


def edit(folder, **changes):
    """Change policy.json and seal it anew, as if it had been saved so."""
    path = folder / "policy.json"
    described = {key: value for key, value in (read_json(path) | changes).items() if value != "GONE"}
    described.pop("digest", None)
    path.write_text(json.dumps(described | {"digest": seal(described)}))


@pytest.mark.parametrize(("rule", "parts"), [("soup", None), ("mix", None), ("nearest", VECTORS)])
def test_saved_and_loaded_is_the_same_policy(tiny_model, tmp_path, prompts, rule, parts):
    policy, tensors = several(tiny_model, rule, parts)
    save_policy(policy, tmp_path / "p", metrics={})
    loaded = load_policy(tmp_path / "p")
    names = [part.name for part in policy.parts.parts]
    assert sorted(each.name for each in (tmp_path / "p" / "adapters").iterdir()) == sorted(names)
    for name, own in zip(names, tensors, strict=True):
        stored = load_file(str(tmp_path / "p" / "adapters" / name / "adapter_model.safetensors"))
        assert stored.keys() == own.keys() and all(torch.equal(stored[key], own[key]) for key in own)
    state, wanted = loaded.peft.state_dict(), policy.peft.state_dict()
    assert state.keys() == wanted.keys() and all(torch.equal(state[key], wanted[key]) for key in state)
    assert loaded.parts.parts == policy.parts.parts and loaded.parts.rule == rule
    for weights in (W, {"cheer": 1.0}, None):
        options = {"weights": weights, "max_new_tokens": 8}
        assert loaded.generate(prompts, **options) == policy.generate(prompts, **options)


def test_the_same_bytes_again(saved, tmp_path):
    policy, _, folder = saved
    policy.parts.use(policy.parts.blends(W)[0])  # what is on leaves no trace
    save_policy(policy, tmp_path / "again", metrics={"loss": 0.5})
    save_policy(load_policy(folder), tmp_path / "third", metrics={"loss": 0.5})
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert "adapters/cheer/adapter_config.json" in files and "adapters/README.md" not in files
    for other in ("again", "third"):
        for name in files:
            assert (folder / name).read_bytes() == (tmp_path / other / name).read_bytes(), name


def test_policy_json_names_the_adapters(saved):
    described = read_json(saved[2] / "policy.json")
    assert described["parts"] == [{"name": part.name, "weights": part.weights} for part in one_hot(NAMES)]
    assert described["weights"] == {"rule": "soup"} and described["adapter"] is True
    assert described["adapter_config"].keys() == set(NAMES) and not (saved[2] / "adapter").exists()


def test_any_name_of_an_objective_will_do(tiny_llama, tmp_path, prompts):
    names = ("a", "lora_A", "part1", "part0", "default", "weight")  # PEFT looks for such in its tensors' names
    policy, tensors = several(tiny_llama, names=names)
    save_policy(policy, tmp_path / "p", metrics={})
    loaded = load_policy(tmp_path / "p")
    for name, own in zip(names, tensors, strict=True):
        stored = load_file(str(tmp_path / "p" / "adapters" / name / "adapter_model.safetensors"))
        assert all(torch.equal(stored[key], own[key]) for key in own)
        asked = {"weights": {name: 1.0}, "max_new_tokens": 6}
        assert loaded.generate(prompts[:2], **asked) == policy.generate(prompts[:2], **asked)


def test_more_than_ten_adapters(tiny_llama, tmp_path, prompts):
    names = [f"objective{i}" for i in range(12)]
    policy, _ = several(tiny_llama, names=names)
    save_policy(policy, tmp_path / "p", metrics={})
    loaded = load_policy(tmp_path / "p")
    for name in ("objective1", "objective11"):  # one's name begins the other's
        asked = {"weights": {name: 1.0}, "max_new_tokens": 6}
        assert loaded.generate(prompts[:2], **asked) == policy.generate(prompts[:2], **asked)


PARTS = [{"name": part.name, "weights": part.weights} for part in one_hot(NAMES)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parts": "GONE"}, "says there is no adapters, but the folder has one"),
        ({"parts": []}, "must be a list of adapters"),
        ({"parts": "x"}, "must be a list of adapters"),
        ({"parts": [5]}, "an adapter is an object of name and weights, found 5"),
        ({"parts": [{"name": "brevity"}]}, "an adapter is an object of name and weights"),
        ({"parts": [PARTS[0] | {"name": "../adapters"}]}, "is no name of an adapter"),
        ({"parts": [PARTS[0] | {"weights": {"cheer": 0.5}}]}, "weights must sum to 1"),
        ({"parts": [PARTS[0] | {"weights": {"chear": 1}}]}, "Did you mean 'cheer'"),
        ({"parts": [PARTS[0] | {"weights": {"cheer": 0.5, "brevity": 0.5}}]}, "an adapter belongs to one objective"),
        ({"parts": [PARTS[0], PARTS[0]]}, "two adapters have one name"),
        ({"parts": PARTS[:2]}, "every objective has one adapter, found brevity, cheer"),
        ({"weights": "GONE"}, "several adapters need a rule of soup, mix, nearest, found None"),
        ({"weights": {"rule": "direction"}}, "several adapters need a rule"),
        ({"weights": {"rule": "nearest"}, "parts": PARTS[:2]}, "holds 'rude_words', which policy.json does not name"),
        ({"adapter_config": {"brevity": "0" * 16}}, "adapter_config.json: is not what it was"),
    ],
)
def test_a_policy_json_that_does_not_fit(saved, changes, message):
    edit(saved[2], **changes)
    with pytest.raises(InputError, match=message.replace("(", r"\(").replace("[", r"\[")):
        load_policy(saved[2])


def test_what_was_edited_is_told_before_the_model_is_loaded(saved, monkeypatch):
    monkeypatch.setattr("paretune.policy.folder.load_base", lambda *_: pytest.fail("the model was loaded"))
    path = saved[2] / "policy.json"
    described = read_json(path)
    turned = [described["parts"][1] | {"name": "brevity"}, described["parts"][0] | {"name": "cheer"}]
    path.write_text(json.dumps(described | {"parts": [*turned, described["parts"][2]]}))
    with pytest.raises(InputError, match="field 'parts': is not what it was"):
        load_policy(saved[2])


def test_an_adapter_that_is_missing_broken_or_not_finite(saved, tmp_path):
    _, tensors, folder = saved
    path = folder / "adapters" / "cheer" / "adapter_model.safetensors"
    first = next(iter(tensors[1]))
    save_file(tensors[1] | {first: torch.full_like(tensors[1][first], math.nan)}, str(path))
    with pytest.raises(InputError, match=r"cheer/adapter_model\.safetensors: tensor '.*' holds NaN"):
        load_policy(folder)
    save_file({name: each for name, each in tensors[1].items() if name != first}, str(path))
    with pytest.raises(InputError, match=r"cheer/adapter_model\.safetensors: .* 1 tensors are missing"):
        load_policy(folder)
    path.unlink()
    with pytest.raises(InputError, match=r"cheer: has no adapter_model\.safetensors"):
        load_policy(folder)
    shutil.rmtree(path.parent)
    with pytest.raises(InputError, match=r"cheer: no such adapter, though policy\.json names it"):
        load_policy(folder)


def test_a_single_adapter_beside_several_is_refused(saved):
    folder = saved[2]
    shutil.copytree(folder / "adapters" / "cheer", folder / "adapter")
    with pytest.raises(InputError, match="says there is no adapter, but the folder has one"):
        load_policy(folder)
