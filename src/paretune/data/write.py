"""Write rows, whole or not at all, and keep the objectives that scored them in a JSON file beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from paretune.data.rows import Row
from paretune.errors import InputError
from paretune.files import atomic_file, check_parent, read_json, write_json, write_jsonl
from paretune.profile import Objective, check_names

FORMAT = 1
"""Version of the objectives file."""

_ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")


def check_rows_target(path: Path | str, *, overwrite: bool = True) -> Path:
    """A file name that rows can be written to; refuses an existing one unless `overwrite`."""
    path = Path(path)
    check_parent(path)
    if not path.name.lower().endswith(_ENDINGS):
        raise InputError(f"rows are written to a file that ends in {', '.join(_ENDINGS)}", file=path)
    if path.is_dir():
        raise InputError("is a folder, a file name is needed", file=path)
    if path.exists() and not overwrite:
        raise InputError("exists already; pass --overwrite to replace it", file=path)
    return path


def write_rows(path: Path | str, rows: Iterable[Row]) -> int:
    """Write rows to JSONL, JSONL.gz or Parquet by the file's ending, atomically; returns their number."""
    path = check_rows_target(path)
    if path.name.lower().endswith(".parquet"):
        return _write_parquet(path, list(rows))
    return write_jsonl(path, (row.to_dict() for row in rows))


def _write_parquet(path: Path, rows: Sequence[Row]) -> int:
    import pyarrow
    from pyarrow import parquet

    # a column has one type, so a prompt is a list of messages in every row
    values: list[dict[str, Any]] = [row.to_dict() | {"prompt": row.prompt} for row in rows]
    names = list(dict.fromkeys(name for value in values for name in value))
    try:
        table = pyarrow.table({name: [value.get(name) for value in values] for name in names})
        with atomic_file(path) as file:
            parquet.write_table(table, file)
    except pyarrow.ArrowException as error:
        raise InputError(f"the rows do not fit a Parquet table ({error}); write .jsonl instead", file=path) from None
    return len(rows)


def objectives_path(path: Path | str) -> Path:
    """The objectives file of a rows file: `rows.jsonl.gz` -> `rows.objectives.json`."""
    path = Path(path)
    name = path.name
    for ending in (".gz", ".jsonl", ".json", ".ndjson", ".parquet", ".txt"):
        if len(name) > len(ending) and name.lower().endswith(ending):
            name = name[: -len(ending)]
    return path.with_name(f"{name}.objectives.json")


def stored_objectives(path: Path | str) -> list[Objective] | None:
    """The objectives kept beside the rows at `path`, or None. Raises `InputError` on a broken file."""
    if not Path(path).name or not objectives_path(path).exists():
        return None
    beside = objectives_path(path)
    data = read_json(beside)
    if not isinstance(data, dict) or not isinstance(data.get("objectives"), list):
        raise InputError("is no objectives file (an object with a list 'objectives')", file=beside)
    if data.get("format") != FORMAT:
        raise InputError(f"has format {data.get('format')!r}; this version reads {FORMAT}", file=beside)
    try:
        objectives = [Objective.from_dict(item) for item in data["objectives"]]
        check_names(objectives)
    except InputError as error:
        raise InputError(error.message, file=beside) from None
    except (TypeError, ValueError) as error:
        raise InputError(f"holds a broken objective ({error})", file=beside) from None
    return objectives


def store_objectives(path: Path | str, objectives: Sequence[Objective]) -> None:
    """Keep the objectives beside the rows at `path`."""
    check_names(objectives)
    write_json(objectives_path(path), {"format": FORMAT, "objectives": [item.to_dict() for item in objectives]})
