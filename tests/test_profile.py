"""Objectives, scales and profiles: hand-worked numbers, the errors a user can cause, and two properties."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paretune.errors import InputError
from paretune.profile import (
    LEVELS,
    SCALE_KINDS,
    Objective,
    Scale,
    check_names,
    check_profile,
    level_of,
    parse_pins,
)

numbers = st.floats(-1e6, 1e6, allow_nan=False)


# --- scales by hand -----------------------------------------------------------------------------------------------


def test_quantile_of_distinct_scores_is_the_rank():
    scale = Scale.fit("quantile", [30.0, 10.0, 20.0, 50.0, 40.0])
    assert [scale.apply(x) for x in (10, 20, 30, 40, 50)] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert scale.apply(15) == pytest.approx(0.125)  # linear between
    assert (scale.apply(-1e9), scale.apply(1e9)) == (0.0, 1.0)


def test_quantile_gives_ties_the_middle_of_their_run():
    # sorted: 0 1 1 1 2; the ones fill the percentiles 25..75, whose middle is 50
    scale = Scale.fit("quantile", [1, 0, 1, 2, 1])
    assert scale.apply(1) == pytest.approx(0.5)
    # a mass at the lower end: 0 0 0 0 10 -> zeros fill 0..75
    assert Scale.fit("quantile", [0, 0, 0, 0, 10]).apply(0) == pytest.approx(0.375)
    # and at the upper end
    assert Scale.fit("quantile", [0, 10, 10, 10, 10]).apply(10) == pytest.approx(0.625)


def test_quantile_of_many_scores_agrees_with_numpy():
    import numpy as np

    scores = np.random.default_rng(0).normal(size=1000)
    scale = Scale.fit("quantile", scores.tolist())
    knots = np.quantile(scores, np.linspace(0, 1, 101))
    assert scale.knots == pytest.approx(knots)
    for x in (-1.3, -0.2, 0.0, 0.7, 2.1):
        assert scale.apply(x) == pytest.approx(np.interp(x, knots, np.linspace(0, 1, 101)))


def test_minmax():
    scale = Scale.fit("minmax", [2.0, 6.0, 3.0])
    assert [scale.apply(x) for x in (1, 2, 3, 4, 6, 7)] == [0, 0, 0.25, 0.5, 1, 1]


def test_zscore_fills_the_range_with_three_standard_deviations_either_way():
    scale = Scale.fit("zscore", [1.0, 3.0])  # mean 2, population standard deviation 1
    assert [scale.apply(x) for x in (2, 5, -1, 3.5, 9)] == pytest.approx([0.5, 1, 0, 0.75, 1])


def test_sigmoid():
    scale = Scale.fit("sigmoid", [1.0, 3.0])
    assert scale.apply(2) == 0.5
    assert scale.apply(3) == pytest.approx(1 / (1 + math.exp(-1)))
    assert scale.apply(1) == pytest.approx(1 / (1 + math.exp(1)))
    assert (scale.apply(1e5), scale.apply(-1e5)) == (1.0, 0.0)  # no overflow


def test_fixed_needs_no_scores_and_clips():
    scale = Scale.fit("fixed", [])
    assert [scale.apply(x) for x in (-1, 0, 0.3, 1, 2)] == [0, 0, 0.3, 1, 1]
    assert Scale("fixed", low=1.0, high=5.0).apply(4) == 0.75


@pytest.mark.parametrize("kind", SCALE_KINDS)
def test_minimise_turns_the_scale_round(kind):
    scores = [0.1, 0.4, 0.45, 0.9]
    up = Scale.fit(kind, scores)
    down = Scale.fit(kind, scores, direction="minimise")
    for x in (-1.0, 0.1, 0.42, 0.45, 2.0):
        assert down.apply(x) == pytest.approx(1 - up.apply(x))


# --- what cannot be fitted ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in SCALE_KINDS if kind != "fixed"])
def test_scores_that_no_scale_fits(kind):
    with pytest.raises(InputError, match="'kind' has no score at all"):
        Scale.fit(kind, [], name="kind")
    with pytest.raises(InputError, match=r"the one score of objective 'kind' is 0\.5, so no scale can be fitted"):
        Scale.fit("quantile", [0.5], name="kind")
    with pytest.raises(InputError, match=r"all 3 scores of objective 'kind' equal 0\.5"):
        Scale.fit(kind, [0.5, 0.5, 0.5], name="kind")
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(InputError, match="'kind' has a score that is not finite"):
            Scale.fit(kind, [0.1, bad, 0.2], name="kind")


def test_unknown_scale_kind_names_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'quantile'"):
        Scale.fit("quantil", [1, 2])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_refused(bad):
    with pytest.raises(InputError, match="finite"):
        Scale.fit("minmax", [0, 1]).apply(bad)


def test_an_objective_without_a_scale_says_so():
    with pytest.raises(InputError, match="'a' has no fitted scale"):
        Objective("a").normalise(0.3)


# --- JSON ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SCALE_KINDS)
@pytest.mark.parametrize("direction", ["maximise", "minimise"])
def test_objective_goes_through_json_unchanged(kind, direction):
    phrases = ("Be brief.", "", "x", "y", "z")
    before = Objective("a_1", "lexical:brevity", direction, scale_kind=kind, phrases=phrases).fitted(
        [0.1, 0.2, 0.7, 0.7]
    )
    after = Objective.from_dict(json.loads(json.dumps(before.to_dict())))
    assert after == before
    for x in (-3.0, 0.1, 0.15, 0.7, 0.9):
        assert after.normalise(x) == before.normalise(x)


def test_unfitted_objective_goes_through_json():
    assert Objective.from_dict(json.loads(json.dumps(Objective("a").to_dict()))) == Objective("a")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "JSON object with a 'name'"),
        ({"spec": "x"}, "JSON object with a 'name'"),
        ({"name": "a", "directoin": "maximise"}, "Did you mean 'direction'"),
        ({"name": "a", "direction": "up"}, "must be maximise or minimise"),
        ({"name": "9a"}, "must be a letter"),
        ({"name": "a b"}, "must be a letter"),
        ({"name": "a", "scale_kind": "rank"}, "unknown scale 'rank'"),
        ({"name": "a", "phrases": ["one"]}, "phrases must be 5"),
        ({"name": "a", "scale": {"kind": "minmax", "low": 1, "high": 1}}, "low < high"),
        ({"name": "a", "scale": {"kind": "minmax", "low": "0"}}, "a scale's low must be a finite number, found '0'"),
        ({"name": "a", "scale": {"kind": "minmax", "high": 10**400}}, "a scale's high must be a finite number"),
        ({"name": "a", "scale": {"kind": "fixed", "reverse": "false"}}, "reverse must be true or false"),
        ({"name": "a", "scale": {"kind": "quantile", "knots": "0123"}}, "knots must be a list of numbers"),
        ({"name": "a", "scale": {"kind": "quantile", "knots": [0, True]}}, "knots must be a finite number"),
        ({"name": "a", "scale": []}, "a scale is an object"),
        ({"name": "a", "phrases": "abcde"}, "phrases must be a list of texts"),
        ({"name": "a", "spec": 3}, "spec must be text"),
        ({"name": "a", "scale": {"kind": "zscore", "mean": 0, "std": 0}}, "std > 0"),
        ({"name": "a", "scale": {"kind": "zscore", "mean": math.nan, "std": 1}}, "finite"),
        ({"name": "a", "scale": {"kind": "quantile", "knots": [1]}}, "ascending knots"),
        ({"name": "a", "scale": {"kind": "quantile", "knots": [2, 1]}}, "ascending knots"),
        ({"name": "a", "scale": {"kind": "quantile", "knots": [1, 1]}}, "ascending knots"),
    ],
)
def test_broken_objectives_are_refused(data, message):
    with pytest.raises(InputError, match=message):
        Objective.from_dict(data)


def test_names_must_differ():
    check_names([Objective("a"), Objective("b")])
    with pytest.raises(InputError, match="two objectives are called 'a'"):
        check_names([Objective("a"), Objective("a")])
    with pytest.raises(InputError, match="no objective"):
        check_names([])


# --- properties ---------------------------------------------------------------------------------------------------


@given(
    kind=st.sampled_from(SCALE_KINDS),
    direction=st.sampled_from(["maximise", "minimise"]),
    scores=st.lists(numbers, min_size=2, max_size=40),
    probes=st.lists(numbers, min_size=2, max_size=10),
)
def test_a_scale_maps_into_the_unit_interval_and_keeps_order(kind, direction, scores, probes):
    if max(scores) - min(scores) < 1e-6:
        return
    scale = Scale.fit(kind, scores, direction=direction)
    values = [scale.apply(x) for x in sorted([*probes, *scores])]
    assert all(0 <= value <= 1 for value in values)
    ordered = values if direction == "maximise" else values[::-1]
    assert all(one <= two + 1e-12 for one, two in itertools.pairwise(ordered))
    assert Scale.from_dict(json.loads(json.dumps(scale.to_dict()))) == scale


@given(value=st.floats(0, 1))
def test_levels_cover_the_unit_interval(value):
    level = level_of(value)
    assert 0 <= level < len(LEVELS)
    assert level / 5 - 1e-12 <= value <= (level + 1) / 5 + 1e-12


def test_levels_by_hand():
    assert [level_of(x) for x in (0, 0.19, 0.2, 0.5, 0.79, 0.8, 1)] == [0, 0, 1, 2, 3, 4, 4]


# --- profiles and pins --------------------------------------------------------------------------------------------


def test_a_profile_comes_back_in_the_objectives_order_as_floats():
    assert list(check_profile({"b": 1, "a": 0.5}, ["a", "b"], partial=False).items()) == [("a", 0.5), ("b", 1.0)]
    assert check_profile({}, ["a"], partial=True) == {}


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ({"a": 0.1}, "no value for b"),
        ({"a": 0.1, "bb": 0.2}, "unknown objective 'bb'. Did you mean 'b'"),
        ({"a": 0.1, "b": 1.01}, r"'b' must lie in \[0, 1\], found 1.01"),
        ({"a": -0.01, "b": 1}, r"'a' must lie in \[0, 1\]"),
        ({"a": math.nan, "b": 1}, "found nan"),
        ({"a": math.inf, "b": 1}, "found inf"),
        ({"a": True, "b": 1}, "must be a number"),
        ({"a": "0.5", "b": 1}, "must be a number"),
        ({"a": None, "b": 1}, "must be a number"),
        ([0.1, 0.2], "is a mapping"),
    ],
)
def test_profiles_that_are_none(profile, message):
    with pytest.raises(InputError, match=message):
        check_profile(profile, ["a", "b"], partial=False)


def test_pins():
    assert parse_pins(["b=1", " a = 0.25"], ["a", "b"]) == {"a": 0.25, "b": 1.0}
    assert parse_pins([], ["a"]) == {}
    assert parse_pins(["a=.5", "a=0.5"], ["a"]) == {"a": 0.5}


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        (["a"], "name=value"),
        (["a="], "name=value"),
        (["a=high"], "name=value"),
        (["a=nan"], "name=value"),
        (["a=inf"], "name=value"),
        (["a=1.5"], r"must lie in \[0, 1\]"),
        (["brevty=1"], "Did you mean 'brevity'"),
        (["a=0.1", "a=0.2"], "pinned twice"),
    ],
)
def test_pins_that_are_none(pins, message):
    with pytest.raises(InputError, match=message):
        parse_pins(pins, ["a", "brevity"])


@pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5), np.int64(1)])
def test_numpys_numbers_are_numbers(value: object) -> None:
    assert check_profile({"a": value}, ["a"], partial=True) == {"a": float(value)}  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.float32("nan"), np.bool_(True), "0.5", np.array([0.5])])
def test_what_is_no_number_stays_refused(value: object) -> None:
    with pytest.raises(InputError, match=r"'a' must"):
        check_profile({"a": value}, ["a"], partial=True)
