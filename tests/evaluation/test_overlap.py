"""Prompts of training in a test: refused with a way out, left out when that is asked for, never passed in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluation import fakes
from paretune.data import prompt_key, read_rows, split_rows
from paretune.errors import InputError
from paretune.evaluation import evaluate

FAST: dict[str, Any] = {"bootstrap": 50, "control_prompts": 0, "conditions": ["sensed", "none"]}
LETTER = "Please write a short reply to customer {} who asks where the parcel is"


def letters(path: Path, prompts: list[str]) -> Path:
    """Rows like the fakes', with these prompts."""
    fakes.write_data(path, rows=len(prompts))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(
        "".join(json.dumps(line | {"prompt": own}) + "\n" for line, own in zip(lines, prompts, strict=True))
    )
    return path


def keys(*prompts: str) -> list[str]:
    return [prompt_key([{"role": "user", "content": each}]) for each in prompts]


def run(world: Any, data: Path, metadata: dict[str, Any], **options: Any) -> dict[str, Any]:
    policy = fakes.FakePolicy(fakes.obeys, metadata=metadata)
    folder = world.path / "policy"
    if not folder.exists():
        folder = world.add(policy)
    return dict(evaluate([folder], data, world.path / "out", **FAST | options)["policies"]["policy"])


def stored(path: Path, prompts: list[str], **split: Any) -> dict[str, Any]:
    return {
        "train_prompts": keys(*prompts),
        "data": {"path": str(path), "split": fakes.SPLIT | split, "targets": "wanted"},
    }


TRAINED = [LETTER.format(name) for name in ("Annabel Lee of Baltimore", "Sherlock Holmes of London", "Emma Bovary")]
OTHERS = [LETTER.format(name) for name in ("Ahab the Captain of Nantucket", "Robinson Crusoe", "Ishmael")]


def test_equal_prompts_in_another_file_are_an_error(world: Any) -> None:
    trained = letters(world.path / "trained.jsonl", TRAINED)
    other = letters(world.path / "other.jsonl", [*TRAINED[:2], *OTHERS])
    with pytest.raises(InputError) as caught:
        run(world, other, stored(trained, TRAINED))
    said = str(caught.value)
    assert said.startswith(f"{other}: the policy was trained on the prompts of 2 rows: 'row-1', 'row-2'. ")
    assert "--allow-overlap (allow_overlap=True)" in said and not (world.path / "out").exists()
    own = run(world, other, {}, allow_overlap=True)
    assert (own["test"]["prompts"], own["test"]["dropped_trained_on"], own["test"]["dropped_near_trained_on"]) == (
        3,
        2,
        0,
    )
    assert any("2 rows were dropped because the policy was trained on their prompts." in note for note in own["notes"])


def test_near_duplicates_in_another_file_are_an_error(world: Any) -> None:
    trained = letters(world.path / "trained.jsonl", TRAINED)
    other = letters(world.path / "other.jsonl", [f"{TRAINED[0]}?", f"{TRAINED[1]}, please", TRAINED[2], *OTHERS])
    with pytest.raises(InputError, match=r"3 rows \(2 of them on nearly the same\): 'row-3', 'row-1', 'row-2'\."):
        run(world, other, stored(trained, TRAINED))
    own = run(world, other, {}, allow_overlap=True)
    assert (own["test"]["prompts"], own["test"]["dropped_trained_on"], own["test"]["dropped_near_trained_on"]) == (
        3,
        1,
        2,
    )


def test_many_are_named_by_three(world: Any) -> None:
    trained = letters(world.path / "trained.jsonl", [*TRAINED, *OTHERS])
    other = letters(world.path / "other.jsonl", [*TRAINED, *OTHERS])
    other.write_text(other.read_text() + "\n")  # not the same file, by a byte
    with pytest.raises(InputError, match=r"6 rows: 'row-1', 'row-2', 'row-3', \.\.\.\. Test"):
        run(world, other, stored(trained, [*TRAINED, *OTHERS]))


def test_without_the_training_data_only_equal_prompts_are_found(world: Any) -> None:
    other = letters(world.path / "other.jsonl", [f"{TRAINED[0]}?", *OTHERS])
    own = run(world, other, stored(world.path / "gone.jsonl", TRAINED))
    assert own["test"]["prompts"] == 4
    assert any("only equal prompts were looked for" in note for note in own["notes"])


