"""The log of a training: every number of every step as JSON Lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paretune.files import dump_line


@dataclass
class Journal:
    """train.jsonl: one record a step, flushed as it is written."""

    path: Path
    records: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("w", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Append a record; numbers are finite by now."""
        self.records.append(record)
        self._file.write(dump_line(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
