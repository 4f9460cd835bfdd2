"""Ensembles: combinations worked out by hand, parsing, and members of every kind."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paretune.errors import InputError
from paretune.rewards import RewardKind, build_reward, can_score_new, parse_objective, register_reward, score, spec
from paretune.rewards.ensemble import KIND, parse_ensemble

PROMPT = [{"role": "user", "content": "p"}]
TEXTS = ["one", "two words", "three words here"]
A, B = [1.0, 2.0, None], [0.0, 5.0, 4.0]
COLUMNS: dict[str, list[Any]] = {"a": A, "b": B}


def build(text: str) -> Any:
    return build_reward(parse_objective(f"x={text}"))


def run(text: str, columns: dict[str, list[Any]] | None = None) -> Any:
    return build(text)([PROMPT] * 3, TEXTS, columns or COLUMNS)


def told(text: str) -> Any:
    return build(text).detailed([PROMPT] * 3, TEXTS, COLUMNS)[1]


@pytest.mark.parametrize(
    ("combine", "expected"),
    [("mean", [0.5, 3.5, None]), ("worst", [0.0, 2.0, None]), ("best", [1.0, 5.0, None]), ("spread", [0.5, 1.5, None])],
)
def test_combinations(combine: str, expected: list[float | None]) -> None:
    assert run(f"ensemble:{combine}(column:a, column:b)") == expected


def test_details_tell_members_and_disagreement() -> None:
    found = told("ensemble:worst(column:a, column:b)")
    assert found[0] == {"members": {"column:a": 1.0, "column:b": 0.0}, "disagreement": 0.5}
    assert found[2] == {"members": {"column:a": None, "column:b": 4.0}, "disagreement": None}
    three = told("ensemble:mean(column:a, column:b, lexical:length)")
    assert three[1]["disagreement"] == pytest.approx(statistics.pstdev([2, 5, 2]))


def test_nested_parentheses_and_commas() -> None:
    text = "ensemble:mean(ensemble:worst(column:a, column:b), ensemble:best(column:a,column:b),lexical:length)"
    assert run(text)[:2] == [pytest.approx((0 + 1 + 1) / 3), pytest.approx((2 + 5 + 2) / 3)]
    inner = told(text)[0]
    assert inner["members"]["ensemble:worst(column:a, column:b)"] == 0.0
    assert inner["details"]["ensemble:worst(column:a, column:b)"]["members"] == {"column:a": 1.0, "column:b": 0.0}
    gated = "ensemble:mean(gate:column:b if column:a > 1, lexical:length)"
    assert run(gated) == [pytest.approx(0.5), pytest.approx(3.5), None]


def file(folder: Path, text: str) -> str:
    (folder / "members.yaml").write_text(text)
    return f"ensemble:{folder / 'members.yaml'}"


FILE = """
combine: mean
members:
  - {spec: "column:a", weight: 3, range: [0, 4], name: first}
  - {spec: "column:b", range: [0, 10], direction: minimise}