def test_texts_that_training_has_lost_are_told(world: Any) -> None:
    trained = letters(world.path / "trained.jsonl", TRAINED[:2])
    other = letters(world.path / "other.jsonl", [f"{TRAINED[2]}?", *OTHERS])
    own = run(world, other, stored(trained, TRAINED))
    assert any("1 of 3 training prompts are no longer in the training data" in note for note in own["notes"])


PAIRED = [LETTER.format(f"{at * 7919} {at}{chr(97 + at % 26) * 9}") + mark for mark in ("", "?") for at in range(40)]
"""Forty prompts, and each once more with a question mark."""


def of_training(path: Path, **split: Any) -> list[str]:
    return [row.text for row in split_rows(read_rows(path), **fakes.SPLIT | {"near_duplicates": 0.0} | split).train]


def test_the_same_file_needs_no_way_out(world: Any) -> None:
    data = letters(world.path / "paired.jsonl", PAIRED)
    policy = stored(data, of_training(data, near_duplicates=0.8), near_duplicates=0.8)
    own = run(world, data, policy)
    assert own["test"]["dropped_trained_on"] == own["test"]["dropped_near_trained_on"] == 0 and own["notes"] == []
    assert own["test"]["prompts"] == len(split_rows(read_rows(data), **fakes.SPLIT, near_duplicates=0.8).test)


def test_an_older_policys_near_duplicates_are_counted_and_kept(world: Any) -> None:
    data = letters(world.path / "paired.jsonl", PAIRED)
    own = run(world, data, stored(data, of_training(data)))
    held_out = split_rows(read_rows(data), **fakes.SPLIT, near_duplicates=0.0).test
    assert own["test"]["prompts"] == len(held_out) and own["test"]["dropped_near_trained_on"] == 0
    trained = set(of_training(data))
    twins = sum((row.text[:-1] if row.text.endswith("?") else row.text + "?") in trained for row in held_out)
    assert twins > 5 and f"{twins} test prompts are near-duplicates of training prompts" in own["notes"][0]


def test_all_rows_of_the_same_file_are_those_not_trained_on(world: Any) -> None:
    data = letters(world.path / "paired.jsonl", PAIRED)
    trained = of_training(data, near_duplicates=0.8)
    # as if one of each pair had been dropped in training (too long, say): the other is still no test
    policy = stored(data, [text for text in trained if text.endswith("?")], near_duplicates=0.8)
    own = run(world, data, policy, split="all")
    assert own["test"]["prompts"] == len(PAIRED) - len(trained)
    assert own["test"]["dropped_trained_on"] == own["test"]["dropped_near_trained_on"] == len(trained) // 2


def test_a_changed_file_is_looked_through(world: Any) -> None:
    data = letters(world.path / "paired.jsonl", PAIRED[:40])
    cut = {"near_duplicates": 0.8}
    policy = stored(data, of_training(data, **cut), **cut)
    policy["data"]["sha256"] = "0" * 64
    policy["train_prompts"] = keys(*PAIRED[:40])  # training saw more than the file's training part is now
    with pytest.raises(InputError, match=r"trained on the prompts of \d+ rows"):
        run(world, data, policy)


def test_the_policys_rule_of_pairs_is_used(world: Any) -> None:
    data = fakes.write_data(world.path / "mean.jsonl")
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    for line in lines:
        del line["wanted"]
        line["completions"] = [
            {"text": "warm=0.9 short=0.3", "scores": {"warm": 0.9, "short": 0.3}},
            {"text": "warm=0.2 short=0.8", "scores": {"warm": 0.2, "short": 0.8}},
        ]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    policy = stored(data, [])
    policy["data"]["targets"] = "chosen"
    own = run(world, data, policy)
    assert own["chosen"]["scores"]["warm"]["value"] == pytest.approx(0.9)
    policy["data"]["pairs"] = {"rule": "weights", "weights": {"short": 1.0}, "margin": 0.0, "seed": 0}
    (world.path / "policy" / "policy.json").unlink()
    (world.path / "policy").rmdir()
    own = run(world, data, policy, overwrite=True)
    assert own["chosen"]["scores"]["warm"]["value"] == pytest.approx(0.2)
    policy["data"]["pairs"]["margin"] = 0.6
    with pytest.raises(InputError, match="are below the margin of pairs"):
        run(world, data, policy, overwrite=True)


def test_the_flag_is_in_the_command_that_repeats_the_run(world: Any) -> None:
    folder = world.add(fakes.FakePolicy(fakes.obeys))
    metrics = evaluate([folder], world.rows, world.path / "out", **FAST, allow_overlap=True)
    assert metrics["command"].endswith("--allow-overlap") and metrics["settings"]["allow_overlap"] is True
