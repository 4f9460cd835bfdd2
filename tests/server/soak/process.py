"""`paretune serve` in a process of its own, and what the system tells of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Process:
    """A server that is ready."""

    process: subprocess.Popen[str]
    port: int

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def _status(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in text.splitlines() if line.startswith(f"{name}:")).split()[1])

    def rss(self) -> int:
        """Bytes in memory."""
        return self._status("VmRSS") * 1024

    def threads(self) -> int:
        """Its threads."""
        return self._status("Threads")


@contextlib.contextmanager
def serving(*arguments: object) -> Iterator[Process]:
    """The command when it is ready; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "paretune", "serve", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert " is served at http://127.0.0.1:" in line, process.stderr.read()
        yield Process(process, int(line.rpartition(":")[2]))
    finally:
        process.kill()
        process.communicate()
