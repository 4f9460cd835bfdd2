"""CSV and TSV as records: UTF-8 with a header; quoted cells may hold separators and newlines, empty cells are left out.

A line that is not UTF-8 or has another number of cells than the header is a bad row; reading goes on after it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from paretune.data.records import BadRow, Record, show
from paretune.errors import InputError

CELL_LIMIT = 64 * 1024 * 1024
"""Characters in a cell at most, so that a quote that is never closed does not take the whole file into memory."""


def csv_records(path: Path, lines: Iterable[bytes]) -> Iterator[Record]:
    """The rows below the header, each with the line it begins in. Raises `InputError` for a file without a header."""
    old_limit = csv.field_size_limit(CELL_LIMIT)
    try:
        yield from _records(path, lines)
    finally:
        csv.field_size_limit(old_limit)


def _records(path: Path, lines: Iterable[bytes]) -> Iterator[Record]:
    source = _decoded(path, lines)
    first = next((line for line in source if line.strip()), None)
    if first is None:
        return
    reader = csv.reader(_again(first, source), delimiter=_delimiter(path, first), strict=True)
    names = _header(path, reader)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield Record(str(path), line, BadRow("the line is no CSV", found=str(error)), names, False)
            continue
        if cells is None:
            return
        if cells:
            yield Record(str(path), line, _row(names, cells), names, False)


def _decoded(path: Path, lines: Iterable[bytes]) -> Iterator[str]:
    """The lines as text; bytes that are no UTF-8 become lone surrogates, so that the row they are in can be named."""
    for number, line in enumerate(lines):
        if number == 0:
            if line[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise InputError("is UTF-16 text; save the file as UTF-8", file=path)
            line = line.removeprefix(b"\xef\xbb\xbf")
        yield line.decode("utf-8", "surrogateescape")


def _again(first: str, lines: Iterator[str]) -> Iterator[str]:
    yield first
    yield from lines


def _delimiter(path: Path, header: str) -> str:
    """A tab in .tsv; in .csv the comma, or what a header without commas has: a semicolon (as spreadsheets of many
    countries write) or a tab."""
    if path.name.lower().removesuffix(".gz").endswith(".tsv"):
        return "\t"
    return next((mark for mark in (",", ";", "\t") if mark in header), ",")


def _header(path: Path, reader: Any) -> tuple[str, ...]:
    try:
        names = [name.strip() for name in next(reader)]
    except csv.Error as error:
        raise InputError(f"has a header that is no CSV ({error})", file=path, line=1) from None
    if any("\udc80" <= char <= "\udcff" for name in names for char in name):
        raise InputError("is not UTF-8 text; save the file as UTF-8", file=path, line=1)
    names = [name or f"column {at}" for at, name in enumerate(names, start=1)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"has two columns called '{twice[0]}'", file=path, line=1)
    return tuple(names)


def _row(names: tuple[str, ...], cells: list[str]) -> dict[str, Any] | BadRow:
    if len(cells) != len(names):
        return BadRow(
            "the line has another number of cells than the header", found=f"{len(cells)} cells for {len(names)} columns"
        )
    for name, cell in zip(names, cells, strict=True):
        if not cell.isascii() and (wrong := next((char for char in cell if "\udc80" <= char <= "\udcff"), None)):
            byte = f"byte 0x{ord(wrong) - 0xDC00:02x} in {show(cell, 40)}"
            return BadRow("the line is not UTF-8 text; save the file as UTF-8", field=name, found=byte)
    return {name: cell for name, cell in zip(names, cells, strict=True) if cell != ""}
