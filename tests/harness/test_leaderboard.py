"""Files that AlpacaEval 2 and Arena-Hard read: their fields, by hand, and their readers' steps."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from paretune.data import read_rows
from paretune.data.rows import Row
from paretune.errors import InputError
from paretune.harness import check_leaderboard, write_leaderboard
from paretune.harness.leaderboard import markdown_counts
from paretune.policy import Generation

QUESTIONS = [
    {"uid": "a1", "category": "hard_prompt", "subcategory": "coding", "prompt": "Sort a list.\n"},
    {"uid": "b2", "category": "creative_writing", "subcategory": "poem", "prompt": "Write of tea."},
]
EVAL_SET = [
    {"dataset": "koala", "instruction": " What is tea? ", "output": "A drink.", "generator": "text_davinci_003"},
    {"dataset": "vicuna", "instruction": "Sing.", "output": "La.", "generator": "text_davinci_003"},
]


def answer(text: str, tokens: int = 5) -> Generation:
    """A finished answer."""
    return Generation(text, None, None, tokens, True)


def test_alpaca_eval(tmp_path: Path) -> None:
    prompts, out = tmp_path / "alpaca_eval.json", tmp_path / "outputs.json"
    prompts.write_text(json.dumps(EVAL_SET))
    rows = read_rows(prompts)
    check_leaderboard("alpaca-eval", rows, out, "polite")
    write_leaderboard("alpaca-eval", out, rows, [answer("Tea."), answer("")], "polite")
    assert json.loads(out.read_text()) == [
        {"dataset": "koala", "instruction": " What is tea? ", "output": "Tea.", "generator": "polite"},
        {"dataset": "vicuna", "instruction": "Sing.", "output": "", "generator": "polite"},
    ]
    merged = pd.read_json(out).merge(pd.read_json(prompts), on="instruction")  # how the two are put together there
    assert len(merged) == 2 and set(merged["generator_x"]) == {"polite"}


def test_arena_hard(tmp_path: Path) -> None:
    prompts, out = tmp_path / "question.jsonl", tmp_path / "polite.jsonl"
    prompts.write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS))
    rows = read_rows(prompts)
    check_leaderboard("arena-hard", rows, out, "polite")
    write_leaderboard("arena-hard", out, rows, [answer("# Sorting\n1. **Do** it.", 7), answer("Tea!", 2)], "polite")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    first = lines[0]
    assert list(first) == ["uid", "ans_id", "model", "messages", "tstamp", "metadata"]
    assert [each["uid"] for each in lines] == ["a1", "b2"] and {each["model"] for each in lines} == {"polite"}
    assert first["messages"] == [
        {"role": "user", "content": "Sort a list.\n"},
        {"role": "assistant", "content": {"answer": "# Sorting\n1. **Do** it."}},
    ]
    assert len({each["ans_id"] for each in lines}) == 2 and first["tstamp"] > 1.7e9
    # style control takes them in this order: length first, then three counts
    assert list(first["metadata"]) == ["token_len", "header_count", "list_count", "bold_count"]
    style = [each if isinstance(each, int) else sum(each.values()) for each in first["metadata"].values()]
    assert style == [7, 1, 1, 1]


def test_markdown_outside_of_code_is_counted() -> None:
    text = (
        "# One\n## Two\n* item\n- item\n2. item\n**bold** and __bold__ and ** not **bold**\n```\n# code\n* code\n```\n"
    )
    found = markdown_counts(text)
    assert found["header_count"] == {"h1": 1, "h2": 1, "h3": 0, "h4": 0, "h5": 0, "h6": 0}
    assert found["list_count"] == {"ordered": 1, "unordered": 2}
    assert found["bold_count"] == {"**": 2, "__": 1}


def row(prompt: str = "Hi", uid: object = "a", **more: object) -> Row:
    """A question."""
    return Row([{"role": "user", "content": prompt}], id="r", extra={"uid": uid, **more})


def test_what_a_leaderboard_could_not_read(tmp_path: Path) -> None:
    turns = Row([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], id="r")
    for format, rows, out, text in [
        ("alpaca", [row()], "a.json", "Did you mean 'alpaca-eval'"),
        ("alpaca-eval", [row()], None, "--out"),
        ("alpaca-eval", [row()], "a.jsonl", "ends in .json"),
        ("arena-hard", [row()], "a.json", "ends in .jsonl"),
        ("alpaca-eval", [turns], "a.json", "row 'r'.*2 messages"),
        ("arena-hard", [row()], "other.jsonl", "call it polite.jsonl"),
        ("arena-hard", [row(uid=None)], "polite.jsonl", "no uid"),
        ("arena-hard", [row(), row()], "polite.jsonl", "there twice"),
    ]:
        with pytest.raises(InputError, match=text):
            check_leaderboard(format, rows, None if out is None else tmp_path / out, "polite")
    with pytest.raises(InputError, match="name of the generator is empty"):
        check_leaderboard("alpaca-eval", [row()], tmp_path / "a.json", " ")
    check_leaderboard("jsonl", [turns], None, "polite")
