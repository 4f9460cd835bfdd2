"""A scoring that was ended by whatever goes on where it stopped, to the same bytes, and measures nothing twice."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paretune.data import read_rows, stored_objectives
from paretune.errors import InputError
from paretune.files import locked
from paretune.rewards import score
from paretune.rewards.journal import Journal
from paretune.rewards.spec import parse_objective

REWARD = """
import json, os, signal

def measured(prompts, completions, id, **columns):
    with open("calls.txt", "a") as file:
        file.write("".join(f"{each}\\n" for each in id))
    fault = json.load(open("fault.json")) if os.path.exists("fault.json") else {}
    if fault.get("row") in id:
        if fault["how"] == "raise":
            raise RuntimeError("boom")
        os.remove("fault.json")
        os.kill(os.getpid(), getattr(signal, fault["how"]))
    return [float(len(text)) for text in completions]

def other(prompts, completions, **columns):
    return [1.0 / (1 + len(text)) for text in completions]
"""
OBJECTIVES = ["m=python:counted_reward:measured", "b=lexical:brevity"]
ARGUMENTS = ["score", "rows.jsonl", "--objective", OBJECTIVES[0], "--objective", OBJECTIVES[1], "--out", "out.jsonl"]
ARGUMENTS += ["--chunk-size", "10", "--batch-size", "4"]

STAGED = """
import os, signal, sys
import paretune.rewards
from paretune.cli.app import main

score, journal = (sys.modules[f"paretune.rewards.{name}"] for name in ("score", "journal"))

