"""Where to write the names of points so that they do not lie on each other: greedy, the same for SVG and PNG charts."""

from __future__ import annotations

from collections.abc import Sequence

Box = tuple[float, float, float, float]
_STEPS = (0, -1, 1, -2, 2, -3, 3, -4, 4, -5, 5)


def place_labels(
    points: Sequence[tuple[float, float]],
    widths: Sequence[float],
    height: float,
    bounds: Box,
    gap: float = 8.0,
) -> list[tuple[float, float]]:
    """The left end and the middle height of each label; points, widths and `height` in one unit.

    A label stands right or left of its point, moved up or down by whole lines until it covers no other label and no
    point, and stays within `bounds` (left, low, right, high); where all is full it stands beside its point anyway.
    A label that had to move (its height is not its point's) wants a line to its point.
    """
    left_end, low, right_end, high = bounds
    marks = [(x - gap / 2, y - gap / 2, x + gap / 2, y + gap / 2) for x, y in points]
    taken: list[Box] = []
    out = []
    for (x, y), width in zip(points, widths, strict=True):
        sides = [left for left in (x + gap, x - gap - width) if left_end <= left and left + width <= right_end]
        sides = sides or [max(left_end, min(x + gap, right_end - width))]
        boxes = [
            (left, y + step * height - height / 2, left + width, y + step * height + height / 2)
            for step in _STEPS
            for left in sides
            if step == 0 or low <= y + step * height - height / 2 <= y + step * height + height / 2 <= high
        ]
        box = next((each for each in boxes if not any(_overlap(each, other) for other in (*taken, *marks))), boxes[0])
        taken.append(box)
        out.append((box[0], (box[1] + box[3]) / 2))
    return out


def _overlap(one: Box, two: Box) -> bool:
    return one[0] < two[2] and two[0] < one[2] and one[1] < two[3] and two[1] < one[3]
