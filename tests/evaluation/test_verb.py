"""What the command line prints of a comparison, and how it refuses: `paretune evaluate` on see-through policies."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from evaluation import fakes
from paretune.cli.app import app
from paretune.errors import InputError

LIMITS = ["--bootstrap", "50", "--control-prompts", "0", "--condition", "none"]


def verb(world: Any, *arguments: str) -> Any:
    for name, answer in (("good", fakes.obeys), ("plain", fakes.ignores)):
        if not (world.path / name).exists():
            weighed = name == "good"
            world.add(fakes.FakePolicy(answer, has_head=False, takes_weights=weighed, models_at_inference=2), name)
    folders = [str(world.path / "good"), str(world.path / "plain")]
    asked = ["evaluate", *folders, "--data", str(world.rows), "--out", str(world.path / "out"), *LIMITS, *arguments]
    return CliRunner().invoke(app, asked, prog_name="paretune")


def test_the_table_of_methods_and_the_claims(world: Any) -> None:
    done = verb(world, "--weights", "grid", "--reference", "warm=.1")
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    (head,) = [at for at, line in enumerate(lines) if line[:2] == ["policy", "answers"]]
    assert " ".join(lines[head]) == "policy answers multi win joint win hypervolume distance words train s models"
    assert lines[head + 1][:2] == ["good", "centre"] and lines[head + 2][:2] == ["plain", "none"]
    # from (.1, 0): .15 * .75 + .25 * .5 + .25 * .25, and .4 * .5
    assert lines[head + 1][4] == "0.300" and lines[head + 2][4] == "0.200" and lines[head + 1][-1] == "2"
    assert "good has the highest hypervolume, 0.300" in done.stdout
    assert "In distance to the target, 1 of 1 tests show no difference." in done.stdout
    assert "takes no weights" in done.stdout and "report.html" in done.stdout


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (["--weights", "warm=.5,short=.6"], "weights must sum to 1"),
        (["--weights", "warm=-1,short=2"], "the weight of 'warm' must be 0 or more"),
        (["--profile", "warm=2"], "must lie in [0, 1]"),
        (["--reference", "0,0"], "the reference is written name=value"),
        (["--judge-with", f"warm={fakes.SPECS[0]}"], "was trained on"),
    ],
)
def test_wrong_wishes_exit_with_2_and_one_line(world: Any, wish: list[str], message: str) -> None:
    done = verb(world, *wish)
    assert done.exit_code == 2 and message in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""
    assert not (world.path / "out").exists()


def test_a_run_that_was_ended_says_what_it_kept(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise InputError("no space is left")

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["paretune.evaluation.evaluate"], "write", full)
        assert verb(world).exit_code == 2
    other = verb(world, "--max-new-tokens", "3")
    assert other.exit_code == 2 and "with another limit of new tokens" in other.stderr
    done = verb(world)
    count = len((world.path / "out" / "answers.jsonl").read_text().splitlines())
    assert done.exit_code == 0 and f"{count} answers were kept from the run that was ended before" in done.stdout
    again = verb(world, "--overwrite")
    assert again.exit_code == 0 and "were kept" not in again.stdout
