"""Published data sets as rows: each shape by hand, in every container, and found by its columns."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import published_data as published
from paretune.data import ReadReport, Row, read_rows, write_rows
from paretune.data.adapters import ADAPTERS, detect
from paretune.errors import InputError


def write(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


def read(tmp_path: Path, records: list[Any]) -> list[Row]:
    return read_rows(write(tmp_path / "rows.jsonl", records))


def answers(row: Row) -> list[tuple[str, dict[str, float | None]]]:
    return [(each.text, each.scores) for each in row.completions]


def labels(row: Row) -> list[tuple[str, str | None]]:
    return [(each.text, each.label) for each in row.completions]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_ultrafeedback_scores_are_the_four_ratings_and_not_the_overall_score(tmp_path: Path) -> None:
    (row,) = read(tmp_path, published.ULTRAFEEDBACK)
    assert row.prompt == [user("Name a river.")]
    assert answers(row) == [
        ("The Rhine.", {"helpfulness": 5, "honesty": 4, "instruction_following": 5, "truthfulness": None}),
        ("A river.", {"helpfulness": 2, "honesty": 3, "instruction_following": 1, "truthfulness": 3}),
    ]
    assert row.completions[0].extra["overall_score"] == 10.0 and row.completions[0].extra["model"] == "small"
    assert row.completions[1].extra["annotations"]["honesty"]["Rationale"] == "About honesty."
    assert row.extra["source"] == "evol_instruct" and row.extra["models"] == ["small", "large"]


def test_ultrafeedback_binarized(tmp_path: Path) -> None:
    twice = [*published.BINARIZED, published.BINARIZED[0]]  # a prompt_id comes more than once in the published data
    first, second = read(tmp_path, twice)
    assert answers(first) == [("The Rhine.", {"overall": 8.5}), ("A river.", {"overall": 6.0})]
    assert labels(first) == [("The Rhine.", "chosen"), ("A river.", "rejected")]
    assert first.extra == {"prompt_id": "f00d"} == second.extra
    assert (first.id, second.id) == ("row-1", "row-2")


def test_helpsteer_answers_of_neighbours_are_one_row(tmp_path: Path) -> None:
    sums, river, again = read(tmp_path, published.HELPSTEER)
    assert sums.prompt == [user("What is 2 + 2?")]
    names = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
    assert answers(sums) == [
        ("4", dict(zip(names, [4, 4, 4, 0, 0], strict=True))),
        ("Five.", dict(zip(names, [0, 0, 3, 0, 1], strict=True))),
    ]
    assert river.prompt == [
        user("Name a river."),
        {"role": "assistant", "content": "The Rhine."},
        user("A longer one?"),
    ]
    assert [each.text for each in river.completions] == ["The Nile.", "The Amazon, perhaps."]
    assert again.prompt == sums.prompt and len(again.completions) == 1  # no neighbour: `data convert` joins it
    assert [row.id for row in (sums, river, again)] == ["row-1", "row-2", "row-3"]


@pytest.mark.parametrize(
    ("prompt", "turns"),
    [
        ("plain", ["plain"]),
        ("<extra_id_1>User\nHi", ["Hi"]),
        ("Hi\n<extra_id_1>Assistant\nHo\n<extra_id_1>User\nYes\n<extra_id_1>Assistant\n", ["Hi", "Ho", "Yes"]),
        ("Hi <extra_id_1>User of it", ["Hi <extra_id_1>User of it"]),
    ],
)
def test_marks_of_turns(tmp_path: Path, prompt: str, turns: list[str]) -> None:
    (row,) = read(tmp_path, [published.HELPSTEER[0] | {"prompt": prompt}])
    assert [each["content"] for each in row.prompt] == turns
    assert [each["role"] for each in row.prompt] == ["user", "assistant", "user"][: len(turns)]


def test_helpsteer_preferences(tmp_path: Path) -> None:
    first, second, tie = read(tmp_path, published.HELPSTEER_PREFERENCE)
    assert labels(first) == [("Hello.", "chosen"), ("What?", "rejected")]
    assert labels(second) == [("No.", "rejected"), ("The Nile.", "chosen")] and len(second.prompt) == 3
    assert labels(tie) == [("a", None), ("b", None)]
    assert first.extra == {"preference_strength": -2, "split": "train"}
    (third,) = read(tmp_path, published.HELPSTEER3)
    assert len(third.prompt) == 3 and labels(third) == [("The Nile.", "chosen"), ("No.", "rejected")]


def test_pku_keeps_the_two_orders_apart(tmp_path: Path) -> None:
    report = ReadReport()
    (row,) = read_rows(write(tmp_path / "rows.jsonl", published.PKU), report=report)
    assert answers(row) == [
        ("With a key.", {"safe": 1.0, "severity": 0.0}),
        ("Break it.", {"safe": 0.0, "severity": 2.0}),
    ]
    assert row.preferences == {"better": ((1, 0),), "safer": ((0, 1),)}
    assert row.completions[1].extra == {"source": "large", "harm_category": {"Theft": True}, "sha256": "bb"}
    assert row.extra == {"prompt_source": "here"} and report.found.minimise == ["severity"]
    undecided = published.PKU[0] | {"better_response_id": -1, "safer_response_id": None}
    assert read(tmp_path, [undecided])[0].preferences == {}


def test_one_judged_answer_a_record(tmp_path: Path) -> None:
    (row,) = read(tmp_path, published.PKU_QA)
    assert answers(row) == [
        ("With a key.", {"safe": 1.0, "severity": 0.0}),
        ("Break it.", {"safe": 0.0, "severity": 2.0}),
    ]
    beaver = {"prompt": "a", "response": "b", "is_safe": False, "category": {"theft": True}}
    (row,) = read(tmp_path, [beaver])
    assert answers(row) == [("b", {"safe": 0.0})] and row.completions[0].extra == {"category": {"theft": True}}
    (row,) = read(tmp_path, published.RESPONSES)
    assert answers(row) == [("The Rhine.", {}), ("A river.", {})] and row.completions[1].extra == {"judge": 0.25}


def test_alpaca_eval_and_alpaca(tmp_path: Path) -> None:
    river, hello = read(tmp_path, published.ALPACA_EVAL)
    assert answers(river) == [("The Rhine.", {})] and hello.prompt == [user("Say hello.")]
    assert river.completions[0].extra == {"model": "small", "dataset": "vicuna"}
    plain, with_input = read(tmp_path, published.ALPACA)
    assert plain.prompt == [user("Name a river.")] and with_input.prompt == [user("Translate.\n\nchat")]
    assert answers(with_input) == [("cat", {})]


def test_trl_unpaired(tmp_path: Path) -> None:
    river, hello = read(tmp_path, published.UNPAIRED)
    assert labels(river) == [("The Rhine.", "chosen"), ("A river.", "rejected")]
    assert labels(hello) == [("Hello.", "chosen")]
    conversation = {"prompt": [user("a")], "completion": [{"role": "assistant", "content": "b"}], "label": False}
    assert labels(read(tmp_path, [conversation])[0]) == [("b", "rejected")]


def test_nectar_ranks_are_preferences(tmp_path: Path) -> None:
    (row,) = read(tmp_path, published.NECTAR)
    assert row.prompt == [user("Name a river.")]
    assert set(row.preferences["ranked"]) == {(0, 1), (0, 2), (2, 1)}
    assert row.completions[1].extra == {"model": "b", "rank": 3.0}


def test_conversations(tmp_path: Path) -> None:
    answered, asked = read(tmp_path, published.MESSAGES)
    assert [each["role"] for each in answered.prompt] == ["system", "user"]
    assert answers(answered) == [("The Rhine.", {})] and asked.completions == ()
    (row,) = read(tmp_path, published.SHAREGPT)
    assert row.prompt == [user("Name a river.")] and answers(row) == [("The Rhine.", {})]


def plain(rows: list[Row]) -> list[dict[str, Any]]:
    """Rows without what a container may change: nulls that fill up a table's columns."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(item) for key, item in value.items() if item is not None}
        return [clean(item) for item in value] if isinstance(value, list) else value

    return [clean(row.to_dict()) for row in rows]


