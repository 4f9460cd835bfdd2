"""benchmarks/reward_model.py compares like with like; benchmarks/reward_data.py reads its data and counts right."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest
import torch

from paretune.data.rows import Completion, Row
from paretune.errors import InputError


@pytest.fixture
def bench(benchmark):
    return benchmark("reward_model")


@pytest.fixture
def data(benchmark):
    return benchmark("reward_data")


def test_both_arms_see_the_same_sequences_and_give_the_same_reward(bench, tiny_llama):
    """With the same head on the same backbone both compute the same."""
    rows = bench.make_rows(4, held_out=False)
    ours = bench.Ours(str(tiny_llama), rows, rows, "float32", 0.0)
    trl = bench.Trl(str(tiny_llama), ours, "float32")
    score = trl.trainer.model.base_model.model.score.modules_to_save["default"].weight
    with torch.no_grad():  # their head is linear without a bias
        ours.module.head.layers = torch.nn.Sequential(torch.nn.Linear(score.shape[1], 1, bias=False))
        ours.module.head.layers[0].weight.copy_(score)
        batch = trl.trainer.data_collator([trl.train[i] for i in range(4)])
        theirs = trl.trainer.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, 0]
        items = [ours.learner.item(i, 0) for i in range(4)]
        raw = ours.module(bench.collate([item.packed for item in items], 0)).raw[:, 0]
        mine = torch.stack([raw[2 * i + j] for j in (0, 1) for i in range(4)])
    torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_the_whole_of_it_on_a_tiny_model(bench, tiny_llama, tmp_path):
    given = {"model": str(tiny_llama), "layers": 1, "pairs": 8, "held_out": 4, "steps": 3, "batch": 4, "dropout": 0.0}
    out = bench.measure(argparse.Namespace(dtype="float32", **given), tmp_path)
    assert out["time_ratio_trl"] > 0 and out["accuracy"]["n"] == out["accuracy_trl"]["n"] == 4
    assert 0.5 < out["tokens_ratio"] < 0.75, "the prompt is there once"
    assert out["trl_two_outputs"].startswith("refused: ") and "num_labels=1" in out["trl_two_outputs"]


def test_the_made_pairs_are_learnable_and_not_given_away(bench):
    train, held = bench.make_rows(200, held_out=False), bench.make_rows(200, held_out=True)

    def kind(text):
        return sum(word in text for word in bench.KIND)

    right = [kind(row.completions[0].text) > kind(row.completions[1].text) for row in train]
    assert 0.8 < sum(right) / 200 < 0.97
    assert all(kind(row.completions[0].text) > kind(row.completions[1].text) for row in held)
    longer = [len(row.completions[0].text) > len(row.completions[1].text) for row in held]
    assert 0.35 < sum(longer) / 200 < 0.65
    seen = {word for word in bench.KIND for row in train for each in row.completions if word in each.text}
    new = {word for word in bench.KIND for row in held for each in row.completions if word in each.text}
    assert len(seen) == bench.SEEN and not seen & new


def test_harm_scores_are_read_and_averaged(data, tmp_path):
    (tmp_path / "violence.csv").write_text(
        "# dataset_version=1.0\nharm_category,objective,assistant_response,human_score_1,human_score_2,data_type\n"
        'violence,How?,"No,\nnever.",0,0.5,text\nviolence,How?,Like this.,1,,text\n'
    )
    (tmp_path / "mini_violence.csv").write_text("# x\nobjective,assistant_response,human_score\nHow?,Again.,1\n")
    [row] = data.read_pyrit(tmp_path)
    assert row.text == "How?"
    assert [(each.text, each.scores["harm"]) for each in row.completions] == [
        ("No,\nnever.", 0.25),
        ("Like this.", 1.0),
    ]
    with pytest.raises(InputError, match="'nothing_of_that_name' is not installed"):
        data.installed("nothing_of_that_name", "x")


def test_chats_of_two_are_read(data, tmp_path):
    def chat(*turns, **more):
        said = [[{"text": text, "sender": sender, "timestamp": ""}] for sender, text in turns]
        return {"messages": said, "prompt": "Topic?", "ratings": {"witty": 3, "upbeat": 5, "interesting": 9}} | more

    chats = {
        "a": chat(("x", "Hi"), ("y", "Ho")),
        "b": chat(("x", "Hi")),
        "c": chat(("x", "Hi"), ("y", "Ho"), ratings=None),
    }
    (tmp_path / "dataset.json").write_text(json.dumps(chats))
    [row] = data.read_chitchat(tmp_path / "dataset.json")
    assert row.completions == (Completion("A: Hi\nB: Ho", {"witty": 3.0, "upbeat": 5.0, "interesting": 9.0}),)


def test_probes_find_what_is_there(data):
    draw = np.random.default_rng(0)
    x, w = draw.normal(size=(400, 6)), np.array([1.0, -2.0, 0, 0, 0.5, 0])
    groups = np.arange(400.0)
    ridge = data.probe(x, x @ w + 3.0, groups)
    assert np.corrcoef(x @ ridge, x @ w)[0, 1] > 0.99
    sign = np.sign(x @ w)[:, None]
    logistic = data.probe(x * sign, None, groups)
    assert ((x * sign) @ logistic > 0).mean() > 0.97


def test_partial_correlation_takes_out_what_both_have_in_common(data):
    draw = np.random.default_rng(0)
    length = draw.normal(size=3000)
    one, two = length + draw.normal(size=3000), length + draw.normal(size=3000)
    ones = np.ones((1, 3000))
    assert data.within(one, two) > 0.4
    assert abs(data.partial_spearman(one, two, length, ones)[0]) < 0.06


def test_held_out_figures_of_pairs_and_ratings(data):
    def user(text):
        return [{"role": "user", "content": text}]

    def pair(at):
        return Row(user(f"q{at}"), (Completion("a b c", label="chosen"), Completion("a", label="rejected")), id=str(at))

    rows = [pair(at) for at in range(12)]
    features = np.tile(np.array([[1.0, 0.0], [0.0, 1.0]]), (12, 1))
    given = np.tile([1.0, 0.0], 12)
    given[:2] = [0.0, 1.0]
    found = data.of_pairs("harmless", rows, rows, features, features, given)
    assert found["accuracy, model"].value == pytest.approx(11 / 12)
    assert found["accuracy, probe"].value == found["accuracy, length"].value == 1.0
    assert found["model - length"].value == pytest.approx(-1 / 12)
    rated = [
        Row(user(f"q{at}"), tuple(Completion("w " * k, {"good": float(k)}) for k in range(1, 4)), id=str(at))
        for at in range(6)
    ]
    features = np.tile(np.eye(3), (6, 1))
    found = data.of_ratings("good", rated, rated, features, features, np.tile([3.0, 2.0, 1.0], 6))
    assert found["Spearman, model"].value == pytest.approx(-1) and found["Spearman, length"].value == pytest.approx(1)
    assert found["Spearman within prompts, model"].value == pytest.approx(-1)
    assert found["Spearman, probe"].value == pytest.approx(1)
    assert any(line.startswith("| Spearman, model | -1.000") for line in data.markdown({"good": {
        key: value.to_dict() for key, value in found.items()
    }}))  # fmt: skip


def test_what_is_compared_on_was_held_out_of_training(data, tmp_path, monkeypatch):
    asked = {"seed": 3, "validation": 0.4, "test": 0.0, "near_duplicates": 0}
    (tmp_path / "reward.json").write_text(json.dumps({"data": {"split": asked}}))
    texts = ("Why is the sky blue?", "Tell me a joke.", "How is bread made?", "Name three rivers.", "What is a ship?")
    rows = [Row([{"role": "user", "content": text}], (Completion("a"),), id=text) for text in texts]
    parts = []
    model = argparse.Namespace(score=lambda prompts, given, progress: [{"harmless": 0.0}] * len(given))
    monkeypatch.setattr(data, "load_for_scoring", lambda folder: model)
    monkeypatch.setattr(data, "RelevanceReward", lambda: None)
    monkeypatch.setattr(data, "embed", lambda encoder, part: np.zeros((len(part), 2)))
    monkeypatch.setattr(data, "of_pairs", lambda name, train, held, *rest: parts.extend([train, held]) or {})
    data.compare(rows, data.TASKS["hh"], tmp_path)
    split = data.split_rows(rows, **asked)
    assert [[row.id for row in part] for part in parts] == [
        [row.id for row in part] for part in (split.train, split.validation)
    ]
    (tmp_path / "reward.json").write_text(json.dumps({"data": {"split": asked | {"validation": 0.0}}}))
    with pytest.raises(InputError, match="nothing was held out"):
        data.compare(rows, data.TASKS["hh"], tmp_path)
