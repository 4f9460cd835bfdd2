"""Write rows, whole or not at all, and keep the objectives that scored them in a JSON file beside them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from paretune.data.rows import Row
from paretune.data.sources import row_files
from paretune.errors import InputError
from paretune.files import atomic_file, check_parent, read_json, write_json, write_jsonl
from paretune.profile import Objective, check_names

FORMAT = 1
"""Version of the objectives file."""

_ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")
_BATCH = 1024
"""Rows of a Parquet row group."""


def check_rows_target(path: Path | str, *, overwrite: bool = True, sources: Iterable[Path | str] = ()) -> Path:
    """A file name that rows can be written to; refuses an existing one unless `overwrite`, and one beside which the
    objectives of other rows than those of `sources` lie."""
    path = Path(path)
    check_parent(path)
    if not path.name.lower().endswith(_ENDINGS):
        raise InputError(f"rows are written to a file that ends in {', '.join(_ENDINGS)}", file=path)
    if path.is_dir():
        raise InputError("is a folder, a file name is needed", file=path)
    if path.exists() and not overwrite:
        raise InputError("exists already; pass --overwrite to replace it", file=path)
    beside = objectives_path(path)
    if beside.exists() and not overwrite and beside not in (own for source in sources for own in _beside(source)):
        raise InputError(
            f"belongs to other rows and would be replaced; name {path} otherwise, or --overwrite", file=beside
        )
    return path


def write_rows(path: Path | str, rows: Iterable[Row]) -> int:
    """Write rows to JSONL, JSONL.gz or Parquet by the file's ending, atomically; returns their number."""
    path = check_rows_target(path)
    if path.name.lower().endswith(".parquet"):
        return _write_parquet(path, rows)
    return write_jsonl(path, (row.to_dict() for row in rows))


def _write_parquet(path: Path, rows: Iterable[Row]) -> int:
    """A Parquet file has one schema, which is known when the last row is: rows wait in a file beside the target."""
    import pyarrow

    folder = check_parent(path).parent
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryFile(dir=folder) as file:
            schema, count = _spool(file, rows)
            file.seek(0)
            with atomic_file(path) as target:
                _copy_spool(file, schema, target)
    except (pyarrow.ArrowException, OverflowError) as error:
        raise _unfit(path, error) from None
    return count


def _unfit(path: Path | str, error: Exception) -> InputError:
    return InputError(f"the rows do not fit a Parquet table ({error}); write .jsonl instead", file=path)


def check_fit(path: Path | str, rows: Iterable[Row]) -> None:
    """Go through all rows; raises `InputError` where a file of `path`'s ending cannot hold them. Writes nothing."""
    if not Path(path).name.lower().endswith(".parquet"):
        for _ in rows:
            pass
        return
    import pyarrow
    from pyarrow import parquet

    try:
        with open(os.devnull, "wb") as file:
            schema, _ = _spool(file, rows)
        parquet.ParquetWriter(pyarrow.BufferOutputStream(), schema).close()
    except (pyarrow.ArrowException, OverflowError) as error:
        raise _unfit(path, error) from None


def _spool(file: IO[bytes], rows: Iterable[Row]) -> tuple[Any, int]:
    """Write rows as Arrow streams, one a batch since each has a schema of its own; the schema of all, and their number.

    A column that only some rows have is null in the others; whole numbers become floats where some are.
    """
    import pyarrow

    schema, count = pyarrow.schema([]), 0
    for batch in _batches(rows):
        # a column has one type, so a prompt is a list of messages in every row
        values: list[dict[str, Any]] = [row.to_dict() | {"prompt": row.prompt} for row in batch]
        names = dict.fromkeys(name for value in values for name in value)
        table = pyarrow.table({name: [value.get(name) for value in values] for name in names})
        schema = pyarrow.unify_schemas([schema, table.schema], promote_options="permissive")
        with pyarrow.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
        count += len(batch)
    return schema, count


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    source = iter(rows)
    while batch := list(islice(source, _BATCH)):
        yield batch


def _copy_spool(file: IO[bytes], schema: Any, target: IO[bytes]) -> None:
    import pyarrow
    from pyarrow import parquet

    with parquet.ParquetWriter(target, schema) as writer:
        end = file.seek(0, os.SEEK_END)
        file.seek(0)
        while file.tell() < end:
            with pyarrow.ipc.open_stream(file) as stream:
                table = stream.read_all()
            writer.write_table(pyarrow.concat_tables([schema.empty_table(), table], promote_options="permissive"))


def objectives_path(path: Path | str) -> Path:
    """The objectives file of a rows file: `rows.jsonl.gz` -> `rows.objectives.json`."""
    path = Path(path)
    name = path.name
    for ending in (".gz", ".jsonl", ".json", ".ndjson", ".parquet", ".txt"):
        if len(name) > len(ending) and name.lower().endswith(ending):
            name = name[: -len(ending)]
    return path.with_name(f"{name}.objectives.json")


def stored_objectives(*sources: Path | str) -> list[Objective] | None:
    """The objectives kept beside the rows of all `sources`, or None; of a folder also those beside the files read.

    Raises:
        InputError: a broken file, or two files that say different things of one objective.
    """
    beside = dict.fromkeys(path for source in sources for path in _beside(source) if path.exists())
    known: dict[str, tuple[Path, Objective]] = {}
    for path in beside:
        for each in _read_objectives(path):
            first, other = known.setdefault(each.name, (path, each))
            if other != each:
                raise InputError(
                    f"says something else of objective '{each.name}' than {first} (direction, spec or scale); "
                    "score the rows together, or make the two files agree",
                    file=path,
                )
    return [each for _, each in known.values()] if beside else None


def _beside(source: Path | str) -> list[Path]:
    """Where the objectives of a source may be."""
    if not Path(source).name:
        return []
    try:
        files = row_files(source)
    except InputError:  # told by who reads the rows
        files = []
    return [objectives_path(path) for path in (source, *files)]


def _read_objectives(beside: Path) -> list[Objective]:
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
    return objectives


def store_objectives(path: Path | str, objectives: Sequence[Objective]) -> None:
    """Keep the objectives beside the rows at `path`."""
    check_names(objectives)
    write_json(objectives_path(path), {"format": FORMAT, "objectives": [item.to_dict() for item in objectives]})


def keep_objectives(
    path: Path | str, names: Iterable[str], stored: Iterable[Objective], minimise: Collection[str] = ()
) -> None:
    """Put the objectives of rows that were written to `path` beside them: of every score in `names`, by what is
    `stored` of it elsewhere, else by its direction. Those of rows that were replaced do not stay.
    """
    known = {name: Objective(name, direction="minimise" if name in minimise else "maximise") for name in names}
    known |= {each.name: each for each in stored if each.name in known}
    if known:
        store_objectives(path, list(known.values()))
    else:
        objectives_path(path).unlink(missing_ok=True)