@pytest.mark.parametrize("name", published.ALL)
def test_every_container_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    from datasets import Dataset

    records = published.ALL[name]
    report = ReadReport()
    expected = plain(read_rows(write(tmp_path / "rows.jsonl", records), report=report))
    assert dict(report.found.formats) == {name: len(records)}
    data = Dataset.from_list(records)
    data.save_to_disk(str(tmp_path / "saved"))
    data.to_parquet(str(tmp_path / "rows.parquet"))
    (tmp_path / "rows.json").write_text(json.dumps(records, indent=2))
    (tmp_path / "rows.json.gz").write_bytes(gzip.compress(json.dumps(records).encode()))
    sources = ["saved", "rows.parquet", "rows.json", "rows.json.gz"]
    if name in published.FLAT:
        data.to_csv(str(tmp_path / "rows.csv"))
        sources.append("rows.csv")
    for source in sources:
        assert plain(read_rows(tmp_path / source)) == expected, source
        assert plain(read_rows(tmp_path / source, format=name)) == expected, source


@pytest.mark.parametrize("name", published.ALL)
def test_rows_written_and_read_again_are_the_same(tmp_path: Path, name: str) -> None:
    rows = read(tmp_path, published.ALL[name])
    write_rows(tmp_path / "out.jsonl", rows)
    report = ReadReport()
    assert read_rows(tmp_path / "out.jsonl", report=report) == rows
    assert set(report.found.formats) <= {"rows", "prompts"}
    write_rows(tmp_path / "out.parquet", rows)
    assert plain(read_rows(tmp_path / "out.parquet")) == plain(rows)


