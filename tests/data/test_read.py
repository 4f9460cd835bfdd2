"""Reading rows: every shape that is promised, and every bad row named by file, line, field and cause."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from paretune.data import ReadReport, Row, iter_rows, read_rows
from paretune.errors import InputError


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def one(tmp_path: Path, row: Any) -> Row:
    (only,) = read_rows(write(tmp_path / "rows.jsonl", row))
    return only


def texts(row: Row) -> list[tuple[str, str | None]]:
    return [(item.text, item.label) for item in row.completions]


USER = {"role": "user", "content": "What colour is the sky?"}
BLUE = {"role": "assistant", "content": "It is blue."}
GREEN = {"role": "assistant", "content": "It is green."}


def test_the_row_contract(tmp_path: Path) -> None:
    row = one(
        tmp_path,
        {
            "id": 7,
            "prompt": "Hi",
            "completions": [
                {"text": "a", "scores": {"helpful": 1, "brevity": None}, "model": "m"},
                {"text": "", "label": "chosen"},
                "plain",
            ],
            "wanted": {"brevity": 0.9, "helpful": None},
            "source": {"deep": [1, None]},
        },
    )
    assert row.id == "7" and row.prompt == [{"role": "user", "content": "Hi"}]
    assert row.completions[0].scores == {"helpful": 1.0, "brevity": None}
    assert row.completions[0].extra == {"model": "m"}
    assert texts(row) == [("a", None), ("", "chosen"), ("plain", None)]
    assert row.wanted == {"brevity": 0.9}
    assert row.extra == {"source": {"deep": [1, None]}}


def test_prompt_only_and_empty_completions(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "a"}, {"prompt": [USER]}, {"prompt": "c", "completions": []})
    assert [row.completions for row in read_rows(path)] == [(), (), ()]


def test_a_text_file_holds_one_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes("first one\r\n\n  second\u2028still second\nlast".encode())
    rows = read_rows(path)
    assert [row.text for row in rows] == ["first one", "second\u2028still second", "last"]
    assert [row.id for row in rows] == ["row-1", "row-2", "row-3"]


@pytest.mark.parametrize(
    ("row", "prompt", "answers"),
    [
        ({"prompt": "The sky is", "completion": " blue."}, "The sky is", [(" blue.", None)]),
        ({"prompt": [USER], "completion": [BLUE]}, USER["content"], [("It is blue.", None)]),
        (
            {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
            "The sky is",
            [(" blue.", "chosen"), (" green.", "rejected")],
        ),
        (
            {"chosen": "The sky is blue.", "rejected": "The sky is black."},
            "The sky is",
            [("blue.", "chosen"), ("black.", "rejected")],
        ),
        (
            {"prompt": [USER], "chosen": [BLUE], "rejected": [GREEN]},
            USER["content"],
            [("It is blue.", "chosen"), ("It is green.", "rejected")],
        ),
        (
            {"chosen": [USER, BLUE], "rejected": [USER, GREEN]},
            USER["content"],
            [("It is blue.", "chosen"), ("It is green.", "rejected")],
        ),
        (  # the prompt repeated inside both sides
            {"prompt": USER["content"], "chosen": [USER, BLUE], "rejected": [USER, GREEN]},
            USER["content"],
            [("It is blue.", "chosen"), ("It is green.", "rejected")],
        ),
    ],
)
def test_trl_types(tmp_path: Path, row: Any, prompt: str, answers: list[tuple[str, str | None]]) -> None:
    read = one(tmp_path, row)
    assert read.prompt == [{"role": "user", "content": prompt}]
    assert texts(read) == answers


def test_an_implicit_conversation_keeps_its_history(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be kind."}
    again = {"role": "user", "content": "Sure?"}
    row = one(tmp_path, {"chosen": [system, USER, BLUE, again, BLUE], "rejected": [system, USER, BLUE, again, GREEN]})
    assert row.prompt == [system, USER, BLUE, again]
    assert texts(row) == [("It is blue.", "chosen"), ("It is green.", "rejected")]


def hh(*turns: str) -> str:
    return "".join(f"\n\n{'Assistant' if at % 2 else 'Human'}: {turn}" for at, turn in enumerate(turns))


def test_hh_transcripts(tmp_path: Path) -> None:
    row = one(tmp_path, {"chosen": hh("Hi", "Hello.", "Joke?", "No."), "rejected": hh("Hi", "Hello.", "Joke?", "")})
    assert row.prompt == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Joke?"},
    ]
    assert texts(row) == [("No.", "chosen"), ("", "rejected")]


def test_speakers_named_inside_a_turn_start_no_turn(tmp_path: Path) -> None:
    said = "He wrote:\nHuman: hi\nAssistant: yes Human: Assistant:\n\nHumane: no. What is meant?"
    row = one(tmp_path, {"chosen": hh(said, "A chat.\n\nAssistants: two"), "rejected": hh(said, "Nothing.")})
    assert row.prompt == [{"role": "user", "content": said}]
    assert texts(row)[0] == ("A chat.\n\nAssistants: two", "chosen")


def test_turns_of_one_speaker_in_a_row_are_one_message(tmp_path: Path) -> None:
    row = one(tmp_path, {"chosen": hh("Hi", "One.") + "\n\nAssistant: Two.", "rejected": hh("Hi", "Three.")})
    assert texts(row) == [("One.\n\nTwo.", "chosen"), ("Three.", "rejected")]


def test_gzip_by_content_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'\xef\xbb\xbf{"prompt": "a"}\n'))
    assert read_rows(path)[0].text == "a"
    path.rename(tmp_path / "rows.jsonl")
    assert read_rows(tmp_path / "rows.jsonl")[0].text == "a"


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a\u2028b\u0085c"}\n', encoding="utf-8")
    assert read_rows(path)[0].text == "a\u2028b\u0085c"


BAD: list[tuple[Any, str | None, str]] = [
    ('{"prompt": "a"', None, "not JSON"),
    ("[" * 100_000, None, "JSON"),
    ('{"prompt": "a", "x": ' + "9" * 5000 + "}", None, "cannot be read"),
    ([1], None, "must be a JSON object"),
    ("null", None, "must be a JSON object"),
    ({"completions": []}, "prompt", "no prompt"),
    ({"prompt": None}, "prompt", "no prompt"),
    ({"prompt": 3}, "prompt", "must be text or a list of messages"),
    ({"prompt": " \n"}, "prompt", "empty"),
    ({"prompt": []}, "prompt", "empty"),
    ({"prompt": [{"role": "user", "content": ""}]}, "prompt[0].content", "empty"),
    ({"prompt": [USER, BLUE]}, "prompt", "must end with a user message"),
    ({"prompt": ["hi"]}, "prompt[0]", "an object with 'role' and 'content'"),
    ({"prompt": [{"role": "bot", "content": "a"}]}, "prompt[0].role", "one of system, user, assistant"),
    ({"prompt": [{"content": "a"}]}, "prompt[0].role", "one of system, user, assistant"),
    ({"prompt": [{"role": "user", "content": 1}]}, "prompt[0].content", "must be text"),
    ({"prompt": [{"role": "user", "content": "a", "name": "x"}]}, "prompt[0].name", "only 'role' and 'content'"),
    ({"prompt": [USER, {"role": "system", "content": "a"}, USER]}, "prompt[1].role", "the first one"),
    ({"prompt": "a", "id": [1]}, "id", "text or a whole number"),
    ({"prompt": "a", "completions": "b"}, "completions", "must be a list"),
    ({"prompt": "a", "completions": [3]}, "completions[0]", "text or an object"),
    ({"prompt": "a", "completions": [{"text": 3}]}, "completions[0].text", "text"),
    ({"prompt": "a", "completions": ["b", {"scores": {}}]}, "completions[1].text", "text"),
    ({"prompt": "a", "completions": [{"text": "b", "scores": [1]}]}, "completions[0].scores", "must be an object"),
    ({"prompt": "a", "completions": [{"text": "b", "label": "best"}]}, "completions[0].label", "chosen or rejected"),
    ({"prompt": "a", "completion": 3}, "completion", "must be text"),
    ({"prompt": "a", "completion": [BLUE, USER]}, "completion", "one assistant message"),
    ({"prompt": "a", "completion": [USER]}, "completion[0].role", "assistant"),
    ({"prompt": "a", "completions": [], "chosen": "b"}, "chosen", "not both"),
    ({"prompt": "a", "chosen": "b"}, "rejected", "both"),
    ({"prompt": "a", "chosen": "b", "rejected": [BLUE]}, "rejected", "same type"),
    ({"prompt": "a", "chosen": 1, "rejected": 2}, "chosen", "must be text"),
    ({"chosen": "Yes.", "rejected": "No."}, "prompt", "do not begin with the same words"),
    ({"chosen": [BLUE], "rejected": [GREEN]}, "prompt", "do not begin with the same message"),
    ({"chosen": hh("Hi", "a"), "rejected": hh("Ho", "a")}, "prompt", "do not begin with the same message"),
    ({"prompt": "a", "wanted": {"x": 1.5}}, "wanted.x", "in [0, 1]"),
    ({"prompt": "a", "wanted": {"x": True}}, "wanted.x", "in [0, 1]"),
    ({"prompt": "a", "wanted": [1]}, "wanted", "must be an object"),
    ('{"prompt": "a\\ud800"}', "prompt", "lone surrogate"),
    ('{"prompt": "a", "completions": [{"text": "\\udc00"}]}', "completions[0].text", "lone surrogate"),
    ('{"prompt": "a", "note": {"k": [NaN]}}', "note.k[0]", "NaN"),
]
for _text, _name in [("NaN", "NaN"), ("Infinity", "inf"), ("-Infinity", "inf"), ("1e999", "inf"), ('"0.8"', "number")]:
    _row = '{"prompt": "a", "completions": ["b", {"text": "c", "scores": {"helpful": ' + _text + "}}]}"
    BAD.append((_row, "completions[1].scores.helpful", _name))
BAD.append((BAD[-1][0].replace('"0.8"', "true"), "completions[1].scores.helpful", "found True"))
BAD.append((BAD[-1][0].replace("true", "9" * 400), "completions[1].scores.helpful", "too large"))


@pytest.mark.parametrize(("row", "field", "cause"), BAD)
def test_a_bad_row_is_named(tmp_path: Path, row: Any, field: str | None, cause: str) -> None:
    path = write(tmp_path / "rows.jsonl", {"prompt": "good"}, "", row, {"prompt": "good too"})
    with pytest.raises(InputError) as caught:
        read_rows(path)
    error = caught.value
    assert (error.file, error.line, error.field) == (str(path), 3, field)
    assert cause in error.message
    assert str(path) in str(error) and "line 3" in str(error)
    str(error).encode("utf-8")  # whatever the row held, the error can be printed
    report = ReadReport()
    rows = read_rows(path, skip_bad_rows=True, report=report)
    assert [(item.text, item.id) for item in rows] == [("good", "row-1"), ("good too", "row-3")]
    assert (report.rows, report.bad, sum(report.reasons.values())) == (2, 1, 1)


def test_a_repeated_id_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"id": "x", "prompt": "a"}, {"prompt": "b"}, {"id": "x", "prompt": "c"})
    with pytest.raises(InputError, match=r"line 3, field 'id'.*'x', first used in line 1"):
        read_rows(path)
    assert [row.text for row in read_rows(path, skip_bad_rows=True)] == ["a", "b"]


def test_rows_come_one_at_a_time(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"prompt": "a"}, "broken", {"prompt": "b"}, {"prompt": "c", "id": "row-1"})
    report = ReadReport()
    rows = iter_rows(path, skip_bad_rows=True, report=report)
    assert next(rows).id == "row-1" and (report.rows, report.bad) == (1, 0)
    assert next(rows).id == "row-3" and (report.rows, report.bad) == (2, 1)
    assert list(rows) == [] and (report.rows, report.bad) == (2, 2)
    strict = iter_rows(path)
    assert next(strict).text == "a"
    with pytest.raises(InputError, match="line 2"):
        next(strict)


def test_an_id_is_unique_over_the_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        write(tmp_path / name, {"id": "same", "prompt": name})
    with pytest.raises(InputError, match=r"b\.jsonl, line 1, field 'id': two rows have the same id"):
        read_rows(tmp_path)


def test_a_row_that_is_nested_too_deeply_is_bad(tmp_path: Path) -> None:
    for depth, bad in ((500, 0), (990, 1), (5000, 1)):
        deep = '{"prompt": "a", "x": ' + "[" * depth + "]" * depth + "}"
        report = ReadReport()
        read_rows(write(tmp_path / "rows.jsonl", {"prompt": "a"}, deep), skip_bad_rows=True, report=report)
        assert (report.rows, report.bad) == (2 - bad, bad)


def test_same_causes_are_counted_together(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rows.jsonl", {"prompt": "a"}, {"prompt": ""}, {"prompt": " "}, {"prompt": 3}, {"prompt": 4}
    )
    report = ReadReport()
    read_rows(path, skip_bad_rows=True, report=report)
    assert report.bad == 4 and sorted(report.reasons.values()) == [2, 2]


def test_no_good_row_at_all(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"prompt": ""}, "x")
    with pytest.raises(InputError, match=r"no good row; all 2 are bad"):
        read_rows(path, skip_bad_rows=True)


@pytest.mark.parametrize("content", ["", "\n \n"])
@pytest.mark.parametrize("name", ["rows.jsonl", "prompts.txt"])
def test_an_empty_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match="is empty"):
        read_rows(tmp_path / name)


def test_a_line_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "caf\xe9"}\n')
    with pytest.raises(InputError, match=r"line 2: the line is not UTF-8.*0xe9"):
        read_rows(path)
    path.write_text('{"prompt": "a"}', encoding="utf-16")
    with pytest.raises(InputError, match=r"line 1: the line is not UTF-8"):
        read_rows(path)


def test_broken_gzip(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"prompt": "a"}\n' * 1000, mtime=0)
    path = tmp_path / "rows.jsonl.gz"
    for broken in (whole[:-9], whole[:20] + b"\xff\xff\xff" + whole[23:]):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=r"rows\.jsonl\.gz.*gzip"):
            read_rows(path, skip_bad_rows=True)
    path.write_text('{"prompt": "a"}')
    with pytest.raises(InputError, match="no gzip file"):
        read_rows(path)


def test_missing_files(tmp_path: Path) -> None:
    for name in ("none.jsonl", "data/none.jsonl", "none", ""):
        with pytest.raises(InputError, match=r"no such file|without rows"):
            read_rows(tmp_path / name)
    with pytest.raises(InputError, match="no such file"):
        read_rows("data/none.jsonl")  # it has the shape of a hub id, but names a file
