"""The `front` verb: read a table of points (CSV, TSV or JSON Lines, also .gz), and say what its front is.

Every way a table can be wrong is told by file, line and column: a missing column, an empty or text cell, NaN or
infinity, a row of the wrong length.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paretune.errors import InputError, did_you_mean
from paretune.files import check_depth
from paretune.pareto.front import (
    REFERENCE_RULE,
    Floats,
    check_reference,
    default_reference,
    gains,
    hypervolume,
    non_dominated,
    spacing,
    sparsity,
)
from paretune.unpack import unpacked

Record = dict[str, Any]


@dataclass(frozen=True)
class FrontResult:
    """The front of a table.

    `objectives`: the columns, maximised ones first; `maximise`: their directions; `rows`: every record as read, with
    `lines`, its line in the file; `mask`: which rows no other row dominates; `hypervolume` from `reference` (found as
    `reference_rule` says); `sparsity` and `spacing` of the front, `None` with fewer than two distinct points on it.
    """

    objectives: tuple[str, ...]
    maximise: tuple[bool, ...]
    rows: tuple[Record, ...]
    lines: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    mask: tuple[bool, ...]
    hypervolume: float
    reference: dict[str, float]
    reference_rule: str
    sparsity: float | None
    spacing: float | None

    @property
    def points(self) -> list[Record]:
        """The records on the front, in the order of the file."""
        return [row for row, kept in zip(self.rows, self.mask, strict=True) if kept]

    def to_dict(self) -> dict[str, Any]:
        """JSON form: what was asked, the numbers, and the front's rows with their lines."""
        kept = [index for index, flag in enumerate(self.mask) if flag]
        return {
            "maximise": [name for name, up in zip(self.objectives, self.maximise, strict=True) if up],
            "minimise": [name for name, up in zip(self.objectives, self.maximise, strict=True) if not up],
            "rows": len(self.rows),
            "on_front": len(kept),
            "hypervolume": self.hypervolume,
            "reference": dict(self.reference),
            "reference_rule": self.reference_rule,
            "sparsity": self.sparsity,
            "spacing": self.spacing,
            "front": [
                {
                    "line": self.lines[index],
                    "values": dict(zip(self.objectives, self.values[index], strict=True)),
                    "row": _jsonable(self.rows[index]),
                }
                for index in kept
            ],
        }

    def save_plot(self, path: Path | str, *, label: str | None = None) -> None:
        """Write the points and the front as PNG; `label` is a column whose text names the points on the front."""
        from paretune.pareto.plot import plot_points

        if label is not None and label not in self.rows[0]:
            raise InputError(f"no column '{label}'.{did_you_mean(label, self.rows[0])}", field=label)
        labels = [str(row.get(label, "")) for row in self.rows] if label is not None else None
        plot_points(
            np.array(self.values), path, names=self.objectives, maximise=self.maximise, mask=self.mask, labels=labels
        )


def _jsonable(row: Record) -> Record:
    """A record whose NaN and infinity (allowed in columns nobody asked about) became null."""
    return json.loads(json.dumps(row), parse_constant=lambda _: None)  # type: ignore[no-any-return]


def front(
    path: Path | str,
    *,
    maximise: Sequence[str] = (),
    minimise: Sequence[str] = (),
    reference: Sequence[float] | Mapping[str, float] | None = None,
) -> FrontResult:
    """The front of the table at `path`, over the columns `maximise` and `minimise`.

    `reference` is a mapping from column to number, or numbers in the order maximised columns, then minimised ones; by
    default `REFERENCE_RULE` finds it. Raises `InputError` on anything wrong with the table, the columns or the
    reference, also when no point is better than a given reference in every objective (the volume would be an empty 0).
    """
    path = Path(path)
    names, directions = _objectives(maximise, minimise)
    rows, lines = read_table(path)
    values = np.array([_values(row, names, path, line) for row, line in zip(rows, lines, strict=True)])
    corner, rule = _reference(reference, names, values, directions)
    if not (gains(values, directions) > gains([corner], directions)).all(axis=1).any():
        raise InputError(
            f"no point is better than the reference {_named(names, corner)} in every objective, so the hypervolume "
            "would be 0; give a reference that is worse than some point"
        )
    return FrontResult(
        objectives=names,
        maximise=directions,
        rows=tuple(rows),
        lines=tuple(lines),
        values=tuple(tuple(float(value) for value in point) for point in values),
        mask=tuple(bool(flag) for flag in non_dominated(values, directions)),
        hypervolume=hypervolume(values, corner, directions),
        reference=_named(names, corner),
        reference_rule=rule,
        sparsity=sparsity(values, directions),
        spacing=spacing(values, directions),
    )


