"""The format of a file is told by more than a first record with holes, and no record is read as what it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paretune.data import ReadReport, Row, read_rows
from paretune.errors import InputError


def write(tmp_path: Path, *records: Any) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


def answers(rows: list[Row]) -> list[list[tuple[str, dict[str, float | None], str | None]]]:
    return [[(each.text, each.scores, each.label) for each in row.completions] for row in rows]


def test_a_missing_label_or_score_in_the_first_record_hides_no_format(tmp_path: Path) -> None:
    rows = read_rows(
        write(
            tmp_path,
            {"prompt": "a", "completion": "x", "label": None},
            {"prompt": "b", "completion": "y", "label": True},
        )
    )
    assert answers(rows) == [[("x", {}, None)], [("y", {}, "chosen")]]
    rows = read_rows(
        write(
            tmp_path,
            {"prompt": "a", "response": "x", "is_safe": None},
            {"prompt": "b", "response": "y", "is_safe": False},
        )
    )
    assert answers(rows) == [[("x", {"safe": None}, None)], [("y", {"safe": 0.0}, None)]]
    sides = {"prompt": "a", "chosen": "x", "rejected": "y"}
    rows = read_rows(write(tmp_path, sides | {"score_chosen": None, "score_rejected": 2}))
    assert answers(rows) == [[("x", {"overall": None}, "chosen"), ("y", {"overall": 2}, "rejected")]]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_an_answer_missing_in_the_first_record_is_a_bad_row_and_the_others_are_read(
    tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"rows.{ending}"
    records = [{"prompt": "a"}, {"prompt": "b", "response": "x"}, {"prompt": "c", "response": "y"}]
    if ending == "csv":
        path.write_text("prompt,response\na,\nb,x\nc,y\n")
    else:
        path.write_text("".join(json.dumps(each) + "\n" for each in records))
    with pytest.raises(InputError, match="no 'prompt-response' row"):
        read_rows(path)
    report = ReadReport()
    rows = read_rows(path, skip_bad_rows=True, report=report)
    assert report.bad == 1 and answers(rows) == [[("x", {}, None)], [("y", {}, None)]]


def test_a_cell_missing_in_the_first_line_of_a_table_hides_no_format(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prompt,response,helpfulness,correctness,coherence\na,x,,1,2\nb,y,3,1,2\n")
    first, second = read_rows(path)
    assert second.completions[0].scores == {"helpfulness": 3, "correctness": 1, "coherence": 2}
    assert first.completions[0].scores == {"correctness": 1, "coherence": 2}


@pytest.mark.parametrize(
    ("first", "later", "cause"),
    [
        ({"prompt": "a"}, {"prompt": "b", "response": "x"}, "format 'prompt-response'"),
        ({"prompt": "a", "completions": ["x"]}, {"instruction": "b", "output": "x"}, "format 'alpaca'"),
        ({"prompt": "a", "completion": "x"}, {"prompt": "b", "completion": "y", "label": False}, "'trl-unpaired'"),
        ({"prompt": "a", "completion": "x"}, {"prompt": "b", "response": "x", "is_safe": True}, "'pku-qa'"),
        ({"prompt": "a"}, {"prompt": "b", "completions": ["x", "y"], "labels": [True, False]}, "stepwise"),
    ],
)
def test_a_record_of_another_format_is_a_bad_row_wherever_it_comes(
    tmp_path: Path, first: Any, later: Any, cause: str
) -> None:
    path = write(tmp_path, *[first] * 30, later)
    with pytest.raises(InputError, match=f"line 31.*{cause}"):
        read_rows(path)
    report = ReadReport()
    assert len(read_rows(path, skip_bad_rows=True, report=report)) == 30 and report.bad == 1


def test_rows_of_our_own_and_of_trl_still_mix(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"prompt": "a"},
        {"prompt": "b", "completions": ["x"]},
        {"prompt": "c", "chosen": "x", "rejected": "y"},
        {"chosen": "\n\nHuman: d\n\nAssistant: x", "rejected": "\n\nHuman: d\n\nAssistant: y"},
        {"prompt": [{"role": "user", "content": "e"}], "completion": [{"role": "assistant", "content": "x"}]},
    )
    assert [row.text for row in read_rows(path)] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("name", ["completion", "response"])
def test_scores_beside_one_answer_are_its_own(tmp_path: Path, name: str) -> None:
    (row,) = read_rows(write(tmp_path, {"prompt": "a", name: "x", "scores": {"good": 1, "bad": None}, "by": "me"}))
    assert answers([row]) == [[("x", {"good": 1.0, "bad": None}, None)]]
    assert "scores" not in row.extra and {"by": "me"} in (row.extra, row.completions[0].extra)
    (row,) = read_rows(write(tmp_path, {"prompt": "a", "completion": "x", "scores": [1, 2]}))
    assert answers([row]) == [[("x", {}, None)]] and row.extra == {"scores": [1, 2]}
    with pytest.raises(InputError, match=r"field 'scores\.good'"):
        read_rows(write(tmp_path, {"prompt": "a", "completion": "x", "scores": {"good": "high"}}))


def test_columns_that_no_adapter_asks_for_replace_nothing(tmp_path: Path) -> None:
    (row,) = read_rows(write(tmp_path, {"instruction": "a", "input": "", "output": "x", "prompt": "Below is ... a"}))
    assert row.text == "a" and row.extra == {"source.prompt": "Below is ... a"}
    (row,) = read_rows(write(tmp_path, {"instruction": "a", "output": "x", "generator": "g", "model": "h"}))
    assert row.completions[0].extra == {"model": "g", "source.model": "h"}


def test_a_map_that_reaches_for_what_no_row_has_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, *[{"q": str(at), "a": {"text": "x", "rating": None}} for at in range(3)], {"q": "z"})
    columns = {"prompt": "q", "completion": "a.text", "scores.r": "a.ratng"}
    with pytest.raises(InputError, match=r"has nothing at 'a\.ratng' in any row"):
        read_rows(path, columns=columns, skip_bad_rows=True)
    columns["scores.r"] = "a.rating"
    rows = read_rows(path, columns=columns, skip_bad_rows=True)
    assert [row.completions[0].scores for row in rows] == [{"r": None}] * 3
