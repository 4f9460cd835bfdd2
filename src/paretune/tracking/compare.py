"""What differs between runs: settings, data, base model, versions, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paretune.errors import InputError
from paretune.tracking.described import POLICY, REWARD, SECTIONS, Run, finished, unfinished
from paretune.tracking.runs import Walk, add_evaluations

AROUND = 2
"""Levels below the folder beside a run in which reports on it are looked for."""


@dataclass(frozen=True)
class Row:
    """One thing that runs say of themselves.

    values: a run each; None where a run says nothing of it. differences: to the first run's, None where either is no
    number.
    """

    section: str
    name: str
    values: tuple[Any, ...]
    differences: tuple[float | None, ...]

    @property
    def equal(self) -> bool:
        """Whether all runs say the same; 1 and true are not."""
        return all(type(each) is type(self.values[0]) and each == self.values[0] for each in self.values)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "section": self.section,
            "name": self.name,
            "values": list(self.values),
            "differences": list(self.differences),
            "equal": self.equal,
        }


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, by section; `equal` of them say the same of all runs, and may have been left out."""

    runs: list[Run]
    rows: list[Row]
    equal: int

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        told = [{"folder": str(run.folder), "kind": run.kind, "state": run.state} for run in self.runs]
        return {"runs": told, "rows": [row.to_dict() for row in self.rows], "equal_rows": self.equal}


def compare_runs(folders: Sequence[Path | str], *, everything: bool = False) -> Comparison:
    """What differs between two or more runs; with `everything` also what does not.

    Each of `folders` is a policy, a reward model, or the output of a training that was broken off. An evaluation counts
    where its report lies in the folder that the run lies in, or below it (the newest one). Raises `InputError` for
    fewer than two, one that is given twice, and one that is no run or cannot be read.
    """
    paths = [Path(folder) for folder in folders]
    if len(paths) < 2:
        raise InputError("give two runs or more to compare")
    places = [path.absolute().resolve() for path in paths]
    for at, place in enumerate(places):
        if place in places[:at]:
            raise InputError("is given twice; give runs that can differ", file=paths[at])
    runs = [read_run(path) for path in paths]
    rows = [row for section in (*SECTIONS, "evaluation") for row in _rows(section, runs)]
    kept = rows if everything else [row for row in rows if not row.equal]
    return Comparison(runs, kept, sum(row.equal for row in rows))


def read_run(folder: Path) -> Run:
    """The run whose output is `folder`, with its evaluations. Raises `InputError` where it is none, or is broken."""
    if (folder / POLICY).is_file() or (folder / REWARD).is_file():
        run = finished(folder)
        add_evaluations([run], Walk(folder.absolute().parent, AROUND).reports)
    else:
        found = unfinished(folder)
        if found is None:
            what = "no such run" if not folder.exists() else "is no run: it has neither policy.json nor reward.json"
            raise InputError(f"{what} (paretune runs lists them)", file=folder)
        run = found
    if run.problem is not None:
        raise InputError(f"cannot be compared: {run.problem}", file=folder)
    return run


def _rows(section: str, runs: Sequence[Run]) -> list[Row]:
    """A section's rows, in the order in which the runs name them."""
    told = [_told(section, run) for run in runs]
    names = list(dict.fromkeys(name for each in told for name in each))
    rows = []
    for name in names:
        values = tuple(each.get(name) for each in told)
        rows.append(Row(section, name, values, tuple(_difference(values[0], value) for value in values)))
    return rows


def _told(section: str, run: Run) -> dict[str, Any]:
    if section != "evaluation":
        return run.told.get(section, {})
    return run.evaluations[-1] if run.evaluations else {}


def _difference(first: Any, value: Any) -> float | None:
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (first, value))
    return value - first if numbers else None
