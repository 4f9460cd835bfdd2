"""Writing rows and the objectives beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from paretune.data import Completion, Row, objectives_path, read_rows, store_objectives, stored_objectives, write_rows
from paretune.errors import InputError
from paretune.profile import Objective

ROW = Row([{"role": "user", "content": "a"}], id="one")


def test_other_endings_are_refused(tmp_path: Path) -> None:
    for name in ("rows.csv", "rows", "rows.txt"):
        with pytest.raises(InputError, match=r"ends in \.jsonl"):
            write_rows(tmp_path / name, [ROW])
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, [ROW])
    with pytest.raises(ValueError):
        write_rows(path, [ROW, Row(ROW.prompt, id="two", extra={"x": float("nan")})])
    assert read_rows(path) == [ROW] and [item.name for item in tmp_path.iterdir()] == ["rows.jsonl"]


def test_columns_of_mixed_types_fit_no_table(tmp_path: Path) -> None:
    rows = [Row(ROW.prompt, id=str(value), extra={"x": value}) for value in (1, "text")]
    with pytest.raises(InputError, match=r"write \.jsonl instead"):
        write_rows(tmp_path / "rows.parquet", rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.b.jsonl", "a.b.jsonl.gz", "a.b.parquet"])
def test_objectives_lie_beside_the_rows(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert stored_objectives(path) is None
    objectives = [
        Objective("brevity", "lexical:brevity", phrases=("a", "b", "", "d", "e")).fitted([1.0, 2.0, 4.0]),
        Objective("cost", direction="minimise", scale_kind="zscore"),
    ]
    store_objectives(path, objectives)
    assert objectives_path(path).name == "a.b.objectives.json"
    assert stored_objectives(path) == objectives


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("{", "is not JSON"),
        ("[]", "no objectives file"),
        ('{"format": 9, "objectives": []}', "format 9"),
        ('{"format": 1, "objectives": []}', "no objective"),
        ('{"format": 1, "objectives": [{"nme": "a"}]}', "'name'"),
        ('{"format": 1, "objectives": [{"name": "a", "spek": ""}]}', "Did you mean 'spec'"),
        ('{"format": 1, "objectives": [{"name": "a"}, {"name": "a"}]}', "two objectives"),
        ('{"format": 1, "objectives": [{"name": "a", "scale": {"kind": "minmax", "low": "x"}}]}', "low must be"),
        ('{"format": 1, "objectives": [{"name": "a", "phrases": 5}]}', "phrases must be"),
    ],
)
def test_a_broken_objectives_file(tmp_path: Path, content: str, cause: str) -> None:
    (tmp_path / "rows.objectives.json").write_text(content)
    with pytest.raises(InputError, match=cause) as caught:
        stored_objectives(tmp_path / "rows.jsonl")
    assert caught.value.file == tmp_path / "rows.objectives.json"


def test_stored_json_is_plain(tmp_path: Path) -> None:
    store_objectives(tmp_path / "rows.jsonl", [Objective("a", "column:a")])
    data = json.loads((tmp_path / "rows.objectives.json").read_text())
    assert data["objectives"] == [{"name": "a", "spec": "column:a", "direction": "maximise", "scale_kind": "quantile"}]


def test_parquet_is_written_in_a_stream_whose_columns_come_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paretune.data.write._BATCH", 2)
    rows = [
        Row(
            ROW.prompt,
            () if at == 2 else (Completion("x", {"a": float(at)} | ({"late": None} if at > 3 else {})),),
            id=str(at),
            extra={"number": at if at < 3 else at + 0.5} | ({"late": ["z"]} if at == 5 else {}),
        )
        for at in range(6)
    ]
    taken: list[int] = []

    def stream() -> Iterator[Row]:
        for at, row in enumerate(rows):
            taken.append(at)
            yield row

    assert write_rows(tmp_path / "rows.parquet", stream()) == 6 == len(taken)
    found = read_rows(tmp_path / "rows.parquet")
    assert [row.extra for row in found] == [row.extra for row in rows]
    assert [[item.scores["a"] for item in row.completions] for row in found] == [[0.0], [1.0], [], [3.0], [4.0], [5.0]]
    assert found[5].completions[0].scores == {"a": 5.0, "late": None}
    assert [item.name for item in tmp_path.iterdir()] == ["rows.parquet"]


def test_no_rows_are_an_empty_parquet_file(tmp_path: Path) -> None:
    assert write_rows(tmp_path / "new" / "rows.parquet", []) == 0
