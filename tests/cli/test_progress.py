"""Bars for a terminal, silence for a pipe."""

from __future__ import annotations

import io
import sys

import pytest

from paretune.cli.progress import Bars, bars
from paretune.progress import NO_PROGRESS


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert bars() is NO_PROGRESS


def test_the_silent_one_does_nothing() -> None:
    with NO_PROGRESS("work", 3) as task:
        task.advance()
        task.update("note")


def test_a_terminal_gets_nested_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    progress = bars()
    assert isinstance(progress, Bars)
    with progress("outer [x]", 2) as outer:
        outer.advance(2)
        outer.update("loss [0.5]")
        with progress("inner") as inner:
            inner.advance()
    with progress("again", 1):
        pass
    drawn = terminal.getvalue()
    for text in ("outer [x]", "2/2", "loss [0.5]", "inner", "again"):
        assert text in drawn


def test_an_error_ends_the_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", _Terminal())
    progress = Bars()
    with pytest.raises(RuntimeError, match="stop"), progress("work", 2):
        raise RuntimeError("stop")
    assert progress._display is None
