"""Progress bars on stderr, by rich, when stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from paretune.progress import NO_PROGRESS, Progress, Task

if TYPE_CHECKING:
    import rich.progress


def bars() -> Progress:
    """Bars for a person who watches, silence for a pipe or a log file."""
    return Bars() if sys.stderr.isatty() else NO_PROGRESS


class Bars:
    """One display for all tasks under way, so that tasks may be nested."""

    def __init__(self) -> None:
        self._display: rich.progress.Progress | None = None
        self._open = 0

    @contextmanager
    def __call__(self, description: str, total: int | None = None) -> Iterator[Task]:
        """Show a bar while the block runs."""
        if self._display is None:
            self._display = _display()
            self._display.start()
        self._open += 1
        bar = _Bar(self._display, self._display.add_task(description, total=total, note=""))
        try:
            yield bar
        finally:
            bar.stop()
            self._open -= 1
            if not self._open:
                self._display.stop()
                self._display = None


class _Bar:
    def __init__(self, display: rich.progress.Progress, task: rich.progress.TaskID) -> None:
        self._display, self._task = display, task

    def advance(self, n: int = 1) -> None:
        """`n` more units are done."""
        self._display.advance(self._task, n)

    def update(self, text: str) -> None:
        """Text beside the bar."""
        self._display.update(self._task, note=text)

    def stop(self) -> None:
        """The clock of this bar stands still from here."""
        self._display.stop_task(self._task)


def _display() -> rich.progress.Progress:
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=24),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left", style="dim"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}", markup=False),
        console=Console(stderr=True),
    )
