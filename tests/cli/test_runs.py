"""`paretune runs`, `paretune compare`, and `--report-to` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paretune.files import write_json


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two policies as far as they are read here, one with a name that could steer a terminal."""
    for name, lr in (("one", 0.001), ("two", 0.0025)):
        described = {"method": "sft", "config": {"lr": lr, "seed": 0}, "base_model": "m\x1b[2J"}
        write_json(tmp_path / "runs" / name / "policy.json", described)
        write_json(tmp_path / "runs" / name / "metrics.json", {"loss": lr * 100, "steps": 7})
    return tmp_path


def test_runs_are_a_table(invoke: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    done = invoke("runs")
    assert done.exit_code == 0, done.output
    header, *lines = done.stdout.splitlines()
    assert header.split()[:6] == ["run", "method", "state", "step", "when", "MiB"]
    cells = {line.split()[0]: line for line in lines}
    assert set(cells) == {"runs/one", "runs/two"}
    assert "  done   7/7  " in cells["runs/one"] and cells["runs/one"].endswith("loss 0.1   lr 0.001")
    assert cells["runs/two"].endswith("loss 0.25  lr 0.0025")


def test_runs_as_json(invoke: Any, folder: Path) -> None:
    found = json.loads(invoke("runs", folder, "--json").stdout)
    assert found["varying"] == ["lr"] and found["complete"] and found["problems"] == []
    assert {run["differing"]["lr"] for run in found["runs"]} == {0.001, 0.0025}
    assert {(run["state"], run["step"], run["measured"]["steps"]) for run in found["runs"]} == {("done", 7, 7)}


def test_broken_runs_are_told_on_stderr(invoke: Any, folder: Path) -> None:
    (folder / "runs" / "one" / "policy.json").write_text("{")
    done = invoke("runs", folder)
    assert done.exit_code == 0 and "broken" in done.stdout
    assert done.stderr.startswith("cannot be read: ") and "one/policy.json, line 1: is not JSON" in done.stderr


def test_no_runs(invoke: Any, refused: Any, tmp_path: Path) -> None:
    assert invoke("runs", tmp_path).stdout == f"no runs below {tmp_path}\n"
    assert "no such folder of runs" in refused("runs", tmp_path / "runs", folder=tmp_path)


def test_compare_shows_what_differs(invoke: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "runs")
    done = invoke("compare", "one", "two")
    assert done.exit_code == 0, done.output
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["one", "two", "difference"],
        ["settings:", "lr", "0.001", "0.0025", "+0.0015"],
        ["metrics:", "loss", "0.1", "0.25", "+0.15"],
        *[line.split() for line in done.stdout.splitlines()[3:]],
    ]
    assert done.stdout.splitlines()[-1].endswith("more are equal; --all shows them")
    everything = invoke("compare", "one", "two", "--all").stdout
    assert "settings: seed" in everything and "\x1b" not in everything and "--all" not in everything
    found = json.loads(invoke("compare", "one", "two", "--json").stdout)
    assert [(row["name"], row["values"]) for row in found["rows"]] == [("lr", [0.001, 0.0025]), ("loss", [0.1, 0.25])]


def test_compare_refuses(refused: Any, folder: Path) -> None:
    one = folder / "runs" / "one"
    assert "give two runs or more" in refused("compare", one, folder=folder)
    assert "no such run" in refused("compare", one, folder / "gone", folder=folder)


@pytest.mark.parametrize(
    "verb",
    [
        ["train", "sft", "--data", "d", "--model", "m", "--out", "o"],
        ["reward", "train", "--data", "d", "--model", "m", "--out", "o"],
        ["improve", "p", "--data", "d", "--out", "o"],
    ],
    ids=["train", "reward", "improve"],
)
def test_a_tracker_is_checked_before_anything(
    verb: list[str], refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paretune.tracking.trackers.find_spec", lambda name: None)
    told = refused(*verb, "--report-to", "wandb", folder=tmp_path)
    assert told == "error: field 'report_to': 'wandb' is not installed: pip install wandb"
    assert "unknown tracker 'wand'. Did you mean 'wandb'?" in refused(*verb, "--report-to", "wand", folder=tmp_path)
