"""Files and folders appear whole or not at all, and nothing of another's is ever replaced."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import stat
import subprocess
import sys

import pytest

from paretune.errors import InputError
from paretune.files import (
    OURS,
    alive,
    atomic_file,
    atomic_folder,
    check_target_folder,
    file_digest,
    holder,
    locked,
    move_file,
    read_json,
    write_json,
    write_jsonl,
    write_text,
    writing,
)


class Stop(Exception):
    """What interrupts a write in these tests."""


def names(folder):
    """All names in a folder, hidden ones too."""
    return sorted(os.listdir(folder))


# --- files --------------------------------------------------------------------------------------------------------


def test_a_file_that_fails_midway_leaves_nothing(tmp_path):
    with pytest.raises(Stop), atomic_file(tmp_path / "out.txt") as file:
        file.write(b"half")
        raise Stop
    assert names(tmp_path) == []


def test_a_file_that_fails_midway_leaves_the_old_one(tmp_path):
    target = tmp_path / "out.txt"
    write_text(target, "old")
    with pytest.raises(Stop), atomic_file(target) as file:
        file.write(b"half")
        file.flush()
        assert target.read_text() == "old"  # not even visible while it is written
        raise Stop
    assert target.read_text() == "old"
    assert names(tmp_path) == ["out.txt"]


def test_an_interrupt_leaves_nothing_either(tmp_path):
    with pytest.raises(KeyboardInterrupt), atomic_file(tmp_path / "out.txt"):
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_a_written_file_replaces_the_old_one_with_the_umask_applied(tmp_path):
    target = tmp_path / "deep" / "er" / "out.txt"
    write_text(target, "old")
    write_text(target, "new: é")
    assert target.read_bytes() == "new: é".encode()
    assert names(target.parent) == ["out.txt"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~mask


def test_a_folder_where_a_file_is_wanted(tmp_path):
    with pytest.raises(InputError, match="is a folder, a file name is needed"):
        write_text(tmp_path, "x")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_json_never_holds_nan(tmp_path, bad):
    target = tmp_path / "m.json"
    write_json(target, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(target, {"a": [1.0, bad]})
    with pytest.raises(ValueError, match="JSON"):
        write_jsonl(tmp_path / "rows.jsonl", [{"a": 1}, {"a": bad}])
    assert names(tmp_path) == ["m.json"]
    assert read_json(target) == {"a": 1}


def test_json_lines_that_stop_midway_leave_nothing(tmp_path):
    def rows():
        yield {"a": 1}
        raise Stop

    for name in ("rows.jsonl", "rows.jsonl.gz"):
        with pytest.raises(Stop):
            write_jsonl(tmp_path / name, rows())
    assert names(tmp_path) == []


def test_json_lines_keep_text_as_it_is(tmp_path):
    rows = [{"text": "line\nbreak\u2028 é"}, {"text": ""}]
    assert write_jsonl(tmp_path / "rows.jsonl", rows) == 2
    raw = (tmp_path / "rows.jsonl").read_bytes()
    assert raw.endswith(b"\n")
    assert [json.loads(line) for line in raw.split(b"\n")[:-1]] == rows


def test_the_same_rows_give_the_same_compressed_bytes(tmp_path):
    rows = [{"a": i, "b": "x" * i} for i in range(50)]
    write_jsonl(tmp_path / "one.jsonl.gz", rows)
    write_jsonl(tmp_path / "two.jsonl.gz", rows)
    one = (tmp_path / "one.jsonl.gz").read_bytes()
    assert one == (tmp_path / "two.jsonl.gz").read_bytes()
    assert [json.loads(line) for line in gzip.decompress(one).splitlines()] == rows


def test_reading_json_says_what_is_wrong(tmp_path):
    with pytest.raises(InputError, match=r"gone.json: no such file"):
        read_json(tmp_path / "gone.json")
    (tmp_path / "broken.json").write_text('{"a": 1,\n"b": }')
    with pytest.raises(InputError, match=r"broken.json, line 2: is not JSON"):
        read_json(tmp_path / "broken.json")
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xe9"}')
    with pytest.raises(InputError, match="is not UTF-8"):
        read_json(tmp_path / "latin.json")


# --- folders ------------------------------------------------------------------------------------------------------


def fill(folder, text, **options):
    """Write a folder of ours with one file and one folder in it."""
    with atomic_folder(folder, **options) as work:
        (work / "inner").mkdir()
        (work / "inner" / "a.txt").write_text(text)
        write_text(work / "b.txt", text)


def test_a_folder_appears_whole(tmp_path):
    fill(tmp_path / "runs" / "out", "one")
    assert names(tmp_path / "runs") == ["out"]
    assert names(tmp_path / "runs" / "out") == sorted([OURS, "b.txt", "inner"])


def test_files_of_a_folder_follow_the_umask_whoever_wrote_them(tmp_path):
    with atomic_folder(tmp_path / "out") as work:
        (work / "inner").mkdir()
        for name in ("a", "inner/b"):
            (work / name).touch(mode=0o600)
    mask = os.umask(0)
    os.umask(mask)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert modes == {0o666 & ~mask}


def test_a_folder_that_fails_midway_leaves_nothing(tmp_path):
    with pytest.raises(Stop), atomic_folder(tmp_path / "out") as work:
        (work / "a.txt").write_text("half")
        raise Stop
    assert names(tmp_path) == []


def test_a_folder_that_fails_midway_leaves_the_old_one(tmp_path):
    fill(tmp_path / "out", "old")
    with pytest.raises(Stop), atomic_folder(tmp_path / "out", overwrite=True) as work:
        (work / "b.txt").write_text("half")
        raise Stop
    assert (tmp_path / "out" / "b.txt").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_overwriting_replaces_the_whole_folder(tmp_path):
    fill(tmp_path / "out", "old")
    (tmp_path / "out" / "stale.txt").write_text("from the first run")
    fill(tmp_path / "out", "new", overwrite=True)
    assert (tmp_path / "out" / "b.txt").read_text() == "new"
    assert not (tmp_path / "out" / "stale.txt").exists()
    assert names(tmp_path) == ["out"]


def test_ours_is_kept_unless_overwrite_is_given(tmp_path):
    fill(tmp_path / "out", "old")
    with pytest.raises(InputError, match="--overwrite"):
        fill(tmp_path / "out", "new")
    assert (tmp_path / "out" / "b.txt").read_text() == "old"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_foreign_folder_is_never_replaced(tmp_path, overwrite):
    foreign = tmp_path / "home"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years")
    with pytest.raises(InputError, match="was not written by paretune"):
        check_target_folder(foreign, overwrite=overwrite)
    with pytest.raises(InputError, match="was not written by paretune"):
        fill(foreign, "new", overwrite=overwrite)
    assert names(foreign) == ["thesis.tex"]


def test_an_empty_folder_may_be_filled(tmp_path):
    (tmp_path / "out").mkdir()
    fill(tmp_path / "out", "new")
    assert (tmp_path / "out" / "b.txt").read_text() == "new"


def test_a_file_where_a_folder_is_wanted(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InputError, match="is a file; an output folder is needed"):
        check_target_folder(tmp_path / "out", overwrite=True)
    assert (tmp_path / "out").read_text() == "a file"


@pytest.mark.parametrize("write", [lambda path: write_text(path, "x"), lambda path: fill(path, "x")])
def test_an_output_below_a_file_is_bad_input(tmp_path, write):
    (tmp_path / "file").write_text("a file")
    with pytest.raises((InputError, OSError)):
        write(tmp_path / "file" / "out")
    assert names(tmp_path) == ["file"]


# --- locks --------------------------------------------------------------------------------------------------------

HOLD = """
import sys
from paretune.files import locked
with locked(sys.argv[1], "work"):
    print(1, flush=True)
    input()
