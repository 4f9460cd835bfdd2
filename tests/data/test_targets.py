"""What the head is taught: the chosen completion's profile, a person's wish, or those of several good completions."""

from __future__ import annotations

import pytest

from paretune.data import Completion, Row, build_pairs
from paretune.data.targets import mean_profile, target_profiles
from paretune.profile import Objective, Scale

OBJECTIVES = [Objective("a", scale=Scale("fixed")), Objective("b", scale=Scale("fixed"))]


def pair(*scores, wanted=None):
    completions = tuple(Completion(f"text {i}", {"a": a, "b": b}) for i, (a, b) in enumerate(scores))
    (found,), _ = build_pairs([Row([{"role": "user", "content": "?"}], completions, "r", wanted)], OBJECTIVES)
    return found


def goods(found, kind, **options):
    return target_profiles(found, OBJECTIVES, kind, **options)


SCORES = [(0.9, 0.1), (0.5, 0.6), (0.4, 0.5), (0.1, 0.9), (0.1, 0.2)]


def test_chosen_is_the_highest_mean():
    assert goods(pair(*SCORES), "chosen") == [{"a": 0.5, "b": 0.6}]


def test_pareto_takes_every_completion_that_no_other_beats():
    assert goods(pair(*SCORES), "pareto") == [{"a": 0.9, "b": 0.1}, {"a": 0.5, "b": 0.6}, {"a": 0.1, "b": 0.9}]


def test_copies_on_the_front_count_each():
    assert goods(pair((0.5, 0.5), (0.5, 0.5), (0.1, 0.1)), "pareto") == [{"a": 0.5, "b": 0.5}] * 2


def test_top_k_takes_the_highest_means_in_order():
    assert goods(pair(*SCORES), "top-k", top_k=2) == [{"a": 0.5, "b": 0.6}, {"a": 0.9, "b": 0.1}]
    assert len(goods(pair(*SCORES), "top-k", top_k=99)) == 5


def test_completions_with_a_missing_score_are_no_point_of_a_front():
    assert goods(pair((0.9, None), (0.5, 0.5), (0.2, 0.1)), "pareto") == [{"a": 0.5, "b": 0.5}]
    assert goods(pair((0.9, None), (0.2, None), (None, 0.1)), "pareto") == [{"a": 0.9}]  # nothing whole: the chosen one
    assert goods(pair((0.9, None), (0.5, 0.5), (0.2, 0.1)), "top-k", top_k=1) == [{"a": 0.9}]


def test_wanted_is_completed_by_the_chosen_one():
    found = pair((0.9, 0.3), (0.1, 0.2), wanted={"a": 0.123})
    assert goods(found, "wanted") == [{"a": 0.12, "b": 0.2}]
    assert goods(pair(*SCORES), "wanted") == goods(pair(*SCORES), "chosen")


def test_mean_profile_leaves_out_what_is_missing():
    assert mean_profile([{"a": 0.2}, {"a": 0.4, "b": 1.0}]) == pytest.approx({"a": 0.3, "b": 1.0})
    assert mean_profile([{}]) == {}
