"""`paretune reward train` and `score` by `trained:FOLDER`, as a user runs them; what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiny_rewards import QUICK, rows_of

SETTINGS = [word for setting in QUICK for word in ("--set", setting)]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows_of()))
    return path


@pytest.fixture(scope="module")
def folder(paretune: Callable[..., Any], rows: Path, tiny_llama: Path, tmp_path_factory: Any) -> Path:
    """A reward model made by the command line."""
    out = tmp_path_factory.mktemp("reward") / "reward"
    done = paretune("reward", "train", "--data", rows, "--model", tiny_llama, "--out", out, *SETTINGS, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["objectives"] == ["kind", "polite"] and result["steps"] > 0 and result["folder"] == str(out)
    assert set(result["validation"]["polite"]["accuracy"]) >= {"value", "low", "high", "n"}
    assert done.stderr == "", "a pipe gets no bar, and libraries have nothing to say"
    assert [path.name for path in out.parent.iterdir()] == ["reward"], "no working files beside it"
    return out


def test_the_table_says_what_was_held_out(
    invoke: Callable[..., Any], rows: Path, tiny_qwen: Path, tmp_path: Path
) -> None:
    asked = ["reward", "train", "--data", rows, "--model", tiny_qwen, "--out", tmp_path / "rm", *SETTINGS]
    done = invoke(*asked, "--objectives", "-polite", "--from", "pairs", "--seed", 3)
    assert done.exit_code == 0, done.output
    for words in ("trained on", "held out", "accuracy of the rule: longer wins", "expected calibration error"):
        assert words in done.stdout
    assert f"--objective polite=trained:{tmp_path / 'rm'} " in done.stdout
    described = json.loads((tmp_path / "rm" / "reward.json").read_text())
    assert described["objectives"][0]["direction"] == "minimise"
    assert (described["config"]["source"], described["config"]["seed"]) == ("pairs", 3)
    again = invoke(*asked)
    assert again.exit_code == 2 and "--overwrite" in again.stderr


def test_score_by_it(
    paretune: Callable[..., Any], invoke: Callable[..., Any], rows: Path, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "scored.jsonl"
    done = paretune("score", rows, "--objective", f"rm.*=trained:{folder}#*", "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    scored = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(set(each["scores"]) == {"kind", "rm_kind", "rm_polite"} for row in scored for each in row["completions"])
    done = invoke("score", rows, "--objective", f"k=trained:{folder}#kind", "--out", tmp_path / "one.jsonl")
    assert done.exit_code == 0, done.output
    again = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()]
    pairs = [
        (one["scores"]["k"], other["scores"]["rm_kind"])
        for row, match in zip(again, scored, strict=True)
        for one, other in zip(row["completions"], match["completions"], strict=True)
    ]
    assert all(one == pytest.approx(other, abs=1e-5) for one, other in pairs) and len(set(pairs)) > 20


def preference(*pairs: list[int]) -> dict[str, Any]:
    texts = [{"text": "Yes."}, {"text": "No."}]
    return {"prompt": "Hi", "completions": texts, "preferences": {"good": list(pairs)}}


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (
            [{"prompt": f"Is it {i}?", "completions": ["Yes."]} for i in range(4)],
            [],
            "no row has scores or prefer",
        ),
        ([preference([0, 0])], [], "preferences.good[0]"),
        ([preference([0, 2])], [], "two different completions"),
        ([preference([0, 1])], [], "too few to split"),
        ([preference([0, 1])], ["--objectives", "god"], "too few to split"),
    ],
)
def test_bad_rows(
    refused: Any, write_rows_file: Any, tiny_qwen: Path, tmp_path: Path, rows: Any, options: Any, message: str
) -> None:
    data = write_rows_file(*rows)
    asked = ["reward", "train", "--data", data, "--model", tiny_qwen, "--out", tmp_path / "rm", *SETTINGS, *options]
    told = refused(*asked, folder=tmp_path)
    assert message in told and "rows.jsonl" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--objectives", "kid"], "Did you mean 'kind'"),
        (["--objectives", "polite", "--from", "ratings"], "no row says anything about objective 'polite'"),
        (["--objectives", "kind,-kind"], "two objectives are called 'kind'"),
        (["--from", "votes"], "'votes' is not allowed"),
        (["--set", "margen=ratings"], "Did you mean 'margin'"),
        (["--set", "max_length=4"], "nothing is left to learn objective 'kind' from"),
        (["--model", "./no/model"], "model"),
    ],
)
def test_wrong_wishes(
    refused: Any, rows: Path, tiny_qwen: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    asked = ["reward", "train", "--data", rows, "--model", tiny_qwen, "--out", tmp_path / "rm", *SETTINGS, *options]
    assert message in refused(*asked, folder=tmp_path)


def test_equal_ratings(refused: Any, write_rows_file: Any, tiny_qwen: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"Is it {i}?", "completions": [{"text": "Yes.", "scores": {"kind": 2.0}}]} for i in range(9)]
    asked = ["reward", "train", "--data", write_rows_file(*rows), "--model", tiny_qwen, "--out", tmp_path / "rm"]
    assert "ratings of objective 'kind' equal 2" in refused(*asked, *SETTINGS, folder=tmp_path)


def test_a_folder_that_is_no_reward_model(refused: Any, rows: Path, tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    told = refused(
        "score", rows, "--objective", f"x=trained:{tmp_path / 'some'}", "--out", tmp_path / "o.jsonl", folder=tmp_path
    )
    assert "is no reward model" in told
