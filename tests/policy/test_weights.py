"""Preference weights: checked, mapped to profiles by RiC's formula, saved with the policy."""

from __future__ import annotations

import math

import pytest

from paretune.errors import InputError
from paretune.policy.weights import (
    WeightMap,
    check_pinned_weights,
    check_weights,
    parse_weights,
    pin_weights,
    weights_of,
)

NAMES = ["helpful", "harmless", "brief"]


def test_weights_are_completed_and_sum_to_one():
    assert check_weights({"brief": 0.25, "helpful": 0.75}, NAMES) == {"helpful": 0.75, "harmless": 0.0, "brief": 0.25}
    thirds = check_weights(dict.fromkeys(NAMES, 0.333), NAMES)
    assert sum(thirds.values()) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"helpful": 0.5}, "sum to 1, found a sum of 0.5; in the same proportions: helpful=1"),
        ({"helpful": 2, "brief": 2}, "in the same proportions: helpful=0.5, brief=0.5"),
        ({}, "found a sum of 0"),
        ({"helpful": 1.5, "brief": -0.5}, "weight of 'brief' must be 0 or more, found -0.5"),
        ({"helpful": math.nan}, "weight of 'helpful'"),
        ({"helpful": 1e308, "brief": 1e308}, "sum to 1, found a sum of inf"),
        ({"helpful": "all"}, "weight of 'helpful'"),
        ({"helpfull": 1.0}, "unknown objective 'helpfull'. Did you mean 'helpful'"),
        ([0.5, 0.5], "a mapping from objective to a number, found list"),
    ],
)
def test_impossible_weights_are_told(weights, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(").replace(".", r"\.")):
        check_weights(weights, NAMES)


def test_rics_formula_by_hand():
    ends = dict.fromkeys(NAMES, 0.2), {"helpful": 0.9, "harmless": 0.8, "brief": 1.0}
    profile = WeightMap("profile", *ends).profile({"helpful": 0.6, "harmless": 0.0, "brief": 0.8})  # |w| = 1
    assert profile == pytest.approx({"helpful": 0.6 * 0.7 + 0.2, "harmless": 0.2, "brief": 0.8 * 0.8 + 0.2})
    equal = WeightMap("profile", *ends).profile(dict.fromkeys(NAMES, 1 / 3))
    assert equal["harmless"] == pytest.approx(0.6 / math.sqrt(3) + 0.2)
    # all the weight on one asks for the most of it and the least of the others
    most = WeightMap("profile", *ends).profile({"helpful": 1.0, "harmless": 0.0, "brief": 0.0})
    assert most == pytest.approx({"helpful": 0.9, "harmless": 0.2, "brief": 0.2})


def test_a_direction_is_rendered_as_it_is():
    weights = {"helpful": 0.5, "harmless": 0.5, "brief": 0.0}
    assert WeightMap("direction").profile(weights) == weights


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("soup", "an object with a rule"),
        ({"rule": "stew"}, "an object with a rule"),
        ({"rule": "soup", "lo": {}}, "unknown key 'lo'"),
        ({"rule": "profile"}, "no value for helpful"),
        ({"rule": "profile", "low": dict.fromkeys(NAMES, 0.9), "high": dict.fromkeys(NAMES, 0.1)}, "low is above high"),
    ],
)
def test_a_broken_map_is_told(data, said):
    with pytest.raises(InputError, match=said):
        WeightMap.from_dict(data, NAMES)


def test_json_and_back():
    known = WeightMap("profile", dict.fromkeys(NAMES, 0.1), dict.fromkeys(NAMES, 0.7))
    assert WeightMap.from_dict(known.to_dict(), NAMES) == known
    assert WeightMap.from_dict({"rule": "nearest"}, NAMES) == WeightMap("nearest")


def test_written_weights_are_read():
    assert parse_weights("helpful=.7, brief=.3") == {"helpful": 0.7, "brief": 0.3}
    for text in ("helpful", "helpful=", "helpful=a", "helpful=nan", "helpful=1,helpful=1", ""):
        with pytest.raises(InputError, match="weights"):
            parse_weights(text)


def test_weights_of_values_are_their_softmax():
    weights = weights_of({"helpful": 0.9, "brief": 0.4}, 0.25)
    assert weights["helpful"] / weights["brief"] == pytest.approx(math.exp(0.5 / 0.25))
    assert sum(weights.values()) == pytest.approx(1, abs=1e-12)
    assert weights_of({"helpful": 1.0, "brief": 0.0}, 1e-4) == {"helpful": 1.0, "brief": 0.0}  # no overflow
    assert weights_of({}, 0.25) == {}


def test_a_profile_that_sums_to_one_is_weights_already_and_any_other_is_made_them():
    known = WeightMap("direction", temperature=0.5)
    weights = {"helpful": 0.2, "harmless": 0.5, "brief": 0.3}
    assert known.request(weights) == weights
    values = {"helpful": 1.0, "harmless": 0.5, "brief": 0.5}
    assert known.request(values) == pytest.approx(weights_of(values, 0.5))
    assert known.request(dict.fromkeys(NAMES, 1.0)) == pytest.approx(dict.fromkeys(NAMES, 1 / 3))
    assert known.request({}) == {}
    assert WeightMap("profile", dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, 1.0)).request(values) == values


def test_pinned_weights_are_kept_and_the_rest_fills_one():
    weights = {"helpful": 0.5, "harmless": 0.3, "brief": 0.2}
    assert pin_weights(weights, {"helpful": 0.75}) == pytest.approx({"helpful": 0.75, "harmless": 0.15, "brief": 0.1})
    assert pin_weights(weights, {"helpful": 1.0}) == {"helpful": 1.0, "harmless": 0.0, "brief": 0.0}
    nothing = {"helpful": 1.0, "harmless": 0.0, "brief": 0.0}
    assert pin_weights(nothing, {"helpful": 0.4}) == pytest.approx({"helpful": 0.4, "harmless": 0.3, "brief": 0.3})
    check_pinned_weights({"helpful": 0.75}, NAMES)
    check_pinned_weights(dict(zip(NAMES, (0.75, 0.2, 0.05), strict=True)), NAMES)
    with pytest.raises(InputError, match=r"sum to 1 at most; found a sum of 1\.2"):
        check_pinned_weights({"helpful": 0.75, "brief": 0.45}, NAMES)
    with pytest.raises(InputError, match=r"all weights are pinned, and they sum to 0\.6"):
        check_pinned_weights(dict.fromkeys(NAMES, 0.2), NAMES)


@pytest.mark.parametrize("temperature", [0, -1, math.nan, "warm", None])
def test_a_temperature_that_is_none_is_told(temperature):
    with pytest.raises(InputError, match="temperature"):
        WeightMap.from_dict({"rule": "direction", "temperature": temperature}, NAMES)


def test_the_temperature_comes_back():
    known = WeightMap("direction", temperature=0.1)
    assert WeightMap.from_dict(known.to_dict(), NAMES) == known
    assert WeightMap.from_dict({"rule": "direction"}, NAMES) == WeightMap("direction")
