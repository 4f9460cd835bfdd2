"""What scores mean is kept on the way: directions and scores go with rows through every verb that writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import published_data as published
from paretune.data import read_rows, store_objectives, stored_objectives
from paretune.data.pairs import objectives_of
from paretune.errors import InputError
from paretune.methods.prepare import choose_objectives
from paretune.profile import Objective

WORDS = ["river", "moon", "bread", "cloud", "stone", "glass", "horse", "piano", "winter", "garden", "letter", "mirror"]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Twelve prompts with two answers each; `cost` is minimised."""
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        for at, word in enumerate(WORDS):
            completions = [{"text": f"{word} {k}", "scores": {"joy": at + k, "cost": at * (1 - k)}} for k in range(2)]
            file.write(json.dumps({"prompt": f"Say something of a {word}.", "completions": completions}) + "\n")
    store_objectives(path, [Objective("joy"), Objective("cost", direction="minimise")])
    return path


def directions(path: Path) -> dict[str, str]:
    return {each.name: each.direction for each in stored_objectives(path) or ()}


KEPT = {"joy": "maximise", "cost": "minimise"}


def test_a_folder_has_the_objectives_of_its_files(invoke: Any, rows: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    assert invoke("data", "split", rows, "--out", parts).exit_code == 0
    for source in (parts, f"{parts}:test"):
        found = objectives_of(source, read_rows(source))
        assert {each.name: each.direction for each in found} == KEPT
    out = tmp_path / "all.jsonl"
    assert invoke("data", "convert", parts, "--out", out).exit_code == 0 and directions(out) == KEPT
    scored = tmp_path / "scored.jsonl"
    done = invoke("score", parts, "--objective", "brevity=lexical:brevity", "--out", scored)
    assert done.exit_code == 0 and directions(scored) == KEPT | {"brevity": "maximise"}


def test_files_that_disagree_about_an_objective(refused: Any, rows: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(rows.read_text())
    store_objectives(other, [Objective("joy"), Objective("cost")])
    message = refused("data", "convert", rows, other, "--out", tmp_path / "all.jsonl", folder=tmp_path)
    assert "says something else of objective 'cost'" in message and "rows.objectives.json" in message


def test_pairs_keep_scores_and_directions(invoke: Any, rows: Path, tmp_path: Path) -> None:
    out, again = tmp_path / "pairs.jsonl", tmp_path / "again.jsonl"
    assert invoke("data", "pairs", rows, "--out", out).exit_code == 0
    assert directions(out) == KEPT
    original = {row.text: {each.text: each.scores for each in row.completions} for row in read_rows(rows)}
    for row in read_rows(out):
        assert [each.label for each in row.completions] == ["chosen", "rejected"]
        assert {each.text: each.scores for each in row.completions} == original[row.text]
        assert set(row.extra) == {"gap"}
    assert invoke("data", "convert", out, "--out", again).exit_code == 0
    assert read_rows(again) == read_rows(out) and directions(again) == KEPT
    chosen = tmp_path / "joy.jsonl"
    assert invoke("data", "pairs", rows, "--objective", "joy", "--out", chosen).exit_code == 0
    assert directions(chosen) == {"joy": "maximise"}


@pytest.mark.parametrize("published_first", [False, True])
def test_sampling_more_answers_keeps_what_the_scores_of_the_others_mean(
    invoke: Any, rows: Path, tmp_path: Path, tiny_llama: Path, published_first: bool
) -> None:
    if published_first:
        rows.with_name("rows.objectives.json").unlink()
        rows.write_text(json.dumps(published.PKU[0]) + "\n")
    out = tmp_path / "more.jsonl"
    done = invoke("sample", rows, "--model", tiny_llama, "-n", 1, "--max-new-tokens", 2, "--out", out)
    assert done.exit_code == 0, done.output
    assert directions(out) == ({"safe": "maximise", "severity": "minimise"} if published_first else KEPT)
    row = read_rows(out)[0]
    assert [bool(each.scores) for each in row.completions] == [True, True, False]


def test_objectives_of_other_rows_are_not_replaced(invoke: Any, refused: Any, rows: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"prompt": "a"}\n')
    for verb in (["data", "convert"], ["data", "pairs"]):
        source = other if verb[1] == "convert" else rows
        target = tmp_path / "taken.jsonl"
        target.with_name("taken.objectives.json").write_text(rows.with_name("rows.objectives.json").read_text())
        assert "belongs to other rows" in refused(*verb, source, "--out", target, folder=tmp_path)
    # the same rows in another form keep theirs
    assert invoke("data", "convert", rows, "--out", tmp_path / "rows.parquet").exit_code == 0
    assert directions(rows) == KEPT


def test_rows_without_ids_of_several_files_are_numbered_anew(invoke: Any, tmp_path: Path) -> None:
    parts = []
    for name in "ab":
        raw, part = tmp_path / f"{name}.txt", tmp_path / f"{name}.jsonl"
        raw.write_text(f"first of {name}\nsecond of {name}\n")
        assert invoke("data", "convert", raw, "--out", part).exit_code == 0
        parts.append(part)
    assert invoke("data", "convert", *parts, "--out", tmp_path / "all.jsonl").exit_code == 0
    found = [(row.id, row.text) for row in read_rows(tmp_path / "all.jsonl")]
    texts = ["first of a", "second of a", "first of b", "second of b"]
    assert found == [(f"row-{at}", text) for at, text in enumerate(texts, start=1)]


def test_a_score_whose_name_no_objective_can_have_is_told_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "a", "completions": [{"text": "b", "scores": {"-bad": 1}}]}) + "\n")
    with pytest.raises(InputError, match=r"rows\.jsonl: objective name '-bad'"):
        choose_objectives(path, read_rows(path), [])
