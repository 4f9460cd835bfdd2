"""What `score` sums up: numbers worked out by hand, and warnings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from paretune.data import Completion, Row
from paretune.profile import Objective
from paretune.rewards.summary import ScoreTable, correlate, spearman, summarise

PROMPT = [{"role": "user", "content": "p"}]


def summaries(rows: list[Row], objectives: list[Objective]) -> tuple[list[Any], dict[str, dict[str, float | None]]]:
    """Summaries and correlations of rows, whose other scores are in the table too."""
    names = [name for row in rows for item in row.completions for name in item.scores]
    table = ScoreTable(
        sum(len(row.completions) for row in rows), dict.fromkeys([*names, *(o.name for o in objectives)])
    )
    for row in rows:
        table.add([row])
    found = summarise(table, objectives)
    return found, correlate(table, objectives, found)


def summary_of(**columns: list[float | None]) -> Any:
    count = len(next(iter(columns.values())))
    answers = [
        Completion("word " * (at + 1), {name: values[at] for name, values in columns.items()}) for at in range(count)
    ]
    return summaries([Row(PROMPT, tuple(answers))], [Objective(name) for name in columns])[0]


def test_summary_numbers_by_hand() -> None:
    (item,) = summary_of(a=[1.0, 3.0, None, 5.0, 3.0])
    assert (item.n, item.missing, item.mean) == (4, 1, 3.0)
    assert item.std == pytest.approx(2**0.5)
    assert item.quantiles["0"] == 1.0 and item.quantiles["0.5"] == 3.0 and item.quantiles["1"] == 5.0
    # ranks 1, 2.5, 4, 2.5 against 1, 2, 3, 4 (lengths 1, 2, 4, 5): covariance 3, deviations sqrt(4.5) and sqrt(5)
    assert item.length_correlation == pytest.approx(3 / (4.5 * 5) ** 0.5)


@pytest.mark.parametrize(
    ("scores", "warning"),
    [
        ([2.0] * 6, "constant: all scores are 2"),
        ([None] * 6, "no completion could be scored"),
        ([1.0, None, 0.5, 0.2, 0.9, 0.3], "1 of 6 completions could not be scored"),
        ([1.0, 1.0, 0.0, 1.0, 1.0, 0.5], "saturated: 67% of scores are at the highest value"),
        ([0.0, 0.0, 0.0, 1.0, 0.0, 0.5], "saturated: 67% of scores are at the lowest value"),
        ([1.0, 2.0, 3.0, 4.0, 6.0, 5.0], "mostly measures length"),
    ],
)
def test_summary_warnings(scores: list[float | None], warning: str) -> None:
    (item,) = summary_of(a=scores)
    assert any(warning in text for text in item.warnings), item.warnings


def test_sound_scores_warn_of_nothing() -> None:
    (item,) = summary_of(a=[3.0, 1.0, 2.0, 5.0, 0.0, 4.0])
    assert item.warnings == []


def test_duplicates_are_found_in_either_direction() -> None:
    values = [3.0, 1.0, 2.0, 5.0, 0.0, 4.0]
    one, two, three = summary_of(a=values, b=[-value for value in values], c=[1.0, 5.0, 2.0, 4.0, 3.0, 0.0])
    assert "duplicates 'a' (rank correlation -1.00)" in two.warnings[0]
    assert one.warnings == [] == three.warnings


def test_spearman_needs_spread_and_three_points() -> None:
    assert spearman(np.array([1.0, 2.0]), np.array([1.0, 2.0])) is None
    assert spearman(np.array([1.0, 1.0, 1.0]), np.array([1.0, 2.0, 3.0])) is None
    assert spearman(np.array([1.0, 2.0, 9.0, np.nan]), np.array([2.0, 1.0, 0.0, 5.0])) == pytest.approx(-1.0)


def test_correlations_are_of_every_two_scores_there_are() -> None:
    old, new, gaps = [1.0, 2.0, 3.0, 4.0], [4.0, 1.0, 3.0, 2.0], [None, 2.0, 1.0, 3.0]
    answers = [Completion("a", {"old": a, "new": b, "gaps": c}) for a, b, c in zip(old, new, gaps, strict=True)]
    _, found = summaries([Row(PROMPT, tuple(answers))], [Objective("new", "lexical:brevity")])
    assert list(found) == ["old", "new", "gaps"]
    # 1 - 6 sum d^2 / (n (n^2 - 1)): d = 3, 1, 0, 2 for n = 4; without the gap old is 1 2 3, new 1 3 2, gaps 2 1 3
    assert found["old"]["new"] == found["new"]["old"] == pytest.approx(1 - 6 * 14 / 60)
    assert found["old"]["gaps"] == pytest.approx(1 - 6 * 2 / 24)
    assert found["new"]["gaps"] == pytest.approx(1 - 6 * 6 / 24)
    assert found["old"]["old"] == pytest.approx(1)


def test_a_duplicate_of_a_score_the_rows_had_is_told_but_not_a_copied_column() -> None:
    answers = [Completion("a", {"old": float(at), "new": float(at), "copy": float(at)}) for at in range(4)]
    objectives = [Objective("new", "lexical:brevity"), Objective("copy", "column:old")]
    (new, copy), _ = summaries([Row(PROMPT, tuple(answers))], objectives)
    assert new.warnings == ["duplicates 'old' (rank correlation 1.00); drop one of them"]
    assert copy.warnings == ["duplicates 'new' (rank correlation 1.00); drop one of them"]


def test_disagreement_is_the_mean_of_the_details() -> None:
    details = [{"a": {"disagreement": 0.5}}, {"a": {"disagreement": 1}}, {"a": {"why": "x"}}, {"b": {"reason": "y"}}]
    answers = tuple(Completion("a", {"a": 1.0}, extra={"details": each}) for each in [*details, "text", None])
    (item, other), _ = summaries([Row(PROMPT, answers)], [Objective("a"), Objective("b")])
    assert (item.disagreement, other.disagreement) == (0.75, None)


def test_numbers_whose_squares_no_float_can_hold_are_summed_up_all_the_same() -> None:
    """Mean 0 and deviation 1.5e308 of +-1.5e308, and of equal ones the number itself: nothing is infinite."""
    table = ScoreTable(4, ["both", "same"])
    table.scores["both"][:] = [1.5e308, -1.5e308, 1.5e308, -1.5e308]
    table.scores["same"][:] = 1.5e308
    both, same = summarise(table, [Objective("both"), Objective("same")])
    assert both.mean == 0 and both.std == pytest.approx(1.5e308) and both.quantiles["0.5"] == 0
    assert same.mean == pytest.approx(1.5e308) and same.std == pytest.approx(0, abs=1e293)
    assert all(map(math.isfinite, [*both.quantiles.values(), *same.quantiles.values()]))
