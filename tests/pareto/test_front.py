"""Dominance, hypervolume, sparsity and spacing against values worked by hand, and their guards."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paretune.errors import InputError
from paretune.pareto import default_reference, dominates, hypervolume, non_dominated, spacing, sparsity


def test_hypervolume_of_two_objectives_by_hand() -> None:
    # boxes 1x3, 2x2, 3x1 from the origin: a staircase of 3 + 2 + 1 squares
    assert hypervolume([[1, 3], [2, 2], [3, 1]], [0, 0]) == pytest.approx(6)
    assert hypervolume([[1, 3], [2, 2], [3, 1], [1, 1]], [0, 0]) == pytest.approx(6)


def test_hypervolume_minimised_and_mixed() -> None:
    assert hypervolume([[1, 3], [2, 2]], [4, 4], maximise=False) == pytest.approx(3 * 1 + 2 * 2 - 2 * 1)
    # more of the first, less of the second: 2 x (4 - 1)
    assert hypervolume([[2, 1]], [0, 4], maximise=[True, False]) == pytest.approx(6)


def test_hypervolume_of_three_objectives_by_hand() -> None:
    # each box 1x1x2 = 2, every pair and the triple share the unit cube: 6 - 3 + 1
    assert hypervolume([[1, 1, 2], [1, 2, 1], [2, 1, 1]], [0, 0, 0]) == pytest.approx(4)


def test_hypervolume_of_points_no_better_than_the_reference_is_zero() -> None:
    assert hypervolume([[1, 0], [0, 5]], [1, 1]) == 0


def test_dominance_by_hand() -> None:
    assert dominates([1, 2], [1, 1])
    assert not dominates([1, 2], [1, 2])
    assert not dominates([2, 1], [1, 2])
    assert dominates([1, 2], [2, 3], maximise=False)


def test_every_copy_of_a_front_point_is_kept() -> None:
    points = [[1, 2], [2, 1], [1, 2], [1, 1], [2, 1]]
    assert non_dominated(points).tolist() == [True, True, True, False, True]


def test_one_objective_keeps_the_best() -> None:
    assert non_dominated([[1], [3], [3], [2]]).tolist() == [False, True, True, False]
    assert non_dominated([[1], [3]], maximise=False).tolist() == [True, False]


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=12))
def test_mask_agrees_with_pairwise_dominance(points: list[tuple[int, ...]]) -> None:
    expected = [not any(dominates(other, point) for other in points) for point in points]
    assert non_dominated(points).tolist() == expected


def test_sparsity_by_hand() -> None:
    # gaps 1 and 2 in the first, 3 and 1 in the second: (1 + 4 + 9 + 1) / 2
    assert sparsity([[0, 4], [1, 1], [3, 0]]) == pytest.approx(7.5)


def test_spacing_by_hand() -> None:
    # nearest city-block distances 2, 2, 6: mean 10/3, n - 1 = 2
    assert spacing([[0, 4], [1, 3], [4, 0]]) == pytest.approx(
        math.sqrt(((2 - 10 / 3) ** 2 * 2 + (6 - 10 / 3) ** 2) / 2)
    )
    assert spacing([[0, 2], [1, 1], [2, 0]]) == 0


def test_a_front_of_one_distinct_point_has_neither() -> None:
    assert sparsity([[1, 1], [1, 1], [0, 0]]) is None
    assert spacing([[1, 1], [1, 1], [0, 0]]) is None


def test_default_reference_is_a_tenth_of_the_range_beyond_the_worst() -> None:
    assert default_reference([[0, 10], [10, 20]]).tolist() == pytest.approx([-1, 9])
    assert default_reference([[0, 10], [10, 20]], [True, False]).tolist() == pytest.approx([-1, 21])
    # no range: a tenth of the size, or 0.1 around zero
    assert default_reference([[5, 0]]).tolist() == pytest.approx([4.5, -0.1])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused_everywhere(value: float) -> None:
    points = np.array([[1.0, 2.0], [value, 1.0]])
    for function in (non_dominated, sparsity, spacing, default_reference):
        with pytest.raises(InputError, match="point 1, objective 0"):
            function(points)
    with pytest.raises(InputError, match="must be finite"):
        hypervolume(points, [0, 0])
    with pytest.raises(InputError, match="reference point must be finite"):
        hypervolume([[1, 2]], [0, value])


def test_shapes_are_checked() -> None:
    with pytest.raises(InputError, match="needs 2 numbers, one an objective; found 3"):
        hypervolume([[1, 2]], [0, 0, 0])
    with pytest.raises(InputError, match="found shape"):
        non_dominated([])
    with pytest.raises(InputError, match="1 directions were given for 2"):
        non_dominated([[1, 2]], [True])
