"""Where rows come from: JSON Lines, JSON arrays, CSV, TSV, text (also gzip), Parquet, dataset folders, the hub.

Everything is turned into a stream of `Record`s, each with the file and line it came from (in Parquet, JSON arrays and
hub data: the row's number). A record that cannot be had (broken JSON, no UTF-8) carries a `BadRow` in place of a value,
so that the reader can stop there or skip and count it.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from paretune.data.csv_rows import csv_records
from paretune.data.json_array import array_records
from paretune.data.records import BadRow, Record
from paretune.errors import InputError, did_you_mean
from paretune.unpack import bounded_lines, unpacked

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_DATA = re.compile(rf"({HUB_ID.pattern})(?:/([\w./-]+))?")
"""A data set, and perhaps its configuration or the folder in it."""
_KINDS = {
    ".jsonl": "json",
    ".json": "json",
    ".ndjson": "json",
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
_SPLITS = ("train", "validation", "valid", "dev", "test")


def iter_records(path: Path | str) -> Iterator[Record]:
    """All records of a file, a folder or a data set of the hub.

    A folder is written `FOLDER` or `FOLDER:split`, a data set `org/name` or `org/name:split`, one of its configurations
    or folders `org/name/part` or `org/name/part:split`.
    """
    local = Path(path)
    if local.is_file():
        yield from _file_records(local)
        return
    if local.is_dir():
        yield from _folder_records(local, None)
        return
    name, _, split = str(path).rpartition(":")
    if name and Path(name).is_dir():
        yield from _folder_records(Path(name), split)
        return
    hub, split = (name, split) if name else (str(path), "")
    if _HUB_DATA.fullmatch(hub) and _kind(Path(hub)) is None:
        yield from _hub_records(hub, split or None)
        return
    raise InputError("no such file or folder", file=path)


def row_files(path: Path | str) -> list[Path]:
    """The local files that `iter_records` reads at `path`: one, or those of a folder; none of the hub or of `datasets`.

    Raises:
        InputError: a folder without such files or without the split.
    """
    local, (name, _, split) = Path(path), str(path).rpartition(":")
    if local.is_file():
        return [local]
    folder, part = (local, None) if local.is_dir() or not name else (Path(name), split)
    if not folder.is_dir() or _is_saved(folder):
        return []
    return _files_of(folder, part)


def _is_saved(folder: Path) -> bool:
    """Was it written by `datasets`?"""
    return (folder / "dataset_dict.json").exists() or (folder / "dataset_info.json").exists()


def _kind(path: Path) -> str | None:
    """json (lines or an array), csv, text, parquet, or None for a file name we do not know."""
    return _KINDS.get(Path(path.name.lower().removesuffix(".gz")).suffix)


def _file_records(path: Path) -> Iterator[Record]:
    kind = _kind(path)
    if kind == "parquet":
        yield from _parquet_records(path)
        return
    try:
        with path.open("rb") as raw:
            lines = unpacked(path, raw)
            if path.name.endswith(".gz") and lines is raw:
                raise InputError("is named .gz but is no gzip file", file=path)
            if kind == "csv":
                yield from csv_records(path, lines)
            elif kind != "text" and _is_array(lines):
                yield from array_records(path, lines)
            else:
                yield from _line_records(path, lines, text=kind == "text")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"is a broken or cut-off gzip file ({error})", file=path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path) from None


def _is_array(lines: Any) -> bool:
    """Does the file's text begin with a bracket? (A buffered file, plain or gzip, which stays where it is.)"""
    start: bytes = lines.peek(1024)
    return start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["


def _line_records(path: Path, lines: BinaryIO, *, text: bool) -> Iterator[Record]:
    # read as bytes: only \n ends a line, whatever line separators the texts themselves contain
    for number, raw in enumerate(bounded_lines(path, lines), start=1):
        line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        if not line.strip():
            continue
        try:
            decoded = line.decode("utf-8")
            yield Record(str(path), number, {"prompt": decoded.strip()} if text else _parse(decoded))
        except UnicodeDecodeError as error:
            found = f"byte 0x{line[error.start]:02x} at position {error.start}"
            yield Record(str(path), number, BadRow("the line is not UTF-8 text; save the file as UTF-8", found=found))
        except BadRow as bad:
            yield Record(str(path), number, bad)


def _parse(line: str) -> Any:
    """One line of JSON. NaN and infinity pass here and are refused later, where their field is known."""
    try:
        return json.loads(line.rstrip("\r\n"))
    except json.JSONDecodeError as error:
        where = f"{error.msg} at column {error.colno}"
        raise BadRow("the line is not JSON (one object a line is needed)", found=where) from None
    except (ValueError, RecursionError) as error:
        raise BadRow("the line is JSON that cannot be read", found=str(error)) from None


def _parquet_records(path: Path) -> Iterator[Record]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as table:
            number, columns = 0, tuple(table.schema_arrow.names)
            for batch in table.iter_batches(batch_size=1024):
                for value in batch.to_pylist():
                    number += 1
                    yield Record(str(path), number, drop_nulls(value), columns)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"is no readable Parquet file ({error})", file=path) from None


