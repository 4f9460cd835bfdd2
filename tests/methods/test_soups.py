"""`soups`: an adapter for each objective, each the one that DPO on that objective's pairs alone gives."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from paretune.data import build_pairs, fit_objectives, read_rows, split_rows
from paretune.data.rows import prompt_key
from paretune.errors import InputError
from paretune.files import read_json
from paretune.methods import METHODS, get_method, train
from paretune.methods.parts import ObjectivesConfig
from paretune.policy import load_policy
from paretune.profile import Objective
from paretune.training import resolve

PROMPTS = ["What is tea?", "Explain at length how bees came to be.", "Hi"]
NAMES = ["brevity", "cheer"]


def tensors(folder, name=None):
    place = folder / "adapter" if name is None else folder / "adapters" / name
    return load_file(str(place / "adapter_model.safetensors"))


def equal(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def rows_file(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def rows(scored_rows):
    """The scored rows as JSON objects."""
    return [json.loads(line) for line in scored_rows.read_text().splitlines()]


def records(folder):
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


# --- what is trained ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "alone"), [("dpo", "dpo"), ("sft", "sft")])
def test_each_adapter_is_the_one_trained_alone_on_its_objectives_pairs(quick, loss, alone):
    common = ("lr=1e-2", "lora_dropout=0.1", "epochs=2")
    folder = quick("soups", *common, f"objective_loss={loss}", method="soups")
    for name in NAMES:
        own = quick(name, *common, "pairs=weights", f"pair_weights.{name}=1", method=alone)
        assert equal(tensors(folder, name), tensors(own))
    assert not equal(tensors(folder, "brevity"), tensors(folder, "cheer"))


def test_the_pairs_are_decided_by_one_objective_alone(quick, rows, tmp_path):
    for row in rows:  # labels and wishes, which would decide in other methods, point the other way
        row["completions"][2]["label"], row["completions"][0]["label"] = "chosen", "rejected"
        row["wanted"] = {"brevity": 0.0, "cheer": 0.5}
    plain = [{**row, "completions": [{k: v for k, v in each.items() if k != "label"} for each in row["completions"]]}
             for row in rows]  # fmt: skip
    plain = [{key: value for key, value in row.items() if key != "wanted"} for row in plain]
    one = quick("one", method="soups", data=rows_file(tmp_path / "labelled.jsonl", rows))
    two = quick("two", method="soups", data=rows_file(tmp_path / "plain.jsonl", plain))
    for name in NAMES:
        assert equal(tensors(one, name), tensors(two, name))


@pytest.mark.parametrize("fixture", ["tiny_llama", "tiny_qwen", "tiny_gpt2"])
def test_trained_on_every_model_it_loads_and_answers(request, quick, fixture):
    folder = quick("soups", "lr=1e-2", method="soups", model=request.getfixturevalue(fixture))
    policy = load_policy(folder)
    assert policy.method == "soups" and policy.weight_map.rule == "soup" and policy.models_at_inference == 1
    ends = [[each.text for each in policy.generate(PROMPTS, weights={name: 1.0}, max_new_tokens=6)] for name in NAMES]
    assert ends[0] != ends[1]
    assert len(policy.generate(PROMPTS, max_new_tokens=6)) == 3


@pytest.mark.parametrize("count", [1, 3])
def test_any_number_of_objectives(quick, rows, tmp_path, count):
    names = ["brevity", "cheer", "words"][:count]
    for row in rows:
        for each in row["completions"]:
            each["scores"]["words"] = float(len(each["text"].split()) % 7)
            each["scores"] = {name: each["scores"][name] for name in names}
    folder = quick("soups", method="soups", data=rows_file(tmp_path / "rows.jsonl", rows))
    assert [each["name"] for each in read_json(folder / "policy.json")["parts"]] == names
    assert load_policy(folder).generate(PROMPTS, weights={names[-1]: 1.0}, max_new_tokens=3)


def test_objectives_scored_on_rows_of_their_own(quick, rows, tmp_path):
    for at, row in enumerate(rows):
        for each in row["completions"]:
            each["scores"].pop(NAMES[at % 2])
    folder = quick("soups", method="soups", data=rows_file(tmp_path / "rows.jsonl", rows))
    metrics = read_json(folder / "metrics.json")
    assert [each["pairs"] for each in metrics["parts"]] == [11, 12] and metrics["pairs"] == 23
    assert metrics["dropped"] == {"too_few": 23}
    assert metrics["train_prompts"] + metrics["validation_prompts"] == 23


# --- what is written ----------------------------------------------------------------------------------------------


def test_costs_are_the_sums_of_the_parts(quick):
    folder = quick("soups", "epochs=2", method="soups")
    metrics, lines = read_json(folder / "metrics.json"), records(folder)
    assert metrics["adapters"] == 2 and [each["name"] for each in metrics["parts"]] == NAMES
    for key in ("steps", "tokens", "pairs"):
        assert metrics[key] == sum(each[key] for each in metrics["parts"])
    assert metrics["seconds"] == pytest.approx(sum(each["seconds"] for each in metrics["parts"]), abs=0.01)
    assert [(each["part"], each["step"]) for each in lines] == [(name, at) for name in NAMES for at in (1, 2, 3, 4)]
    assert metrics["tokens"] == lines[3]["tokens"] + lines[7]["tokens"]
    assert "| adapters | 2 |" in (folder / "README.md").read_text()


def test_policy_json_says_what_was_trained_on(quick, scored_rows):
    folder = quick("soups", method="soups")
    described = read_json(folder / "policy.json")
    assert described["weights"] == {"rule": "soup"} and described["config"]["objective_loss"] == "dpo"
    split = split_rows(read_rows(scored_rows), seed=0, validation=0.1, test=0.1)
    objectives = fit_objectives(split.train, [Objective(name) for name in NAMES])
    keys = set()
    for name in NAMES:
        pairs = build_pairs(split.train, objectives, rule="weights", weights={name: 1.0})[0]
        keys |= {prompt_key(pair.row.prompt) for pair in pairs}
    assert described["train_prompts"] == sorted(keys)


def test_the_same_seed_gives_the_same_bytes_and_another_other_bytes(quick):
    settings = ("lora_dropout=0.1", "lr=1e-2")
    one, two = quick("one", *settings, method="soups"), quick("two", *settings, method="soups")
    three = quick("three", *settings, "seed=1", method="soups")
    names = ["policy.json", *(f"adapters/{name}/adapter_model.safetensors" for name in NAMES)]
    for name in names:
        assert (one / name).read_bytes() == (two / name).read_bytes()
        assert (one / name).read_bytes() != (three / name).read_bytes()


# --- a break ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["soups", "modpo"])
def test_a_training_that_was_broken_off_ends_as_it_would_have(scored_rows, tiny_llama, tmp_path, monkeypatch, method):
    how = get_method(method)
    settings = ["dtype=float32", "epochs=2", "batch_size=10", "lora_r=4", "lora_dropout=0.1", "lr=1e-2", "save_every=1"]
    if method == "modpo":
        settings.append("weights=[{brevity: 1}, {brevity: .5, cheer: .5}]")
    whole = tmp_path / "whole"
    train(method, scored_rows, str(tiny_llama), whole, settings=settings)
    kind = type(how.learner([], resolve(how.config), NAMES))
    plain, steps = kind.counts, []

    def counts(self, items):
        steps.append(len(items))
        if len(steps) == 7:  # the third step of the second adapter
            raise KeyboardInterrupt
        return plain(self, items)

    monkeypatch.setattr(kind, "counts", counts)
    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        train(method, scored_rows, str(tiny_llama), broken, settings=settings)
    assert not broken.exists()
    del steps[:]
    monkeypatch.setattr(kind, "counts", lambda self, items: steps.append(len(items)) or plain(self, items))
    train(method, scored_rows, str(tiny_llama), broken, settings=settings)
    assert len(steps) == 2  # of eight
    for path in whole.rglob("*.safetensors"):
        assert path.read_bytes() == (broken / path.relative_to(whole)).read_bytes()
    drop = {"tokens_per_second"}
    assert [{k: v for k, v in each.items() if k not in drop} for each in records(broken)] == [
        {k: v for k, v in each.items() if k not in drop} for each in records(whole)
    ]


@pytest.mark.parametrize("method", ["soups", "modpo"])
def test_limits_are_shared_out_and_a_break_changes_nothing(scored_rows, tiny_llama, tmp_path, monkeypatch, method):
    how = get_method(method)
    settings = ["dtype=float32", "epochs=3", "batch_size=2", "lora_r=4", "lora_dropout=0.1", "save_every=1"]
    settings += ["max_tokens=1500", *(["weights=[{brevity: 1}, {cheer: 1}]"] if method == "modpo" else [])]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(method, scored_rows, str(tiny_llama), whole, settings=settings)
    metrics = read_json(whole / "metrics.json")
    longest = max(each["tokens"] / each["steps"] for each in metrics["parts"]) * 2
    assert all(750 <= each["tokens"] <= 750 + longest for each in metrics["parts"])
    assert metrics["steps"] == sum(each["steps"] for each in metrics["parts"]) == len(records(whole))
    kind, steps = type(how.learner([], resolve(how.config), NAMES)), []
    plain = kind.counts

    def counts(self, items):
        steps.append(len(items))
        if len(steps) == metrics["steps"]:  # the last one of the second adapter
            raise KeyboardInterrupt
        return plain(self, items)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(kind, "counts", counts)
        train(method, scored_rows, str(tiny_llama), broken, settings=settings)
    train(method, scored_rows, str(tiny_llama), broken, settings=settings)
    for path in whole.rglob("*.safetensors"):
        assert path.read_bytes() == (broken / path.relative_to(whole)).read_bytes()


# --- settings and bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting", ["objective_loss=sft", "beta=0.5", "reference_free=true", "pair_margin=0.5", "lora_r=2", "lora_layers=1"]
)
def test_settings_change_the_adapters(quick, setting):
    one, two = quick("one", method="soups"), quick("two", setting, method="soups")
    assert any(not equal(tensors(one, name), tensors(two, name)) for name in NAMES)


def test_the_rule_of_pairs_has_no_say():
    with pytest.raises(InputError, match="field 'pairs': has no effect here: one objective decides"):
        resolve(ObjectivesConfig, settings=["pairs=pareto"])
    with pytest.raises(InputError, match="field 'pairs': has no effect here: one objective decides"):
        resolve(ObjectivesConfig, settings=["pairs=weights", "pair_weights.a=1"])


@pytest.mark.parametrize("setting", ["beta=0.5", "reference_free=true"])
def test_the_settings_of_dpo_have_no_say_in_sft(setting):
    resolve(ObjectivesConfig, settings=[setting])
    with pytest.raises(InputError, match="has no effect here: it is DPO's, and objective_loss is sft"):
        resolve(ObjectivesConfig, settings=[setting, "objective_loss=sft"])


@pytest.mark.parametrize("method", ["soups", "mod", "modpo"])
def test_rows_without_scores(quick, rows, tmp_path, method):
    for row in rows:
        row["completions"] = [{"text": each["text"]} for each in row["completions"]]
        row["completions"][0]["label"], row["completions"][1]["label"] = "chosen", "rejected"
    with pytest.raises(InputError, match=f"the rows have no scores, and '{method}' needs them"):
        quick("policy", method=method, data=rows_file(tmp_path / "rows.jsonl", rows))
    assert not (tmp_path / "policy").exists()


def test_an_objective_that_decides_nowhere_is_named(quick, rows, tmp_path):
    for at, row in enumerate(rows):
        for each in row["completions"]:
            each["scores"]["cheer"] = float(at)  # it differs from prompt to prompt, and never within one
    with pytest.raises(InputError, match=r"objective 'cheer': no row is left to train on; dropped: 23 ties"):
        quick("policy", method="soups", data=rows_file(tmp_path / "rows.jsonl", rows))


def test_a_policy_of_several_adapters_cannot_be_trained_on(quick, scored_rows, tmp_path):
    folder = quick("soups", method="soups")
    with pytest.raises(InputError, match="the training of a policy by 'soups' cannot go on"):
        train("soups", scored_rows, None, tmp_path / "next", start=folder)


def test_the_methods_say_how_they_take_weights():
    assert [METHODS[name].weights for name in ("soups", "mod", "modpo")] == ["soup", "mix", "nearest"]