"""


def test_a_lock_keeps_a_second_process_out_and_a_dead_one_holds_nothing(tmp_path):
    path = tmp_path / "new" / "folder" / ".out.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "1\n"
        wanted = rf"\.out\.lock: work is going on already, in process {holder.pid}; wait for it"
        with pytest.raises(InputError, match=wanted), locked(path, "work"):
            pytest.fail("two hold the lock")
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert path.exists()  # left behind, and in nobody's way
    with locked(path, "work"):
        assert path.read_text() == f"{os.getpid()}\n"
        with pytest.raises(InputError, match=f"in process {os.getpid()}"), locked(path, "work"):
            pytest.fail("two hold the lock")
    assert names(tmp_path / "new" / "folder") == []


def test_who_holds_a_lock(tmp_path):
    path = tmp_path / "lock"
    assert holder(path) is None
    with locked(path, "working"):
        assert holder(path) == os.getpid()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        path.write_text(f"{process.pid}\n")
        assert holder(path) == process.pid and alive(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and not collected
        assert holder(path) is None
    for text in ("", "nobody", "99999999999999999999", "-1"):
        path.write_text(text)
        assert holder(path) is None


def test_a_lock_is_let_go_when_the_block_fails_and_takes_the_folders_it_made_along(tmp_path):
    with pytest.raises(Stop), locked(tmp_path / "new" / "folder" / "x.lock", "work"):
        raise Stop
    assert names(tmp_path) == []
    with locked(tmp_path / "new" / "x.lock", "work"):
        (tmp_path / "new" / "result").touch()
    assert names(tmp_path / "new") == ["result"]


def test_a_lock_whose_folder_was_renamed_leaves_that_of_the_next_one_alone(tmp_path):
    with locked(tmp_path / "work" / "lock", "work"):
        os.replace(tmp_path / "work", tmp_path / "done")
        following = locked(tmp_path / "work" / "lock", "work")
        following.__enter__()
    assert names(tmp_path / "work") == ["lock"]
    with pytest.raises(InputError, match="going on already"), locked(tmp_path / "work" / "lock", "work"):
        pass
    following.__exit__(None, None, None)


def test_json_that_python_cannot_read_is_told(tmp_path):
    for text in ("9" * 5000, "[" * 100_000):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(InputError, match=r"a\.json: is JSON that cannot be read"):
            read_json(tmp_path / "a.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_json(tmp_path)


def test_a_digest_is_that_of_the_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert file_digest(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_moved_file_replaces_the_one_that_is_there(tmp_path):
    (tmp_path / "new").write_text("new")
    (tmp_path / "old").write_text("old")
    (tmp_path / "link").symlink_to("old")
    move_file(tmp_path / "new", tmp_path / "link")
    assert (tmp_path / "old").read_text() == "new" and (tmp_path / "link").is_symlink()
    assert names(tmp_path) == ["link", "old"]


def test_what_killed_runs_left_beside_an_output_is_cleared_and_a_replaced_one_comes_back(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    replaced = tmp_path / f".out.{ended.pid}.old"
    # of a process that runs, of other outputs whose names begin alike, of nobody
    others = sorted([f".out.{os.getpid()}.old", f".out.v2.{ended.pid}.old", ".outer.ab_12xyz.part", ".out.short.part"])
    for each in (*others, ".out.ab_12xyz.part", replaced.name):
        (tmp_path / each).mkdir()
    (replaced / "kept").write_text("mine")
    with writing(tmp_path / "out", "a test"):
        pass
    assert (tmp_path / "out" / "kept").read_text() == "mine"
    assert [each for each in names(tmp_path) if not each.endswith(".lock")] == [*others, "out"]
    replaced.mkdir()
    with writing(tmp_path / "out", "a test"):
        assert (tmp_path / "out" / "kept").exists() and not replaced.exists()
    assert [each for each in names(tmp_path) if not each.endswith(".lock")] == [*others, "out"]
