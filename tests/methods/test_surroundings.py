"""What a training must not do to its surroundings: other runs' logs, links, and rows that say what nobody scored."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

import paretune
from paretune.errors import InputError
from paretune.policy.backbone import fingerprint, load_backbone

QUICK = ("epochs=1", "head_epochs=1", "dtype=float32")


def test_a_linked_output_folder_stays_a_link(tiny_llama, scored_rows, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    paretune.train("sft", scored_rows, str(tiny_llama), tmp_path / "link", settings=("epochs=1", "dtype=float32"))
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "policy.json").is_file()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "real"]


def test_logs_of_dead_runs_go_and_those_of_live_ones_stay(tiny_llama, scored_rows, tmp_path):
    dead, live = tmp_path / ".p.999999999.train.jsonl", tmp_path / ".p.1.train.jsonl"
    dead.write_text("")
    live.write_text("")
    paretune.train("sft", scored_rows, str(tiny_llama), tmp_path / "p", settings=("epochs=1", "dtype=float32"))
    assert not dead.exists() and live.exists() and (tmp_path / "p" / "train.jsonl").is_file()


def test_a_second_training_into_the_same_folder_is_refused_at_its_start(tiny_llama, scored_rows, tmp_path, monkeypatch):
    out, started = tmp_path / "new" / "p", []

    def second(*arguments, **options):
        started.append(1)
        with pytest.raises(InputError, match=rf"training into {out} is going on already, in process {os.getpid()}"):
            paretune.train("sft", scored_rows, str(tiny_llama), out, settings=("dtype=float32",))
        raise InputError("enough")

    monkeypatch.setattr(sys.modules["paretune.methods.train"], "prepare", second)  # where the first one is at work
    with pytest.raises(InputError, match="enough"):
        paretune.train("sft", scored_rows, str(tiny_llama), out, settings=("dtype=float32",))
    assert started == [1] and list(tmp_path.iterdir()) == []  # and the lock goes with the failed run


def test_a_row_that_the_template_refuses_is_named(tiny_llama, scored_rows, tmp_path):
    shutil.copytree(tiny_llama, tmp_path / "model")
    template = "{% if 'owls' in messages[0].content %}{{ raise_exception('no owls') }}{% endif %}"
    (tmp_path / "model" / "chat_template.jinja").write_text(template + "{{ messages[-1].content }}:")
    with pytest.raises(InputError, match=r"row 'p(11|23)': the chat template cannot render .* no owls"):
        paretune.train("sft", scored_rows, str(tmp_path / "model"), tmp_path / "p", settings=QUICK[::2])


def test_a_policy_finds_its_base_from_any_folder(tiny_llama, scored_rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tiny_llama.parent)
    paretune.train("sft", scored_rows, tiny_llama.name, tmp_path / "p", settings=("epochs=1", "dtype=float32"))
    monkeypatch.chdir(tmp_path)
    assert paretune.load_policy(tmp_path / "p").base == str(tiny_llama.resolve())


def test_another_base_of_the_same_shapes_is_noticed(tiny_llama, tiny_qwen):
    one, _ = load_backbone(str(tiny_llama), dtype="float32")
    low, _ = load_backbone(str(tiny_llama), dtype="bfloat16")
    two, _ = load_backbone(str(tiny_qwen), dtype="float32")
    assert fingerprint(one) == fingerprint(low) != fingerprint(two)


def rows_wanting(path: Path, scored_rows: Path, wanted: object) -> Path:
    rows = [json.loads(line) for line in scored_rows.read_text().splitlines()]
    if wanted is not None:
        rows[2]["wanted"] = wanted
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_wanting_what_nobody_scored_is_an_error(tiny_llama, scored_rows, tmp_path):
    data = rows_wanting(tmp_path / "d.jsonl", scored_rows, {"brevty": 0.5})
    with pytest.raises(InputError, match=r"wants 'brevty', for which no row has a score\. Did you mean 'brevity'"):
        paretune.train("sga", data, str(tiny_llama), tmp_path / "p", settings=QUICK)


def test_wanting_more_than_is_scored_is_counted_and_refused_when_strict(tiny_llama, scored_rows, tmp_path):
    data = rows_wanting(tmp_path / "d.jsonl", scored_rows, {"brevity": 0.5, "wit": 0.9})
    done = paretune.train("sft", data, str(tiny_llama), tmp_path / "p", settings=("epochs=1", "dtype=float32"))
    assert done.dropped["wanted_not_scored"] == 1
    with pytest.raises(InputError, match="wants 'wit', for which no row has a score"):
        paretune.train("sft", data, str(tiny_llama), tmp_path / "q", strict=True)


def test_wanted_targets_need_a_wanted_profile(tiny_llama, scored_rows, tmp_path):
    data = rows_wanting(tmp_path / "d.jsonl", scored_rows, None)
    with pytest.raises(InputError, match="no row has a 'wanted' profile"):
        paretune.train("sga", data, str(tiny_llama), tmp_path / "p", settings=(*QUICK, "targets=wanted"))


@pytest.mark.parametrize("place", ["file.txt/below", "file.txt/far/below"])
def test_an_impossible_place_is_refused_before_any_work(scored_rows, tmp_path, place):
    (tmp_path / "file.txt").write_text("x")
    with pytest.raises(InputError, match="cannot be written"):
        paretune.train("sft", scored_rows, "no/model", tmp_path / place)


@pytest.mark.parametrize("seed", ["-1", "1e30"])
def test_a_seed_out_of_range_is_refused(scored_rows, tmp_path, seed):
    with pytest.raises(InputError, match="field 'seed'"):
        paretune.train("sft", scored_rows, "no-model", tmp_path / "p", settings=(f"seed={seed}",))


def test_scoring_does_not_replace_the_objectives_of_other_rows(scored_rows, tmp_path):
    first, second = tmp_path / "s.jsonl", tmp_path / "s.jsonl.gz"
    paretune.score(scored_rows, ["n=lexical:brevity"], first)
    before = (tmp_path / "s.objectives.json").read_text()
    with pytest.raises(InputError, match="belongs to other rows"):
        paretune.score(scored_rows, ["q=lexical:length"], second)
    assert not second.exists() and (tmp_path / "s.objectives.json").read_text() == before
