"""Trainings that are reported: the same numbers as train.jsonl, one run across a break, nothing else changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from improving import QUICK, make_policy, write_data
from paretune.errors import InputError
from paretune.files import file_digest
from paretune.methods import train
from paretune.methods.improve import improve, rounds
from paretune.reward_model import train_reward_model
from tracking_runs import break_off, numbers


def test_a_training_passes_on_what_it_logs(quick, calls, tmp_path):
    quick(tmp_path / "plain")
    out = quick(tmp_path / "told", report_to=["wandb"])
    records = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    found = calls.logged()
    assert len(records) > 2 and {step: numbers(each) for step, each in found.items()} == {
        each["step"]: numbers(each) for each in records
    }
    metrics = json.loads((out / "metrics.json").read_text())
    assert found[len(records)]["final/pairs"] == metrics["pairs"]
    config = calls.of("wandb", "begin")[0]["config"]
    assert (config["method"], config["settings.batch_size"], config["objectives"]) == ("sft", 5, '["brevity", "cheer"]')
    weights = [file_digest(tmp_path / name / "adapter/adapter_model.safetensors") for name in ("plain", "told")]
    assert weights[0] == weights[1]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["plain", "told"]


def test_a_training_that_was_broken_off_is_one_run(quick, calls, tmp_path, monkeypatch):
    break_off(monkeypatch, lambda: quick(tmp_path / "p", report_to="wandb,mlflow"), step=3)
    assert list(calls.logged()) == [1, 2]
    out = quick(tmp_path / "p", report_to="wandb,mlflow")
    steps = len((out / "train.jsonl").read_text().splitlines())
    first, second = calls.of("wandb", "begin")
    assert first["id"] == second["id"] and first["config"] == second["config"]
    assert [each["id"] for each in calls.of("mlflow", "begin")] == [None, "its-own-id"]
    assert [each["step"] for each in calls.of("mlflow", "log")] == [*range(1, steps + 1), steps]  # and the final ones
    break_off(monkeypatch, lambda: quick(tmp_path / "q", report_to="wandb"), step=3)
    quick(tmp_path / "q", report_to="wandb", restart=True)
    third, fourth = calls.of("wandb", "begin")[2:]
    assert third["id"] != fourth["id"]


def test_a_tracker_that_is_not_there_costs_nothing(scored_rows, tmp_path, monkeypatch):
    monkeypatch.setattr("paretune.tracking.trackers.find_spec", lambda name: None)
    for call in (
        lambda: train("sft", scored_rows, "/no/model", tmp_path / "p", report_to="wandb"),
        lambda: train_reward_model(scored_rows, "/no/model", tmp_path / "p", report_to="wandb"),
        lambda: improve("/no/policy", scored_rows, tmp_path / "p", report_to=("wandb",)),
    ):
        with pytest.raises(InputError, match="'wandb' is not installed"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_fails_stops_no_training(quick, calls, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_TROUBLE", "wandb.log")
    notes: list[str] = []
    out = quick(tmp_path / "p", report_to="wandb", note=notes.append)
    assert (out / "policy.json").exists()
    assert [note for note in notes if "wandb" in note] == [
        "wandb takes no more numbers of this run (ConnectionError: the network is gone); train.jsonl has them all"
    ]


def test_parts_follow_each_other(quick, calls, tmp_path):
    out = quick(tmp_path / "p", "max_steps=4", method="soups", report_to="wandb")
    found = calls.logged()
    assert list(found) == [1, 2, 3, 4] and len((out / "train.jsonl").read_text().splitlines()) == 4
    assert "brevity/loss" in found[1] and "cheer/loss" in found[3] and "loss" not in found[3]


def test_a_reward_model(scored_rows, tiny_llama, calls, tmp_path):
    settings = ["dtype=float32", "epochs=1", "batch_size=5", "bootstrap=10"]
    out = tmp_path / "r"
    train_reward_model(scored_rows, str(tiny_llama), out, settings=settings, report_to="wandb")
    records = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    found = calls.logged()
    assert {step: numbers(each) for step, each in found.items()} == {each["step"]: numbers(each) for each in records}
    assert any(name.startswith("final/validation.cheer.") for name in found[len(records)])
    assert calls.of("wandb", "begin")[0]["config"]["method"] == "reward model"


def test_rounds_that_cannot_begin_leave_nothing(tiny_llama, calls, tmp_path, monkeypatch):
    def refuse(*arguments, **others):
        raise InputError("no answers today")

    data = write_data(tmp_path / "data.jsonl")
    policy = make_policy(data, tiny_llama, tmp_path / "policy", "ric")
    monkeypatch.setattr(rounds, "write_answers", refuse)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"no answers today$"):
        improve(policy, data, tmp_path / "out", **QUICK, report_to="wandb")
    assert sorted(tmp_path.iterdir()) == before and calls.of("wandb", "finish") == [{"code": 1}]


def test_rounds_are_one_run(tiny_llama: Path, calls, tmp_path, monkeypatch):
    data = write_data(tmp_path / "data.jsonl")
    policy = make_policy(data, tiny_llama, tmp_path / "policy", "ric")
    monkeypatch.setattr(rounds, "_decided", lambda gain: {"kept": True, "why": "told so"})
    improve(policy, data, tmp_path / "out", **QUICK, report_to="wandb")
    whole = calls.logged()
    last = max(whole)
    assert list(whole) == list(range(1, last + 1))
    assert "round-1/loss" in whole[1] and {"round-2/loss", "rounds/hypervolume_after"} <= whole[last].keys()
    calls.path.unlink()

    def again() -> None:
        improve(policy, data, tmp_path / "other", **QUICK, report_to="wandb")

    break_off(monkeypatch, again, step=last)  # in the second round
    again()
    assert len({each["id"] for each in calls.of("wandb", "begin")}) == 1 and len(calls.of("wandb", "begin")) == 2
    assert {step: numbers(each) for step, each in calls.logged().items()} == {
        step: numbers(each) for step, each in whole.items()
    }
