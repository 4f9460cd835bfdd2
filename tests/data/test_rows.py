"""The digest of rows: the same for the same rows, another for whatever else they hold."""

from __future__ import annotations

from dataclasses import replace

from paretune.data.rows import Completion, Row, rows_digest

ROW = Row([{"role": "user", "content": "é?"}], (Completion("a", {"x": 0.5}), Completion("b", {"x": None})), id="r")


def test_every_part_of_a_row_counts_and_so_does_the_order():
    other = replace(ROW, id="s")
    kinds = [
        [ROW, other],
        [other, ROW],
        [ROW],
        [replace(ROW, wanted={"x": 0.5})],
        [replace(ROW, preferences={"x": ((0, 1),)})],
        [replace(ROW, completions=ROW.completions[::-1])],
        [replace(ROW, completions=(Completion("a", {"x": 0.25}), ROW.completions[1]))],
        [],
    ]
    assert len({rows_digest(each) for each in kinds}) == len(kinds)
    assert rows_digest([ROW, other]) == rows_digest([replace(ROW), replace(other)])
