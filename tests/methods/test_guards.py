"""What a training keeps when something about it fails: weights whose validation fails, and counts of missing scores."""

from __future__ import annotations

import json

import pytest

from paretune.files import read_json
from paretune.methods import setup, train
from paretune.policy import load_policy
from paretune.reward_model import load_reward_model, train_reward_model
from paretune.reward_model import train as reward_train
from paretune.training.guards import missing_rates, told_missing
from tiny_rewards import rows_of

QUICK = ("dtype=float32", "epochs=1", "batch_size=10", "lora_r=4")


def fails(*arguments, **options):
    raise ZeroDivisionError("no prompts at all")


def test_a_policy_whose_validation_fails_is_saved(scored_rows, tiny_llama, tmp_path, monkeypatch):
    notes = []
    monkeypatch.setattr(setup, "validate", fails)
    train("sft", scored_rows, str(tiny_llama), tmp_path / "p", settings=QUICK, note=notes.append)
    assert load_policy(tmp_path / "p").method == "sft"
    metrics = read_json(tmp_path / "p" / "metrics.json")
    assert metrics["validation_failed"] == "ZeroDivisionError: no prompts at all" and metrics["loss"] > 0
    assert notes == [
        "validation failed (ZeroDivisionError: no prompts at all); what was trained is saved without its figures"
    ]


def test_a_reward_model_whose_validation_fails_is_saved(tiny_llama, tmp_path, monkeypatch):
    data, notes = tmp_path / "rows.jsonl", []
    data.write_text("".join(json.dumps(row) + "\n" for row in rows_of()))
    monkeypatch.setattr(reward_train, "validate", fails)
    found = train_reward_model(data, str(tiny_llama), tmp_path / "r", settings=QUICK, note=notes.append)
    assert load_reward_model(tmp_path / "r").names == found.objectives and found.validation == {}
    assert "ZeroDivisionError" in read_json(tmp_path / "r" / "metrics.json")["validation_failed"] and len(notes) == 1


@pytest.mark.parametrize("method", ["sft", "sga"])
def test_missing_scores_are_counted_by_objective(scored_rows, tiny_llama, tmp_path, method):
    rows = [json.loads(line) for line in scored_rows.read_text().splitlines()]
    names = sorted(rows[0]["completions"][0]["scores"])
    for row in rows:  # of every prompt's completions the first has no score for the first objective
        row["completions"][0]["scores"][names[0]] = None
    count = len(rows[0]["completions"])
    assert all(len(row["completions"]) == count for row in rows)
    data, notes = tmp_path / "rows.jsonl", []
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = (*QUICK, "head.width=16", "head_epochs=1") if method == "sga" else QUICK
    train(method, data, str(tiny_llama), tmp_path / "p", settings=settings, note=notes.append)
    missing = read_json(tmp_path / "p" / "metrics.json")["missing_scores"]
    assert missing == {name: (1 / count if name == names[0] else 0.0) for name in missing} and names[0] in missing
    assert notes == [f"completions of the training part without a score, which are masked: {names[0]} {1 / count:.1%}"]


def test_no_missing_score_is_not_spoken_of():
    notes = []
    told_missing({"a": 0.0}, notes.append)
    assert notes == [] and missing_rates([], ["a"]) == {}
