"""A script for test_resume.py: trainings that are really killed (SIGKILL), each in a process of its own.

    python kill_and_resume.py DATA MODEL FOLDER SETTING ...

It trains FOLDER/plain without a break and FOLDER/policy with three kills, and prints how each process ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paretune.methods import train
from paretune.policy.backbone import load_backbone  # with torch: the children are forked with all of it read
from paretune.training import checkpoint, loop


def die() -> None:
    """As a machine that goes down."""
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_step(at: int) -> None:
    """Die after the backward pass of the at-th step of this process."""
    accumulate, calls = loop._accumulate, []

    def counted(*arguments: Any) -> Any:
        out = accumulate(*arguments)
        calls.append(1)
        if len(calls) == at:
            die()
        return out

    loop._accumulate = counted


def in_a_save(step: int) -> None:
    """Die while the checkpoint of this step is being written: its tensors are there, the manifest is not."""
    digest = checkpoint.file_digest

    def deadly(path: Path) -> str:
        if path.name == "state.safetensors" and f"step-{step:06d}" in str(path) and path.parent.name.endswith(".part"):
            die()
        return digest(path)

    checkpoint.file_digest = deadly


def ended(action: Callable[[], None]) -> int:
    """How a process that runs this ends: 0, or minus the signal."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(data: str, model: str, folder: Path, settings: list[str]) -> None:
    """Train with and without breaks."""
    assert load_backbone

    def go(name: str, harm: Callable[[], None] | None = None) -> int:
        def action() -> None:
            if harm is not None:
                harm()
            train("sga", data, model, folder / name, settings=settings)

        return ended(action)

    ends = [go("plain"), go("policy", lambda: in_a_step(4)), go("policy", lambda: in_a_save(6))]
    half = [each.name for each in (folder / ".policy.checkpoints").iterdir()]
    ends += [go("policy", lambda: in_a_step(3)), go("policy")]
    print(json.dumps({"ends": ends, "half": half}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