def killed(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

place, name = {
    "write": (score.ScoreTable, "add"),
    "publish": (journal, "move_file"),
    "objectives": (score, "store_objectives"),
    "remove": (journal.Journal, "remove"),
}[sys.argv.pop(1)]
setattr(place, name, killed)
main()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with 40 rows of two answers each, and a reward that writes down what it is called for."""
    (tmp_path / "counted_reward.py").write_text(REWARD)
    rows = [
        {
            "id": f"r{at}",
            "prompt": f"p{at}",
            "completions": [{"text": "a " * at}, {"text": f"{at} b", "scores": {"o": at}}],
        }
        for at in range(40)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def again(out: str = "out.jsonl", **options: Any) -> Any:
    """The scoring of this file, in this process."""
    return score("rows.jsonl", OBJECTIVES, out, **{"chunk_size": 10, "batch_size": 4, **options})


def command(*before: str) -> subprocess.CompletedProcess[str]:
    """The same by the command line, in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    start = before or ("-m", "paretune")
    return subprocess.run([sys.executable, *start, *ARGUMENTS], capture_output=True, text=True, env=environment)


def fault(row: str, how: str) -> None:
    Path("fault.json").write_text(json.dumps({"row": row, "how": how}))


def calls() -> Counter[str]:
    return Counter(Path("calls.txt").read_text().split())


def uninterrupted() -> bytes:
    again("whole.jsonl")
    Path("calls.txt").unlink()
    return Path("whole.jsonl").read_bytes()


def hidden() -> list[str]:
    return [name for name in os.listdir() if name.startswith(".")]


def test_killed_in_a_chunk(place: Path) -> None:
    whole = uninterrupted()
    fault("r17", "SIGKILL")
    assert command().returncode == -signal.SIGKILL
    assert not Path("out.jsonl").exists() and hidden() == [".out.jsonl.scoring"]
    told: list[str] = []
    again(note=told.append)
    # chunks are 5 rows: three were kept, the fourth (rows 15 to 19) was in flight
    assert told == [f"continuing: 3 of 8 chunks of objective '{name}' were scored" for name in "mb"]
    assert Path("out.jsonl").read_bytes() == whole
    twice = {name for name, count in calls().items() if count != 2}
    assert twice <= {"r15", "r16", "r17", "r18", "r19"} and len(calls()) == 40
    assert hidden() == []


@pytest.mark.parametrize("stage", ["write", "publish", "objectives", "remove"])
def test_killed_in_the_final_write(place: Path, stage: str) -> None:
    whole = uninterrupted()
    assert command("-c", STAGED, stage).returncode == -signal.SIGKILL
    assert Path("out.jsonl").exists() is (stage in ("objectives", "remove"))
    summary = again()
    assert Path("out.jsonl").read_bytes() == whole and summary.rows == 40
    assert [item.name for item in stored_objectives("out.jsonl") or []] == ["m", "b"]
    assert set(calls().values()) == {2} and hidden() == []


def test_killed_when_its_own_input_was_replaced(place: Path) -> None:
    whole = uninterrupted()
    text = STAGED.replace(
        "main()", "sys.argv[sys.argv.index('out.jsonl')] = 'rows.jsonl'; sys.argv.append('--overwrite'); main()"
    )
    assert command("-c", text, "objectives").returncode == -signal.SIGKILL
    assert Path("rows.jsonl").read_bytes() == whole
    again("rows.jsonl", overwrite=True)
    assert Path("rows.jsonl").read_bytes() == whole and set(calls().values()) == {2} and hidden() == []


@pytest.mark.parametrize(("how", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_interrupted(place: Path, how: str, status: int) -> None:
    fault("r30", how)
    done = command()
    assert done.returncode == status and "Traceback" not in done.stderr
    assert "is kept in .out.jsonl.scoring, and the same command goes on from there" in done.stderr
    done = command()
    assert "continuing: 6 of 8 chunks of objective 'm' were scored" in done.stderr and done.returncode == 0
    assert len(read_rows("out.jsonl")) == 40


def test_a_reward_that_raises_names_the_row_and_keeps_what_was_scored(place: Path) -> None:
    whole = uninterrupted()
    fault("r23", "raise")
    with pytest.raises(InputError, match=r"objective 'm', row 'r23': .*boom.*what was scored so far is kept"):
        again()
    Path("fault.json").unlink()
    Path("calls.txt").unlink()
    again()
    assert Path("out.jsonl").read_bytes() == whole
    assert set(calls()) == {f"r{at}" for at in range(20, 40)} and set(calls().values()) == {2}


def test_nothing_stays_of_a_run_that_scored_nothing(place: Path) -> None:
    fault("r0", "raise")
    with pytest.raises(InputError, match="row 'r0'") as caught:
        again("new/folder/out.jsonl")
    assert "is kept" not in str(caught.value)
    assert not Path("new").exists()


def fail_at(row: str) -> None:
    fault(row, "raise")
    with pytest.raises(InputError, match=row):
        again()
    Path("fault.json").unlink()
    Path("calls.txt").unlink()


def test_only_objectives_that_changed_are_measured_again(place: Path) -> None:
    fail_at("r39")
    told: list[str] = []
    asked = [OBJECTIVES[0], "b=lexical:length", "o=python:counted_reward:other"]
    score("rows.jsonl", asked, "out.jsonl", note=told.append)  # its chunk size is that of the unfinished run
    assert told == ["continuing: 7 of 8 chunks of objective 'm' were scored"]
    assert set(calls()) == {f"r{at}" for at in range(35, 40)}
    (first, *_) = read_rows("out.jsonl")
    assert first.completions[1].scores == {"o": 1 / 4, "m": 3.0, "b": 2.0}


def test_a_reward_whose_imports_changed_is_measured_again(place: Path) -> None:
    """Half of the scores by the old helper and half by the new one would be a silent mixture."""
    Path("reward_helper.py").write_text("UNIT = 1.0\n")
    Path("counted_reward.py").write_text(REWARD.replace("float(len(text))", "UNIT * len(text)") + "\n")
    with Path("counted_reward.py").open("a") as file:
        file.write("from reward_helper import UNIT\n")
    fault("r39", "raise")
    assert command().returncode == 2
    Path("fault.json").unlink()
    Path("reward_helper.py").write_text("UNIT = 20.0\n")
    done = command()
    assert done.returncode == 0 and "objective 'm'" not in done.stderr
    rows = read_rows("out.jsonl")
    assert all(each.scores["m"] == 20.0 * len(each.text) for row in rows for each in row.completions)


def test_a_changed_word_list_is_another_reward(place: Path) -> None:
    Path("list.txt").write_text("a\n")
    words = parse_objective("w=lexical:words:list.txt")
    one = Journal(Path("out.jsonl"), [words], 10)
    Path("list.txt").write_text("b\n")
    assert Journal(Path("out.jsonl"), [words], 10)._places != one._places


def test_a_changed_input_is_told_and_discarded_only_when_asked(place: Path) -> None:
    fail_at("r20")
    text = Path("rows.jsonl").read_text()
    Path("rows.jsonl").write_text(text.replace("p0", "another"))
    with pytest.raises(InputError, match=r"unfinished scoring of other rows.*--overwrite to discard"):
        again()
    assert not Path("calls.txt").exists()
    told: list[str] = []
    again(overwrite=True, note=told.append)
    assert told == [] and len(calls()) == 40 and hidden() == []


def test_a_folder_is_known_again_by_its_rows(place: Path) -> None:
    Path("folder").mkdir()
    os.replace("rows.jsonl", "folder/rows.jsonl")
    fault("r20", "raise")
    with pytest.raises(InputError, match="r20"):
        score("folder", OBJECTIVES, "out.jsonl", chunk_size=10)
    Path("fault.json").unlink()
    told: list[str] = []
    score("folder", OBJECTIVES, "out.jsonl", note=told.append)
    assert told[0].startswith("continuing: 4 of 8")


@pytest.mark.parametrize("damage", ["", '{"digest": "', "{}", "[]"])
def test_a_broken_chunk_is_measured_again(place: Path, damage: str) -> None:
    whole = uninterrupted()
    fail_at("r39")
    (chunk,) = Path(".out.jsonl.scoring").glob("m-*/2.json")
    chunk.write_text(damage or chunk.read_text().replace("2.0", "2.5"))
    again()
    assert Path("out.jsonl").read_bytes() == whole
    assert set(calls()) == {f"r{at}" for at in (*range(10, 15), *range(35, 40))}


def test_two_at_a_time_into_one_output(place: Path) -> None:
    with locked(place / ".out.jsonl.scoring" / "lock", "a test"):
        with pytest.raises(InputError, match=r"scoring into out\.jsonl is going on already"):
            again()
        again("elsewhere.jsonl")
    again()


def test_a_full_disk_keeps_what_was_scored(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    kept = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        written.append(self)
        if len(written) > 5:
            kept(self, data[:7])
            raise OSError(errno.ENOSPC, "No space left on device")
        return kept(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(
        InputError, match=r"the disk is full \(No space left on device\); what was scored so far is kept"
    ):
        again()
    monkeypatch.undo()
    os.chdir(place)
    assert len(list(Path(".out.jsonl.scoring").glob("*/*"))) == 5
    again()
    assert len(read_rows("out.jsonl")) == 40


def test_a_disk_that_is_full_at_the_end(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys.modules["paretune.rewards.score"], "write_rows", full)
    with pytest.raises(InputError, match=r"the disk is full.*is kept"):
        again()
    monkeypatch.undo()
    os.chdir(place)
    again()
    assert len(read_rows("out.jsonl")) == 40 and set(calls().values()) == {2}


def test_an_input_that_changes_under_way_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Journal.begin

    def touched(self: Journal, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        Path("rows.jsonl").write_text(Path("rows.jsonl").read_text() + "\n")

    monkeypatch.setattr(Journal, "begin", touched)
    with pytest.raises(InputError, match="was changed while it was being scored"):
        again()
