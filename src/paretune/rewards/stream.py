"""Rows as `score` reads them: one pass that checks and counts everything, then chunk by chunk as often as needed."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from paretune.data import ReadReport, iter_rows
from paretune.data.rows import Row
from paretune.data.write import check_fit
from paretune.errors import InputError
from paretune.files import dump_line, file_digest
from paretune.rewards.measure import Answers, answers_of, column_names


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows. `key` is a hash of their ids and texts, by which a journal knows them again."""

    number: int
    rows: list[Row]

    @cached_property
    def completions(self) -> int:
        """How many completions the rows have."""
        return sum(len(row.completions) for row in self.rows)

    @cached_property
    def key(self) -> str:
        """SHA-256 over ids and texts."""
        said = [[row.id, [completion.text for completion in row.completions]] for row in self.rows]
        return hashlib.sha256(dump_line(said).encode("utf-8")).hexdigest()

    def answers(self, names: Iterable[str]) -> Answers:
        """The completions with the columns `names`."""
        return answers_of(self.rows, names)


def in_chunks(rows: Iterable[Row], size: int) -> Iterator[Chunk]:
    """Rows in chunks of at least `size` completions (the last may have fewer); a row is never cut in two."""
    number, held, count = 0, list[Row](), 0
    for row in rows:
        held.append(row)
        count += len(row.completions)
        if count >= size:
            yield Chunk(number, held)
            number, held, count = number + 1, [], 0
    if held:
        yield Chunk(number, held)


@dataclass
class Source:
    """Rows that are read several times, always the same.

    `survey` is the first time: it fills in what is known afterwards. `sizes` are the completions of each row, `names`
    the columns that any row has, `scores` the objectives that any completion has a score of; `digest` is the SHA-256 of
    the file, or of the rows where they come from a folder or the hub.
    """

    path: Path | str
    skip_bad_rows: bool = False
    report: ReadReport = field(default_factory=ReadReport)
    sizes: array[int] = field(default_factory=lambda: array("L"))
    names: list[str] = field(default_factory=list)
    scores: list[str] = field(default_factory=list)
    digest: str = ""
    _stamp: tuple[int, ...] = ()

    def survey(self, out: Path | str) -> None:
        """Read everything once, checked: a bad row raises before any reward is called, or is dropped and counted.

        So do rows that a file of `out`'s ending cannot hold.
        """
        self._stamp = self._file_stamp()
        rolling = None if Path(self.path).is_file() else hashlib.sha256()
        check_fit(out, self._survey(rolling))
        self.digest = rolling.hexdigest() if rolling else file_digest(self.path)

    def _survey(self, rolling: Any) -> Iterator[Row]:
        names, scores = dict[str, None](), dict[str, None]()
        for row in iter_rows(self.path, skip_bad_rows=self.skip_bad_rows, report=self.report):
            names.update(dict.fromkeys(column_names(row)))
            for completion in row.completions:
                scores.update(dict.fromkeys(completion.scores))
            self.sizes.append(len(row.completions))
            if rolling:
                rolling.update(dump_line(row.to_dict()).encode("utf-8"))
            yield row
        self.names, self.scores = list(names), list(scores)

    def chunks(self, size: int) -> Iterator[Chunk]:
        """The rows again. Raises `InputError` if the file is another one by now."""
        self._check_unchanged()
        yield from in_chunks(iter_rows(self.path, skip_bad_rows=self.skip_bad_rows), size)
        self._check_unchanged()

    @property
    def completions(self) -> int:
        """How many completions the rows have."""
        return sum(self.sizes)

    def count_chunks(self, size: int) -> int:
        """How many chunks `chunks` gives."""
        count = held = rows = 0
        for each in self.sizes:
            held, rows = held + each, rows + 1
            if held >= size:
                count, held, rows = count + 1, 0, 0
        return count + (rows > 0)

    def _check_unchanged(self) -> None:
        if self._file_stamp() != self._stamp:
            raise InputError("was changed while it was being scored; run again", file=self.path)

    def _file_stamp(self) -> tuple[int, ...]:
        try:
            stat = os.stat(self.path)
        except OSError:  # a hub id, FOLDER:split
            return ()
        return (stat.st_ino, stat.st_size, stat.st_mtime_ns)
