"""Checkpoints: whole or not there, of one training alone, and what is put back is what was."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil

import pytest
import torch

from paretune.errors import InputError
from paretune.training import Checkpoints, checkpoint
from paretune.training.checkpoint import State
from paretune.training.provenance import check_same, differences, source_digest

WHAT = {"method": "sft", "settings": {"lr": 0.1, "head": {"width": 8}}, "rows": "a" * 64, "versions": {"torch": "2"}}


@pytest.fixture
def make(tmp_path):
    """Opens the checkpoints of the output `p`; what is noted is appended to `make.notes`."""

    def opened(what=WHAT, **options):
        return Checkpoints(tmp_path / "p", what, note=opened.notes.append, **options)

    opened.notes = []
    return opened


def state(step, **values):
    tensors = {"model/a": torch.arange(6.0).view(2, 3) + step, "random/cpu": torch.get_rng_state()}
    records = [{"step": at + 1, "loss": 0.1 * at, "name": "\u2028 é"} for at in range(step)]
    return State(**{"step": step, "tensors": tensors, "tokens": 7 * step, "seconds": 0.5, "records": records, **values})


def files(folder):
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def test_what_is_read_is_what_was_saved(make, tmp_path):
    saved = state(12)
    saved.tensors |= {"low": torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "one": torch.tensor(3.0)}
    assert make().save(saved) is None
    found = make().newest()
    assert (found.step, found.tokens, found.seconds, found.records) == (12, 84, 0.5, saved.records)
    assert found.tensors.keys() == saved.tensors.keys()
    for name, each in saved.tensors.items():
        assert found.tensors[name].dtype == each.dtype and torch.equal(found.tensors[name], each)
    assert files(tmp_path) == [
        ".p.checkpoints/step-000012/" + name
        for name in (".paretune", "journal.jsonl", "manifest.json", "state.json", "state.safetensors")
    ] + [".p.checkpoints/training.json"]


def test_the_newest_are_kept_and_each_part_has_its_own(make, tmp_path):
    every = make(keep=2)
    for step in (9, 10, 1_000_000):
        every.save(state(step, records=[]))
    every.part("a/b ..").save(state(3))
    kept = sorted(each.name for each in (tmp_path / ".p.checkpoints").iterdir())
    assert kept == ["part-a%2Fb ..", "step-000010", "step-1000000", "training.json"]
    again = make()
    assert again.newest().step == 1_000_000
    assert again.part("a/b ..").newest().step == 3 and again.part("c").newest() is None
    again.discard()
    assert list(tmp_path.iterdir()) == []


def test_one_is_due_every_so_many_steps_or_once_an_epoch(make):
    assert [step for step in range(1, 13) if make(every=5).due(step, 4)] == [5, 10]
    assert [step for step in range(1, 13) if make(every=0).due(step, 4)] == [4, 8, 12]


@pytest.mark.parametrize(
    ("harm", "cause"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json: no such file"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json, line 1: is not JSON"),
        (lambda folder: (folder / "manifest.json").write_text('{"format": 1, "files": []}'), "says nothing of state.s"),
        (lambda folder: os.truncate(folder / "state.safetensors", 9), r"state.safetensors: is 9 bytes long instead of"),
        (lambda folder: (folder / "state.json").unlink(), "state.json: is missing"),
        (lambda folder: flip(folder / "journal.jsonl"), r"journal.jsonl: does not hold what was written"),
    ],
)
def test_a_broken_one_is_skipped_with_words_and_replaced(make, tmp_path, harm, cause):
    for step in (5, 10):
        make(keep=2).save(state(step))
    harm(tmp_path / ".p.checkpoints" / "step-000010")
    again = make()
    assert again.newest().step == 5
    (told,) = make.notes
    assert told.startswith("skipped checkpoint .p.checkpoints/step-000010: ")
    assert re.search(cause, told), told
    again.save(state(7))  # a run that goes on from 5 leaves nothing of the broken one
    assert sorted(each.name for each in (tmp_path / ".p.checkpoints").glob("step-*")) == ["step-000007"]


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_all_broken_is_none(make, tmp_path):
    make().save(state(5))
    (tmp_path / ".p.checkpoints" / "step-000005" / "state.json").unlink()
    again = make()
    assert again.newest() is None and len(make.notes) == 1
    assert again.save(state(5)) is None and make().newest().step == 5


def test_what_a_killed_run_was_writing_goes_and_is_never_read(make, tmp_path):
    make().save(state(5))
    half = tmp_path / ".p.checkpoints" / ".step-000010.abc.part"
    shutil.copytree(tmp_path / ".p.checkpoints" / "step-000005", half)
    again = make()
    assert not half.exists() and again.newest().step == 5 and make.notes == []


def test_another_training_is_refused_and_told_apart(make, tmp_path):
    make().save(state(5))
    before = files(tmp_path)
    other = json.loads(json.dumps(WHAT))
    other["settings"] |= {"lr": 0.2, "head": {"width": 16}}
    other["rows"], other["method"] = "b" * 64, "dpo"
    wanted = (
        r"another kind: method was sft and is dpo, settings.lr was 0.1 and is 0.2, settings.head.width was 8 and is "
    )
    with pytest.raises(InputError, match=wanted + r"16, rows is another. Pass --restart"):
        make(other)
    assert files(tmp_path) == before
    assert make(other, restart=True).newest() is None and list(tmp_path.iterdir()) == []


def test_a_header_that_cannot_be_read_is_refused(make, tmp_path):
    make().save(state(5))
    (tmp_path / ".p.checkpoints" / "training.json").write_text('{"format": 99}')
    with pytest.raises(InputError, match=r"training.json.*has format 99.*; pass --restart to discard"):
        make()


def test_a_header_without_checkpoints_binds_nobody(make, tmp_path):
    one = make()
    one.save(state(5))
    shutil.rmtree(tmp_path / ".p.checkpoints" / "step-000005")
    make({"method": "dpo"}).save(state(1))
    assert make({"method": "dpo"}).newest().step == 1


def test_differences_in_words():
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": True}) == [
        "a.c was 2 and is 3",
        "d was None and is True",
    ]
    assert differences({"a": "x" * 64, "b": [1]}, {"a": "y" * 64, "b": [2]}) == ["a is another", "b is another"]
    assert differences(WHAT, json.loads(json.dumps(WHAT))) == []


def test_other_code_is_told_from_another_training(tmp_path):
    notes: list[str] = []
    other = {**WHAT, "versions": {"torch": "3"}}

    def same(now, force):
        before = {"format": 1, **WHAT}
        return check_same(before, now, place=tmp_path, what="a run", force=force, note=notes.append)

    assert same(WHAT, False) and same(WHAT, True) and notes == []
    with pytest.raises(InputError, match=r"holds a run by other code: versions\.torch was 2 and is 3\. Pass --force"):
        same(other, False)
    assert not same(other, True) and "versions.torch was 2 and is 3" in notes[0]
    for force in (False, True):
        with pytest.raises(InputError, match=r"another kind: method was sft and is dpo, versions\.torch was 2"):
            same({**other, "method": "dpo"}, force)


def test_the_source_has_one_digest():
    assert re.fullmatch("[0-9a-f]{16}", source_digest()) and source_digest() == source_digest()


def test_a_full_disk_is_told_and_leaves_the_last_one(make, tmp_path, monkeypatch):
    one = make()
    one.save(state(5))
    monkeypatch.setattr(checkpoint, "_write", full)
    assert "No space left on device" in one.save(state(10))
    assert sorted(each.name for each in (tmp_path / ".p.checkpoints").iterdir()) == ["step-000005", "training.json"]
    assert make().newest().step == 5


def test_without_room_nothing_is_begun(make, tmp_path, monkeypatch):
    one = make()
    one.save(state(5))
    needed = sum(each.nbytes for each in state(10).tensors.values())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=needed - 1))
    assert re.fullmatch(r"needs 0\.0 MiB, and 0\.0 MiB are free on the disk", one.save(state(10)))
    assert make().newest().step == 5
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=needed))
    assert one.save(state(10)) is None and make().newest().step == 10


def full(state, folder):
    (folder / "state.safetensors").write_bytes(b"half of it")
    raise OSError(errno.ENOSPC, "No space left on device")


# --- until the output is saved ------------------------------------------------------------------------------------


def test_they_go_when_the_block_ends_well(make, tmp_path):
    one = make()
    with one.until_saved():
        one.part("x").save(state(3))
    assert list(tmp_path.iterdir()) == [] and make.notes == []


def test_an_input_error_says_how_to_go_on(make, tmp_path):
    class Odd(InputError):
        pass

    one = make()
    with pytest.raises(Odd) as caught, one.until_saved():
        one.part("x").save(state(3))
        raise Odd("is odd", file="rows.jsonl")
    words = "; the last checkpoint is .p.checkpoints/part-x/step-000003: the same command goes on from there, "
    words += "with --restart it begins anew"
    assert str(caught.value) == "rows.jsonl: is odd" + words and caught.value.message == "is odd" + words
    assert make().part("x").newest().step == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_whatever_else_ends_it_notes_how_to_go_on(make, error):
    one = make()
    with pytest.raises(error), one.until_saved():
        one.save(state(3))
        raise error
    (told,) = make.notes
    assert told.startswith("the last checkpoint is .p.checkpoints/step-000003: the same command goes on")


def test_nothing_saved_leaves_nothing(make, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_write", full)
    one = make()
    with pytest.raises(InputError, match=r"^bad$"), one.until_saved():
        one.save(state(3))
        raise InputError("bad")
    assert list(tmp_path.iterdir()) == [] and make.notes == []
