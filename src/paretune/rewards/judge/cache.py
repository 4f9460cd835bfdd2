"""Verdicts on disk, so that no answer is paid for twice: one SQLite file, which several processes may share.

A verdict's key is a hash of all that it depends on. The file holds scores, reasons and token counts, never prompts,
answers or keys. A verdict is there as soon as it was given: a killed run loses those under way and no other. Failures
are not kept.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from paretune.errors import InputError
from paretune.files import check_parent
from paretune.rewards.judge.prompt import Verdict

FILE = "verdicts.sqlite"
FORMAT = 1
_TABLE = """
CREATE TABLE IF NOT EXISTS verdicts (
    key TEXT PRIMARY KEY,
    score REAL NOT NULL,
    reason TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL
) WITHOUT ROWID"""
_COLUMNS = "key, score, reason, prompt_tokens, completion_tokens"
_AT_ONCE = 500
"""Keys a query: SQLite's oldest limit on parameters is 999."""


class Cache:
    """The verdicts in a folder. Safe to use from several threads and processes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._lock = threading.Lock()
        check_parent(self.path)
        with self._telling():
            folder.mkdir(parents=True, exist_ok=True)
            # another process that writes is waited for, up to half a minute
            self._connection = sqlite3.connect(self.path, timeout=30, isolation_level=None, check_same_thread=False)
            weakref.finalize(self, self._connection.close)
            self._prepare()

    def _prepare(self) -> None:
        try:  # readers do not wait for writers; where the file system cannot do it, SQLite stays as it was
            self._connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise  # locked: another process is just making the same change
        self._connection.execute("PRAGMA synchronous=NORMAL")  # whole after a kill; after a power cut too, in WAL mode
        [found] = self._connection.execute("PRAGMA user_version").fetchone()
        if found not in (0, FORMAT):
            raise InputError(f"holds verdicts of format {found}, {FORMAT} is needed; use cache=FOLDER", file=self.path)
        self._connection.execute(_TABLE)
        self._connection.execute(f"PRAGMA user_version={FORMAT}")

    def get(self, keys: Sequence[str]) -> dict[str, Verdict]:
        """The verdicts that there are, by key."""
        found: dict[str, Verdict] = {}
        with self._lock, self._telling():
            for start in range(0, len(keys), _AT_ONCE):
                part = keys[start : start + _AT_ONCE]
                marks = ",".join("?" * len(part))
                query = f"SELECT {_COLUMNS} FROM verdicts WHERE key IN ({marks})"
                found |= {key: Verdict(*rest) for key, *rest in self._connection.execute(query, part)}
        return found

    def put(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict; of two under one key the first stays, so that scores do not change between runs."""
        values = (key, verdict.score, verdict.reason, verdict.prompt_tokens, verdict.completion_tokens)
        with self._lock, self._telling():
            self._connection.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?, ?, ?)", values)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise InputError(
                f"the cache of verdicts cannot be used ({error}); name another with cache=FOLDER, or cache=off",
                file=self.path,
            ) from error
