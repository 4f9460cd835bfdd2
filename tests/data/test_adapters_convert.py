"""`convert`: what is written, joined, limited, counted, and left behind when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import published_data as published
from paretune.data import convert, objectives_path, read_rows, store_objectives, stored_objectives
from paretune.errors import InputError
from paretune.profile import Objective


def write(path: Path, records: list[Any]) -> Path:
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in records))
    return path


def prompts(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"question {at}"} for at in range(count)]


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "parquet"])
@pytest.mark.parametrize("name", published.ALL)
def test_every_format_to_every_ending(tmp_path: Path, name: str, ending: str) -> None:
    source = write(tmp_path / "in.jsonl", published.ALL[name])
    out = tmp_path / f"rows.{ending}"
    report = convert(source, out)
    rows = read_rows(out)
    assert report.records == len(published.ALL[name]) and report.formats == {name: report.records}
    assert (report.rows, report.completions) == (len(rows), sum(len(row.completions) for row in rows))
    assert report.dropped == {} and report.out == out
    assert {name for row in rows for each in row.completions for name in each.scores} == set(report.scores)


def test_answers_to_one_prompt_are_joined_wherever_they_stand(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", published.HELPSTEER)
    report = convert(source, tmp_path / "rows.jsonl")
    sums, river = read_rows(tmp_path / "rows.jsonl")
    assert [each.text for each in sums.completions] == ["4", "Five.", "It is four."]
    assert len(river.completions) == 2 and (report.records, report.rows) == (5, 2)


def test_files_of_many_models_are_joined_by_instruction(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(json.dumps(published.ALPACA_EVAL, indent=2))
    (tmp_path / "large.json").write_text(json.dumps(published.ALPACA_EVAL_OTHER))
    convert([tmp_path / "small.json", tmp_path / "large.json"], tmp_path / "rows.jsonl")
    river, hello = read_rows(tmp_path / "rows.jsonl")
    assert [(each.text, each.extra["model"]) for each in river.completions] == [("The Rhine.", "small"), ("", "large")]
    assert [each.text for each in hello.completions] == ["Hello.", "Hi!"]
    (tmp_path / "out").mkdir()
    (tmp_path / "rows.jsonl").rename(tmp_path / "out" / "a.jsonl")
    objectives_path(tmp_path / "rows.jsonl").unlink(missing_ok=True)
    report = convert(tmp_path, tmp_path / "out" / "b.jsonl")  # the folder of both
    assert (report.records, report.rows, report.completions) == (4, 2, 4)


def test_directions_that_are_known_go_with_the_rows(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", published.PKU)
    convert(source, tmp_path / "rows.jsonl")
    stored = stored_objectives(tmp_path / "rows.jsonl")
    assert stored == [Objective("safe"), Objective("severity", direction="minimise")]
    # what is kept beside the rows that are converted is worth more, and goes on
    convert(tmp_path / "rows.jsonl", tmp_path / "again.parquet")
    assert stored_objectives(tmp_path / "again.parquet") == stored
    store_objectives(tmp_path / "rows.jsonl", [Objective("safe", "column:safe", direction="minimise")])
    convert(tmp_path / "rows.jsonl", tmp_path / "rows.jsonl", overwrite=True)
    assert stored_objectives(tmp_path / "rows.jsonl") == [
        Objective("safe", "column:safe", direction="minimise"),
        Objective("severity"),
    ]
    convert(write(tmp_path / "p.jsonl", prompts(1)), tmp_path / "rows.jsonl", overwrite=True)
    assert stored_objectives(tmp_path / "rows.jsonl") is None


def test_a_limit_takes_the_first_rows_or_draws_them(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", prompts(200))

    def taken(**options: Any) -> list[str]:
        report = convert(source, tmp_path / "rows.jsonl", overwrite=True, **options)
        ids = [row.id for row in read_rows(tmp_path / "rows.jsonl")]
        assert report.rows == len(ids)
        return ids

    assert taken(limit=3) == ["row-1", "row-2", "row-3"]
    drawn = taken(limit=20, seed=1)
    assert len(set(drawn)) == 20 and drawn != [f"row-{at}" for at in range(1, 21)]
    assert drawn == taken(limit=20, seed=1) != taken(limit=20, seed=2)
    assert drawn == sorted(drawn, key=lambda name: int(name[4:]))
    assert taken(limit=500, seed=1) == taken() and len(taken(limit=500)) == 200
    counts = dict.fromkeys((f"row-{at}" for at in range(1, 11)), 0)
    source = write(tmp_path / "in.jsonl", prompts(10))
    for seed in range(60):
        for name in taken(limit=2, seed=seed):
            counts[name] += 1
    assert all(2 < count < 25 for count in counts.values()), counts  # 12 on average, 3 a standard deviation


def test_bad_rows_end_it_or_are_counted(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [{"prompt": "a"}, "{", {"prompt": ""}, {"prompt": " "}])
    with pytest.raises(InputError, match=r"in\.jsonl, line 2: the line is not JSON"):
        convert(source, tmp_path / "rows.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    report = convert(source, tmp_path / "rows.jsonl", skip_bad_rows=True)
    assert (report.records, report.rows) == (4, 1)
    assert report.dropped == {"the line is not JSON (one object a line is needed)": 1, "the prompt is empty": 2}


def test_what_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", prompts(2))
    out = write(tmp_path / "there.jsonl", prompts(1))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"out": out}, "--overwrite"),
        ({"limit": 0}, "at least 1"),
        ({"seed": 1}, "needs a limit"),
        ({"sources": []}, "nothing to convert"),
        ({"out": tmp_path / "rows.csv"}, r"ends in \.jsonl"),
        ({"format": "pku"}, "unknown format"),
        ({"columns": {"prompt": "prompt", "completion": "prompt", "scores.my rating": "prompt"}}, "finite number"),
    ]
    before = sorted(path.name for path in tmp_path.iterdir())
    for change, message in cases:
        with pytest.raises(InputError, match=message):
            convert(**{"sources": source, "out": tmp_path / "rows.jsonl"} | change)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_score_that_no_objective_can_be_called_by(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [{"q": "a", "a": "b", "s": 1}])
    columns = {"prompt": "q", "completion": "a", "scores.my rating": "s"}
    with pytest.raises(InputError, match="objective name 'my rating'"):
        convert(source, tmp_path / "rows.jsonl", columns=columns)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_progress_is_told_row_by_row(tmp_path: Path) -> None:
    from contextlib import contextmanager

    steps: list[int] = []

    class Task:
        def advance(self, n: int = 1) -> None:
            steps.append(n)

        def update(self, text: str) -> None: ...

    @contextmanager
    def bars(description: str, total: int | None = None) -> Any:
        yield Task()

    source = write(tmp_path / "in.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    convert(source, tmp_path / "out.jsonl", progress=bars)
    assert steps == [1, 1]
