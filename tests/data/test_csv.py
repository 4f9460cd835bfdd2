"""CSV and TSV: read as they are, by a map of their columns, and every way in which one is broken."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paretune.data import ReadReport, Row, read_rows
from paretune.data.csv_rows import csv_records
from paretune.errors import InputError


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def answers(row: Row) -> list[tuple[str, dict[str, float | None]]]:
    return [(each.text, each.scores) for each in row.completions]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5), st.sampled_from([",", ";", "\t"]))
@settings(max_examples=150, deadline=None)
def test_what_the_standard_library_writes_is_read(rows: list[tuple[str, str]], mark: str) -> None:
    file = io.StringIO(newline="")
    out = csv.writer(file, delimiter=mark, quoting=csv.QUOTE_ALL)
    out.writerows([("one", "two"), *rows])
    header, _, rest = file.getvalue().partition("\r\n")
    lines = io.BytesIO((header.replace('"', "") + "\r\n" + rest).encode())
    found = [record.value for record in csv_records(Path("x.csv"), lines)]
    assert found == [{name: cell for name, cell in zip(("one", "two"), row, strict=True) if cell != ""} for row in rows]


def test_a_byte_order_mark_quoted_newlines_and_crlf(tmp_path: Path) -> None:
    text = '\ufeffprompt,completion\r\n"two\nlines, ""quoted""",a\r\nthird,"b\r\n\r\nc"\r\n'
    first, second = read_rows(write(tmp_path / "a.csv", text))
    assert (first.text, first.completions[0].text) == ('two\nlines, "quoted"', "a")
    assert second.completions[0].text == "b\r\n\r\nc"


@pytest.mark.parametrize(("name", "mark"), [("a.tsv", "\t"), ("a.csv", ";"), ("a.csv", "\t"), ("a.csv", ",")])
def test_separators(tmp_path: Path, name: str, mark: str) -> None:
    (row,) = read_rows(write(tmp_path / name, f"prompt{mark}completion\nHi{mark}Hello\n"))
    assert (row.text, row.completions[0].text) == ("Hi", "Hello")


def test_other_columns_are_numbers_where_they_read_as_such(tmp_path: Path) -> None:
    text = "id,prompt,completion,votes,share,code,note,empty\n7,42,43,3,-0.5,007,x,\n"
    (row,) = read_rows(write(tmp_path / "a.csv", text))
    assert (row.id, row.text, row.completions[0].text) == ("7", "42", "43")
    assert row.extra == {"votes": 3, "share": -0.5, "code": "007", "note": "x"}


def test_a_table_headed_by_what_a_row_needs(tmp_path: Path) -> None:
    text = "prompt,completion,scores.fun,scores.calm,wanted.fun,user\na,x,1,,0.5,u1\na,y,2,N/A,0.5,u2\nb,z,,3,,u3\n"
    first, second = read_rows(write(tmp_path / "a.csv", text))
    assert answers(first) == [("x", {"fun": 1, "calm": None}), ("y", {"fun": 2, "calm": None})]
    assert first.wanted == {"fun": 0.5} and first.completions[1].extra == {"user": "u2"}
    assert answers(second) == [("z", {"fun": None, "calm": 3})] and second.wanted is None


RATED = """uid,question,answer,rating,about,extra
q1,Why?,Because.,4.5,Be kind.,e
q1,Why?,No.,1,Be kind.,f
q2,How?,So.,,,g
"""


def test_a_map_of_columns(tmp_path: Path) -> None:
    columns = {"prompt": "question", "completion": "answer", "scores.helpful": "rating", "id": "uid", "system": "about"}
    first, second = read_rows(write(tmp_path / "a.csv", RATED), columns=columns)
    assert first.prompt == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Why?"}]
    assert answers(first) == [("Because.", {"helpful": 4.5}), ("No.", {"helpful": 1.0})]
    assert (first.id, second.id) == ("q1", "q2")
    assert [each.extra for each in first.completions] == [{"extra": "e"}, {"extra": "f"}]
    assert answers(second) == [("So.", {"helpful": None})] and second.prompt == [{"role": "user", "content": "How?"}]