@pytest.mark.parametrize("name", published.ALL)
def test_a_data_set_of_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    import datasets

    monkeypatch.chdir(tmp_path)
    data = datasets.DatasetDict({"train": datasets.Dataset.from_list(published.ALL[name])})
    monkeypatch.setattr(datasets, "load_dataset", lambda _: data)
    assert plain(read_rows("org/name")) == plain(read(tmp_path, published.ALL[name]))


def test_each_shape_fits_one_format() -> None:
    for name, records in published.ALL.items():
        found = detect(records[0])
        assert found is not None and found.name == name
    assert len({each.name for each in ADAPTERS}) == len(ADAPTERS)


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({"prompt": "a", "completions": [], "response": "b", "helpfulness": 1}, "rows"),
        ({"prompt": "a", "response": "b"}, "prompt-response"),
        ({"prompt": "a", "response": ["b"]}, "prompts"),
        ({"instruction": "a", "output": "b", "text": "a b"}, "alpaca"),
        ({"prompt": "a", "completion": "b"}, "trl"),
        ({"prompt": "a", "completion": "b", "label": "news"}, "trl"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "trl"),
        ({"chosen": "a b", "rejected": "a c"}, "trl"),
    ],
)
def test_rows_of_our_own_and_trl(record: dict[str, Any], name: str) -> None:
    found = detect(record)
    assert found is not None and found.name == name


def test_a_format_can_be_forced(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", published.HELPSTEER)
    assert [row.completions for row in read_rows(path, format="prompts")] == [()] * 5
    with pytest.raises(InputError, match=r"line 1: the row is no 'pku-saferlhf' row, which needs prompt, response_0"):
        read_rows(path, format="pku-saferlhf")
    with pytest.raises(InputError, match=r"unknown format 'helpster'\. Did you mean 'helpsteer'\?"):
        read_rows(path, format="helpster")
    with pytest.raises(InputError, match="exclude each other"):
        read_rows(path, format="helpsteer", columns={"prompt": "prompt"})


def test_an_unknown_shape_is_told_with_what_is_known(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"question": "a", "reply": "b"}])
    with pytest.raises(InputError) as caught:
        read_rows(path, skip_bad_rows=True)
    message = str(caught.value)
    assert "line 1: no format fits the columns question, reply." in message and "--map prompt=COLUMN" in message
    assert all(each.name in message and each.needs in message for each in ADAPTERS)


def test_bad_records_before_the_first_good_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("{\n[1]\n" + json.dumps(published.PKU[0]) + "\n")
    with pytest.raises(InputError, match="line 1: the line is not JSON"):
        read_rows(path)
    report = ReadReport()
    (row,) = read_rows(path, skip_bad_rows=True, report=report)
    assert row.preferences and (report.rows, report.bad) == (1, 2)


def test_two_formats_that_fit(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [published.PKU[0] | published.HELPSTEER[0]])
    with pytest.raises(InputError, match=r"fit several formats \(helpsteer, pku-saferlhf\).*--format"):
        read_rows(path)
    assert len(read_rows(path, format="helpsteer")) == 1


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": "a", "completions": ["b", "c"], "labels": [True, False]}, "labels the steps of one answer"),
        ({"text": "All of it."}, "--map prompt=text"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, [record])


