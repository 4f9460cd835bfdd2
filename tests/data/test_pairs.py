"""Pairs from scored completions, by hand-worked rows."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from paretune.data import Completion, Row, build_pairs, fit_objectives
from paretune.errors import InputError
from paretune.profile import Objective, Scale

UNIT = [Objective("a", scale=Scale("fixed")), Objective("b", scale=Scale("fixed"))]
"""Two objectives whose raw scores are in [0, 1] already."""


def row(*completions: Completion, wanted: Mapping[str, float] | None = None) -> Row:
    return Row([{"role": "user", "content": "p"}], completions, id="r", wanted=wanted)


def answer(text: str, a: float | None = None, b: float | None = None, label: str | None = None) -> Completion:
    return Completion(text, {name: value for name, value in (("a", a), ("b", b)) if value is not None}, label)


def test_highest_against_lowest_mean() -> None:
    data = row(answer("mid", 0.5, 0.5), answer("low", 0.0, 0.4), answer("high", 1.0, 0.6))
    (pair,), report = build_pairs([data], UNIT)
    assert (pair.chosen.text, pair.rejected.text) == ("high", "low")
    assert pair.target == {"a": 1.0, "b": 0.6} and pair.rejected_profile == {"a": 0.0, "b": 0.4}
    assert (report.pairs, report.by_mean) == (1, 1) and pair.row is data


def test_labels_decide_over_scores_and_wanted() -> None:
    data = row(answer("good", 0.1, 0.1, "chosen"), answer("bad", 0.9, 0.9, "rejected"), wanted={"a": 0.9})
    (pair,), report = build_pairs([data], UNIT)
    assert (pair.chosen.text, pair.rejected.text, report.by_label) == ("good", "bad", 1)


def test_labelled_rows_need_no_scores_without_objectives() -> None:
    data = row(answer("good", label="chosen"), answer("bad", label="rejected"))
    (pair,), _ = build_pairs([data], [])
    assert pair.target == {} == pair.rejected_profile
    pairs, report = build_pairs([data], UNIT)
    assert pairs == [] and report.too_few == 1


def test_nearest_to_wanted_against_farthest() -> None:
    # distances from {a: .5}: .1, .5, .4; the means would choose "far"
    data = row(
        answer("near", 0.6, 0.0), answer("far", 1.0, 1.0), answer("mid", 0.1, 0.9), wanted={"a": 0.5, "other": 1}
    )
    (pair,), report = build_pairs([data], UNIT)
    assert (pair.chosen.text, pair.rejected.text, report.by_wanted) == ("near", "far", 1)


def test_wanted_distance_is_the_mean_over_scored_ones() -> None:
    # "one" lacks b: |.5 - .3| = .2; "two": (|.5 - .5| + |1 - .5|) / 2 = .25
    data = row(answer("one", 0.3), answer("two", 0.5, 0.5), wanted={"a": 0.5, "b": 1.0})
    (pair,), _ = build_pairs([data], UNIT)
    assert pair.chosen.text == "one" and pair.target == {"a": 0.3}


def test_wanted_without_any_of_our_objectives_falls_back_to_the_mean() -> None:
    data = row(answer("low", 0.1, 0.1), answer("high", 0.9, 0.9), wanted={"other": 0.1})
    (pair,), report = build_pairs([data], UNIT)
    assert pair.chosen.text == "high" and report.by_mean == 1


def test_a_missing_score_is_left_out_not_zero() -> None:
    data = row(answer("partly", 0.8), answer("fully", 0.7, 0.7))
    (pair,), _ = build_pairs([data], UNIT)
    assert pair.chosen.text == "partly" and pair.target == {"a": 0.8}


def test_ties_and_too_few_are_dropped_and_counted() -> None:
    rows = [
        row(answer("x", 0.4, 0.6), answer("y", 0.5, 0.5)),
        row(answer("x", 0.4, 0.4), answer("y", 0.6, 0.6), wanted={"a": 0.5}),
        row(answer("same", 0.1, 0.1), answer("same", 0.9, 0.9)),
        row(answer("alone", 0.4, 0.6), answer("unscored")),
        row(),
    ]
    pairs, report = build_pairs(rows, UNIT)
    assert pairs == [] and (report.rows, report.ties, report.too_few) == (5, 3, 2)
    assert "0 pairs of 5 rows" in report.describe()


def test_unfitted_objectives_are_refused() -> None:
    with pytest.raises(InputError, match="no fitted scale"):
        build_pairs([row(answer("x", 1), answer("y", 2))], [Objective("a")])


def test_fitting_uses_all_completions_and_keeps_fitted_ones() -> None:
    rows = [row(answer("x", 0.0), answer("y", 10.0)), row(answer("z", 5.0))]
    minimised = Objective("a", direction="minimise", scale_kind="minmax")
    fitted, kept = fit_objectives(rows, [minimised, UNIT[1]])
    assert [fitted.normalise(score) for score in (0, 5, 10)] == [1.0, 0.5, 0.0]
    assert kept is UNIT[1]


def test_an_objective_in_no_row() -> None:
    with pytest.raises(InputError, match=r"no row has a score for objective 'c'.*scores for: a, b"):
        fit_objectives([row(answer("x", 1, 2))], [Objective("c")])
    with pytest.raises(InputError, match="no scores at all"):
        fit_objectives([row(answer("x"))], [Objective("c")])


def test_equal_scores_fit_no_scale() -> None:
    with pytest.raises(InputError, match="all 2 scores of objective 'a' equal 1"):
        fit_objectives([row(answer("x", 1), answer("y", 1))], [Objective("a")])
