"""Views of profiles: weighted means and lexicographic ranks, worked out by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from paretune.data.views import lexicographic, weighted
from paretune.errors import InputError


def test_a_weighted_mean() -> None:
    profile = {"a": 0.2, "b": 0.8, "c": 0.5}
    assert weighted(profile, {"a": 1, "b": 1}) == pytest.approx(0.5)
    assert weighted(profile, {"a": 3, "b": 1}) == pytest.approx((3 * 0.2 + 0.8) / 4)
    assert weighted(profile, {"a": 30, "b": 10}) == pytest.approx((3 * 0.2 + 0.8) / 4)  # the size of weights is nothing
    assert weighted({"a": 1.0, "b": 1.0}, {"a": 0.1, "b": 0.2}) == pytest.approx(1.0)


def test_what_is_missing_has_no_mean() -> None:
    assert weighted({"a": 0.2}, {"a": 1, "b": 0.1}) is None
    assert weighted({"a": 0.2}, {"a": 1, "b": 0}) == pytest.approx(0.2)
    assert weighted({}, {"a": 1}) is None


@pytest.mark.parametrize("weights", [{}, {"a": 0}, {"a": -1, "b": 2}, {"a": float("nan")}, {"a": float("inf")}])
def test_weights_that_are_none(weights: Any) -> None:
    with pytest.raises(InputError, match="weight"):
        weighted({"a": 0.2, "b": 0.3}, weights)


ROWS = [{"safe": 0.90, "good": 0.1}, {"safe": 0.88, "good": 0.9}, {"safe": 0.50, "good": 1.0}, {"good": 1.0}]


def test_the_first_objective_decides_and_the_next_among_equals() -> None:
    assert lexicographic(ROWS, ["safe", "good"]) == [0, 1, 2, 3]
    assert lexicographic(ROWS, ["safe", "good"], 0.05) == [1, 0, 2, 3]
    assert lexicographic(ROWS, ["safe", "good"], {"safe": 0.05}) == [1, 0, 2, 3]
    assert lexicographic(ROWS, ["good", "safe"]) == [3, 2, 0, 1]
    assert lexicographic(ROWS, ["good"]) == [3, 2, 0, 0]  # a tie shares the rank
    assert lexicographic([], ["good"]) == []


def test_bands_begin_at_their_best() -> None:
    # 0.9 and 0.8 are within 0.1 of each other, and so are 0.8 and 0.7; 0.9 and 0.7 are not
    values = [{"a": 0.7, "b": 1.0}, {"a": 0.8, "b": 0.5}, {"a": 0.9, "b": 0.0}]
    assert lexicographic(values, ["a", "b"], 0.11) == [2, 0, 1]


def test_ranks_do_not_depend_on_the_order_of_profiles() -> None:
    draw = random.Random(0)
    profiles = [{"a": draw.random(), "b": draw.random()} for _ in range(40)]
    ranks = lexicographic(profiles, ["a", "b"], 0.2)
    order = draw.sample(range(40), 40)
    assert lexicographic([profiles[at] for at in order], ["a", "b"], 0.2) == [ranks[at] for at in order]


@pytest.mark.parametrize(("order", "tolerance"), [([], 0), (["a", "a"], 0), (["a"], -1), (["a"], float("nan"))])
def test_orders_that_are_none(order: list[str], tolerance: float) -> None:
    with pytest.raises(InputError):
        lexicographic([{"a": 1.0}], order, tolerance)
