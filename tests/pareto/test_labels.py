"""Labels of a chart stand apart, inside, and near their points."""

from __future__ import annotations

from paretune.pareto.labels import place_labels


def test_a_lone_label_stands_right_of_its_point() -> None:
    assert place_labels([(10, 50)], [30], 12, (0, 0, 100, 100)) == [(18, 50)]


def test_near_the_edge_it_stands_left() -> None:
    assert place_labels([(90, 50)], [30], 12, (0, 0, 100, 100)) == [(52, 50)]


def test_labels_of_one_place_stand_apart() -> None:
    found = place_labels([(50, 50)] * 5, [30] * 5, 12, (0, 0, 100, 100))
    for i, (x, y) in enumerate(found):
        for a, b in found[:i]:
            assert abs(y - b) >= 12 or abs(x - a) >= 30


def test_a_label_wider_than_the_chart_starts_at_its_edge() -> None:
    assert place_labels([(50, 50)], [300], 12, (0, 0, 100, 100))[0][0] == 0
