"""`paretune benchmark` and the leaderboard formats of `paretune generate`, as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paretune.methods import train

TASK = """
task: tiny_choice
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory, scored_rows: Path, tiny_llama: Path) -> Path:
    """A policy of an epoch's training."""
    out = tmp_path_factory.mktemp("harness") / "polite"
    quick = ["dtype=float32", "epochs=1", "batch_size=10", "lora_r=4", "head.width=16", "head.depth=1", "head_epochs=3"]
    train("sga", scored_rows, str(tiny_llama), out, settings=quick)
    return out


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder with one task of four documents."""
    data, folder = tmp_path / "docs.json", tmp_path / "tasks"
    folder.mkdir()
    docs = [{"question": f"What is {word}?", "choices": ["tea", "rain"], "answer": 1} for word in ("a", "b", "c", "d")]
    data.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    (folder / "task.yaml").write_text(TASK.format(data=data))
    return folder


def test_benchmark(paretune: Callable[..., Any], policy: Path, tasks: Path, tmp_path: Path) -> None:
    out = tmp_path / "cost.json"
    common = ("benchmark", policy, "--tasks", "tiny_choice", "--include-path", tasks, "--chat", "--limit", 3)
    done = paretune(*common, "--out", out, "--json")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads(out.read_text())
    assert report["requests"]["policy"]["conditioned"] == 6 and report["results"][0]["n"] == 3


def test_benchmark_for_people(invoke: Callable[..., Any], policy: Path, tasks: Path) -> None:
    common = ("benchmark", policy, "--tasks", "tiny_choice", "--include-path", tasks)
    done = invoke(*common)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split() == [
        "task",
        "measure",
        "documents",
        "policy",
        "stderr",
        "base",
        "stderr",
        "difference",
        "from",
        "to",
    ]
    assert lines[1].split()[:3] == ["tiny_choice", "acc", "4"]
    assert lines[2].startswith("acc of tiny_choice: ") and len(lines) == 4
    alone = invoke(*common, "--base-only").stdout.splitlines()
    assert alone[0].split() == ["task", "measure", "documents", "base", "stderr"] and len(alone) == 2


def test_benchmark_refuses(refused: Callable[..., str], policy: Path, tasks: Path, tmp_path: Path) -> None:
    common = ("benchmark", policy, "--include-path", tasks)
    assert "no task is named" in refused(*common, "--tasks", "", folder=tmp_path)
    assert "--limit" in refused(*common, "--tasks", "tiny_choice", "--limit", 0, folder=tmp_path, usage=True)
    assert "pass --chat" in refused(*common, "--tasks", "tiny_choice", "--condition", "ones", folder=tmp_path)
    assert "unknown condition" in refused(*common, "--tasks", "tiny_choice", "--condition", "x", folder=tmp_path)
    assert "no such policy folder" in refused("benchmark", tmp_path / "no", "--tasks", "a", folder=tmp_path)


def test_answers_for_alpaca_eval(invoke: Callable[..., Any], policy: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "alpaca_eval.json", tmp_path / "outputs.json"
    record = {"dataset": "koala", "instruction": "What is tea?", "output": "A drink.", "generator": "davinci"}
    prompts.write_text(json.dumps([record]))
    asked = ("generate", policy, "--prompts", prompts, "--max-new-tokens", 4, "--out", out, "--format", "alpaca-eval")
    assert invoke(*asked).exit_code == 0
    (found,) = json.loads(out.read_text())
    assert found | {"output": ""} == record | {"output": "", "generator": "polite"}
    assert invoke(*asked).exit_code == 2
    assert invoke(*asked, "--overwrite", "--name", "other").exit_code == 0
    assert json.loads(out.read_text())[0] == found | {"generator": "other"}


def test_answers_for_arena_hard(invoke: Callable[..., Any], policy: Path, tmp_path: Path) -> None:
    prompts, out = tmp_path / "question.jsonl", tmp_path / "model_answer" / "polite.jsonl"
    prompts.write_text(json.dumps({"uid": "a1", "category": "hard_prompt", "prompt": "Sort a list."}) + "\n")
    asked = ("generate", policy, "--prompts", prompts, "--max-new-tokens", 4, "--format", "arena-hard")
    assert invoke(*asked, "--out", out).exit_code == 0
    (line,) = out.read_text().splitlines()
    assert json.loads(line)["uid"] == "a1" and isinstance(json.loads(line)["messages"][-1]["content"]["answer"], str)


def test_answers_are_refused_before_they_are_made(refused: Callable[..., str], policy: Path, tmp_path: Path) -> None:
    asked = ("generate", policy, "--prompt", "Hi")
    out = tmp_path / "a.json"
    assert "Did you mean" in refused(*asked, "--format", "alpaca", "--out", out, folder=tmp_path)
    assert "--out" in refused(*asked, "--format", "alpaca-eval", folder=tmp_path)
    assert "no uid" in refused(*asked, "--format", "arena-hard", "--out", tmp_path / "polite.jsonl", folder=tmp_path)
    assert "--name" in refused(*asked, "--name", "x", folder=tmp_path)
