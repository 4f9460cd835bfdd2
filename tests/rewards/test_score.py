"""`score`: from rows to scored rows, with the objectives beside them and a summary that warns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paretune.data import Completion, Row, read_rows, store_objectives, stored_objectives
from paretune.errors import InputError
from paretune.profile import Objective
from paretune.rewards import parse_objective, score, score_rows, score_texts

PROMPT = [{"role": "user", "content": "p"}]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Two prompts with two answers each, `judge` scores and other columns."""
    path = tmp_path / "rows.jsonl"
    data = [
        {
            "id": "a",
            "prompt": "p",
            "level": 3,
            "completions": [
                {"text": "One two.", "scores": {"judge": 0.25}, "votes": 4},
                {"text": "One.", "scores": {"judge": None}, "votes": 5},
            ],
        },
        {"id": "b", "prompt": "q", "level": 7, "completions": [{"text": "Is it?", "votes": 6}, {"text": ""}]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in data))
    return path


def found(path: Path, name: str) -> list[Any]:
    return [item.scores.get(name, "absent") for row in read_rows(path) for item in row.completions]


def test_rows_get_scores_and_keep_the_rest(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "scored.jsonl.gz"
    summary = score(rows, ["brevity=lexical:brevity", "-long=lexical:length"], out)
    assert found(out, "brevity") == [-2.0, -1.0, -2.0, 0.0] and found(out, "long") == [2.0, 1.0, 2.0, 0.0]
    assert found(out, "judge") == [0.25, None, "absent", "absent"]
    assert [row.extra for row in read_rows(out)] == [{"level": 3}, {"level": 7}]
    assert stored_objectives(out) == [
        parse_objective("brevity=lexical:brevity"),
        parse_objective("-long=lexical:length"),
    ]
    assert (summary.rows, summary.completions, summary.out) == (2, 4, str(out))


def test_columns_of_score_completion_and_row(rows: Path, tmp_path: Path) -> None:
    score(rows, ["j=column:judge", "v=column:votes", "l=column:level"], tmp_path / "out.jsonl")
    assert found(tmp_path / "out.jsonl", "j") == [0.25, None, None, None]
    assert found(tmp_path / "out.jsonl", "v") == [4.0, 5.0, 6.0, None]
    assert found(tmp_path / "out.jsonl", "l") == [3.0, 3.0, 7.0, 7.0]
    with pytest.raises(InputError, match=r"column 'jugde'.*Did you mean 'judge'"):
        score(rows, ["x=column:jugde"], tmp_path / "none.jsonl")


def test_a_column_of_text_is_named_with_its_row(tmp_path: Path) -> None:
    data = [Row(PROMPT, (Completion("a", extra={"votes": "many"}),), id="first")]
    with pytest.raises(InputError, match=r"column 'votes' gave str at index 0 \(row 'first'\)"):
        score_rows(data, [parse_objective("v=column:votes")])


def test_stored_objectives_of_the_input_stay(rows: Path, tmp_path: Path) -> None:
    store_objectives(rows, [Objective("judge", "column:judge"), Objective("brevity", "column:old")])
    score(rows, ["brevity=lexical:brevity"], tmp_path / "out.jsonl")
    assert [item.spec for item in stored_objectives(tmp_path / "out.jsonl") or []] == [
        "column:judge",
        "lexical:brevity",
    ]


def test_an_existing_file_is_kept_unless_told(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    with pytest.raises(InputError, match="--overwrite"):
        score(rows, ["b=lexical:brevity"], out)
    assert out.read_text() == "mine"
    score(rows, ["b=lexical:brevity"], out, overwrite=True)
    score(out, ["c=lexical:length"], out, overwrite=True)  # in place
    assert found(out, "b") == [-2.0, -1.0, -2.0, 0.0] and found(out, "c")[0] == 2.0


@pytest.mark.parametrize(
    ("objectives", "cause"),
    [
        ([], "at least one"),
        (["b=lexical:brevity", "-b=lexical:length"], "two objectives are called 'b'"),
        (["b=lexical:brevty"], "Did you mean"),
        (["b=python:no_such_module_x:f"], "no Python module"),
        (["b=lexical:brevity", "c=column:none"], "no row has a score or column 'none'"),
    ],
)
def test_an_error_writes_nothing(rows: Path, tmp_path: Path, objectives: list[str], cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        score(rows, objectives, tmp_path / "out" / "scored.jsonl")
    assert [item.name for item in tmp_path.iterdir()] == ["rows.jsonl"]


def test_prompts_without_completions(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("a\nb\n")
    with pytest.raises(InputError, match="run `paretune sample` first"):
        score(tmp_path / "p.txt", ["b=lexical:brevity"], tmp_path / "out.jsonl")


def test_bad_rows_are_counted_when_skipped(rows: Path, tmp_path: Path) -> None:
    rows.write_text(rows.read_text() + "broken\n")
    with pytest.raises(InputError, match="line 3"):
        score(rows, ["b=lexical:brevity"], tmp_path / "out.jsonl")
    summary = score(rows, ["b=lexical:brevity"], tmp_path / "out.jsonl", skip_bad_rows=True)
    assert (summary.rows, summary.bad_rows, sum(summary.bad_reasons.values())) == (2, 1, 1)


def test_the_batch_size_changes_nothing(rows: Path) -> None:
    data, objectives = read_rows(rows), [parse_objective("b=lexical:brevity"), parse_objective("v=column:votes")]
    assert score_rows(data, objectives, batch_size=1) == score_rows(data, objectives, batch_size=3)
    with pytest.raises(InputError, match="batch size"):
        score_rows(data, objectives, batch_size=0)


def test_progress_is_told() -> None:
    class Task:
        def __init__(self) -> None:
            self.done: list[int] = []

        def __enter__(self) -> Task:
            return self

        def __exit__(self, *error: object) -> None:
            return

        def advance(self, n: int = 1) -> None:
            self.done.append(n)

        def update(self, text: str) -> None:
            return

    task, started = Task(), []

    def progress(description: str, total: int | None = None) -> Task:
        started.append((description, total))
        return task

    data = [Row(PROMPT, tuple(Completion(str(at)) for at in range(5)))]
    score_rows(data, [parse_objective("b=lexical:brevity")], batch_size=2, progress=progress)
    assert started == [("score b", 5)] and task.done == [2, 2, 1]


def test_new_texts() -> None:
    objectives = [parse_objective("b=lexical:brevity"), Objective("judge"), parse_objective("q=lexical:question")]
    got = score_texts([PROMPT, PROMPT], ["One two.", "Why?"], objectives)
    assert got == [{"b": -2.0, "judge": None, "q": 0.0}, {"b": -1.0, "judge": None, "q": 1.0}]
    assert score_texts([], [], objectives) == []


def test_length_itself_is_not_blamed_for_measuring_length(rows: Path, tmp_path: Path) -> None:
    assert score(rows, ["b=lexical:brevity"], tmp_path / "out.jsonl").warnings == []
