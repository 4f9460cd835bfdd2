"""The verdict's words in every case."""

from __future__ import annotations

import pytest

from paretune.bootstrap import Estimate, undefined
from paretune.evaluation.verdict import decide, find_limits, listed

UP, FLAT, DOWN = Estimate(0.1, 0.05, 0.15, 50), Estimate(0.01, -0.02, 0.04, 50), Estimate(-0.1, -0.15, -0.05, 50)
RIVALS = ("shuffled", "mean", "ones", "none")


def _decide(*gaps: Estimate, has_head: bool = True, scored: tuple[str, ...] = ("a",)):  # type: ignore[no-untyped-def]
    return decide(dict(zip(RIVALS, gaps, strict=False)), has_head=has_head, scored=scored)


def test_all_four_positive_is_the_only_yes() -> None:
    verdict = _decide(UP, UP, UP, UP)
    assert verdict.helps is True
    assert verdict.headline == "Sensing helps on this data."
    assert "shuffled profiles, the training mean, all ones and no profile" in verdict.text


@pytest.mark.parametrize("place", range(4))
def test_one_unclear_rival_is_enough_for_no(place: int) -> None:
    gaps = [UP] * 4
    gaps[place] = FLAT
    verdict = _decide(*gaps)
    assert verdict.helps is False
    assert verdict.headline.startswith("Sensing is not shown to help")
    assert verdict.not_shown == (RIVALS[place],)
    assert f"No difference is shown against {listed([RIVALS[place]])}" in verdict.text


def test_nothing_beaten() -> None:
    verdict = _decide(FLAT, FLAT, FLAT, FLAT)
    assert verdict.helps is False
    assert "beats none of the four" in verdict.headline


def test_a_rival_that_is_closer_is_named() -> None:
    verdict = _decide(UP, UP, FLAT, DOWN)
    assert verdict.helps is False
    assert verdict.headline == "Sensing does not help on this data: it is worse than no profile."
    assert "closer to the target than under shuffled profiles and the training mean" in verdict.text
    assert "They are farther from the target than under no profile" in verdict.text


def test_an_interval_that_touches_zero_does_not_count() -> None:
    assert _decide(UP, UP, UP, Estimate(0.1, 0.0, 0.2, 9)).helps is False
    assert _decide(UP, UP, UP, undefined("nothing")).helps is False
    assert _decide(UP, UP, UP, Estimate(0.1, None, None, 1)).helps is False


def test_cases_without_a_verdict() -> None:
    assert _decide(UP, UP).helps is None
    assert "Not run: ones, none" in _decide(UP, UP).text
    assert _decide(UP, UP, UP, UP, has_head=False).helps is None
    assert _decide(UP, UP, UP, UP, scored=()).helps is None


def test_where_the_limit_lies() -> None:
    assert "Control is a limit" in find_limits(FLAT, UP, {})[0]
    assert "The head is a limit" in find_limits(UP, UP, {})[0]
    assert find_limits(UP, FLAT, {"a": UP}) == []
    assert "measurably, for: b." in find_limits(UP, FLAT, {"a": UP, "b": FLAT})[0]
    assert find_limits(None, None, {}) == []
