"""What the tests of the command line share: verbs run in this process, and what is promised about bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paretune.cli.app import app

Invoke = Callable[..., Any]


@pytest.fixture
def invoke() -> Invoke:
    """Run a verb in this process: fast, since nothing is imported twice."""

    def run(*arguments: object) -> Any:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="paretune")

    return run


@pytest.fixture
def refused(invoke: Invoke) -> Invoke:
    """Run a verb on bad input, check all that is promised about it, and give its one message."""

    def run(*arguments: object, folder: Path, usage: bool = False) -> str:
        before = snapshot(folder)
        done = invoke(*arguments)
        assert done.exit_code == 2, (done.exit_code, done.output, done.exception)
        assert isinstance(done.exception, SystemExit)
        assert done.stdout == ""
        assert "Traceback" not in done.stderr
        lines = done.stderr.strip().splitlines()
        if not usage:
            assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
        assert snapshot(folder) == before, "a refused verb must leave nothing behind"
        return lines[-1]

    return run


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path under a folder with its size and time of change."""
    stats = {str(path.relative_to(folder)): path.stat() for path in folder.rglob("*")}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items() if not Path(name).is_dir()}


def command(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`paretune ARGUMENTS` as a user runs it."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "paretune", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        timeout=300,
    )


@pytest.fixture(scope="session")
def paretune() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command in a process of its own."""
    return command


@pytest.fixture
def write_rows_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of rows; a text is written as it is."""

    def write(*rows: object, name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return path

    return write
