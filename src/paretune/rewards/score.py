"""`score`: measure the completions of rows. In memory (`score_rows`, `score_texts`) and from file to file (`score`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paretune.data import (
    ReadReport,
    check_rows_target,
    objectives_path,
    read_rows,
    store_objectives,
    stored_objectives,
    write_rows,
)
from paretune.data.rows import Completion, Messages, Row
from paretune.errors import InputError
from paretune.profile import Objective, check_names
from paretune.progress import NO_PROGRESS, Progress
from paretune.rewards.base import Reward, check_scores
from paretune.rewards.spec import build_reward, can_score_new, parse_objective
from paretune.rewards.summary import ScoreSummary, summarise

Columns = dict[str, list[Any]]


def score_rows(
    rows: Sequence[Row],
    objectives: Sequence[Objective],
    *,
    batch_size: int = 64,
    allow_remote_code: bool = False,
    progress: Progress | None = None,
) -> list[Row]:
    """The rows with every completion's raw scores of `objectives` added; other scores stay.

    Rewards are called with `batch_size` completions at a time; the scores do not depend on it. Raises `InputError` for
    objectives of one name, a reward that cannot be built, or one that returns anything but finite numbers and None.
    """
    check_names(objectives)
    rewards = [build_reward(objective, allow_remote_code=allow_remote_code) for objective in objectives]
    prompts = [row.prompt for row in rows for _ in row.completions]
    texts = [completion.text for row in rows for completion in row.completions]
    columns = row_columns(rows)
    found = {
        objective.name: _run(reward, objective, prompts, texts, columns, batch_size, progress or NO_PROGRESS)
        for objective, reward in zip(objectives, rewards, strict=True)
    }
    out: list[Row] = []
    at = 0
    for row in rows:
        scored: list[Completion] = []
        for completion in row.completions:
            new = {name: scores[at] for name, scores in found.items()}
            scored.append(replace(completion, scores={**completion.scores, **new}))
            at += 1
        out.append(replace(row, completions=tuple(scored)))
    return out


def row_columns(rows: Sequence[Row]) -> Columns:
    """What rows say besides prompt and text, by name, one value a completion (None where a row says nothing).

    Of one name the completion's score wins over its own column, and that over the row's.
    """
    said = [
        {"id": row.id, **row.extra, **completion.extra, **completion.scores}
        for row in rows
        for completion in row.completions
    ]
    names = dict.fromkeys(name for values in said for name in values)
    return {name: [values.get(name) for values in said] for name in names}


def score_texts(
    prompts: Sequence[Messages],
    texts: Sequence[str],
    objectives: Sequence[Objective],
    *,
    columns: Mapping[str, Sequence[Any]] | None = None,
    batch_size: int = 64,
    allow_remote_code: bool = False,
    progress: Progress | None = None,
) -> list[dict[str, float | None]]:
    """Raw scores of new answers: one mapping from objective to score a text.

    Objectives that only came with the data (`can_score_new` is False) cannot measure new answers: they score None.
    `columns` are the prompts' other columns, for Python rewards that need them.
    """
    check_names(objectives)
    if len(prompts) != len(texts):
        raise ValueError(f"{len(prompts)} prompts for {len(texts)} texts")
    given = {name: list(values) for name, values in (columns or {}).items()}
    found: dict[str, list[float | None]] = {}
    for objective in objectives:
        if not can_score_new(objective):
            found[objective.name] = [None] * len(texts)
            continue
        reward = build_reward(objective, allow_remote_code=allow_remote_code)
        found[objective.name] = _run(
            reward, objective, list(prompts), list(texts), given, batch_size, progress or NO_PROGRESS
        )
    return [{name: scores[at] for name, scores in found.items()} for at in range(len(texts))]


def _run(
    reward: Reward,
    objective: Objective,
    prompts: list[Messages],
    texts: list[str],
    columns: Columns,
    batch_size: int,
    progress: Progress,
) -> list[float | None]:
    """All scores of one objective, batch by batch."""
    if batch_size < 1:
        raise InputError(f"the batch size must be at least 1, found {batch_size}")
    scores: list[float | None] = []
    with progress(f"score {objective.name}", len(texts)) as task:
        for start in range(0, len(texts), batch_size):
            part = slice(start, start + batch_size)
            batch = texts[part]
            result = reward(prompts[part], batch, {name: values[part] for name, values in columns.items()})
            scores += check_scores(result, len(batch), f"reward '{objective.spec}'")
            task.advance(len(batch))
    return scores


def score(
    rows_path: Path | str,
    objectives: Sequence[Objective | str],
    out: Path | str,
    *,
    skip_bad_rows: bool = False,
    overwrite: bool = False,
    batch_size: int = 64,
    allow_remote_code: bool = False,
    progress: Progress | None = None,
) -> ScoreSummary:
    """Read rows, score them, write them to `out` and the objectives beside it; nothing is written on an error.

    `objectives` are `Objective`s or specs (`name=lexical:brevity`). Scores and stored objectives that the rows have
    already are kept; of one name the new one wins. Scales stay unfitted: they are fitted on the training split.

    Raises:
        InputError: bad rows (unless skipped), no completion to score, an `out` that exists (unless `overwrite`), and
            all that `score_rows` raises.
    """
    check_rows_target(out, overwrite=overwrite)
    beside = objectives_path(out)
    if beside.exists() and not overwrite:
        raise InputError(
            f"belongs to other rows and would be replaced; name {out} otherwise, or --overwrite", file=beside
        )
    asked = [item if isinstance(item, Objective) else parse_objective(item) for item in objectives]
    check_names(asked)
    report = ReadReport()
    rows = read_rows(rows_path, skip_bad_rows=skip_bad_rows, report=report)
    completions = sum(len(row.completions) for row in rows)
    if not completions:
        raise InputError("no row has a completion to score; run `paretune sample` first", file=rows_path)
    stored = [item for item in stored_objectives(rows_path) or [] if item.name not in {new.name for new in asked}]
    scored = score_rows(rows, asked, batch_size=batch_size, allow_remote_code=allow_remote_code, progress=progress)
    summary = ScoreSummary(
        len(scored), completions, summarise(scored, asked), report.bad, dict(report.reasons), str(out)
    )
    write_rows(out, scored)
    store_objectives(out, [*stored, *asked])
    return summary