"""


def test_a_file_with_weights_ranges_and_directions(tmp_path: Path) -> None:
    text = file(tmp_path, FILE)
    first = [(3 * 0.25 + 1.0) / 4, (3 * 0.5 + 0.5) / 4, None]
    assert run(text) == [pytest.approx(first[0]), pytest.approx(first[1]), None]
    found = told(text)
    assert found[0]["members"] == {"first": 1.0, "column:b": 0.0}  # raw scores
    assert found[0]["disagreement"] == pytest.approx(statistics.pstdev([0.25, 1.0]))  # of what is combined
    beyond = run(text, {"a": [-9.0, 99.0, 2.0], "b": [20.0, -20.0, 5.0]})
    assert beyond == [0.0, 1.0, pytest.approx(0.5)]


def test_what_a_missing_member_does(tmp_path: Path) -> None:
    members = "members: ['column:a', 'column:b']\n"
    assert run(file(tmp_path, members))[2] is None
    assert run(file(tmp_path, members + "missing: none"))[2] is None
    skip = file(tmp_path, members + "missing: skip")
    assert run(skip) == [0.5, 3.5, 4.0]
    assert run(skip, {"a": [None] * 3, "b": [None, 1.0, None]}) == [None, 1.0, None]
    spread = file(tmp_path, members + "missing: skip\ncombine: spread")
    assert run(spread) == [0.5, 1.5, None]  # one member alone spreads nowhere
    weighted = "members: [{spec: 'column:a', weight: 0}, 'column:b']\nmissing: skip"
    assert run(file(tmp_path, weighted), {"a": [1.0] * 3, "b": [2.0, None, None]}) == [2.0, None, None]


def test_direction_without_a_range_turns_the_sign(tmp_path: Path) -> None:
    text = file(tmp_path, "combine: worst\nmembers: ['column:a', {spec: 'column:b', direction: minimise}]")
    assert run(text) == [0.0, -5.0, None]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("mean(lexical:brevity)", "two members or more.*has 1"),
        ("mean()", "two members or more"),
        ("mean(lexical:brevity, )", "empty member"),
        ("mean(lexical:brevity, lexical:brevity)", "'lexical:brevity' twice"),
        ("mena(lexical:brevity, lexical:length)", "Did you mean 'mean'"),
        ("mean(lexical:brevty, lexical:length)", "Did you mean 'brevity'"),
        ("mean(lexcal:brevity, lexical:length)", "Did you mean 'lexical'"),
        ("mean(lexical:brevity, ensemble:worst(lexical:question))", "two members or more"),
        ("mean(lexical:brevity, (lexical:length)", "written ensemble:|not balanced"),
        ("mean(lexical:brevity), lexical:length)", "not balanced"),
        ("lexical:brevity", "written ensemble:mean"),
        ("", "written ensemble:mean"),
        ("no_such.yaml", "no such ensemble file"),
    ],
)
def test_bad_specs(text: str, cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        parse_objective(f"x=ensemble:{text}")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("- 1", "an ensemble is a mapping"),
        ("members: [", "no ensemble in YAML"),
        ("members: 3", "field 'members': a list of members"),
        ("member: []", "unknown key 'member'. Did you mean 'members'"),
        ("members: [{spec: 'column:a'}, {sepc: 'column:b'}]", r"members\[1\].*unknown key 'sepc'. Did you mean 'spec'"),
        ("members: ['column:a', {weight: 1}]", r"members\[1\].*needs a spec"),
        ("members: ['column:a', {spec: 'column:b', weight: -1}]", r"members\[1\]\.weight"),
        ("members: ['column:a', {spec: 'column:b', range: [2, 1]}]", r"members\[1\]\.range.*low < high"),
        ("members: ['column:a', {spec: 'column:b', range: [2]}]", r"members\[1\]\.range"),
        ("members: ['column:a', {spec: 'column:b', direction: up}]", r"members\[1\]\.direction"),
        ("members: ['column:a', 'column:b']\nmissing: drop", "unknown rule 'drop'"),
        ("members: ['column:a', 'column:b']\ncombine: median", "unknown combination 'median'"),
        ("members: ['column:a', {spec: 'column:b', weight: 2}]\ncombine: worst", "counts in a mean, not in 'worst'"),
        ("members: [{spec: 'column:a', weight: 0}, {spec: 'column:b', weight: 0}]", "at least one weight"),
        ("members: ['column:a', 'lexical:brevty']", "Did you mean 'brevity'"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        parse_objective(f"x={file(tmp_path, text)}")


def test_it_can_score_new_answers_if_all_members_can() -> None:
    assert can_score_new(parse_objective("x=ensemble:mean(lexical:brevity, lexical:length)"))
    assert not can_score_new(parse_objective("x=ensemble:mean(lexical:brevity, column:a)"))
    assert not can_score_new(
        parse_objective("x=ensemble:mean(lexical:brevity, ensemble:best(lexical:length, column:a))")
    )
    assert build("ensemble:mean(lexical:brevity, lexical:length)").can_score_new
    assert not build("ensemble:mean(lexical:brevity, column:a)").can_score_new


class Counting:
    """A reward that counts its answers."""

    can_score_new = True

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, prompts: list[Any], completions: list[str], columns: dict[str, list[Any]]) -> list[float | None]:
        self.count += len(completions)
        return [float(len(text)) for text in completions]

    def take_counts(self) -> dict[str, float]:
        taken, self.count = self.count, 0
        return {"answers": taken}


@pytest.fixture()
def counting() -> Iterator[None]:
    """A kind `counting` that must run in one process and holds a model."""
    register_reward(
        RewardKind(
            "counting",
            (),
            build=lambda rest, remote: Counting(),
            check=lambda rest: None,
            parallel=False,
            shares=lambda rest: f"model {rest}",
            fingerprint=lambda rest: rest,
        )
    )
    yield
    del spec._KINDS["counting"]


@pytest.mark.usefixtures("counting")
def test_counts_and_flags_of_members_are_the_ensembles() -> None:
    text = "mean(counting:1, counting:2, lexical:length)"
    reward = build(f"ensemble:{text}")
    reward([PROMPT] * 3, TEXTS, {})
    assert reward.take_counts() == {"answers": 6} and reward.take_counts() == {"answers": 0}
    assert not KIND.runs_parallel(text) and KIND.runs_parallel("mean(lexical:length, lexical:brevity)")
    assert KIND.shares("mean(counting:2, counting:1)") == "model 1|model 2"
    assert KIND.fingerprint("mean(counting:1, counting:2)") != KIND.fingerprint("mean(counting:1, counting:3)")


def test_a_fingerprint_follows_the_file(tmp_path: Path) -> None:
    rest = file(tmp_path, FILE).removeprefix("ensemble:")
    before = KIND.fingerprint(rest)
    assert before and before == KIND.fingerprint(rest)
    file(tmp_path, FILE + "missing: skip\n")
    assert KIND.fingerprint(rest) != before
    assert parse_ensemble(rest).missing == "skip"


def test_what_it_tells_is_kept_with_the_answers(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "p", "completions": [{"text": "one word more"}]}\n')
    score(rows, ["x=ensemble:spread(lexical:length, lexical:brevity)"], tmp_path / "out.jsonl")
    kept = json.loads((tmp_path / "out.jsonl").read_text())["completions"][0]
    assert kept["scores"] == {"x": 3.0}
    told = {"members": {"lexical:length": 3.0, "lexical:brevity": -3.0}, "disagreement": 3.0}
    assert kept["details"] == {"x": told}


def test_members_of_one_model_share_its_computation(tiny_classifier: Path) -> None:
    reward = build(f"ensemble:mean(hf:{tiny_classifier}#gloomy, hf:{tiny_classifier}#cheerful)")
    sizes: list[int] = []
    reward.rewards[0].loaded.network.model.register_forward_hook(lambda *told: sizes.append(1))
    reward([PROMPT] * 3, TEXTS, {})
    assert sizes == [1]


@pytest.mark.parametrize("middle", ["self.yaml", "other.yaml"])
def test_a_file_that_is_its_own_member_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, middle: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("self.yaml").write_text(f"members: ['ensemble:{middle}', 'lexical:length']\n")
    Path("other.yaml").write_text("members: ['ensemble:self.yaml', 'lexical:brevity']\n")
    with pytest.raises(InputError, match="has itself among its members"):
        parse_objective("x=ensemble:self.yaml")
    Path("other.yaml").write_text("members: ['lexical:length', 'lexical:brevity']\n")
    parse_objective("x=ensemble:mean(ensemble:other.yaml, gate:ensemble:other.yaml if lexical:length > 2)")


@pytest.mark.parametrize("path", ["/a\0b.yaml", "~nobody-has-this-name/a.yaml"])
def test_a_name_that_no_file_can_have(path):
    with pytest.raises(InputError, match="no file can have the name"):
        parse_ensemble(path)
