"""Listing runs: every state, what differs, and folders that are broken, deep, linked or unreadable."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paretune.errors import InputError
from paretune.files import write_json
from paretune.reward_model import train_reward_model
from paretune.tracking import find_runs, runs
from paretune.tracking.runs import key_metrics, size
from tracking_runs import break_off, report


@pytest.fixture(scope="module")
def made(quick, scored_rows, tiny_llama, tmp_path_factory) -> Path:
    """Two policies, a reward model, and a training that was broken off after its second step."""
    root = tmp_path_factory.mktemp("runs")
    quick(root / "a")
    quick(root / "deep" / "b", "lr=0.001", "seed=3", method="dpo")
    settings = ["dtype=float32", "epochs=1", "batch_size=5", "bootstrap=10"]
    train_reward_model(scored_rows, str(tiny_llama), root / "r", settings=settings)
    with pytest.MonkeyPatch.context() as patch:
        break_off(patch, lambda: quick(root / "c", "lr=0.002"), step=3)
    return root


@pytest.fixture
def copied(made, tmp_path) -> Path:
    """A copy of them to change."""
    return Path(shutil.copytree(made, tmp_path / "runs"))


def by_name(root: Path) -> dict[str, Any]:
    return {str(run.folder.relative_to(root)): run for run in find_runs(root).runs}


def test_every_run_is_listed_with_its_state(made):
    found = by_name(made)
    assert {name: (run.kind, run.method, run.state) for name, run in found.items()} == {
        "a": ("policy", "sft", "done"),
        "deep/b": ("policy", "dpo", "done"),
        "r": ("reward model", "reward model", "done"),
        "c": ("policy", "sft", "interrupted"),
    }
    metrics = json.loads((made / "a" / "metrics.json").read_text())
    assert found["a"].step == found["a"].steps == metrics["steps"] and found["a"].told["metrics"]["rows"] == 24
    assert (found["c"].step, found["c"].steps) == (2, metrics["steps"])
    assert found["a"].bytes == sum(each.stat().st_size for each in (made / "a").rglob("*") if each.is_file())
    assert found["c"].bytes == size(made / ".c.checkpoints") > 0


def test_settings_that_differ_are_told(made):
    found = find_runs(made)
    told = {run.folder.name: found.differing(run) for run in found.runs}
    assert {"lr", "seed"} <= set(found.varying) and "batch_size" not in found.varying
    assert told["b"]["lr"] == 0.001 and told["b"]["seed"] == 3 and told["c"]["lr"] == 0.002
    assert told["a"]["seed"] == 0 and found.runs == sorted(found.runs, key=lambda run: -run.when)


def test_the_figures_of_a_line(made):
    found = by_name(made)
    measured = json.loads((made / "a" / "metrics.json").read_text())
    assert key_metrics(found["a"])["loss"] == measured["loss"]
    validation = json.loads((made / "r" / "metrics.json").read_text())["validation"]
    assert key_metrics(found["r"]) == {
        f"{name}.spearman": validation[name]["spearman"]["value"] for name in ("brevity", "cheer")
    }


def test_an_evaluation_is_told_of_its_policy(copied, monkeypatch):
    report(copied / "report-1", str(copied / "a"), 0.3)
    os.utime(copied / "report-1" / "metrics.json", (1, 1))  # the older one
    monkeypatch.chdir(copied.parent)
    report(copied / "deep" / "a-report", "runs/a", 0.2)
    report(copied / "other", "runs/gone", 0.1)
    found = by_name(copied)
    assert {name: run.state for name, run in found.items()} == {
        "a": "evaluated", "deep/b": "done", "r": "done", "c": "interrupted",
    }  # fmt: skip
    assert [each["distance"] for each in found["a"].evaluations] == [0.3, 0.2]
    assert key_metrics(found["a"]) == {"multi_win": 0.6, "hypervolume": 0.25, "distance": 0.2}
    monkeypatch.chdir("/")  # the command was given in a folder above the report
    assert len(by_name(copied)["a"].evaluations) == 2


def test_a_training_that_runs(copied):
    (copied / ".c.lock").write_text(f"{os.getpid()}\n")
    log = copied / f".c.{os.getpid()}.train.jsonl"
    log.write_text('{"step": 3, "loss": 1.0}\n{"step": 4, "loss": 1.0}\n{"step": 5, "lo')
    run = by_name(copied)["c"]
    assert (run.state, run.step) == ("training", 4) and run.steps is not None and run.steps >= 4
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    (copied / ".c.lock").write_text(f"{ended.pid}\n")
    run = by_name(copied)["c"]
    assert (run.state, run.step) == ("interrupted", 2)


def test_a_training_that_has_just_begun(tmp_path):
    (tmp_path / ".new.lock").write_text(f"{os.getpid()}\n")
    (run,) = find_runs(tmp_path).runs
    assert (run.folder.name, run.state, run.step, run.method) == ("new", "training", None, None)


def test_rounds_that_were_broken_off(tmp_path):
    work = tmp_path / ".better.improve"
    options = {"rounds": 3, "n": 4}
    write_json(work / "improve.json", {"format": 1, "rows": "abc", "options": options, "versions": {}})
    for number in (1, 2):
        write_json(work / f"round-{number}" / "round.json", {"round": number})
    (run,) = find_runs(tmp_path).runs
    assert (run.kind, run.method, run.state, run.step, run.steps) == ("improve", "improve", "interrupted", 2, 3)
    assert run.told["settings"] == options


def test_what_is_broken_is_told(copied):
    (copied / "a" / "policy.json").write_text("{")
    (copied / "r" / "metrics.json").unlink()
    (copied / ".c.checkpoints" / "training.json").write_text("[]")
    (copied / "bad").mkdir()
    (copied / "bad" / "report.html").touch()
    (copied / "bad" / "metrics.json").write_bytes(b"\xff")
    found = find_runs(copied)
    states = {run.folder.name: run.state for run in found.runs}
    assert states == {"a": "broken", "b": "done", "r": "broken", "c": "broken"}
    told = "\n".join(found.problems)
    assert len(found.problems) == 4
    for words in (
        "a/policy.json, line 1: is not JSON",
        "r/metrics.json: no such file",
        "bad/metrics.json: is not UTF-8",
    ):
        assert words in told
    assert "training.json: must be a JSON object" in told


@pytest.mark.parametrize(
    "value", [[], "text", 3, None, {"config": [1], "data": 5, "objectives": {"x": 1}, "method": 7}]
)
def test_files_of_another_shape_break_nothing(copied, value):
    for file in ("policy.json", "metrics.json"):
        write_json(copied / "a" / file, value)
    report(copied / "rep", str(copied / "deep" / "b"), 0.1)
    write_json(copied / "rep" / "metrics.json", {"policies": {"p": {"folder": str(copied / "deep" / "b")}, "q": value}})
    for checkpoint in (copied / ".c.checkpoints").glob("step-*"):
        write_json(checkpoint / "state.json", value)
    found = find_runs(copied)
    assert len(found.runs) == 4
    json.dumps(found.to_dict())


def test_links_are_not_followed_and_depth_is_bounded(made, tmp_path, monkeypatch):
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "there").symlink_to(made)
    assert find_runs(tmp_path).runs == [] and find_runs(tmp_path).complete
    shutil.copytree(made / "a", tmp_path / "1" / "2" / "a")
    assert len(find_runs(tmp_path).runs) == 1
    for bound, least in (("MOST_FOLDERS", 3), ("DEEPEST", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(runs, bound, least)
            found = find_runs(tmp_path)
        assert found.runs == [] and not found.complete


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"no such folder of runs; name one: paretune runs FOLDER"):
        find_runs(tmp_path / "runs")
    assert find_runs(tmp_path).runs == []


def test_a_run_itself_can_be_named(made):
    assert [run.folder for run in find_runs(made / "a").runs] == [made / "a"]


def test_listing_needs_no_torch(made):
    code = (
        "import sys\nfrom paretune.tracking import find_runs\n"
        f"assert len(find_runs({str(made)!r}).runs) == 4\nassert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
