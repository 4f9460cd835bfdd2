"""Parquet, folders, saved data sets and the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paretune.data import Completion, Row, read_rows, write_rows
from paretune.errors import InputError

ROWS = [
    Row(
        [{"role": "user", "content": "a"}],
        (Completion("x", {"fun": 1.5, "calm": None}, "chosen", {"model": "m"}), Completion("y", {"fun": -2.0})),
        id="one",
        wanted={"fun": 0.25},
        extra={"source": "s"},
    ),
    Row(
        [{"role": "system", "content": "s"}, {"role": "user", "content": "b"}],
        (Completion("z", {"calm": 0.5}),),
        id="two",
    ),
    Row([{"role": "user", "content": "c"}], id="three"),
]


def test_parquet_gives_the_rows_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    assert write_rows(path, ROWS) == 3
    back = read_rows(path)
    assert [(row.id, row.prompt, row.wanted, row.extra) for row in back] == [
        (row.id, row.prompt, row.wanted, row.extra) for row in ROWS
    ]
    said = [item.scores for row in back for item in row.completions]
    # a table has one set of columns, so a score that was absent is None: both mean that it could not be had
    assert said == [{"fun": 1.5, "calm": None}, {"fun": -2.0, "calm": None}, {"fun": None, "calm": 0.5}]
    assert back[0].completions[0].extra == {"model": "m"} and back[0].completions[1].extra == {}


def test_a_bad_parquet_row_is_named_by_its_number(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"prompt": ["a", None], "x": [1.0, float("nan")]}), path)
    with pytest.raises(InputError, match=r"rows\.parquet, line 2, field 'x'.*NaN"):
        read_rows(path)
    path.write_bytes(b"PAR1 this is none")
    with pytest.raises(InputError, match="no readable Parquet file"):
        read_rows(path)


def test_a_folder_of_files(tmp_path: Path) -> None:
    write_rows(tmp_path / "part-1.jsonl", ROWS[:1])
    write_rows(tmp_path / "part-2.jsonl.gz", ROWS[1:])
    (tmp_path / "README.md").write_text("no rows")
    assert [row.id for row in read_rows(tmp_path)] == ["one", "two", "three"]


def test_a_folder_with_splits(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data" / "train-0.parquet", ROWS[:2])
    write_rows(tmp_path / "data" / "test-0.parquet", ROWS[2:])
    assert [row.id for row in read_rows(tmp_path)] == ["one", "two"]
    assert [row.id for row in read_rows(f"{tmp_path}:test")] == ["three"]
    with pytest.raises(InputError, match=r"no split 'tset'\. Did you mean 'test'"):
        read_rows(f"{tmp_path}:tset")


def test_a_folder_that_is_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text("{}")
    with pytest.raises(InputError, match="folder without rows"):
        read_rows(tmp_path)


def test_a_saved_dataset(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    data = Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}])
    data.save_to_disk(str(tmp_path / "one"))
    assert [item.label for item in read_rows(tmp_path / "one")[0].completions] == ["chosen", "rejected"]
    DatasetDict({"dev": data, "test": data}).save_to_disk(str(tmp_path / "two"))
    with pytest.raises(InputError, match=r"several splits.*dev, test"):
        read_rows(tmp_path / "two")
    assert len(read_rows(f"{tmp_path / 'two'}:dev")) == 1
    (tmp_path / "one" / "state.json").write_text("{")
    with pytest.raises(InputError, match="no readable datasets folder"):
        read_rows(tmp_path / "one")


def test_a_hub_id_goes_through_datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    monkeypatch.chdir(tmp_path)
    asked: list[str] = []

    def load(name: str) -> dict[str, Any]:
        asked.append(name)
        return {"train": [{"prompt": "a"}], "test": [{"prompt": "b"}]}

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert read_rows("org/name")[0].text == "a"
    assert read_rows("org/name:test")[0].text == "b"
    assert asked == ["org/name", "org/name"]


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets

    def fail(name: str) -> None:
        raise ConnectionError("no network\nand more")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(InputError, match=r"org/name: there is no such local .* hub: no network$"):
        read_rows("org/name")


def test_json_lines_written_and_read_lose_nothing(tmp_path: Path) -> None:
    for name in ("rows.jsonl", "rows.jsonl.gz"):
        write_rows(tmp_path / name, ROWS)
        assert read_rows(tmp_path / name) == ROWS
    first = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])
    assert first["prompt"] == "a" and first["completions"][0]["model"] == "m"
