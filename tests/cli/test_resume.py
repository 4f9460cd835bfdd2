"""`paretune train` and `paretune reward train` after a break: what they say, refuse, and begin anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paretune.training import loop

SETTINGS = [part for each in ("dtype=float32", "epochs=1", "batch_size=5", "save_every=1") for part in ("--set", each)]


@pytest.fixture(params=["train", "reward"])
def command(request: pytest.FixtureRequest, scored_rows: Path, tiny_llama: Path, tmp_path: Path) -> list[object]:
    """A command that trains a policy, or a reward model."""
    verb = ["train", "sft"] if request.param == "train" else ["reward", "train", "--objectives", "cheer"]
    return [*verb, "--data", scored_rows, "--model", tiny_llama, "--out", tmp_path / "made", *SETTINGS]


@pytest.fixture
def broken_off(command: list[object], invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The command, whose training was interrupted in its second step."""
    compute, calls = loop._accumulate, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return compute(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_accumulate", interrupted)
        done = invoke(*command)
    assert (done.exit_code, done.stdout) == (130, "")
    assert done.stderr.splitlines()[-2:] == [
        "the last checkpoint is .made.checkpoints/step-000001: the same command goes on from there, with --restart it "
        "begins anew",
        "interrupted",
    ]
    assert [each.name for each in tmp_path.iterdir()] == [".made.checkpoints"]
    return command


def test_the_same_command_goes_on(broken_off: list[object], invoke: Any, tmp_path: Path) -> None:
    done = invoke(*broken_off)
    assert done.exit_code == 0 and "continuing from step 1 of" in done.stderr, done.output
    assert [each.name for each in tmp_path.iterdir()] == ["made"]


def test_another_command_is_refused_unless_it_begins_anew(
    broken_off: list[object], invoke: Any, refused: Any, tmp_path: Path
) -> None:
    other = [*broken_off, "--set", "clip=0.5"]
    told = refused(*other, folder=tmp_path)
    assert "made.checkpoints: holds an unfinished training of another kind: settings.clip was" in told
    done = invoke(*other, "--restart")
    assert done.exit_code == 0 and "continuing" not in done.stderr, done.output
    assert [each.name for each in tmp_path.iterdir()] == ["made"]
