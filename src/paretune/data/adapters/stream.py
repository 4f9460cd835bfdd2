"""From the records of a source to rows of our contract: the format of each file is found once, then streamed.

Formats with one answer a record join neighbours of the same prompt into one row; `join` joins them wherever they
stand, also over files, for which all rows are held in memory.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice
from typing import Any

from paretune.data.adapters import ADAPTERS, Adapter, detect, named
from paretune.data.adapters.base import RESERVED, Raw
from paretune.data.adapters.own import HH, PROMPTS, RESPONSE, ROWS, TRL
from paretune.data.adapters.table import Columns, missing_columns, own_columns, reaches, table_adapter
from paretune.data.formats import ROW_KEYS, check_values
from paretune.data.records import BadRow, Record, show
from paretune.errors import InputError, did_you_mean

PEEK = 20
"""So many records of a file may be bad or of no known format before one tells the format."""
MAPPED = 100
"""So many records without a list of their columns are looked through for those of a map."""
_AS_IS = (ROWS, PROMPTS, TRL, HH)
_LOOSE = (*_AS_IS, RESPONSE)
"""Formats that records of others would pass for, and lose their scores or answers."""
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,15})(?:\.\d+)?(?:[eE][+-]?\d{1,2})?")
"""No leading zeros and no more digits than a float holds: "007" and long keys stay text."""


@dataclass
class Found:
    """What a reading met: records by format, and the scores of which less is better."""

    formats: Counter[str] = field(default_factory=Counter)
    minimise: list[str] = field(default_factory=list)


def adapt(
    records: Iterable[Record],
    *,
    format: str | None = None,
    columns: Columns | None = None,
    join: bool = False,
    found: Found | None = None,
) -> Iterator[Record]:
    """The records with values of the row contract (or `BadRow`), in order; a joined row stands where its first did.

    `format` names the adapter; otherwise each file's is found by its first record that fits one. `columns` maps what a
    row needs to columns (`table`).

    Raises:
        InputError: an unknown format or a bad map, no or several formats that fit a file, a column that is not there.
    """
    found = Found() if found is None else found
    if format is not None and columns:
        raise InputError("a format and a map of columns exclude each other")
    chosen = table_adapter(columns) if columns else named(format) if format is not None else None
    waiting: dict[str, Record] = {}
    for file, group in groupby(records, key=lambda record: record.file):
        adapter, stream = _opened(file, group, chosen, columns)
        found.minimise += [name for name in adapter.minimise if name not in found.minimise]
        made = _made(stream, adapter, found, told=chosen is not None)
        if not adapter.merges:
            yield from made
        elif join:
            for record in made:
                if isinstance(record.value, BadRow):
                    yield record
                else:
                    _join(waiting, record)
        else:
            yield from _neighbours(made)
    yield from waiting.values()


def _opened(
    file: str, records: Iterator[Record], chosen: Adapter | None, columns: Columns | None
) -> tuple[Adapter, Iterator[Record]]:
    """A file's adapter and its records."""
    if chosen is None:
        return _detected(file, records)
    return chosen, _with_columns(file, records, columns) if columns else records


def _detected(file: str, records: Iterator[Record]) -> tuple[Adapter, Iterator[Record]]:
    """The file's adapter by its first record that fits one, and all of its records."""
    seen: list[Record] = []
    first: Record | None = None
    for record in records:
        seen.append(record)
        if isinstance(record.value, dict):
            adapter = _fitting(file, record, record.value)
            if adapter in _LOOSE and adapter is not ROWS:
                seen += islice(records, PEEK - len(seen))
                adapter = _fitting(file, record, _filled(record.value, seen))
            if adapter is not None:
                return adapter, chain(seen, records)
            first = first or record
        if len(seen) == PEEK:
            break
    if first is None:  # nothing but bad records: they are told or counted as such
        return ROWS, chain(seen, records)
    names = first.columns or tuple(map(str, first.value))
    known = "; ".join(f"{each.name} ({each.needs})" for each in ADAPTERS)
    raise InputError(
        f"no format fits the columns {show(', '.join(names), 200)[1:-1]}. Say which is what with "
        "`paretune data convert FILE --map prompt=COLUMN --map completion=COLUMN --out rows.jsonl`. "
        f"Formats: {known}",
        file=file,
        line=first.line,
    )


def _fitting(file: str, record: Record, value: Raw) -> Adapter | None:
    try:
        told = own_columns(record.columns)
        return table_adapter(told) if told else detect(value)
    except InputError as error:
        raise InputError(error.message, file=file, line=record.line) from None


def _filled(value: Raw, records: Sequence[Record]) -> dict[str, Any]:
    """A record with what its like have where it has nothing: an answer, a label or a score may be missing in it."""
    has = {name for name, item in value.items() if item is not None}
    out: dict[str, Any] = {}
    for other in [value, *(record.value for record in records)]:
        if isinstance(other, dict) and has <= other.keys():
            out |= {name: item for name, item in other.items() if out.get(name) is None}
    return out


