"""`paretune score`: what it prints, its options, and what is left when it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REWARD = """
import os

def sizes(prompts, completions, **columns):
    return [float(len(completions))] * len(completions)

def process(prompts, completions, **columns):
    return [float(os.getpid())] * len(completions)
"""
ROWS = [
    {
        "id": f"r{at}",
        "prompt": f"p{at}",
        "completions": [{"text": "w " * at, "scores": {"judge": 10 - at}}, {"text": "Is it?"}],
    }
    for at in range(6)
]


@pytest.fixture
def rows(write_rows_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cli_reward.py").write_text(REWARD)
    monkeypatch.chdir(tmp_path)
    return write_rows_file(*ROWS)


def found(path: str, name: str) -> list[float]:
    lines = Path(path).read_text().splitlines()
    return [item["scores"][name] for line in lines for item in json.loads(line)["completions"]]


def test_what_a_person_sees(invoke: Callable[..., Any], rows: Path) -> None:
    done = invoke(
        "score", rows, "--objective", "n=lexical:length", "--objective", "-q=lexical:question", "--out", "o.jsonl"
    )
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "o.jsonl: 12 completions of 6 rows scored"
    assert lines[1].startswith("objective spec n missing mean std") and lines[2].startswith(
        "n lexical:length 12 0 2.250"
    )
    assert lines[3].startswith("-q lexical:question 12 0")
    # judge falls as the first answer grows; it is there for one answer of each row
    at = lines.index("rank correlation judge n")
    assert lines[at + 1] == "n -1.00" and lines[at + 2].startswith("q - ")
    assert any(line.startswith("warning: n: duplicates 'judge'") for line in lines)


def test_one_objective_has_no_matrix(invoke: Callable[..., Any], write_rows_file: Callable[..., Path]) -> None:
    path = write_rows_file({"prompt": "p", "completions": ["a", "b c"]})
    done = invoke("score", path, "--objective", "n=lexical:length", "--out", path.with_name("o.jsonl"))
    assert done.exit_code == 0 and "correlation" not in done.stdout


def test_json_has_everything(invoke: Callable[..., Any], rows: Path) -> None:
    done = invoke("score", rows, "--objective", "n=lexical:length", "--out", "o.jsonl", "--json")
    data = json.loads(done.stdout)
    assert data["completions"] == 12 and data["correlations"]["judge"]["n"] == pytest.approx(-1)
    assert data["objectives"][0]["quantiles"]["0.5"] == 2.0 and data["counts"] == {}


def test_batches_and_chunks(invoke: Callable[..., Any], rows: Path) -> None:
    options = ["--objective", "s=python:cli_reward:sizes", "--overwrite", "--out", "o.jsonl"]
    assert invoke("score", rows, *options).exit_code == 0
    assert set(found("o.jsonl", "s")) == {12.0}
    assert invoke("score", rows, *options, "--batch-size", "5").exit_code == 0
    assert found("o.jsonl", "s") == [5.0] * 10 + [2.0] * 2
    assert invoke("score", rows, *options, "--chunk-size", "4").exit_code == 0
    assert set(found("o.jsonl", "s")) == {4.0}


def test_workers_are_other_processes(paretune: Callable[..., Any], rows: Path, tmp_path: Path) -> None:
    options = ["--objective", "p=python:cli_reward:process", "--out", "o.jsonl", "--chunk-size", "2", "--workers", "2"]
    done = paretune("score", rows, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 1 <= len(set(found("o.jsonl", "p"))) <= 2


def test_remote_code_is_refused_unless_allowed(
    invoke: Callable[..., Any], rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[bool] = []

    def build(objective: Any, *, allow_remote_code: bool = False) -> Any:
        allowed.append(allow_remote_code)
        return lambda prompts, completions, columns: [0.0] * len(completions)

    monkeypatch.setattr("paretune.rewards.measure.build_reward", build)
    for more in ([], ["--allow-remote-code"]):
        assert (
            invoke("score", rows, "--objective", "x=hf:org/m", "--out", "o.jsonl", "--overwrite", *more).exit_code == 0
        )
    assert allowed == [False, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--objective", "*=lexical:brevity"], "has one only"),
        (["--objective", "x=column:nothing"], "no row has a score or column 'nothing'"),
        (["--objective", "b=lexical:brevity", "--objective", "b=lexical:length"], "two objectives are called 'b'"),
        (["--objective", "b=lexical:brevity", "--ray", "127.0.0.1:1"], "Ray"),
    ],
)
def test_refusals(refused: Callable[..., str], rows: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    assert message in refused("score", rows, *arguments, "--out", tmp_path / "new" / "o.jsonl", folder=tmp_path)
    assert not (tmp_path / "new").exists()
