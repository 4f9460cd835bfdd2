"""How long work tells how far it is: a protocol any caller can fill, and the silent one.

A `Progress` is called with a description and a total and gives a context manager whose value is advanced:

    with progress("score brevity", len(rows)) as task:
        for row in rows:
            ...
            task.advance()

The command line passes one that draws a bar (`paretune.cli.progress`); a function's default is `NO_PROGRESS`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Task(Protocol):
    """One piece of work under way."""

    def advance(self, n: int = 1) -> None:
        """`n` more units are done."""

    def update(self, text: str) -> None:
        """Say something that changes beside the bar (a loss, a rate)."""


class Progress(Protocol):
    """Starts a task; `total` is the number of units, or None when it is not known."""

    def __call__(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
        """The context manager of a task."""


class _Silent:
    def advance(self, n: int = 1) -> None:
        return

    def update(self, text: str) -> None:
        return


class _NoProgress:
    def __call__(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
        return nullcontext(_Silent())


NO_PROGRESS: Progress = _NoProgress()
