"""`column:NAME`: a score that came with the data, in a completion's `scores` or in a column of completion or row."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from paretune.data.rows import Messages
from paretune.errors import InputError, did_you_mean
from paretune.rewards.base import RewardKind, check_scores


class ColumnReward:
    """Reads a column; it knows nothing of answers that are not in the data."""

    can_score_new = False

    def __init__(self, column: str) -> None:
        self.column = column

    def __call__(
        self, prompts: list[Messages], completions: list[str], columns: dict[str, list[Any]]
    ) -> list[float | None]:
        """The column's values. Raises `InputError` when there is no such column or a value is no number."""
        require_column(self.column, columns)
        return check_scores(columns[self.column], len(completions), f"column '{self.column}'", columns.get("id"))


def require_column(column: str, names: Collection[str]) -> None:
    """Raise `InputError` unless some row has the column."""
    if column not in names:
        raise InputError(f"no row has a score or column '{column}'.{did_you_mean(column, names)}")


def _check(rest: str) -> None:
    if not rest:
        raise InputError("column: needs the name of a score or column: column:NAME")


def _build(rest: str, allow_remote_code: bool) -> ColumnReward:
    _check(rest)
    return ColumnReward(rest)


KIND = RewardKind(
    prefix="column",
    listed=(("column:NAME", "a score or column that the rows have already (new answers cannot be scored)"),),
    build=_build,
    check=_check,
    can_score_new=False,
    shares=lambda rest: "",
)
