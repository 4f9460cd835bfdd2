"""Read rows, checked: `iter_rows` as a stream, `read_rows` as a list.

A bad row is named by file, line, field and cause, or skipped and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from paretune.data.adapters.stream import Found, adapt
from paretune.data.adapters.table import Columns
from paretune.data.formats import parse_row
from paretune.data.records import BadRow, Record
from paretune.data.rows import Row
from paretune.data.sources import iter_records
from paretune.errors import InputError


@dataclass
class ReadReport:
    """What a reading met: rows kept, bad rows dropped, and how many for which cause; the formats that were found."""

    rows: int = 0
    bad: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    found: Found = field(default_factory=Found)


def read_rows(
    path: Path | str,
    *,
    skip_bad_rows: bool = False,
    report: ReadReport | None = None,
    format: str | None = None,
    columns: Columns | None = None,
) -> list[Row]:
    """All rows of a source, in order; all of what `iter_rows` says holds. Raises `InputError`."""
    return list(iter_rows(path, skip_bad_rows=skip_bad_rows, report=report, format=format, columns=columns))


def iter_rows(
    path: Path | str,
    *,
    skip_bad_rows: bool = False,
    report: ReadReport | None = None,
    format: str | None = None,
    columns: Columns | None = None,
) -> Iterator[Row]:
    """The rows of a JSONL (.gz), JSON, CSV, text or Parquet file, a dataset folder or a hub data set, one at a time.

    The format is found by the columns of each file (`adapters`), unless `format` names it or `columns` maps the columns
    of a table. A row without an id gets `row-<n>`, n its number among all rows of the source, so that a skipped bad row
    shifts nothing. With `skip_bad_rows` bad rows are dropped and counted in `report` (filled as the rows go by);
    otherwise the first one raises. A source without any good row raises at its end. Of the rows that went by only a
    hash of the id and the line are kept, about 100 bytes a row.

    Raises:
        InputError: names file, line, field and cause.
    """
    report = ReadReport() if report is None else report
    report.found = Found()
    records = adapt(iter_records(path), format=format, columns=columns, found=report.found)
    yield from checked_rows(records, path, skip_bad_rows=skip_bad_rows, report=report)


def checked_rows(
    records: Iterable[Record], source: Path | str, *, skip_bad_rows: bool, report: ReadReport
) -> Iterator[Row]:
    """Adapted records as rows, as `iter_rows` says; `source` is what an error calls a source without rows."""
    report.rows, report.bad, report.reasons = 0, 0, {}
    seen: dict[int, int] = {}
    for number, record in enumerate(records, start=1):
        try:
            row = _checked(record, number, seen)
        except BadRow as bad:
            if not skip_bad_rows:
                raise InputError(str(bad), file=record.file, line=record.line, field=bad.field) from None
            report.bad += 1
            report.reasons[bad.cause] = report.reasons.get(bad.cause, 0) + 1
            continue
        report.rows += 1
        yield row
    if report.rows:
        return
    if report.bad:
        causes = "; ".join(f"{cause} ({count})" for cause, count in report.reasons.items())
        raise InputError(f"holds no good row; all {report.bad} are bad: {causes}", file=source)
    raise InputError("is empty: it holds no row", file=source)


def _checked(record: Record, number: int, seen: dict[int, int]) -> Row:
    """The record as a row with an id of its own; `seen` maps hashes (64 bits) of ids to lines."""
    if isinstance(record.value, BadRow):
        raise record.value
    row = parse_row(record.value)
    if not row.id:
        row = replace(row, id=f"row-{number}")
    key = hash(row.id)
    if key in seen:
        raise BadRow("two rows have the same id", field="id", found=f"'{row.id}', first used in line {seen[key]}")
    seen[key] = record.line
    return row
