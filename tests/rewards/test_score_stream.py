"""Scoring in a stream: flat memory, one pass a model, details and counts, every output, and input that is wrong."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paretune.data import read_rows, stored_objectives, write_rows
from paretune.errors import InputError
from paretune.profile import Objective
from paretune.rewards import RewardKind, register_reward, score, score_rows
from paretune.rewards import spec as registry
from paretune.rewards.base import check_scores
from paretune.rewards.measure import in_passes
from paretune.rewards.spec import expand_objective, parse_objective

REWARDS = """
import math

def wrong_count(prompts, completions, **columns): return [1.0]
def nan(prompts, completions, **columns): return [math.nan] * len(completions)
def text(prompts, completions, **columns): return ["good"] * len(completions)
def tensor(prompts, completions, **columns):
    import torch
    return torch.ones(len(completions))
def raises(prompts, completions, id, **columns):
    if any(int(each[1:]) >= 7001 and int(each[1:]) % 3 == 2 for each in id): raise KeyError("boom")
    return [1.0] * len(completions)
def ends(prompts, completions, **columns): raise SystemExit(0)
def yields(prompts, completions, **columns):
    for _ in completions: yield 1.0
def late(prompts, completions, late, **columns): return [0.0 if value is None else 1.0 for value in late]
"""

Built = Callable[..., list[str]]


class Told:
    """A reward that tells details and counts what it is given."""

    can_score_new = True

    def __init__(self, rest: str, log: list[str]) -> None:
        self.rest, self.log, self.called = rest, log, 0
        log.append(f"build {rest}")

    def __call__(self, prompts: Any, completions: list[str], columns: Any) -> list[float | None]:
        return self.detailed(prompts, completions, columns)[0]

    def detailed(self, prompts: Any, completions: list[str], columns: Any) -> tuple[list[float | None], list[Any]]:
        self.log.append(f"{self.rest} {len(completions)}")
        self.called += 1
        if self.rest == "odd":
            return [0.0] * len(completions), [{"bad": float("nan")}] * len(completions)
        return [float(len(text)) for text in completions], [{"said": text[:3]} for text in completions]

    def take_counts(self) -> dict[str, float]:
        called, self.called = self.called, 0
        return {"requests": float(called)}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Registers `told:`, and `shared:` whose objectives share a model; the list logs what happens."""
    log: list[str] = []

    def released() -> None:
        if log[-1:] != ["release"]:  # once is enough; combined rewards may release their members too
            log.append("release")

    monkeypatch.setattr(registry, "_KINDS", {})
    common: dict[str, Any] = {"build": lambda rest, remote: Told(rest, log), "check": lambda rest: None}
    register_reward(RewardKind("told", (), release=released, **common))
    register_reward(
        RewardKind(
            "shared",
            (),
            shares=lambda rest: rest.partition("#")[0],
            expand=lambda rest: [(label, f"{rest.partition('#')[0]}#{label}") for label in ("is-good", "2nd", "bad")],
            **common,
        )
    )
    return log


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of faulty rewards."""
    (tmp_path / "faulty_rewards.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows_file(count: int, name: str = "rows.jsonl", answers: int = 2, **more: Any) -> Path:
    rows = [
        {
            "id": f"r{at}",
            "prompt": f"p{at}",
            "completions": [{"text": f"{at} " * (1 + n)} for n in range(answers)],
            **more,
        }
        for at in range(count)
    ]
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Path(name)


def test_memory_does_not_grow_with_the_rows(here: Path) -> None:
    peaks = []
    for count in (20, 20, 200):  # the first warms up
        rows = [{"prompt": f"p{at}", "completions": [{"text": f"{at} " + "x" * 20_000}]} for at in range(count)]
        Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        tracemalloc.start()
        score("rows.jsonl", ["b=lexical:brevity", "q=lexical:question"], "out.jsonl", chunk_size=8, overwrite=True)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert Path("rows.jsonl").stat().st_size > 3.5e6
    assert peaks[2] < peaks[1] + 3e5, peaks


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out.parquet"])
def test_every_kind_of_output(here: Path, name: str) -> None:
    rows_file(30, level=1)
    score("rows.jsonl", ["b=lexical:brevity", "l=column:level"], name, chunk_size=7)
    assert [item.scores for row in read_rows(name) for item in row.completions][:2] == [
        {"b": -1.0, "l": 1.0},
        {"b": -2.0, "l": 1.0},
    ]
    assert read_rows(name) == score_rows(
        read_rows("rows.jsonl"), [parse_objective("b=lexical:brevity"), parse_objective("l=column:level")]
    )
    assert [each.name for each in here.iterdir() if each.name.startswith(".")] == []


def test_chunks_and_batches_change_nothing(here: Path, told: list[str]) -> None:
    rows_file(23)
    objectives = ["t=told:x", "b=lexical:brevity"]
    for at, options in enumerate([{}, {"chunk_size": 1}, {"chunk_size": 9, "batch_size": 4}]):
        score("rows.jsonl", objectives, f"out{at}.jsonl", **options)
    assert Path("out0.jsonl").read_bytes() == Path("out1.jsonl").read_bytes() == Path("out2.jsonl").read_bytes()
    # 5 rows a chunk, in batches of 4: two of four and one of two, four times; the last chunk has three rows
    assert told[-16:] == ["build x", *["x 4", "x 4", "x 2"] * 4, "x 4", "x 2", "release"]


@pytest.mark.parametrize("option", ["batch_size", "chunk_size", "workers"])
def test_sizes_start_at_one(here: Path, option: str) -> None:
    with pytest.raises(InputError, match="must be at least 1, found 0"):
        score(rows_file(1), ["b=lexical:brevity"], "out.jsonl", **{option: 0})


def test_a_column_that_only_late_rows_have_is_none_before(here: Path) -> None:
    path = rows_file(20)
    lines = path.read_text().splitlines()
    lines[-1] = json.dumps(json.loads(lines[-1]) | {"late": 5})
    path.write_text("\n".join(lines))
    score(path, ["f=python:faulty_rewards:late", "c=column:late"], "out.jsonl", chunk_size=2)
    found = [item.scores for row in read_rows("out.jsonl") for item in row.completions]
    assert found == [{"f": 0.0, "c": None}] * 38 + [{"f": 1.0, "c": 5.0}] * 2


def test_an_unknown_column_is_told_before_anything_is_scored(here: Path, told: list[str]) -> None:
    with pytest.raises(InputError, match=r"no row has a score or column 'levl'.*Did you mean 'level'"):
        score(rows_file(5, level=1), ["t=told:x", "c=column:levl"], "out.jsonl")
    assert told == []


def test_bad_rows_are_told_before_anything_is_scored(here: Path, told: list[str]) -> None:
    path = rows_file(600)
    path.write_text(path.read_text() + '{"prompt": "x", "completions": [{"text": "\\ud800"}]}\n')
    with pytest.raises(InputError, match=r"rows\.jsonl, line 601, field 'completions\[0\]\.text': .*lone surrogate"):
        score(path, ["t=told:x"], "out.jsonl", chunk_size=10)
    assert told == []
    summary = score(path, ["t=told:x"], "out.jsonl", skip_bad_rows=True)
    assert (summary.rows, summary.bad_rows, summary.completions) == (600, 1, 1200)


def test_one_model_is_loaded_at_a_time_and_shared_by_its_objectives(here: Path, told: list[str]) -> None:
    rows_file(3)
    objectives = ["a=shared:m#a", "t=told:x", "b=lexical:brevity", "c=shared:m#b", "d=shared:n#a"]
    score("rows.jsonl", objectives, "out.jsonl", batch_size=4)
    both = ["m#a 4", "m#b 4", "m#a 2", "m#b 2"]
    assert told == [
        *["build m#a", "build m#b", *both, "release"],
        *["build x", "x 4", "x 2", "release"],  # `lexical:` holds no model
        *["build n#a", "n#a 4", "n#a 2", "release"],
    ]
    assert [item.name for item in stored_objectives("out.jsonl") or []] == list("atbcd")
    names = [[item.name for item in each] for each in in_passes([parse_objective(each) for each in objectives])]
    assert names == [["a", "c"], ["t"], ["b"], ["d"]]


def test_a_star_stands_for_every_output(here: Path, told: list[str]) -> None:
    found = expand_objective("*=shared:m#*") + expand_objective("-toxic.*=shared:m#*")
    assert [(item.name, item.spec, item.direction) for item in found] == [
        ("is_good", "shared:m#is-good", "maximise"),
        ("output_2nd", "shared:m#2nd", "maximise"),
        ("bad", "shared:m#bad", "maximise"),
        ("toxic_is_good", "shared:m#is-good", "minimise"),
        ("toxic_2nd", "shared:m#2nd", "minimise"),
        ("toxic_bad", "shared:m#bad", "minimise"),
    ]
    assert expand_objective("b=lexical:brevity") == [parse_objective("b=lexical:brevity")]
    score(rows_file(2), ["m.*=shared:m#*"], "out.jsonl")
    assert set(read_rows("out.jsonl")[0].completions[0].scores) == {"m_is_good", "m_2nd", "m_bad"}
    for text, cause in (
        ("*=lexical:brevity", "has one only"),
        ("a*=shared:m#*", r"PREFIX\.\*"),
        ("*.x=shared:m", "PREFIX"),
    ):
        with pytest.raises(InputError, match=cause):
            expand_objective(text)


def test_details_and_counts(here: Path, told: list[str]) -> None:
    before = [
        {"text": "one", "details": {"old": {"x": 1}, "t": {"stale": True}}},
        {"text": "two", "details": "a column of the user's"},
        {"text": "three"},
    ]
    Path("rows.jsonl").write_text(json.dumps({"prompt": "p", "completions": before}) + "\n")
    summary = score("rows.jsonl", ["t=told:x", "b=lexical:brevity"], "out.jsonl", batch_size=2, chunk_size=1)
    (row,) = read_rows("out.jsonl")
    assert [item.extra["details"] for item in row.completions] == [
        {"old": {"x": 1}, "t": {"said": "one"}},
        {"details": "a column of the user's", "t": {"said": "two"}},
        {"t": {"said": "thr"}},
    ]
    assert summary.counts == {"t": {"requests": 2.0}}
    score(
        "out.jsonl", ["t=lexical:brevity"], "out.jsonl", overwrite=True
    )  # without details: the old ones are not its own
    (row,) = read_rows("out.jsonl")
    assert [item.extra.get("details") for item in row.completions] == [
        {"old": {"x": 1}},
        {"details": "a column of the user's"},
        None,
    ]


def test_counts_of_a_continued_run_are_those_of_the_whole(here: Path, told: list[str]) -> None:
    rows_file(10)
    with pytest.raises(InputError, match="no Python module 'not_there'"):
        score("rows.jsonl", ["t=told:x", "n=python:not_there:f"], "out.jsonl", chunk_size=4)
    assert score("rows.jsonl", ["t=told:x"], "out.jsonl").counts == {"t": {"requests": 5.0}}
    assert told.count("build x") == 1


def test_details_that_are_no_json(here: Path, told: list[str]) -> None:
    with pytest.raises(InputError, match="objective 't': its reward's details or counts are no JSON"):
        score(rows_file(2), ["t=told:odd"], "out.jsonl")
    assert not Path("out.jsonl").exists()


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        ("wrong_count", r"objective 'x', row 'r0': .*returned 1 scores for|returned 1 scores for 14 completions"),
        ("nan", r"objective 'x'.*gave nan at index 0 \(row 'r0'\)"),
        ("text", r"objective 'x'.*gave str at index 0 \(row 'r0'\)"),
        ("yields", r"objective 'x'.*found generator; return a list"),
        ("ends", r"objective 'x', row 'r0': the reward ended the program \(exit status 0\)"),
        ("tensor", r"objective 'x'.*must return a list of numbers, found Tensor.*\.tolist\(\)"),
    ],
)
def test_what_a_reward_may_not_return(here: Path, function: str, cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        score(rows_file(7), [f"x=python:faulty_rewards:{function}"], "out.jsonl")
    assert sorted(each.name for each in here.iterdir() if not each.name.startswith("__")) == [
        "faulty_rewards.py",
        "rows.jsonl",
    ]


def test_the_first_row_at_which_a_reward_raises_is_named(here: Path) -> None:
    with pytest.raises(InputError, match=r"objective 'x', row 'r7001': .*faulty_rewards:raises.*KeyError.*boom.*kept"):
        score(rows_file(7010, answers=1), ["x=python:faulty_rewards:raises"], "out.jsonl")
    # 512 a chunk: 13 chunks, rows 0 to 6655, are kept
    assert len(list(Path(".out.jsonl.scoring").glob("x-*/*.json"))) == 13


def test_rows_of_all_kinds_and_sizes(here: Path) -> None:
    talk = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    rows = [
        {"prompt": "plain", "completions": ["one\0two"]},
        {"prompt": talk, "completions": [{"text": "word " * 200_000}, ""]},
        {"prompt": "none"},
        {"prompt": "p", "chosen": "yes", "rejected": "no no"},
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    score("rows.jsonl", ["n=lexical:length"], "out.jsonl", chunk_size=1)
    assert [[item.scores["n"] for item in row.completions] for row in read_rows("out.jsonl")] == [
        [2.0],
        [200_000.0, 0.0],
        [],
        [1.0, 2.0],
    ]


@pytest.mark.parametrize(
    ("objectives", "cause"),
    [(["a=lexical:brevity", "a=lexical:length"], "two objectives are called 'a'"), ([], "at least one is needed")],
)
def test_objectives_that_cannot_be(here: Path, objectives: list[str], cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        score(rows_file(2), objectives, "out.jsonl")


def test_an_empty_file(here: Path) -> None:
    Path("rows.jsonl").write_text("\n")
    with pytest.raises(InputError, match=r"rows\.jsonl: is empty"):
        score("rows.jsonl", ["b=lexical:brevity"], "out.jsonl")


def test_an_output_in_a_folder_that_cannot_be_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "locked").mkdir()
    monkeypatch.setattr("os.access", lambda *arguments: False)  # root may write anywhere
    with pytest.raises(InputError, match="locked is read-only"):
        score(rows_file(2), ["b=lexical:brevity"], "locked/out.jsonl")
    assert list((here / "locked").iterdir()) == []


def test_a_reward_out_of_memory_is_not_called_again(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def exhausted(self: Any, prompts: Any, completions: list[str], columns: Any) -> list[float | None]:
        calls.append(len(completions))
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("paretune.rewards.lexical.LexicalReward.__call__", exhausted)
    with pytest.raises(InputError, match=r"out of memory \(between rows 'r0' and 'r3'\)"):
        score(rows_file(4), ["b=lexical:brevity"], "out.jsonl")
    assert calls == [8]


def test_a_fault_that_comes_once_is_told_with_the_rows_of_its_batch(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def flaky(self: Any, prompts: Any, completions: list[str], columns: Any) -> list[float | None]:
        calls.append(len(completions))
        if len(calls) == 1:
            raise OSError("the network blinked")
        return check_scores([1.0] * len(completions), len(completions), "x")

    monkeypatch.setattr("paretune.rewards.lexical.LexicalReward.__call__", flaky)
    with pytest.raises(InputError, match=r"OSError: the network blinked \(between rows 'r0' and 'r3'\)"):
        score(rows_file(4), ["b=lexical:brevity"], "out.jsonl")


def test_objectives_that_came_with_the_data_are_read_by_their_name(here: Path) -> None:
    write_rows("rows.jsonl", score_rows(read_rows(rows_file(3, judge=2)), [Objective("judge")]))
    assert read_rows("rows.jsonl")[0].completions[0].scores == {"judge": 2.0}


def test_a_format_that_says_less_is_better_goes_on_in_the_output(here: Path) -> None:
    record = {
        "prompt": "Name a river.",
        **{f"response_{at}": text for at, text in enumerate(["The Rhine.", "Go away."])},
        **{f"is_response_{at}_safe": safe for at, safe in enumerate([True, False])},
        **{f"response_{at}_severity_level": level for at, level in enumerate([0, 2])},
        "better_response_id": 0,
        "safer_response_id": 0,
    }
    (here / "pku.jsonl").write_text(json.dumps(record) + "\n")
    score("pku.jsonl", ["brevity=lexical:brevity"], "out.jsonl")
    stored = stored_objectives("out.jsonl")
    assert stored is not None
    assert {each.name: each.direction for each in stored} == {"severity": "minimise", "brevity": "maximise"}
