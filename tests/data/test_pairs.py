"""Pairs from scored completions, by hand-worked rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paretune.data import Completion, PairReport, Row, build_pairs, fit_objectives
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


# --- rules ----------------------------------------------------------------------------------------------------------

FOUR = (answer("p", 0.9, 0.2), answer("q", 0.5, 0.5), answer("r", 0.3, 0.3), answer("s", 0.1, 0.8))
"""Means .55, .5, .3, .45; q dominates r alone."""


def texts(data: list[Row], **options: Any) -> tuple[list[tuple[str, str]], PairReport]:
    pairs, report = build_pairs(data, UNIT, **options)
    return [(pair.chosen.text, pair.rejected.text) for pair in pairs], report


def test_weights_decide() -> None:
    # 3a + b over 4: p .725, q .5, r .3, s .275
    found, report = texts([row(*FOUR)], rule="weights", weights={"a": 3, "b": 1})
    assert found == [("p", "s")] and (report.by_weights, report.by_mean) == (1, 0)
    # b alone: p .2, q .5, r .3, s .8
    assert texts([row(*FOUR)], rule="weights", weights={"b": 2, "a": 0})[0] == [("s", "p")]


def test_a_completion_without_a_weighted_score_is_not_compared() -> None:
    data = row(answer("half", 1.0), answer("low", 0.2, 0.1), answer("high", 0.4, 0.1))
    found, report = texts([data], rule="weights", weights={"a": 1, "b": 1})
    assert found == [("high", "low")] and report.missing == {"b": 1}
    assert texts([row(answer("half", 1.0), answer("low", 0.2, 0.1))], rule="weights", weights={"b": 1})[1].too_few == 1


def test_pareto_takes_the_dominating_pair_with_the_largest_gain() -> None:
    found, report = texts([row(*FOUR)], rule="pareto")
    assert found == [("q", "r")] and report.by_pareto == 1
    # x beats z by .4 + .4, y beats z by .3 + .1; equal in one and better in the other is enough
    data = row(answer("z", 0.2, 0.2), answer("y", 0.5, 0.3), answer("x", 0.6, 0.6), answer("w", 0.6, 0.7))
    (pair,), _ = build_pairs([data], UNIT, rule="pareto")
    assert (pair.chosen.text, pair.rejected.text, round(pair.gap, 9)) == ("w", "z", 0.45)


def test_pareto_drops_rows_in_which_nothing_dominates() -> None:
    data = [
        row(answer("one", 0.9, 0.1), answer("other", 0.1, 0.9)),
        row(answer("one", 0.5, 0.5), answer("same", 0.5, 0.5)),
        row(answer("whole", 0.5, 0.5), answer("half", 0.1)),
    ]
    found, report = texts(data, rule="pareto")
    assert found == [] and (report.not_dominated, report.too_few) == (2, 1)
    assert "2 where no completion dominates another" in report.describe()


def test_best_against_a_random_other() -> None:
    data = [replace(row(*FOUR), id=str(at)) for at in range(60)]
    found, report = texts(data, rule="best-random")
    assert {chosen for chosen, _ in found} == {"p"} and {other for _, other in found} == {"q", "r", "s"}
    assert report.by_best_random == 60
    assert texts(data, rule="best-random")[0] == found != texts(data, rule="best-random", seed=1)[0]
    assert texts(data[::-1], rule="best-random")[0] == found[::-1]  # keyed by the row, not by its place


def test_a_wanted_profile_goes_before_the_rule_and_labels_before_both() -> None:
    wanted = row(*FOUR, wanted={"a": 0.0})
    found, report = texts([wanted], rule="pareto")
    assert found == [("s", "p")] and "(1 by wanted; dropped:" in report.describe()
    assert texts([wanted], rule="pareto", wanted=False)[0] == [("q", "r")]
    labelled = row(answer("p", 0.1, 0.1, "chosen"), answer("q", 0.9, 0.9, "rejected"))
    assert texts([labelled], rule="pareto")[0] == [("p", "q")]
    assert texts([labelled], rule="pareto", labels=False)[0] == [("q", "p")]


def test_the_margin_is_the_least_gap() -> None:
    data = [row(*FOUR), row(answer("x", 0.5, 0.5), answer("y", 0.4, 0.5)), row(answer("x", 0.5), answer("y", 0.5))]
    found, report = texts(data, margin=0.25)
    assert found == [("p", "r")] and (report.below_margin, report.ties, report.by_mean) == (1, 1, 1)
    assert "1 below the margin" in report.describe()
    assert len(texts(data, margin=0.05)[0]) == 2
    assert texts([row(*FOUR)], rule="pareto", margin=0.21)[1].below_margin == 1  # q gains .2 on r in the mean
    labelled = row(answer("p", 0.5, 0.5, "chosen"), answer("q", 0.5, 0.5, "rejected"))
    assert texts([labelled], margin=0.9)[0] == [("p", "q")]


def test_several_disjoint_pairs_a_prompt() -> None:
    found, report = texts([row(*FOUR)], per_prompt=2)
    assert found == [("p", "r"), ("q", "s")] and report.pairs == report.by_mean == 2
    assert texts([row(*FOUR)], per_prompt=9)[0] == found
    found, report = texts([row(*FOUR)], per_prompt=2, margin=0.1)  # q and s differ by .05 only
    assert found == [("p", "r")] and (report.further, report.below_margin) == (1, 0)
    assert "1 further pairs of rows that have one" in report.describe()
    assert texts([row(*FOUR[:3])], per_prompt=2)[0] == [("p", "r")]
    data = row(answer("a", 0.1, 0.1), answer("b", 0.2, 0.2), answer("c", 0.3, 0.3), answer("d", 0.4, 0.4))
    assert texts([data], rule="pareto", per_prompt=3)[0] == [("d", "a"), ("c", "b")]
    for each in texts([replace(row(*FOUR), id=str(at)) for at in range(9)], rule="best-random", per_prompt=2)[0]:
        assert each[0] != each[1]


def test_at_most_so_many_over_the_rows_of_a_prompt() -> None:
    data = [replace(row(answer("x", 0.5, 0.5), answer("y", 0.5 - at / 10, 0.5)), id=str(at)) for at in (1, 3, 2)]
    other = Row([{"role": "user", "content": "q"}], data[0].completions, id="other")
    pairs, report = build_pairs([*data, other], UNIT, per_prompt=2)
    assert [pair.row.id for pair in pairs] == ["3", "2", "other"] and (report.pairs, report.over_cap) == (3, 1)
    assert "1 pairs over the cap" in report.describe()
    assert len(build_pairs(data, UNIT)[0]) == 3


def test_missing_scores_are_counted_by_objective() -> None:
    _, report = texts([row(answer("x", 0.1), answer("y", 0.5, 0.2), answer("z"))])
    assert report.missing == {"a": 1, "b": 2} and report.describe().endswith("scores missing: 1 for a, 2 for b")


@given(
    st.lists(st.tuples(*[st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])] * 2), min_size=2, max_size=7),
    st.sampled_from(["mean", "pareto", "best-random", "weights"]),
    st.integers(1, 4),
)
def test_pairs_are_disjoint_and_the_chosen_one_is_better(
    values: list[tuple[float, float]], rule: str, most: int
) -> None:
    data = row(*(answer(str(at), *each) for at, each in enumerate(values)))
    weights = {"a": 1.0, "b": 3.0}
    pairs, report = build_pairs(
        [data], UNIT, rule=rule, weights=weights if rule == "weights" else None, per_prompt=most
    )
    used = [each.text for pair in pairs for each in (pair.chosen, pair.rejected)]
    assert len(used) == len(set(used)) and len(pairs) <= most
    for pair in pairs:
        scale = weights if rule == "weights" else {"a": 1.0, "b": 1.0}
        gain = {name: pair.target[name] - pair.rejected_profile[name] for name in ("a", "b")}
        gap = sum(scale[name] * gain[name] for name in gain) / sum(scale.values())
        assert gap == pytest.approx(pair.gap) and gap > 0
        assert rule != "pareto" or min(gain.values()) >= 0
    assert report.pairs == len(pairs) and report.rows == 1
    assert bool(pairs) != bool(sum(report.dropped().values()) - report.further)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "median"}, "unknown rule of pairs 'median'.*Known: best-random, mean"),
        ({"rule": "weights"}, "needs a weight"),
        ({"weights": {"a": 1}}, "no other rule takes weights"),
        ({"rule": "weights", "weights": {"c": 1}}, "'c', which is no objective here"),
        ({"rule": "weights", "weights": {"a": -1}}, "weight of 'a'"),
        ({"margin": -0.1}, "margin must be 0 or more"),
        ({"margin": float("nan")}, "margin must be a finite number"),
        ({"per_prompt": 0}, "pairs a prompt must be at least 1"),
    ],
)
def test_bad_options_of_pairs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_pairs([], UNIT, **options)
