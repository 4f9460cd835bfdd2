"""`modpo`: its loss is the paper's formula, with all weight on one objective it is DPO, and its vectors are checked."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file

from paretune.errors import InputError
from paretune.files import read_json
from paretune.methods.modpo.method import ModpoConfig, ModpoLearner, primary, vectors
from paretune.policy import load_policy
from paretune.training import resolve

NAMES = ["brevity", "cheer"]
PROMPTS = ["What is tea?", "Explain at length how bees came to be.", "Hi"]


def log_sigmoid(x):
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def by_formula(bench, weights, beta, scale):
    """-log sigmoid((beta * logratios - w_other * scale * (r(c) - r(r))) / w_k), pair by pair, from the definition."""
    first = max(weights, key=weights.get)
    terms = []
    for example in bench.examples:
        chosen, rejected = bench.texts(example)
        ratio = 0.0
        for sign, text in ((1, chosen), (-1, rejected)):
            ratio += sign * bench.logp(bench.module.causal, example, text, None)
            ratio -= sign * bench.logp(bench.base, example, text, None)
        gains = {name: bench.profile(example, chosen)[name] - bench.profile(example, rejected)[name] for name in NAMES}
        margin = sum(weights[name] * scale * gains[name] for name in NAMES if name != first)
        terms.append(-log_sigmoid((beta * ratio - margin) / weights[first]))
    return sum(terms) / len(terms)


def items(bench):
    return [bench.learner.item(i, 0) for i in range(len(bench.examples))]


@pytest.mark.parametrize("weights", [{"brevity": 0.7, "cheer": 0.3}, {"brevity": 0.2, "cheer": 0.8}])
def test_the_loss_is_the_papers(tiny_model, bench, weights):
    b = bench("modpo", tiny_model, "beta=0.2", "margin_scale=3")
    b.learner = ModpoLearner(b.examples, b.config, NAMES, weights)
    logged = b.batch(items(b))
    wanted = by_formula(b, weights, 0.2, 3.0)
    assert logged["modpo"] == pytest.approx(wanted, abs=1e-9)
    assert logged["loss"] == pytest.approx(wanted, abs=1e-9)
    assert abs(wanted - by_formula(b, weights, 0.2, 0.0)) > 0.01


def test_all_weight_on_one_objective_is_dpo(tiny_llama, bench):
    b = bench("modpo", tiny_llama)
    b.learner = ModpoLearner(b.examples, b.config, NAMES, {"brevity": 1.0, "cheer": 0.0})
    found, grads = b.batch(items(b)), b.grads()
    plain = bench("dpo", tiny_llama)
    wanted = plain.batch([plain.learner.item(i, 0) for i in range(len(plain.examples))])
    assert found["modpo"] == pytest.approx(wanted["dpo"], abs=1e-12)
    assert found["modpo_accuracy"] == wanted["dpo_accuracy"]
    for name, each in plain.grads().items():
        torch.testing.assert_close(grads[name], each, atol=1e-12, rtol=0)


def test_reference_free_leaves_the_base_model_out(tiny_llama, bench):
    b = bench("modpo", tiny_llama, "reference_free=true", "margin_scale=0")
    logged = b.batch(items(b))
    terms = []
    for example in b.examples:
        values = [b.logp(b.module.causal, example, text, None) for text in b.texts(example)]
        terms.append(-log_sigmoid(0.1 * (values[0] - values[1]) / 0.5))  # equal weights
    assert logged["modpo"] == pytest.approx(sum(terms) / len(terms), abs=1e-9)
    assert not b.learner.needs_reference


def test_accumulation_is_the_batch(tiny_llama, bench):
    b = bench("modpo", tiny_llama)
    whole, wanted = b.batch(items(b), micro_tokens=10**6), b.grads()
    parts = b.batch(items(b), micro_tokens=1)
    assert parts == pytest.approx(whole, abs=1e-9)
    for name, each in b.grads().items():
        torch.testing.assert_close(each, wanted[name], atol=1e-9, rtol=1e-9)


# --- vectors ------------------------------------------------------------------------------------------------------


def test_corners_and_centre_unless_others_are_named():
    three = ["a", "b", "c"]
    found = vectors(ModpoConfig(), three)
    assert [list(each.values()) for each in found[:3]] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert found[3] == pytest.approx(dict.fromkeys(three, 1 / 3)) and len(found) == 4
    assert vectors(ModpoConfig(), ["a"]) == [{"a": 1.0}]  # corner and centre are one
    own = resolve(ModpoConfig, settings=["weights=[{a: .5, c: .5}, {b: 1}, {c: .5, a: .5}]"])
    assert vectors(own, three) == [{"a": 0.5, "b": 0.0, "c": 0.5}, {"a": 0.0, "b": 1.0, "c": 0.0}]
    assert primary({"a": 0.3, "b": 0.35, "c": 0.35}) == "b"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("weights=[{brevity: .5}]", "field 'weights': weights must sum to 1, found a sum of 0.5"),
        ("weights=[{brevity: 2, cheer: -1}]", "field 'weights': the weight of 'cheer' must be 0 or more"),
        ("weights=[{brevty: 1}]", "field 'weights': .*Did you mean 'brevity'"),
        ("weights=[1]", "field 'weights': must be a mapping of settings, found 1"),
        ("weights={brevity: 1}", "field 'weights': must be a list"),
        ("margin_scale=-1", "field 'margin_scale': must be 0 or more"),
        ("pairs=pareto", "field 'pairs': has no effect here: one objective decides"),
    ],
)
def test_impossible_settings(quick, tmp_path, setting, message):
    with pytest.raises(InputError, match=message):
        quick("policy", setting, method="modpo")
    assert not (tmp_path / "policy").exists()


# --- policies -----------------------------------------------------------------------------------------------------


def vector(folder, number):
    return load_file(str(folder / "adapters" / f"vector{number}" / "adapter_model.safetensors"))


@pytest.mark.parametrize("fixture", ["tiny_llama", "tiny_qwen", "tiny_gpt2"])
def test_trained_on_every_model_the_nearest_vector_answers(request, quick, fixture):
    folder = quick("modpo", "lr=1e-2", method="modpo", model=request.getfixturevalue(fixture))
    policy = load_policy(folder)
    assert policy.weight_map.rule == "nearest" and policy.models_at_inference == 1 and len(policy.parts) == 3
    answers = policy.generate(PROMPTS, weights={"brevity": 0.8, "cheer": 0.2}, max_new_tokens=6)
    assert answers[0].weights == {"brevity": 1.0, "cheer": 0.0}
    assert answers == policy.generate(PROMPTS, weights={"brevity": 1.0}, max_new_tokens=6)
    assert [each.weights["cheer"] for each in policy.generate(PROMPTS, max_new_tokens=2)] == [0.5] * 3


def test_its_corners_are_the_adapters_of_soups(quick):
    modpo, soups = quick("modpo", "lr=1e-2", method="modpo"), quick("soups", "lr=1e-2", method="soups")
    for number, name in enumerate(NAMES, start=1):
        own = load_file(str(soups / "adapters" / name / "adapter_model.safetensors"))
        assert all(torch.equal(vector(modpo, number)[key], own[key]) for key in own)
    metrics = read_json(modpo / "metrics.json")
    assert metrics["adapters"] == 3 and metrics["steps"] == 3 * metrics["parts"][0]["steps"]


@pytest.mark.parametrize("setting", ["margin_scale=0", "beta=0.5", "weights=[{brevity: .9, cheer: .1}]"])
def test_settings_change_the_adapters(quick, setting):
    mixed = "weights=[{brevity: .6, cheer: .4}]"
    one, two = quick("one", "lr=1e-2", mixed, method="modpo"), quick("two", "lr=1e-2", mixed, setting, method="modpo")
    assert any(not torch.equal(each, vector(two, 1)[key]) for key, each in vector(one, 1).items())


def test_pairs_without_a_score_for_the_margin_are_left_out_and_counted(quick, scored_rows, tmp_path):
    rows = [json.loads(line) for line in scored_rows.read_text().splitlines()]
    for row in rows[:6]:
        row["completions"][0]["scores"]["cheer"] = None  # the shortest answer, which brevity chooses
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    both = "weights=[{brevity: .6, cheer: .4}, {brevity: 1}]"
    metrics = read_json(quick("modpo", both, method="modpo", data=path) / "metrics.json")
    lost = metrics["dropped"]["no_margin"]
    assert 4 <= lost <= 6 and [each["pairs"] for each in metrics["parts"]] == [23 - lost, 23]
    for row in rows:
        row["completions"][0]["scores"]["cheer"] = None
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match="no pair of 'brevity' has scores for cheer too"):
        quick("none", both, method="modpo", data=path)