def _named(names: Sequence[str], point: Floats) -> dict[str, float]:
    return {name: float(value) for name, value in zip(names, point, strict=True)}


def _objectives(maximise: Sequence[str], minimise: Sequence[str]) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """The columns in order with their directions; at least one, none twice."""
    names = (*maximise, *minimise)
    if not names:
        raise InputError("no objective is given; name at least one column to maximise or to minimise")
    for name in names:
        if name in maximise and name in minimise:
            raise InputError(f"column '{name}' cannot be maximised and minimised at once")
        if names.count(name) > 1:
            raise InputError(f"column '{name}' is named twice")
    return names, (True,) * len(maximise) + (False,) * len(minimise)


def _reference(
    reference: Sequence[float] | Mapping[str, float] | None,
    names: Sequence[str],
    values: Floats,
    directions: Sequence[bool],
) -> tuple[Floats, str]:
    """The reference point [m] and how it was found."""
    if reference is None:
        return default_reference(values, directions), REFERENCE_RULE
    if isinstance(reference, Mapping):
        for name in reference:
            if name not in names:
                raise InputError(f"the reference names no objective '{name}'.{did_you_mean(name, names)}")
        missing = [name for name in names if name not in reference]
        if missing:
            raise InputError(f"the reference point has no value for {', '.join(missing)}")
        reference = [reference[name] for name in names]
    return check_reference(list(reference), len(names)), "given"


def _values(row: Record, names: Sequence[str], path: Path, line: int) -> list[float]:
    return [_number(row, name, path, line) for name in names]


def _number(row: Record, name: str, path: Path, line: int) -> float:
    """One finite number of a record."""
    if name not in row:
        raise InputError(f"no such column.{did_you_mean(name, row)}", file=path, line=line, field=name)
    cell = row[name]
    if cell is None or cell == "":
        raise InputError("the cell is empty; a number is needed", file=path, line=line, field=name)
    # float() would also take "1_000", and True as 1
    text = not isinstance(cell, (int, float, str)) or isinstance(cell, bool) or (isinstance(cell, str) and "_" in cell)
    try:
        value = math.nan if text else float(cell)
    except (ValueError, OverflowError):
        text, value = True, math.nan
    if text:
        raise InputError(f"a number is needed, found {str(cell)[:60]!r}", file=path, line=line, field=name)
    if not math.isfinite(value):
        raise InputError(f"a finite number is needed, found {cell}", file=path, line=line, field=name)
    return value


def read_table(path: Path | str) -> tuple[list[Record], list[int]]:
    """The records of a .csv, .tsv, .jsonl or .ndjson file (also .gz), and the line each one starts at or ends on."""
    path = Path(path)
    name = path.name.lower().removesuffix(".gz")
    text = _read_text(path)
    if name.endswith((".jsonl", ".ndjson")):
        rows, lines = _read_jsonl(text, path)
    elif name.endswith((".csv", ".tsv")):
        rows, lines = _read_csv(text, path, "\t" if name.endswith(".tsv") else ",")
    else:
        raise InputError("a table is a .csv, .tsv or .jsonl file (also .gz)", file=path)
    if not rows:
        raise InputError("holds no point", file=path)
    return rows, lines


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as raw, unpacked(path, raw) as lines:
            data: bytes = lines.read()
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError("no such file", file=path) from None
    except IsADirectoryError:
        raise InputError("is a folder; a table of points is needed", file=path) from None
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text ({error})", file=path) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"is no whole gzip file ({error})", file=path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path) from None


def _read_jsonl(text: str, path: Path) -> tuple[list[Record], list[int]]:
    rows: list[Record] = []
    lines: list[int] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # no JSON, a number of thousands of digits, lists in lists
            raise InputError(f"is not JSON: {error}", file=path, line=number) from None
        check_depth(record, path)
        if not isinstance(record, dict):
            raise InputError(f"a JSON object is needed, found {type(record).__name__}", file=path, line=number)
        rows.append(record)
        lines.append(number)
    return rows, lines


def _read_csv(text: str, path: Path, delimiter: str) -> tuple[list[Record], list[int]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[Record] = []
    lines: list[int] = []
    header: list[str] | None = None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = _header(cells, path, reader.line_num)
                continue
            if len(cells) != len(header):
                problem = f"{len(cells)} cells, but the header has {len(header)}"
                raise InputError(problem, file=path, line=reader.line_num)
            rows.append(dict(zip(header, (cell.strip() for cell in cells), strict=True)))
            lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", file=path, line=reader.line_num) from None
    return rows, lines


def _header(cells: Sequence[str], path: Path, line: int) -> list[str]:
    """The column names: none twice."""
    names = [cell.strip() for cell in cells]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"two columns are called '{twice}'", file=path, line=line)
    return names