def test_a_map_with_several_answers_a_record(tmp_path: Path) -> None:
    text = "q,one,two,s1,s2,brief\nWhy?,a,b,0.1,0.2,0.9\nHow?,c,,0.3,,\n"
    columns = {
        "prompt": "q",
        "completions.0": "one",
        "completions.1": "two",
        "completions.0.scores.fun": "s1",
        "completions.1.scores.fun": "s2",
        "wanted.brevity": "brief",
    }
    first, second = read_rows(write(tmp_path / "a.csv", text), columns=columns)
    assert answers(first) == [("a", {"fun": 0.1}), ("b", {"fun": 0.2})] and first.wanted == {"brevity": 0.9}
    assert answers(second) == [("c", {"fun": 0.3})] and second.wanted is None and second.extra == {}


def test_a_map_of_a_preference_and_of_a_label(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "q,good,bad,g,b,split\nWhy?,yes,no,2,1,train\n")
    columns = {"prompt": "q", "chosen": "good", "rejected": "bad", "chosen.scores.fun": "g", "rejected.scores.fun": "b"}
    (row,) = read_rows(path, columns=columns)
    assert [(each.text, each.label, each.scores) for each in row.completions] == [
        ("yes", "chosen", {"fun": 2}),
        ("no", "rejected", {"fun": 1}),
    ]
    assert row.extra == {"split": "train"}
    path = write(tmp_path / "b.csv", "q,a,thumb\nWhy?,yes,1\nWhy?,no,0\nWhy?,so,\n")
    (row,) = read_rows(path, columns={"prompt": "q", "completion": "a", "label": "thumb"})
    assert [(each.text, each.label) for each in row.completions] == [
        ("yes", "chosen"),
        ("no", "rejected"),
        ("so", None),
    ]


def test_a_map_without_a_prompt_takes_what_both_sides_share(tmp_path: Path) -> None:
    hh = {"good": "\n\nHuman: Hi\n\nAssistant: a", "bad": "\n\nHuman: Hi\n\nAssistant: b", "n": 1}
    path = write(tmp_path / "a.jsonl", json.dumps(hh) + "\n")
    (row,) = read_rows(path, columns={"chosen": "good", "rejected": "bad"})
    assert row.text == "Hi" and [each.label for each in row.completions] == ["chosen", "rejected"]
    assert row.extra == {"n": 1}


def test_dots_reach_into_nested_columns(tmp_path: Path) -> None:
    record = {"meta": {"q": "Why?", "runs": [{"text": "a", "s": 2}, {"text": "b"}]}, "a.b": "plain"}
    path = write(tmp_path / "a.jsonl", json.dumps(record) + "\n")
    columns = {
        "prompt": "meta.q",
        "completions.0": "meta.runs.0.text",
        "completions.1": "meta.runs.1.text",
        "completions.0.scores.s": "meta.runs.0.s",
        "completions.1.scores.s": "meta.runs.1.s",
        "id": "a.b",
    }
    (row,) = read_rows(path, columns=columns)
    assert (row.id, row.text) == ("plain", "Why?")
    assert answers(row) == [("a", {"s": 2}), ("b", {"s": None})]


