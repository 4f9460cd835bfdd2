"""`score`: measure the completions of rows. In memory (`score_rows`, `score_texts`) and from file to file (`score`).

From file to file the rows are streamed: a first pass checks and counts them, then one pass a model measures them chunk
by chunk, and a last one writes them with their scores. Memory holds a few chunks, and of all rows 8 bytes a completion
and objective (the summary's) and about 100 bytes a row (hashes of ids). What is measured is kept in a journal beside
the output (`journal`), so that the same call goes on after whatever ended it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paretune.data import check_rows_target, objectives_path, store_objectives, stored_objectives, write_rows
from paretune.data.rows import Messages, Row
from paretune.errors import InputError
from paretune.profile import Objective, check_names
from paretune.progress import NO_PROGRESS, Progress
from paretune.rewards.column import require_column
from paretune.rewards.journal import Journal
from paretune.rewards.measure import (
    BATCH,
    Answers,
    Measured,
    Outcome,
    Recipe,
    Scorer,
    Task,
    answers_of,
    holds_model,
    in_passes,
    pass_name,
    run_here,
    with_measured,
)
from paretune.rewards.spec import can_score_new, expand_objective, kind_of, release_models, runs_parallel
from paretune.rewards.stream import Source
from paretune.rewards.summary import ScoreSummary, ScoreTable, correlate, summarise

CHUNK = 512
"""Completions measured between two saves, and sent to a process at a time."""
LONGEST_NAME = 220
"""Bytes of an output's name: most file systems take 255, and files beside it have longer names."""


def score_rows(
    rows: Sequence[Row],
    objectives: Sequence[Objective],
    *,
    batch_size: int = BATCH,
    allow_remote_code: bool = False,
    progress: Progress | None = None,
) -> list[Row]:
    """The rows with every completion's raw scores of `objectives` added; other scores stay.

    Rewards are called with `batch_size` completions at a time; the scores do not depend on it. Raises `InputError` for
    objectives of one name, a reward that cannot be built, or one that returns anything but finite numbers and None.
    """
    check_names(objectives)
    found = _in_memory(answers_of(rows), objectives, batch_size, allow_remote_code, progress or NO_PROGRESS)
    return with_measured(rows, {objective.name: found[objective.name] for objective in objectives})


