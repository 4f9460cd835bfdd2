"""Read rows, checked: `read_rows`. A bad row is named by file, line, field and cause, or skipped and counted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from paretune.data.formats import parse_row
from paretune.data.rows import Row
from paretune.data.sources import BadRow, Record, iter_records
from paretune.errors import InputError


@dataclass
class ReadReport:
    """What a reading met: rows kept, bad rows dropped, and how many for which cause."""

    rows: int = 0
    bad: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


def read_rows(path: Path | str, *, skip_bad_rows: bool = False, report: ReadReport | None = None) -> list[Row]:
    """All rows of a JSONL (.gz), text, JSON or Parquet file, a dataset folder or a hub data set, in order.

    Row contract, TRL types and HH-RLHF transcripts are told apart row by row (`formats`). A row without an id gets
    `row-<n>`, n its number among all rows of the source, so that a skipped bad row shifts nothing. With `skip_bad_rows`
    bad rows are dropped and counted in `report`; otherwise the first one raises. A file without any good row raises.

    Raises:
        InputError: names file, line, field and cause.
    """
    report = ReadReport() if report is None else report
    report.rows, report.bad, report.reasons = 0, 0, {}
    rows: list[Row] = []
    seen: dict[str, Record] = {}
    for number, record in enumerate(iter_records(path), start=1):
        try:
            rows.append(_checked(record, number, seen))
        except BadRow as bad:
            if not skip_bad_rows:
                raise InputError(str(bad), file=record.file, line=record.line, field=bad.field) from None
            report.bad += 1
            report.reasons[bad.cause] = report.reasons.get(bad.cause, 0) + 1
    report.rows = len(rows)
    if not rows and report.bad:
        causes = "; ".join(f"{cause} ({count})" for cause, count in report.reasons.items())
        raise InputError(f"holds no good row; all {report.bad} are bad: {causes}", file=path)
    if not rows:
        raise InputError("is empty: it holds no row", file=path)
    return rows


def _checked(record: Record, number: int, seen: dict[str, Record]) -> Row:
    """The record as a row with an id of its own."""
    if isinstance(record.value, BadRow):
        raise record.value
    row = parse_row(record.value)
    if not row.id:
        row = replace(row, id=f"row-{number}")
    if row.id in seen:
        first = seen[row.id]
        raise BadRow("two rows have the same id", field="id", found=f"'{row.id}', first used in line {first.line}")
    seen[row.id] = record
    return row