def _with_columns(file: str, records: Iterator[Record], columns: Columns) -> Iterator[Record]:
    """The same records, once it is known that the table has the map's columns."""
    seen: list[Record] = []
    names: dict[str, Any] = {}
    for record in records:
        seen.append(record)
        if record.columns:
            names |= dict.fromkeys(record.columns)
            break
        names |= record.value if isinstance(record.value, dict) else {}
        if len(seen) == MAPPED:
            break
    missing = missing_columns(columns, names) if names else []
    if missing:
        where = f" in its first {MAPPED} rows" if len(seen) == MAPPED else ""
        raise InputError(f"has no column '{missing[0]}'{where}.{did_you_mean(missing[0], map(str, names))}", file=file)
    return _with_nested(file, chain(seen, records), {name for name in columns.values() if name not in names})


def _with_nested(file: str, records: Iterable[Record], nested: set[str]) -> Iterator[Record]:
    """The same records; at their end it is known whether any holds what the map reaches for by dots."""
    good = False
    for record in records:
        if isinstance(record.value, dict):
            good = True
            nested -= {name for name in nested if reaches(record.value, name.split("."))}
        yield record
    if good and nested:
        raise InputError(f"has nothing at '{min(nested)}' in any row", file=file)


def _made(records: Iterable[Record], adapter: Adapter, found: Found, *, told: bool) -> Iterator[Record]:
    """The records as the adapter makes them; `told`: the user named the format, so that none is looked for."""
    for record in records:
        found.formats[adapter.name] += 1
        if isinstance(record.value, BadRow):
            yield record
            continue
        try:
            if adapter in _LOOSE and not told:
                _check_alike(record.value, adapter)
            as_it_is = record.typed and adapter in _AS_IS  # checked as it is by `parse_row`
            yield record if as_it_is else replace(record, value=_contract(record, adapter))
        except BadRow as bad:
            yield replace(record, value=bad)


def _check_alike(value: Any, adapter: Adapter) -> None:
    """Refuse a record that is of another format than its file's first ones: read like them it would lose something."""
    try:
        own = detect(value) if isinstance(value, dict) else None
    except InputError as error:
        raise BadRow(error.message) from None
    if own is not None and own is not adapter and own not in _AS_IS:
        raise BadRow(f"the row is of the format '{own.name}', the first ones of the file are '{adapter.name}'")


def _contract(record: Record, adapter: Adapter) -> Any:
    if not isinstance(record.value, dict):
        raise BadRow("a row must be a JSON object", found=show(record.value))
    if adapter in _AS_IS:
        return _typed(record.value, ROW_KEYS)
    check_values(record.value, "")
    if any(record.value.get(name) is None for name in adapter.must):
        raise BadRow(f"the row is no '{adapter.name}' row, which needs {adapter.needs}", found=_columns(record.value))
    row = adapter.row(record.value)
    if record.typed:
        return row
    answers = [_typed(each, RESERVED) for each in row.get("completions", ())]
    return _typed(row, ROW_KEYS) | ({"completions": answers} if answers else {})


def _columns(value: dict[str, Any]) -> str:
    return show(", ".join(map(str, value)))[1:-1]


def _typed(cells: Raw, texts: Sequence[str]) -> dict[str, Any]:
    """Cells of a table without types: outside `texts`, what reads as a number is one."""
    return {name: cell if name in texts else _number_or_text(cell) for name, cell in cells.items()}


def _number_or_text(cell: Any) -> Any:
    if not isinstance(cell, str) or not _NUMBER.fullmatch(cell):
        return cell
    whole = cell.lstrip("-").isdecimal()
    return int(cell) if whole else float(cell)


def _key(value: dict[str, Any]) -> str:
    """What two answers must share to stand in one row: all that is said of the row itself."""
    return json.dumps({name: item for name, item in value.items() if name != "completions"}, sort_keys=True)


def _joined(first: Record, more: list[Any]) -> Record:
    return replace(first, value=first.value | {"completions": [*first.value["completions"], *more]})


def _neighbours(records: Iterable[Record]) -> Iterator[Record]:
    """Neighbouring answers of the same prompt as one row. A bad record between two of them parts nothing."""
    first: Record | None = None
    key, more = "", []
    for record in records:
        if isinstance(record.value, BadRow):
            yield record
            continue
        own = _key(record.value)
        if first is not None and own == key:
            more += record.value["completions"]
            continue
        if first is not None:
            yield _joined(first, more)
        first, key, more = record, own, []
    if first is not None:
        yield _joined(first, more)


def _join(waiting: dict[str, Record], record: Record) -> None:
    """Add an answer to the row of its prompt."""
    key = _key(record.value)
    if key in waiting:
        waiting[key].value["completions"].extend(record.value["completions"])
    else:
        waiting[key] = record
