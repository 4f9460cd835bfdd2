"""The `front` verb: tables read, fronts found, and every bad table told by file, line and column."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from paretune.errors import InputError
from paretune.pareto import REFERENCE_RULE, front

CSV = "name,quality,seconds\na,1,3\nb,2,4\nc,1,5\n"


def _file(folder: Path, text: str, name: str = "points.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_csv_by_hand(tmp_path: Path) -> None:
    result = front(_file(tmp_path, CSV), maximise=["quality"], minimise=["seconds"], reference=[0, 6])
    assert [row["name"] for row in result.points] == ["a", "b"]
    assert result.mask == (True, True, False)
    assert result.lines == (2, 3, 4)
    # 1 x 3 and 2 x 2, sharing 1 x 2
    assert result.hypervolume == pytest.approx(5)
    assert result.reference == {"quality": 0, "seconds": 6}
    assert result.reference_rule == "given"
    assert result.sparsity == pytest.approx(2)
    assert result.spacing == 0


def test_the_default_reference_is_stated(tmp_path: Path) -> None:
    result = front(_file(tmp_path, CSV), maximise=["quality"], minimise=["seconds"])
    assert result.reference == {"quality": pytest.approx(0.9), "seconds": pytest.approx(5.2)}
    assert result.reference_rule == REFERENCE_RULE


def test_a_reference_by_name(tmp_path: Path) -> None:
    path = _file(tmp_path, CSV)
    given = front(path, maximise=["quality"], minimise=["seconds"], reference={"seconds": 6, "quality": 0})
    assert given.hypervolume == pytest.approx(5)
    with pytest.raises(InputError, match="Did you mean 'seconds'"):
        front(path, maximise=["quality"], minimise=["seconds"], reference={"second": 6, "quality": 0})
    with pytest.raises(InputError, match="no value for seconds"):
        front(path, maximise=["quality"], minimise=["seconds"], reference={"quality": 0})


@pytest.mark.parametrize("name", ["points.tsv", "points.jsonl", "points.csv.gz", "points.jsonl.gz"])
def test_every_format_gives_the_same(tmp_path: Path, name: str) -> None:
    rows = [line.split(",") for line in CSV.splitlines()]
    records = [dict(zip(rows[0], [row[0], float(row[1]), float(row[2])], strict=True)) for row in rows[1:]]
    text = "".join(json.dumps(record) + "\n" for record in records) if "jsonl" in name else CSV
    text = text.replace(",", "\t") if "tsv" in name else text
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    result = front(path, maximise=["quality"], minimise=["seconds"], reference=[0, 6])
    assert result.hypervolume == pytest.approx(5)


def test_the_json_form_has_no_nan_and_names_lines(tmp_path: Path) -> None:
    path = _file(tmp_path, '{"a": 1, "b": 2, "note": NaN}\n\n{"a": 2, "b": 1, "note": "x"}\n', "p.jsonl")
    form: dict[str, Any] = front(path, maximise=["a", "b"]).to_dict()
    text = json.dumps(form, allow_nan=False)
    assert [item["line"] for item in json.loads(text)["front"]] == [1, 3]
    assert form["front"][0]["row"]["note"] is None


CASES = [
    ("points.csv", CSV, {"maximise": ["qualty"]}, r"line 2, field 'qualty'.*Did you mean 'quality'"),
    ("points.csv", CSV, {"maximise": ["name"]}, r"line 2, field 'name': a number is needed, found 'a'"),
    ("points.csv", "a,b\n1,nan\n", {"maximise": ["b"]}, r"line 2, field 'b': a finite number is needed, found nan"),
    ("points.csv", "a,b\n1,2\n1,inf\n", {"maximise": ["b"]}, r"line 3, field 'b': a finite number"),
    ("points.csv", "a,b\n1,\n", {"maximise": ["b"]}, r"line 2, field 'b': the cell is empty"),
    ("points.csv", "a,b\n1,1_000\n", {"maximise": ["b"]}, r"line 2, field 'b': a number is needed"),
    ("points.csv", "a,b\n1,2,3\n", {"maximise": ["b"]}, r"line 2: 3 cells, but the header has 2"),
    ("points.csv", "a,a\n1,2\n", {"maximise": ["a"]}, r"two columns are called 'a'"),
    ("points.csv", 'a,b\n1,"2\n', {"maximise": ["b"]}, r"is not CSV"),
    ("points.csv", "", {"maximise": ["b"]}, r"holds no point"),
    ("points.csv", "a,b\n", {"maximise": ["b"]}, r"holds no point"),
    ("points.jsonl", '{"a": 1}\n{"a": NaN}\n', {"maximise": ["a"]}, r"line 2, field 'a': a finite number"),
    ("points.jsonl", '{"a": 1}\n{"b": 1}\n', {"maximise": ["a"]}, r"line 2, field 'a': no such column"),
    ("points.jsonl", '{"a": true}\n', {"maximise": ["a"]}, r"a number is needed, found 'True'"),
    ("points.jsonl", '{"a": [1]}\n', {"maximise": ["a"]}, r"a number is needed"),
    ("points.jsonl", '{"a": 1}\n{"a": \n', {"maximise": ["a"]}, r"line 2: is not JSON"),
    ("points.jsonl", "[1, 2]\n", {"maximise": ["a"]}, r"line 1: a JSON object is needed, found list"),
    ("points.txt", "a\n1\n", {"maximise": ["a"]}, r"\.csv, \.tsv or \.jsonl"),
    ("points.csv", CSV, {}, r"no objective is given"),
    ("points.csv", CSV, {"maximise": ["quality"], "minimise": ["quality"]}, r"maximised and minimised at once"),
    ("points.csv", CSV, {"maximise": ["quality", "quality"]}, r"named twice"),
    ("points.csv", CSV, {"maximise": ["quality"], "reference": [0, 0]}, r"needs 1 numbers.*found 2"),
    ("points.csv", CSV, {"maximise": ["quality"], "reference": [9]}, r"no point is better than the reference"),
]


@pytest.mark.parametrize(("name", "text", "arguments", "message"), CASES)
def test_a_bad_table_is_told(tmp_path: Path, name: str, text: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        front(_file(tmp_path, text, name), **arguments)


def test_a_gzip_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    path = tmp_path / "points.csv.gz"
    path.write_bytes(gzip.compress(CSV.encode())[:-6])
    with pytest.raises(InputError, match="no whole gzip file"):
        front(path, maximise=["quality"])


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        front(tmp_path / "none.csv", maximise=["a"])
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        front(tmp_path / "folder.csv", maximise=["a"])


@pytest.mark.parametrize("columns", [["a"], ["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d", "e"]])
def test_the_plot_is_a_png(tmp_path: Path, columns: list[str]) -> None:
    path = _file(tmp_path, "name,a,b,c,d,e\n$x_1$,1,2,3,4,5\ny,5,4,3,2,1\n")
    front(path, maximise=columns).save_plot(tmp_path / "front.png", label="name")
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_label_column_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Did you mean 'name'"):
        front(_file(tmp_path, CSV), maximise=["quality"]).save_plot(tmp_path / "front.png", label="nam")
