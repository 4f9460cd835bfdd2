"""Turn data of any format that can be read into rows of our own, in one file."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

from paretune.data.adapters.stream import Found, adapt
from paretune.data.adapters.table import Columns
from paretune.data.read import ReadReport, checked_rows
from paretune.data.records import Record
from paretune.data.rows import Row
from paretune.data.sources import iter_records
from paretune.data.write import check_rows_target, keep_objectives, stored_objectives, write_rows
from paretune.errors import InputError
from paretune.profile import Objective
from paretune.progress import NO_PROGRESS, Progress, Task

_NUMBERED = re.compile(r"row-[1-9]\d*")
Sources = str | Path | Sequence[str | Path]
"""A file, a folder or a data set of the hub, or several."""


@dataclass
class ConvertReport:
    """What was written: `records` that were read by their `formats`, `rows` and `completions` that came of them, bad
    ones `dropped` by cause, and the names of the scores."""

    out: Path
    records: int = 0
    rows: int = 0
    completions: int = 0
    formats: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    scores: list[str] = field(default_factory=list)


def convert(
    sources: Sources,
    out: Path | str,
    *,
    format: str | None = None,
    columns: Columns | None = None,
    limit: int | None = None,
    seed: int | None = None,
    skip_bad_rows: bool = False,
    overwrite: bool = False,
    progress: Progress = NO_PROGRESS,
) -> ConvertReport:
    """Write the rows of all sources to `out` (.jsonl, .jsonl.gz or .parquet), whole or not at all.

    Where a record is one answer, records of the same prompt become one row wherever they stand, also over sources; they
    are held in memory for that. Other formats are streamed. `limit` takes the first rows, or with `seed` so many at
    random, in their order. Beside the rows goes the file of their objectives with the directions that are known, if the
    rows have scores.

    Raises:
        InputError: a source that cannot be read, a format that does not fit, a bad row (unless `skip_bad_rows`), an
            `out` that exists (unless `overwrite`).
    """
    paths = [sources] if isinstance(sources, (str, Path)) else list(sources)
    if not paths:
        raise InputError("nothing to convert; give at least one source")
    if limit is not None and limit < 1:
        raise InputError(f"limit must be at least 1, found {limit}")
    if seed is not None and limit is None:
        raise InputError("a seed draws rows at random, which needs a limit")
    out = check_rows_target(out, overwrite=overwrite, sources=paths)
    report, found, result = ReadReport(), Found(), ConvertReport(out)
    records = chain.from_iterable(iter_records(path) for path in paths)
    adapted: Iterable[Record] = adapt(records, format=format, columns=columns, join=True, found=found)
    if len(paths) > 1:
        adapted = map(_unnumbered, adapted)
    name = str(paths[0]) if len(paths) == 1 else ", ".join(map(str, paths))
    rows: Iterable[Row] = checked_rows(adapted, name, skip_bad_rows=skip_bad_rows, report=report)
    if limit is not None:
        rows = islice(rows, limit) if seed is None else _drawn(rows, limit, seed)
    stored = stored_objectives(*paths) or []
    with progress("converting") as bar:
        result.rows = write_rows(out, _counted(rows, result, bar))
    result.records, result.formats, result.dropped = found.formats.total(), dict(found.formats), report.reasons
    keep_objectives(out, result.scores, stored, found.minimise)
    return result


def _unnumbered(record: Record) -> Record:
    """A record without the id that reading an earlier source gave it, which rows of several would have in common."""
    value = record.value
    if isinstance(value, dict) and isinstance(value.get("id"), str) and _NUMBERED.fullmatch(value["id"]):
        return replace(record, value={name: item for name, item in value.items() if name != "id"})
    return record


def _drawn(rows: Iterable[Row], count: int, seed: int) -> list[Row]:
    """So many rows, each as likely as any other, in their order (reservoir sampling, Vitter 1985, algorithm R)."""
    draw = random.Random(seed)
    kept: list[tuple[int, Row]] = []
    for at, row in enumerate(rows):
        if at < count:
            kept.append((at, row))
        elif (place := draw.randrange(at + 1)) < count:
            kept[place] = (at, row)
    return [row for _, row in sorted(kept, key=lambda item: item[0])]


def _counted(rows: Iterable[Row], result: ConvertReport, bar: Task) -> Iterator[Row]:
    names: dict[str, str] = {}
    for row in rows:
        result.completions += len(row.completions)
        for completion in row.completions:
            for name in completion.scores:
                if name not in names:
                    names[name] = Objective(name).name  # refuses a name that no objective can have
        bar.advance()
        yield row
    result.scores = list(names)