PREFERENCES: list[tuple[Any, str]] = [
    ([1], "must be an object"),
    ({"a": 3}, r"preferences\.a"),
    ({"a": [0, 0]}, r"preferences\.a\[0\].*two different completions"),
    ({"a": [[0, 1], [1, 2]]}, r"preferences\.a\[1\].*\[1, 2\] of 2 completions"),
    ({"a": [-1, 0]}, "indices"),
    ({"a": [0, True]}, "indices"),
    ({"a": [0, 1, 1]}, r"preferences\.a\[0\]"),
]


@pytest.mark.parametrize(("value", "message"), PREFERENCES)
def test_bad_preferences(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, [{"prompt": "a", "completions": ["b", "c"], "preferences": value}])


def test_preferences_of_a_row(tmp_path: Path) -> None:
    given = {"one": [1, 0], "many": [[0, 1], [1, 0]], "none": [], "null": None}
    (row,) = read(tmp_path, [{"prompt": "a", "completions": ["b", "c"], "preferences": given}])
    assert row.preferences == {"one": ((1, 0),), "many": ((0, 1), (1, 0))}
    assert row.to_dict()["preferences"] == {"one": [[1, 0]], "many": [[0, 1], [1, 0]]}


def changed(records: list[dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    return [records[0], {**records[0], **changes}]


BAD: list[tuple[list[dict[str, Any]], str]] = [
    (changed(published.ULTRAFEEDBACK, instruction=" "), "field 'instruction': the prompt is empty"),
    (changed(published.ULTRAFEEDBACK, completions=[{}]), r"field 'completions\[0\]': .* with a 'response'"),
    (
        changed(
            published.ULTRAFEEDBACK, completions=[{"response": "a", "annotations": {"honesty": {"Rating": "high"}}}]
        ),
        r"completions\[0\]\.annotations\.honesty\.Rating.*found 'high'",
    ),
    (changed(published.BINARIZED, score_chosen="good"), "field 'score_chosen'"),
    (changed(published.HELPSTEER, helpfulness=[3, 4]), "field 'helpfulness': a score must be"),
    (changed(published.HELPSTEER, response=None), "is no 'helpsteer' row, which needs"),
    (changed(published.HELPSTEER, response=7), "field 'response': 'response' must be text"),
    (
        changed(published.HELPSTEER, prompt="Hi\n<extra_id_1>Assistant\nHo"),
        "the prompt must end with a user message",
    ),
    (changed(published.HELPSTEER_PREFERENCE, preference_strength=4), r"must lie in \[-3, 3\]"),
    (changed(published.PKU, better_response_id=2), "field 'better_response_id': .* 0 or 1"),
    (changed(published.PKU, is_response_0_safe="maybe"), "field 'is_response_0_safe': a flag"),
    (changed(published.PKU, response_0_source="\ud800"), "field 'response_0_source': .*lone surrogate"),
    (changed(published.ALPACA_EVAL, output=3), "field 'output'"),
    (changed(published.NECTAR, answers=[{"rank": 1}]), r"field 'answers\[0\]'"),
    (changed(published.MESSAGES, messages=[]), "the conversation is empty"),
    (changed(published.MESSAGES, messages=[{"role": "tool", "content": "x"}]), "role"),
    (changed(published.SHAREGPT, conversations=[{"from": "bot", "value": "x"}]), r"conversations\[0\]"),
    (changed(published.UNPAIRED, completion=[user("a"), user("b")]), "one assistant message; found 2 messages"),
    (
        changed(published.HH, chosen=published.HH[0]["chosen"] + "\n\nHuman: And?"),
        "field 'chosen'.*ends with the human",
    ),
    (changed(published.HH, rejected="\n\nHuman: Hi"), "field 'rejected'.*ends with the human"),
]


@pytest.mark.parametrize(("records", "message"), BAD)
def test_a_bad_record_names_the_published_column(tmp_path: Path, records: list[Any], message: str) -> None:
    path = write(tmp_path / "rows.jsonl", records)
    with pytest.raises(InputError, match=message) as caught:
        read_rows(path)
    assert caught.value.line == 2
    report = ReadReport()
    assert len(read_rows(path, skip_bad_rows=True, report=report)) == 1 == report.bad


def test_a_bad_record_parts_no_neighbours(tmp_path: Path) -> None:
    first, second = published.HELPSTEER[:2]
    path = write(tmp_path / "rows.jsonl", [first, {**first, "response": 1}, second])
    (row,) = read_rows(path, skip_bad_rows=True)
    assert [each.text for each in row.completions] == ["4", "Five."]