def test_a_map_and_conversations(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    path = write(tmp_path / "a.jsonl", json.dumps({"talk": turns, "sys": "s", "reply": "d"}) + "\n")
    (row,) = read_rows(path, columns={"prompt": "talk", "system": "sys", "completion": "reply"})
    assert [each["role"] for each in row.prompt] == ["system", "user", "assistant", "user"]


BAD_MAPS: list[tuple[dict[str, str], str]] = [
    ({"completion": "answer"}, "needs the prompt"),
    ({"promt": "question"}, r"cannot set 'promt'\. Did you mean 'prompt'\?"),
    ({"prompt": "question", "chosen": "answer"}, "needs the other too"),
    ({"prompt": "question", "completion": "answer", "completions.0": "answer"}, "one way"),
    ({"prompt": "question", "completions.1": "answer"}, "every number from completions.0 on"),
    ({"prompt": "question", "scores.helpful": "rating"}, "belongs to one answer"),
    ({"prompt": "question", "chosen.scores.a": "rating"}, "need chosen=COLUMN"),
    ({"prompt": ""}, "needs the column"),
    ({"prompt": "questoin"}, r"has no column 'questoin'\. Did you mean 'question'\? Known: about, answer"),
]


@pytest.mark.parametrize(("columns", "message"), BAD_MAPS)
def test_a_map_that_makes_no_rows(tmp_path: Path, columns: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_rows(write(tmp_path / "a.csv", RATED), columns=columns)


@pytest.mark.parametrize(
    ("line", "field", "message"),
    [
        ("Why?,Because.,high", "rating", "a score must be a finite number or missing; found 'high'"),
        ("Why?,Because.,1e999", "rating", "finite"),
        (" ,Because.,1", "question", "the prompt is empty"),
        (",Because.,1", "question", "there is no prompt"),
        ("Why?,,1", "answer", "an answer must be text"),
    ],
)
def test_bad_cells(tmp_path: Path, line: str, field: str, message: str) -> None:
    path = write(tmp_path / "a.csv", f"question,answer,rating\nHow?,So.,1\n{line}\nWho?,I.,2\n")
    columns = {"prompt": "question", "completion": "answer", "scores.helpful": "rating"}
    with pytest.raises(InputError, match=message) as caught:
        read_rows(path, columns=columns)
    assert (caught.value.line, caught.value.field) == (3, field)
    assert len(read_rows(path, columns=columns, skip_bad_rows=True)) == 2


@pytest.mark.parametrize("missing", ["", "NA", "n/a", "NaN", "null", "None"])
def test_how_tables_write_that_there_is_no_number(tmp_path: Path, missing: str) -> None:
    path = write(tmp_path / "a.csv", f"prompt,completion,scores.s\na,b,{missing}\n")
    assert answers(read_rows(path)[0]) == [("b", {"s": None})]


BROKEN: list[tuple[bytes, int, str]] = [
    (b"a,b,c\n", 4, "another number of cells than the header; found 3 cells for 2 columns"),
    (b"a\n", 4, "found 1 cells for 2 columns"),
    (b"caf\xe9,b\n", 4, "not UTF-8 text; save the file as UTF-8; found byte 0xe9"),
    (b'"a"x,b\n', 4, "the line is no CSV"),
]


@pytest.mark.parametrize(("raw", "line", "message"), BROKEN)
def test_broken_lines_are_named_and_can_be_skipped(tmp_path: Path, raw: bytes, line: int, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'prompt,completion\n"two\nlines",x\n' + raw + b"last,y\n")
    with pytest.raises(InputError, match=message) as caught:
        read_rows(path)
    assert caught.value.line == line
    report = ReadReport()
    rows = read_rows(path, skip_bad_rows=True, report=report)
    assert [row.text for row in rows] == ["two\nlines", "last"] and report.bad == 1


def test_a_quote_that_is_never_closed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'prompt,completion\na,b\n"c,d\ne,f\n')
    with pytest.raises(InputError, match=r"line 3: the line is no CSV; found unexpected end of data"):
        read_rows(path)
    assert [row.text for row in read_rows(path, skip_bad_rows=True)] == ["a"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("prompt,completion\na,b\n".encode("utf-16"), "is UTF-16 text; save the file as UTF-8"),
        (b"prompt,prompt\na,b\n", "two columns called 'prompt'"),
        (b"pr\xe9,b\na,b\n", "line 1: is not UTF-8"),
        (b"prompt,completion\n", "is empty"),
        (b"one,two\na,b\n", "no format fits the columns one, two"),
    ],
)
def test_files_that_cannot_be_read_at_all(tmp_path: Path, raw: bytes, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(raw)
    with pytest.raises(InputError, match=message):
        read_rows(tmp_path / "a.csv", skip_bad_rows=True)


def test_the_limit_of_a_cell_is_the_reader_s_own(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    read_rows(write(tmp_path / "a.csv", "prompt\n" + "x" * 300_000 + "\n"))
    assert csv.field_size_limit() == before


def test_a_column_that_comes_late_in_json_lines(tmp_path: Path) -> None:
    def rows(late: int) -> Path:
        records = [{"q": str(at), "a": "x"} | ({"s": 1} if at >= late else {}) for at in range(150)]
        return write(tmp_path / "a.jsonl", "".join(json.dumps(each) + "\n" for each in records))

    columns = {"prompt": "q", "completion": "a", "scores.fun": "s"}
    found = [row.completions[0].scores["fun"] for row in read_rows(rows(90), columns=columns)]
    assert found == [None] * 90 + [1.0] * 60
    with pytest.raises(InputError, match=r"has no column 's' in its first 100 rows\. Known: a, q"):
        read_rows(rows(120), columns=columns)
