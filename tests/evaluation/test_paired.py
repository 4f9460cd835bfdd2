"""Paired tests and Holm's correction: against enumeration by hand, scipy, and worked examples."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from paretune.evaluation import paired
from paretune.evaluation.paired import bootstrap_p, holm, sign_flip_p


def test_three_differences_by_hand() -> None:
    # |+-1 +-2 +-3| >= 6 in 2 of 8 sign patterns; |+-3 +-1 +-1| >= 3 in 6 of 8 (|3-1-1| = 1 in the other two)
    assert sign_flip_p(np.array([1.0, 2.0, 3.0])) == 2 / 8
    assert sign_flip_p(np.array([3.0, 1.0, -1.0])) == 6 / 8


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_the_exact_test_is_enumeration(n: int) -> None:
    gaps = np.round(np.random.default_rng(n).normal(0.4, 1, n), 2)
    sums = [abs(sum(s * d for s, d in zip(signs, gaps, strict=True))) for signs in product((1, -1), repeat=n)]
    assert sign_flip_p(gaps) == np.mean([total >= abs(gaps.sum()) - 1e-9 for total in sums])


def test_the_exact_test_is_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    for n in (2, 5, 9):
        gaps = np.random.default_rng(n).normal(0.4, 1, n)
        found = stats.permutation_test((gaps,), np.sum, permutation_type="samples", n_resamples=np.inf)
        assert sign_flip_p(gaps) == pytest.approx(found.pvalue)


def test_many_differences_are_drawn_and_agree_with_the_exact_count(monkeypatch: pytest.MonkeyPatch) -> None:
    gaps = np.random.default_rng(3).normal(0.5, 1, 12)
    exact = sign_flip_p(gaps)
    monkeypatch.setattr(paired, "EXACT", 3)
    drawn = sign_flip_p(gaps, seed=1)
    assert exact is not None and drawn is not None
    assert drawn == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / paired.FLIPS))
    assert drawn == sign_flip_p(gaps, seed=1) != sign_flip_p(gaps, seed=2)


def test_no_p_is_zero_and_no_difference_is_one() -> None:
    assert sign_flip_p(np.ones(200)) == 1 / (1 + paired.FLIPS)
    assert sign_flip_p(np.zeros(5)) == 1.0
    assert sign_flip_p(np.array([np.nan, 0.0, np.nan])) == 1.0
    assert sign_flip_p(np.array([np.nan])) is None and sign_flip_p(np.array([])) is None
    # a missing prompt counts for nothing
    assert sign_flip_p(np.array([1.0, np.nan, 2.0, 3.0])) == 2 / 8


def test_p_of_a_bootstrap_by_hand() -> None:
    # one of nine at or below zero: 2 (1 + 1) / (1 + 9)
    assert bootstrap_p(np.array([-1.0, 1, 2, 3, 4, 5, 6, 7, 8])) == pytest.approx(0.4)
    assert bootstrap_p(np.zeros(9)) == bootstrap_p(np.full(9, 1e-17)) == 1.0, "rounding is no difference"
    assert bootstrap_p(np.ones(999)) == pytest.approx(0.002)
    assert bootstrap_p(np.array([np.nan])) is None


def test_a_true_null_is_rejected_as_often_as_promised() -> None:
    draw = np.random.default_rng(0)
    found = [sign_flip_p(draw.normal(size=10)) for _ in range(400)]
    assert 0.02 < np.mean([p is not None and p < 0.05 for p in found]) < 0.08


def test_holm_by_hand() -> None:
    # sorted .01 .02 .03 .04: times 4, 3, 2, 1 = .04 .06 .06 .04, then never falling
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    # what is undefined is no test
    assert holm([0.01, None, 0.02]) == [0.02, None, 0.02]
