"""The log of a training: every number of every step as JSON Lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paretune.files import dump_line

Follow = Callable[[dict[str, Any], bool], None]
"""Told of a record, and whether an earlier process has written it before."""


@dataclass
class Journal:
    """train.jsonl: one record a step, flushed as it is written.

    `follow`, if there is one, is told of each record too.
    """

    path: Path
    records: list[dict[str, Any]] = field(default_factory=list)
    follow: Follow | None = None

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("w", encoding="utf-8")

    def write(self, record: dict[str, Any], *, again: bool = False) -> None:
        """Append a record, `again` where a training goes on that wrote it before; numbers are finite by now."""
        self.records.append(record)
        self._file.write(dump_line(record) + "\n")
        self._file.flush()
        if self.follow is not None:
            self.follow(record, again)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
