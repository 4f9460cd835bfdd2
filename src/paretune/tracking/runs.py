"""The runs below a folder: what each is, how far it is, and what it measured.

The walk is bounded in depth and in folders, follows no symbolic link, and tells what it could not read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paretune.errors import InputError
from paretune.tracking.described import (
    METRICS,
    POLICY,
    REPORT,
    REWARD,
    Run,
    changed,
    evaluations,
    finished,
    unfinished,
)

DEEPEST = 6
"""Levels below the folder that are looked into."""
MOST_FOLDERS = 20_000
BESIDE = (".checkpoints", ".improve", ".lock")
"""Endings of the hidden names that an unfinished run leaves beside its output."""
COUNTS = ("grad_norm", "tokens", "tokens_per_second", "seconds", "peak_memory_mib", "near_duplicates")
"""Numbers that measure the work, not what came of it."""


@dataclass(frozen=True)
class FoundRuns:
    """The runs below a folder, the newest first; `varying` names the settings in which they differ.

    problems: what could not be read, in words. complete: False where a bound ended the walk.
    """

    folder: Path
    runs: list[Run]
    varying: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    complete: bool = True

    def differing(self, run: Run) -> dict[str, Any]:
        """The settings of a run in which the runs differ."""
        settings = run.told.get("settings", {})
        return {name: settings[name] for name in self.varying if name in settings}

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "folder": str(self.folder),
            "runs": [_plain(run, self.differing(run)) for run in self.runs],
            "varying": self.varying,
            "problems": self.problems,
            "complete": self.complete,
        }


def _plain(run: Run, differing: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "kind": run.kind,
        "method": run.method,
        "state": run.state,
        "step": run.step,
        "steps": run.steps,
        "when": datetime.fromtimestamp(run.when, UTC).isoformat(timespec="seconds") if run.when else None,
        "bytes": run.bytes,
        "differing": dict(differing),
        "metrics": key_metrics(run),
        **{name: run.told.get(name, {}) for name in ("base", "data", "objectives", "settings", "versions")},
        "measured": run.told.get("metrics", {}),
        "evaluations": run.evaluations,
        "problem": run.problem,
    }


def find_runs(folder: Path | str = "runs") -> FoundRuns:
    """Every policy, reward model and unfinished training at or below `folder`.

    Evaluations below it are told of the policies that they measured. Raises `InputError` where there is no such folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError("no such folder of runs; name one: paretune runs FOLDER", file=folder)
    walk = Walk(root, DEEPEST)
    runs = [_sized(finished(path), [path]) for path in walk.outputs]
    for path in walk.unfinished:
        run = unfinished(path)
        if run is not None:
            runs.append(_sized(run, [path.with_name(f".{path.name}{ending}") for ending in BESIDE]))
    problems = [*walk.problems, *add_evaluations(runs, walk.reports)]
    runs.sort(key=lambda run: (-run.when, str(run.folder)))
    problems += [run.problem for run in runs if run.problem]
    return FoundRuns(root, runs, _varying(runs), problems, walk.complete)


class Walk:
    """Where runs and reports are at or below a folder, by paths that begin as the folder was written.

    outputs: of policies and reward models. unfinished: where the output of an unfinished run is to be. reports: of
    evaluations.
    """

    def __init__(self, root: Path, deepest: int) -> None:
        self.outputs: list[Path] = []
        self.unfinished: list[Path] = []
        self.reports: list[Path] = []
        self.problems: list[str] = []
        self.complete = True
        self._seen, self._deepest = 0, deepest
        self._descend(root, 0)

    def _descend(self, folder: Path, depth: int) -> None:
        """Take in a folder, and those below it that are no part of a run."""
        self._seen += 1
        if self._seen > MOST_FOLDERS or depth > self._deepest:
            self.complete = False
            return
        try:
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self.problems.append(f"{folder}: cannot be read: {error.strerror}")
            return
        names = {entry.name for entry in listed}
        if POLICY in names or REWARD in names:
            self.outputs.append(folder)
            return
        if REPORT in names:
            self.reports.append(folder)
            return
        self.unfinished += [folder / name for name in sorted({_output(name) for name in names} - {""})]
        for entry in listed:
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                self._descend(folder / entry.name, depth + 1)


def _sized(run: Run, kept: Sequence[Path]) -> Run:
    run.bytes = sum(size(path) for path in kept)
    return run


def add_evaluations(runs: Sequence[Run], reports: Sequence[Path]) -> list[str]:
    """Tell the runs of the reports that measured them, the newest last; gives what could not be read, in words."""
    by_place = {_place(run.folder): run for run in runs if not run.unfinished and run.state != "broken"}
    problems = []
    for report in sorted(reports, key=lambda report: (changed(report / METRICS), str(report))):
        try:
            found = evaluations(report)
        except InputError as error:
            problems.append(str(error))
            continue
        for named, figures in found.items():
            run = next((by_place[place] for place in _places(named, report) if place in by_place), None)
            if run is not None:
                run.state = "evaluated"
                run.evaluations.append(figures)
    return problems


def _place(folder: Path) -> str:
    return os.path.normpath(folder.absolute())


def _places(named: str, report: Path) -> list[str]:
    """Where the policy may lie that a report names by a path from the folder that the command was given in."""
    if os.path.isabs(named):
        return [os.path.normpath(named)]
    return [os.path.normpath(above / named) for above in (Path.cwd(), *report.absolute().parents)]


def _output(name: str) -> str:
    """The output's name of what lies beside one; empty for anything else."""
    for ending in BESIDE:
        if name.startswith(".") and name.endswith(ending) and len(name) > len(ending) + 1:
            return name[1 : -len(ending)]
    return ""


def size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; links count nothing."""
    total, folders = 0, [path]
    for _ in range(MOST_FOLDERS):
        if not folders:
            break
        current = folders.pop()
        try:
            if current.is_file() and not current.is_symlink():
                total += current.stat().st_size
                continue
            with os.scandir(current) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:  # not there, or no longer
            continue
    return total


def _varying(runs: Sequence[Run]) -> list[str]:
    """The settings that are not the same in all runs that have them, in the order of the runs' own."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for name, value in run.told.get("settings", {}).items():
            values.setdefault(name, set()).add(repr(value))
    return [name for name, found in values.items() if len(found) > 1]


def key_metrics(run: Run) -> dict[str, Any]:
    """The few figures that tell a run in a line: of its newest evaluation, else of its validation, else its loss."""
    if run.evaluations:
        newest = run.evaluations[-1]
        return {key: newest[key] for key in ("multi_win", "hypervolume", "distance") if key in newest}
    measured = run.told.get("metrics", {})
    if "validation_hypervolume_after" in measured:
        return {"validation_hypervolume": measured["validation_hypervolume_after"]}
    if run.kind == "reward model":
        endings = (".accuracy.value", ".spearman.value")  # of pairs, and of ratings
        found = {key: measured[key] for key in measured if key.endswith(endings)}
        if found:
            return {key.removeprefix("validation.").removesuffix(".value"): value for key, value in found.items()}
    keys = ("loss", "head_validation_loss", "control_accuracy_validation", "reward")
    return {key: measured[key] for key in keys if isinstance(measured.get(key), (int, float))}
