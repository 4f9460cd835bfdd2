"""Files that are broken, odd or large: JSON arrays, gzip, Parquet with nulls, folders of several formats."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import published_data as published
from paretune.data import ReadReport, read_rows, write_rows
from paretune.data.json_array import array_records
from paretune.errors import InputError


def values(text: str | bytes) -> list[Any]:
    raw = text if isinstance(text, bytes) else text.encode()
    return [record.value for record in array_records(Path("x.json"), io.BytesIO(raw))]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.lists(JSON), st.sampled_from([None, 0, 3]), st.integers(1, 7))
@settings(max_examples=150, deadline=None)
def test_an_array_read_in_pieces_is_the_array(items: list[Any], indent: int | None, piece: int) -> None:
    import paretune.data.json_array as module

    old, module.PIECE = module.PIECE, piece
    try:
        assert values(json.dumps(items, indent=indent)) == items
        assert values(json.dumps(items, indent=indent, ensure_ascii=False)) == items
    finally:
        module.PIECE = old


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.9])
def test_an_array_that_breaks_off(tmp_path: Path, cut: float) -> None:
    path = tmp_path / "outputs.json"
    whole = json.dumps([{"prompt": f"question {at}"} for at in range(5000)], indent=1)
    path.write_text(whole[: int(len(whole) * cut)])
    with pytest.raises(
        InputError, match=r"outputs\.json, line \d+: is a JSON array that is broken in entry \d+: the file"
    ):
        read_rows(path, skip_bad_rows=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[\n{"prompt": "a"},\n{"prompt": b},\n{"prompt": "c"}]' + " " * 1000, r"line 3: .* in entry 2: is no JSON"),
        ('[{"prompt": "a"} {"prompt": "b"}]', r"in entry 1: needs a ',', found '{'"),
        ('[{"prompt": "a"}] {"prompt": "b"}', "text follows after the array's end"),
        ('[{"prompt": "a"},', "breaks off"),
        ("[", "at its beginning: the file breaks off|in entry 1: the file breaks off"),
        ('[{"prompt": "a", "x": ' + "[" * 100_000, "entry 1: (cannot be read|the file breaks off)"),
        ('[{"prompt": ' + "9" * 5000 + "}]", "entry 1: cannot be read"),
    ],
)
def test_a_broken_array(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_rows(tmp_path / "a.json")


def test_an_array_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'[{"prompt": "caf\xe9"}]')
    with pytest.raises(InputError, match=r"not UTF-8 text \(byte 0xe9"):
        read_rows(tmp_path / "a.json")


def test_entries_of_an_array_are_rows_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"  # the content counts, not the name
    path.write_text('\ufeff [{"prompt": "a"}, 3, {"prompt": ""}, {"prompt": "d"}]', encoding="utf-8")
    with pytest.raises(InputError, match="line 2: a row must be a JSON object; found 3"):
        read_rows(path)
    report = ReadReport()
    rows = read_rows(path, skip_bad_rows=True, report=report)
    assert [(row.text, row.id) for row in rows] == [("a", "row-1"), ("d", "row-4")] and report.bad == 2
    path.write_text("[ ]")
    with pytest.raises(InputError, match="is empty"):
        read_rows(path)


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.json.gz", "rows.csv.gz"])
def test_a_gzip_file_cut_in_the_middle(tmp_path: Path, name: str) -> None:
    records = [{"prompt": f"{at} {random.Random(at).random()}"} for at in range(20_000)]
    text = {
        "rows.jsonl.gz": "".join(json.dumps(each) + "\n" for each in records),
        "rows.json.gz": json.dumps(records),
        "rows.csv.gz": "prompt\n" + "".join(each["prompt"] + "\n" for each in records),
    }[name]
    packed = gzip.compress(text.encode())
    (tmp_path / name).write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match=r"is a broken or cut-off gzip file"):
        read_rows(tmp_path / name, skip_bad_rows=True)


def test_long_lines_and_nul_characters(tmp_path: Path) -> None:
    long, nul = "word " * 200_000, "a\x00b"
    records = [{"prompt": long, "completion": nul}, {"prompt": nul, "completion": long}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    (tmp_path / "a.json").write_text(json.dumps(records))
    (tmp_path / "a.csv").write_text(
        "".join(f'"{a}","{b}"\n' for a, b in [("prompt", "completion"), (long, nul), (nul, long)])
    )
    for name in ("a.jsonl", "a.json", "a.csv"):
        rows = read_rows(tmp_path / name)
        assert [(row.text, row.completions[0].text) for row in rows] == [(long, nul), (nul, long)], name
    write_rows(tmp_path / "b.jsonl", rows)
    assert read_rows(tmp_path / "b.jsonl") == rows


def test_nul_bytes_as_a_crash_leaves_them(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n' + b"\x00" * 512)
    with pytest.raises(InputError, match="line 2: the line is not JSON"):
        read_rows(path)
    assert len(read_rows(path, skip_bad_rows=True)) == 1


def test_parquet_with_nested_nulls(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    message = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())])
    answer = pyarrow.struct([("text", pyarrow.string()), ("scores", pyarrow.struct([("fun", pyarrow.float64())]))])
    good = [{"role": "user", "content": "a"}]
    table = pyarrow.table(
        {
            "prompt": pyarrow.array(
                [good, [{"role": "user", "content": None}], good, [None], None], pyarrow.list_(message)
            ),
            "completions": pyarrow.array(
                [[{"text": "x", "scores": None}, {"text": "y", "scores": {"fun": None}}], None, [None], None, []],
                pyarrow.list_(answer),
            ),
        }
    )
    path = tmp_path / "rows.parquet"
    parquet.write_table(table, path)
    with pytest.raises(InputError, match=r"line 2, field 'prompt\[0\]\.content'"):
        read_rows(path)
    report = ReadReport()
    (row,) = read_rows(path, skip_bad_rows=True, report=report)
    assert [each.scores for each in row.completions] == [{}, {"fun": None}] and report.bad == 4
    with pytest.raises(InputError, match=r"line 1, field 'completions\[0\]'"):
        parquet.write_table(table.slice(2, 1), path)
        read_rows(path)


def test_plain_and_conversational_rows_in_one_file(tmp_path: Path) -> None:
    asked, said = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    records = [
        {"prompt": "a", "completion": "b"},
        {"prompt": [asked], "completion": [said]},
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        {"chosen": [asked, said], "rejected": [asked, {"role": "assistant", "content": "c"}]},
        {"prompt": [asked], "completions": ["b"]},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    rows = read_rows(tmp_path / "a.jsonl")
    assert all(row.prompt == [asked] and row.completions[0].text == "b" for row in rows) and len(rows) == 5


def test_a_folder_of_several_formats_and_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(published.PKU[0]) + "\n")
    (tmp_path / "b.json").write_text(json.dumps(published.ALPACA_EVAL))
    (tmp_path / "c.csv").write_text("prompt,completion\nHi,Hello\n")
    (tmp_path / "d.txt").write_text("no rows\n")
    (tmp_path / "e.json").write_text('{"no": "rows"}')
    report = ReadReport()
    rows = read_rows(tmp_path, report=report)
    assert dict(report.found.formats) == {"pku-saferlhf": 1, "alpaca-eval": 2, "trl": 1} and len(rows) == 4
    (tmp_path / "z.csv").write_text("epoch,loss\n1,2\n")
    with pytest.raises(InputError, match=r"z\.csv, line 2: no format fits the columns epoch, loss"):
        read_rows(tmp_path)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.json", "a.jsonl"])
@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match="is empty"):
        read_rows(tmp_path / name)


def test_a_part_of_a_data_set_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    (tmp_path / "store" / "harmless").mkdir(parents=True)
    (tmp_path / "store" / "harmless" / "train.jsonl").write_text('{"prompt": "harmless"}\n')
    (tmp_path / "store" / "harmless" / "test.jsonl").write_text('{"prompt": "unseen"}\n')
    (tmp_path / "store" / "README.md").write_text(
        "---\nconfigs:\n- config_name: small\n  data_files: small.jsonl\n"
        "- config_name: large\n  data_files: large.jsonl\n---\n"
    )
    for name in ("small", "large"):
        (tmp_path / "store" / f"{name}.jsonl").write_text(json.dumps({"prompt": name}) + "\n")
    where = str(tmp_path / "store")
    load, configs = datasets.load_dataset, datasets.get_dataset_config_names
    cache = {"cache_dir": str(tmp_path / "cache")}
    monkeypatch.setattr(datasets, "load_dataset", lambda name, *rest, **more: load(where, *rest, **more, **cache))
    monkeypatch.setattr(datasets, "get_dataset_config_names", lambda name: configs(where))
    monkeypatch.chdir(tmp_path)
    assert [row.text for row in read_rows("org/name/large")] == ["large"]
    (tmp_path / "store" / "README.md").unlink()
    assert [row.text for row in read_rows("org/name/harmless")] == ["harmless"]
    assert [row.text for row in read_rows("org/name/harmless:test")] == ["unseen"]
    with pytest.raises(InputError, match="org/name/none: there is no such local file or folder, and it could not"):
        read_rows("org/name/none")
