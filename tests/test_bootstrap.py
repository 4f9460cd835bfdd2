"""Bootstrap intervals: coverage, weighted statistics against plain ones, and what is undefined."""

from __future__ import annotations

import numpy as np
import pytest

from paretune.bootstrap import (
    Bootstrap,
    weighted_mean,
    weighted_r2,
    weighted_ranks,
    weighted_spearman,
)


def test_coverage_is_about_what_is_claimed() -> None:
    draw = np.random.default_rng(0)
    hits = sum(
        estimate.low <= 2.0 <= estimate.high
        for seed in range(300)
        if (estimate := Bootstrap(300, seed).mean(draw.normal(2.0, 1.0, 40))).low is not None
        and estimate.high is not None
    )
    assert 0.90 <= hits / 300 <= 0.98


def test_weighted_statistics_equal_plain_ones_on_the_repeated_sample() -> None:
    draw = np.random.default_rng(1)
    x, y = draw.integers(0, 5, 12).astype(float), draw.normal(size=12)
    weights = Bootstrap(20, 3).weights(12)
    for row in weights:
        index = np.repeat(np.arange(12), row.astype(int))
        a, b = x[index], y[index]
        assert weighted_mean(x, row[None])[0] == pytest.approx(a.mean())
        assert weighted_r2(a, b, np.ones((1, len(a))))[0] == pytest.approx(
            1 - ((a - b) ** 2).sum() / ((a - a.mean()) ** 2).sum()
        )
        assert weighted_r2(x, y, row[None])[0] == pytest.approx(weighted_r2(a, b, np.ones((1, len(a))))[0])
        ranks = [[(values < v).sum() + ((values == v).sum() + 1) / 2 for v in values] for values in (a, b)]
        assert weighted_spearman(x, y, row[None])[0] == pytest.approx(np.corrcoef(ranks)[0, 1])


def test_ranks_share_their_middle() -> None:
    assert weighted_ranks(np.array([3.0, 1.0, 3.0, 2.0]), np.ones((1, 4)))[0].tolist() == [3.5, 1, 3.5, 2]


def test_the_first_row_is_the_sample_and_every_row_has_n_draws() -> None:
    weights = Bootstrap(50, 0).weights(7)
    assert weights.shape == (51, 7)
    assert weights[0].tolist() == [1] * 7
    assert (weights.sum(axis=1) == 7).all()


def test_missing_values_are_left_out_and_not_counted() -> None:
    estimate = Bootstrap(100).mean([1.0, np.nan, 3.0])
    assert (estimate.value, estimate.n) == (2.0, 2)


def test_undefined_is_none_with_a_reason_never_nan() -> None:
    constant = np.ones(9)
    estimate = Bootstrap(100).estimate(lambda w: weighted_spearman(constant, np.arange(9.0), w), 9, "it is constant")
    assert estimate.to_dict() == {"value": None, "low": None, "high": None, "n": 9, "why": "it is constant"}
    assert Bootstrap(100).mean([]).to_dict()["value"] is None
    assert Bootstrap(100).mean([np.nan]).why == "no prompt has a value"


def test_one_prompt_has_a_value_but_no_interval() -> None:
    estimate = Bootstrap(100).mean([2.0])
    assert (estimate.value, estimate.low, estimate.high) == (2.0, None, None)
    assert not estimate.above_zero and not estimate.below_zero


def test_the_seed_decides() -> None:
    values = np.random.default_rng(0).normal(size=30)
    assert Bootstrap(100, 1).mean(values) == Bootstrap(100, 1).mean(values)
    assert Bootstrap(100, 1).mean(values) != Bootstrap(100, 2).mean(values)