def score_texts(
    prompts: Sequence[Messages],
    texts: Sequence[str],
    objectives: Sequence[Objective],
    *,
    columns: Mapping[str, Sequence[Any]] | None = None,
    batch_size: int = BATCH,
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
    able = [objective for objective in objectives if can_score_new(objective)]
    answers = Answers(list(prompts), list(texts), given)
    found = _in_memory(answers, able, batch_size, allow_remote_code, progress or NO_PROGRESS)
    nothing = Measured([None] * len(texts))
    return [
        {objective.name: found.get(objective.name, nothing).scores[at] for objective in objectives}
        for at in range(len(texts))
    ]


def _in_memory(
    answers: Answers, objectives: Sequence[Objective], batch_size: int, allow_remote_code: bool, progress: Progress
) -> dict[str, Measured]:
    """What the objectives' rewards say of all answers. All are built before the first is called."""
    passes = [
        (pass_name(group), Scorer(group, batch_size=batch_size, allow_remote_code=allow_remote_code))
        for group in in_passes(objectives)
    ]
    found: dict[str, Measured] = {}
    for name, scorer in passes:
        with progress(name, len(answers.texts)) as task:
            found |= scorer(answers, done=task.advance)
    return found


def score(
    rows_path: Path | str,
    objectives: Sequence[Objective | str],
    out: Path | str,
    *,
    skip_bad_rows: bool = False,
    overwrite: bool = False,
    batch_size: int = BATCH,
    chunk_size: int = CHUNK,
    workers: int = 1,
    ray: str | None = None,
    allow_remote_code: bool = False,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
) -> ScoreSummary:
    """Read rows, score them, write them to `out` and the objectives beside it; `out` appears whole or not at all.

    `objectives` are `Objective`s or specs (`name=lexical:brevity`, `*=hf:MODEL#*`). Scores, details and stored
    objectives that the rows have already are kept; of one name the new one wins. Scales stay unfitted: they are fitted
    on the training split.

    Every `chunk_size` completions are saved when they are measured. After an error, Ctrl-C or a kill the same call
    measures what is left (with objectives added or changed: those); it may differ in `workers`, `ray` and `batch_size`.

    With `workers` above 1 chunks are measured in that many processes (`parallel`), with `ray` (an address, or "local")
    by as many actors of a Ray cluster (`cluster`). Rewards that must live in one process stay in this one.
    `note` is told in words what a person should know on the way.

    Raises:
        InputError: bad rows (unless skipped), no completion to score, an `out` that exists (unless `overwrite`), an
            unfinished scoring of other rows into it (unless `overwrite`), another one under way, a full disk, a process
            that died, and all that `score_rows` raises.
    """
    asked = [
        each for item in objectives for each in ([item] if isinstance(item, Objective) else expand_objective(item))
    ]
    check_names(asked)
    for value, what in ((batch_size, "the batch size"), (chunk_size, "the chunk size"), (workers, "workers")):
        if value < 1:
            raise InputError(f"{what} must be at least 1, found {value}")
    journal = Journal(Path(out), asked, chunk_size)
    _check_output(out, journal, overwrite=overwrite)
    source = Source(rows_path, skip_bad_rows)
    stored = [item for item in stored_objectives(rows_path) or [] if item.name not in {new.name for new in asked}]
    run = _Run(source, journal, workers, ray, progress or NO_PROGRESS, note or (lambda text: None))
    with journal.held(), _kept(journal, run.note):
        source.survey(out)
        if not source.completions:
            raise InputError("no row has a completion to score; run `paretune sample` first", file=rows_path)
        _check_columns(asked, source.names)
        journal.begin(rows_path, source.digest, discard=overwrite)
        for group in in_passes(asked):
            run.measure(Recipe(group, batch_size, allow_remote_code))
        summary = run.write(asked)
        journal.publish()
        store_objectives(out, [*stored, *_told_by_format(source, [*stored, *asked]), *asked])
        journal.remove()
    summary.out = str(out)
    return summary


def _told_by_format(source: Source, known: Sequence[Objective]) -> list[Objective]:
    """Scores of which less is better, where only the data's published format says so: the output is in another."""
    names = {objective.name for objective in known}
    lesser = [name for name in source.scores if name in source.report.found.minimise and name not in names]
    return [Objective(name, direction="minimise") for name in lesser]


def _check_output(out: Path | str, journal: Journal, *, overwrite: bool) -> None:
    """Refuse files that would be replaced, unless they are this very scoring's, killed before it could tidy up."""
    if len(os.fsencode(Path(out).name)) > LONGEST_NAME:
        raise InputError(f"has too long a name; {LONGEST_NAME} bytes are the most", file=out)
    overwrite = overwrite or journal.wrote(Path(out))
    check_rows_target(out, overwrite=overwrite)
    beside = objectives_path(out)
    if beside.exists() and not overwrite:
        raise InputError(
            f"belongs to other rows and would be replaced; name {out} otherwise, or --overwrite", file=beside
        )


def _check_columns(objectives: Sequence[Objective], names: Sequence[str]) -> None:
    for objective in objectives:
        kind, rest = kind_of(objective)
        if kind.prefix == "column":
            require_column(rest, names)


@contextmanager
def _kept(journal: Journal, note: Callable[[str], None]) -> Iterator[None]:
    """Say of whatever ends a scoring that what was measured is kept, and how to go on."""
    kept = f"what was scored so far is kept in {journal.folder.name}, and the same command goes on from there"
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if journal.anything():
            note(kept)
        raise
    except InputError as error:
        if journal.anything():
            raise InputError(f"{error}; {kept}") from error
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            tail = f"; {kept}" if journal.anything() else ""
            raise InputError(f"the disk is full ({error.strerror}){tail}", file=journal.out.parent) from error
        raise


@dataclass
class _Run:
    """A scoring under way."""

    source: Source
    journal: Journal
    workers: int
    ray: str | None
    progress: Progress
    note: Callable[[str], None]

    def measure(self, recipe: Recipe) -> None:
        """One pass over the rows: measure and keep all that is not kept yet."""
        names = [objective.name for objective in recipe.objectives]
        chunks = self.source.count_chunks(self.journal.chunk_size)
        for name in names:
            if before := self.journal.count(name):
                self.note(f"continuing: {before:,} of {chunks:,} chunks of objective '{name}' were scored")
        with self.progress(pass_name(recipe.objectives), self.source.completions) as task:
            outcomes = self._outcomes(recipe, self._tasks(names, task.advance), task.advance)
            with closing(outcomes):
                for outcome in outcomes:
                    for name, found in outcome.found.items():
                        self.journal.write(name, outcome.number, outcome.key, found)
        if any(holds_model(objective) for objective in recipe.objectives):
            release_models()

    def _tasks(self, names: Sequence[str], done: Callable[[int], None]) -> Iterator[Task]:
        """The chunks that are not kept, each with the objectives for which it is not; `done` is told of the others."""
        for chunk in self.source.chunks(self.journal.chunk_size):
            count = chunk.completions
            left = [name for name in names if not self.journal.read(name, chunk.number, chunk.key, count)]
            if left and count:
                yield Task(chunk.number, chunk.key, left, chunk.answers(self.source.names))
            else:
                done(count)

    def _outcomes(
        self, recipe: Recipe, tasks: Iterator[Task], done: Callable[[int], None]
    ) -> Generator[Outcome, None, None]:
        """Measure here, in processes of this machine, or on a cluster."""
        here = not all(runs_parallel(objective) for objective in recipe.objectives)
        if self.ray is not None and not here:
            from paretune.rewards.cluster import run_on_ray

            return run_on_ray(recipe, tasks, self.workers, self.ray, done)
        if self.workers > 1 and not here:
            from paretune.rewards.parallel import run_in_processes

            return run_in_processes(recipe, tasks, self.workers, done)
        return run_here(recipe, tasks, done)

    def write(self, objectives: Sequence[Objective]) -> ScoreSummary:
        """Write the rows with all that is kept into the journal's output file, and sum up."""
        names = [objective.name for objective in objectives]
        table = ScoreTable(self.source.completions, dict.fromkeys([*self.source.scores, *names]))
        counts: dict[str, dict[str, float]] = {}
        write_rows(self.journal.finished, self._merged(names, table, counts))
        summaries = summarise(table, objectives)
        return ScoreSummary(
            rows=self.source.report.rows,
            completions=self.source.completions,
            objectives=summaries,
            correlations=correlate(table, objectives, summaries),
            counts=counts,
            bad_rows=self.source.report.bad,
            bad_reasons=dict(self.source.report.reasons),
        )

    def _merged(self, names: Sequence[str], table: ScoreTable, counts: dict[str, dict[str, float]]) -> Iterator[Row]:
        for chunk in self.source.chunks(self.journal.chunk_size):
            found: dict[str, Measured] = {}
            for name in names if chunk.completions else ():
                kept = self.journal.read(name, chunk.number, chunk.key, chunk.completions)
                if kept is None:
                    raise InputError(f"lost what was kept of chunk {chunk.number}; run again", file=self.journal.folder)
                found[name] = kept
                for word, number in kept.counts.items():
                    sums = counts.setdefault(name, {})
                    sums[word] = sums.get(word, 0) + number
            rows = with_measured(chunk.rows, found)
            table.add(rows)
            yield from rows