def drop_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """A table's row without the nulls that fill up other rows' columns (in `scores` they have a meaning)."""

    def clean(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            keep = key == "scores"
            return {name: clean(item, name) for name, item in value.items() if keep or item is not None}
        if isinstance(value, list):
            return [clean(item, "") for item in value]
        return value if isinstance(value, (str, int, float, bool, bytes, type(None))) else str(value)

    cleaned: dict[str, Any] = clean(row, "")
    return cleaned


def _folder_records(folder: Path, split: str | None) -> Iterator[Record]:
    if _is_saved(folder):
        yield from _saved_dataset(folder, split)
        return
    for file in _files_of(folder, split):
        yield from _file_records(file)


def _files_of(folder: Path, split: str | None) -> list[Path]:
    files = [item for item in sorted([*folder.glob("*"), *folder.glob("data/*")]) if _is_rows_file(item)]
    if not files:
        raise InputError(
            "is a folder without rows (no .jsonl, .csv or .parquet file, and not saved by datasets)", file=folder
        )
    return _pick_split(folder, files, split)


def _is_rows_file(path: Path) -> bool:
    """Rows by the file's name; a .json only when it is an array, since many that lie beside rows describe them."""
    kind = _kind(path)
    if kind in (None, "text") or path.name.startswith(".") or not path.is_file():
        return False
    if not path.name.lower().removesuffix(".gz").endswith(".json"):
        return True
    try:
        with path.open("rb") as raw:
            return _is_array(unpacked(path, raw))
    except (EOFError, OSError, zlib.error):  # what is wrong with it is told when it is read
        return True


def _pick_split(folder: Path, files: list[Path], split: str | None) -> list[Path]:
    """The files of one split, by the beginning of their names; `train` if none is asked for and there is one."""
    found: dict[str, list[Path]] = {}
    for file in files:
        head = re.split(r"[^a-z]", file.name.lower())[0]
        found.setdefault(head if head in _SPLITS else "", []).append(file)
    if split is not None:
        if split not in found:
            known = [name for name in found if name]
            raise InputError(f"has no split '{split}'.{did_you_mean(split, known)}", file=folder)
        return found[split]
    return found.get("train", files)


def _saved_dataset(folder: Path, split: str | None) -> Iterator[Record]:
    from datasets import DatasetDict, load_from_disk

    try:
        data: Any = load_from_disk(str(folder))
    except Exception as error:  # datasets raises many kinds; all mean that the folder cannot be read
        raise InputError(f"is no readable datasets folder ({_first_line(error)})", file=folder) from None
    if isinstance(data, DatasetDict):
        data = data[_split_name(str(folder), list(data), split)]
    yield from _dataset_records(str(folder), data)


def _hub_records(name: str, split: str | None) -> Iterator[Record]:
    try:
        data = _load_hub(name)
    except Exception as error:  # no network, no such data set, a gated one, a script: the user is told which
        raise InputError(
            f"there is no such local file or folder, and it could not be loaded from the Hugging Face hub: "
            f"{_first_line(error)}",
            file=name,
        ) from None
    yield from _dataset_records(name, data[_split_name(name, list(data), split)])


def _load_hub(name: str) -> Any:
    import datasets

    found = _HUB_DATA.fullmatch(name)
    assert found
    whole, part = found[1], found[2]
    if part is None:
        return datasets.load_dataset(whole)
    if part in datasets.get_dataset_config_names(whole):
        return datasets.load_dataset(whole, part)
    return datasets.load_dataset(whole, data_dir=part)


def _dataset_records(name: str, data: Any) -> Iterator[Record]:
    columns = tuple(getattr(data, "column_names", None) or ())
    for number, value in enumerate(data, start=1):
        yield Record(name, number, drop_nulls(value), columns)


def _split_name(name: str, splits: list[str], wanted: str | None) -> str:
    if wanted is not None:
        if wanted not in splits:
            raise InputError(f"has no split '{wanted}'.{did_you_mean(wanted, splits)}", file=name)
        return wanted
    if len(splits) == 1 or "train" in splits:
        return splits[0] if len(splits) == 1 else "train"
    raise InputError(f"has several splits; name one as {name}:SPLIT ({', '.join(splits)})", file=name)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
