"""The way of the data through real processes: sample, score, train, sense, generate, evaluate on tiny models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paretune.data import prompt_key

FAST = ["epochs=1", "batch_size=8", "lora_r=4", "max_length=256", "test=0.25"]


@pytest.fixture(scope="module")
def policy(paretune: Callable[..., Any], scored_rows: Path, tiny_qwen: Path, tmp_path_factory: Any) -> Path:
    """A policy trained by the command line, from scored rows."""
    folder = tmp_path_factory.mktemp("whole") / "policy"
    settings = [word for setting in FAST for word in ("--set", setting)]
    done = paretune("train", "sga", "--data", scored_rows, "--model", tiny_qwen, "--out", folder, *settings, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["method"] == "sga" and result["folder"] == str(folder) and result["steps"] > 0
    assert done.stderr == "", "a pipe gets no bar, and libraries have nothing to say"
    return folder


def test_the_policy_folder_is_whole_and_holds_no_pickle(policy: Path) -> None:
    names = {str(path.relative_to(policy)) for path in policy.rglob("*")}
    assert {"policy.json", "head.safetensors", "metrics.json", "README.md", "train.jsonl", "adapter"} <= names
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pth", ".pkl"))]
    assert [path.name for path in policy.parent.iterdir()] == ["policy"], "no working files beside it"


def test_sense_and_generate(paretune: Callable[..., Any], policy: Path, tmp_path: Path) -> None:
    done = paretune("sense", policy, "--prompt", "What is tea?", "--pin", "cheer=0.25", "--json")
    assert done.returncode == 0, done.stderr
    [record] = json.loads(done.stdout)["profiles"]
    assert set(record["profile"]) == {"brevity", "cheer"} and record["profile"]["cheer"] == 0.25
    (tmp_path / "prompts.txt").write_text("What is tea?\nWhat is rain?\n")
    asked = ["generate", policy, "--prompts", tmp_path / "prompts.txt", "--max-new-tokens", 6]
    done = paretune(*asked, "--out", tmp_path / "answers.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    first = (tmp_path / "answers.jsonl").read_text()
    records = [json.loads(line) for line in first.splitlines()]
    assert [record["id"] for record in records] == ["row-1", "row-2"]
    assert all(record["tokens"] <= 6 and record["sensed"] for record in records)
    done = paretune(*asked, "--out", tmp_path / "answers.jsonl", "--overwrite", "--json")
    assert json.loads(done.stdout)["rows"] == 2
    assert (tmp_path / "answers.jsonl").read_text() == first, "the same seed gives the same bytes"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pin", "chear=1"], "Did you mean 'cheer'"),
        (["--pin", "cheer=1.5"], "must lie in [0, 1]"),
        (["--pin", "cheer"], "name=value"),
        (["--condition", "means"], "Did you mean 'mean'"),
        (["--top-p", "0"], "top"),
        (["--max-new-tokens", "100000"], "context"),
    ],
)
def test_wrong_wishes_of_a_real_policy(
    refused: Any, policy: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    told = refused("generate", policy, "--prompt", "Hi", *options, "--out", tmp_path / "o.jsonl", folder=tmp_path)
    assert message in told


def test_evaluate(paretune: Callable[..., Any], scored_rows: Path, policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    limits = ["--max-new-tokens", 6, "--bootstrap", 50, "--control-prompts", 2]
    asked = ["evaluate", policy, "--data", scored_rows, "--out", out, "--objective", "brevity=lexical:brevity", *limits]
    done = paretune(*asked)
    assert (done.returncode, done.stderr) == (0, "")
    for condition in ("oracle", "sensed", "shuffled", "mean", "ones", "none"):
        assert condition in done.stdout
    assert str(out / "report.html") in done.stdout
    assert {"metrics.json", "report.html", "front.png"} <= {path.name for path in out.iterdir()}
    assert paretune(*asked).returncode == 2, "never replaced unasked"


def test_evaluate_on_prompts_of_training(
    refused: Any, invoke: Any, scored_rows: Path, policy: Path, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in scored_rows.read_text().splitlines()]
    trained = set(json.loads((policy / "policy.json").read_text())["train_prompts"])
    known = [row for row in rows if prompt_key([{"role": "user", "content": row["prompt"]}]) in trained]
    near = next(row for row in known[1:] if len(row["prompt"]) > 30)
    fresh = [near | {"id": f"new-{at}", "prompt": f"{at} of a kind, who is {at * 7919}?"} for at in range(3)]
    other = tmp_path / "other.jsonl"
    asked_again = [known[0], near | {"prompt": near["prompt"] + "!"}]
    other.write_text("".join(json.dumps(row) + "\n" for row in [*asked_again, *fresh]))
    limits = ["--max-new-tokens", 2, "--bootstrap", 10, "--control-prompts", 0, "--condition", "sensed"]
    asked = ["evaluate", policy, "--data", other, *limits, "--objective", "brevity=lexical:brevity"]
    told = refused(*asked, "--out", tmp_path / "report", folder=tmp_path)
    assert f"2 rows (1 of them on nearly the same): '{known[0]['id']}', '{near['id']}'. " in told
    done = invoke(*asked, "--out", tmp_path / "report", "--allow-overlap", "--json")
    assert done.exit_code == 0, done.output
    test = json.loads(done.stdout)["policies"]["policy"]["test"]
    assert (test["prompts"], test["dropped_trained_on"], test["dropped_near_trained_on"]) == (3, 1, 1)


def test_sample_then_score(paretune: Callable[..., Any], tiny_llama: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("What is tea?\nWhat is rain?\n")
    asked = ["sample", tmp_path / "prompts.txt", "--model", tiny_llama, "-n", 2, "--max-new-tokens", 4]
    done = paretune(*asked, "--out", tmp_path / "rows.jsonl", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["completions"] == 4
    scored = [
        "score",
        tmp_path / "rows.jsonl",
        "--objective",
        "size=lexical:length",
        "--out",
        tmp_path / "scored.jsonl",
    ]
    done = paretune(*scored)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in (tmp_path / "scored.jsonl").read_text().splitlines()]
    assert all("size" in each["scores"] for row in rows for each in row["completions"])
