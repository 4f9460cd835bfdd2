"""What the tests of tracking share: a training that is broken off, records without the clock, a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from paretune.files import write_json
from paretune.training import loop

CLOCK = ("seconds", "tokens_per_second", "peak_memory_mib")


def break_off(monkeypatch: pytest.MonkeyPatch, train: Callable[[], object], *, step: int) -> None:
    """Run a training that is interrupted in its `step`-th forward pass."""
    compute, calls = loop._accumulate, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == step:
            raise KeyboardInterrupt
        return compute(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "_accumulate", interrupted)
        train()


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record that depend on no clock, but for its step and the summary at the end."""
    return {
        name: float(value)
        for name, value in record.items()
        if isinstance(value, (int, float)) and name.rpartition("/")[2] not in (*CLOCK, "step") and "final/" not in name
    }


def report(folder: Path, policy: str, distance: float) -> None:
    """An evaluation's folder, as far as it is read."""
    own = {
        "folder": policy,
        "natural": "sensed",
        "test": {"prompts": 5},
        "conditions": {
            "sensed": {"distance": {"value": distance}, "scores": {"cheer": {"value": 0.5}}},
            "none": {"distance": {"value": 0.4}},
        },
        "multi_win": {"sensed": {"value": 0.6}},
        "front_set": {"hypervolume": {"value": 0.25}},
        "control_accuracy": None,
    }
    write_json(folder / "metrics.json", {"data": "test.jsonl", "policies": {"p": own}})
    (folder / "report.html").write_text("<p>")
