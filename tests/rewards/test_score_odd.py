"""Odd rewards and outputs: a reward that exits or prints, rows that Parquet cannot hold, names and links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paretune.data import read_rows
from paretune.errors import InputError
from paretune.rewards import score

REWARDS = """
def ends(prompts, completions, **columns): raise SystemExit(0)
def ends_by_sigterm(prompts, completions, **columns): raise SystemExit(143)
def numpy_bools(prompts, completions, **columns):
    import numpy
    return list(numpy.array([len(text) > 3 for text in completions]))
def prints(prompts, completions, **columns):
    print("from the reward")
    return [1.0] * len(completions)
def called(prompts, completions, **columns):
    open("called", "w").close()
    return [1.0] * len(completions)
"""
CALLED = ["a=python:odd_rewards:called"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the module of odd rewards."""
    (tmp_path / "odd_rewards.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows_file(count: int) -> Path:
    """Rows r0, r1, ... of a short answer and a longer one."""
    rows = [{"id": f"r{at}", "prompt": "p", "completions": ["a", "a longer one"]} for at in range(count)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Path("rows.jsonl")


def test_a_reward_that_ends_the_program_in_a_process_is_told_too(here: Path) -> None:
    with pytest.raises(InputError, match=r"objective 'x', row 'r0': the reward ended the program"):
        score(rows_file(7), ["x=python:odd_rewards:ends"], "out.jsonl", chunk_size=4, workers=2)


def test_a_module_that_ends_the_program(here: Path) -> None:
    (here / "script_reward.py").write_text("import sys\nprint('hello')\nsys.exit(0)\n")
    with pytest.raises(InputError, match=r"'script_reward' ended the program when it was imported.*__main__"):
        score(rows_file(7), ["x=python:script_reward:f"], "out.jsonl")


def test_the_exit_of_a_sigterm_is_no_fault_of_the_reward(here: Path) -> None:
    with pytest.raises(SystemExit):
        score(rows_file(7), ["x=python:odd_rewards:ends_by_sigterm"], "out.jsonl")


def test_booleans_of_numpy_are_numbers_like_those_of_python(here: Path) -> None:
    score(rows_file(3), ["x=python:odd_rewards:numpy_bools"], "out.jsonl")
    scores = [each.scores["x"] for row in read_rows("out.jsonl") for each in row.completions]
    assert scores == [0.0, 1.0] * 3


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_reward_prints_is_no_result(here: Path, capfd: pytest.CaptureFixture[str], workers: int) -> None:
    score(rows_file(8), ["x=python:odd_rewards:prints"], "out.jsonl", chunk_size=4, workers=workers)
    told = capfd.readouterr()
    assert told.out == "" and "from the reward" in told.err


@pytest.mark.parametrize(
    "odd", [[{"x": {}}], [{"x": 1}, {"x": "text"}], [{"x": [1]}, {"x": {"a": 1}}], [{"x": 2**70}]], ids=str
)
def test_rows_that_no_parquet_file_can_hold_are_told_before_anything_is_scored(
    here: Path, odd: list[dict[str, Any]]
) -> None:
    rows = [{"prompt": f"p{at}", "completions": ["a"], **more} for at, more in enumerate(odd)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"^out\.parquet: the rows do not fit a Parquet table"):
        score("rows.jsonl", CALLED, "out.parquet")
    assert (
        not Path("called").exists()
        and [each.name for each in here.iterdir() if each.name.startswith((".", "out"))] == []
    )
    score("rows.jsonl", CALLED, "out.jsonl")


def test_a_name_that_is_too_long_is_told_before_anything_is_scored(here: Path) -> None:
    with pytest.raises(InputError, match="too long a name"):
        score(rows_file(3), CALLED, f"{'n' * 215}.jsonl")
    assert not Path("called").exists()
    longest = "n" * 214 + ".jsonl"
    score(rows_file(3), CALLED, longest)
    assert len(read_rows(longest)) == 3


def test_a_link_to_a_file_of_another_name_is_followed(here: Path) -> None:
    Path("kept.data").touch()
    Path("out.jsonl").symlink_to("kept.data")
    score(rows_file(3), ["a=lexical:length"], "out.jsonl", overwrite=True)
    assert Path("out.jsonl").is_symlink() and len(Path("kept.data").read_text().splitlines()) == 3
