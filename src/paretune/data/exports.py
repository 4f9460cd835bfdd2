"""Files made of rows: the parts of a split, and preference pairs for any trainer that reads TRL's format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paretune.data.pairs import Pair, PairReport, build_pairs, fit_objectives, objectives_of
from paretune.data.read import ReadReport, read_rows
from paretune.data.split import NEAR, normalised_key, split_rows
from paretune.data.write import check_rows_target, keep_objectives, store_objectives, write_rows
from paretune.errors import InputError, did_you_mean
from paretune.files import atomic_folder, check_target_folder, write_jsonl
from paretune.profile import SCALE_KINDS, Objective

PARTS = ("train", "validation", "test")


@dataclass
class SplitFiles:
    """What `write_split` wrote: rows and distinct prompts of each part, how many prompts followed a near-duplicate
    (`joined`), and bad rows dropped."""

    out: Path
    rows: dict[str, int] = field(default_factory=dict)
    prompts: dict[str, int] = field(default_factory=dict)
    joined: int = 0
    bad_rows: int = 0


def write_split(
    source: Path | str,
    out: Path | str,
    *,
    seed: int = 0,
    validation: float = 0.1,
    test: float = 0.1,
    near_duplicates: float = NEAR,
    skip_bad_rows: bool = False,
    overwrite: bool = False,
) -> SplitFiles:
    """Split the rows of `source` (`split_rows`) into train, validation and test.jsonl in the folder `out`.

    Each has its objectives beside it; the folder appears whole or not at all. A part of share 0 has no file.

    Raises:
        InputError: rows that cannot be read or split, or a folder that may not be replaced.
    """
    check_target_folder(out, overwrite=overwrite)
    read = ReadReport()
    rows = read_rows(source, skip_bad_rows=skip_bad_rows, report=read)
    objectives = objectives_of(source, rows, read.found.minimise)
    try:
        split = split_rows(rows, seed=seed, validation=validation, test=test, near_duplicates=near_duplicates)
    except InputError as error:
        raise InputError(error.message, file=source) from None
    result = SplitFiles(Path(out), joined=split.joined, bad_rows=read.bad)
    with atomic_folder(out, overwrite=overwrite) as folder:
        for name in PARTS:
            part = getattr(split, name)
            if not part:
                continue
            result.rows[name] = write_rows(folder / f"{name}.jsonl", part)
            result.prompts[name] = len({normalised_key(row.prompt) for row in part})
            if objectives:
                store_objectives(folder / f"{name}.jsonl", objectives)
    return result


def write_pairs(
    source: Path | str,
    out: Path | str,
    *,
    rule: str = "mean",
    weights: Mapping[str, float] | None = None,
    margin: float = 0.0,
    per_prompt: int | None = None,
    labels: bool = True,
    wanted: bool = True,
    scale: str = "quantile",
    objectives: Sequence[str] = (),
    seed: int = 0,
    skip_bad_rows: bool = False,
    overwrite: bool = False,
) -> PairReport:
    """Build pairs of the rows of `source` (`build_pairs`) and write them as TRL's conversational preference rows.

    A row holds `prompt`, `chosen` and `rejected` (lists of messages), `chosen_scores` and `rejected_scores` (raw; null
    where there is none), the `gap` that decided (null where labels did) and the `id` of its row. Read back, the scores
    are those of the two completions; the objectives go beside the file. Objectives without a stored scale get one of
    the kind `scale`, fitted on all rows (for these pairs alone); `objectives` selects some by name.

    Raises:
        InputError: what `build_pairs` raises, rows that cannot be read, or rows that give no pair.
    """
    out = check_rows_target(out, overwrite=overwrite)
    if out.name.lower().endswith(".parquet"):
        raise InputError("pairs are written to a file that ends in .jsonl or .jsonl.gz", file=out)
    kind = next((each for each in SCALE_KINDS if each == scale), None)
    if kind is None:
        raise InputError(f"unknown scale '{scale}'.{did_you_mean(scale, SCALE_KINDS)}")
    read = ReadReport()
    rows = read_rows(source, skip_bad_rows=skip_bad_rows, report=read)
    try:
        chosen = _selected(objectives_of(source, rows, read.found.minimise), objectives)
        scaled = [each if each.scale else replace(each, scale_kind=kind) for each in chosen]
        fitted = fit_objectives(rows, scaled)
        pairs, report = build_pairs(
            rows,
            fitted,
            rule=rule,
            weights=weights,
            margin=margin,
            per_prompt=per_prompt,
            labels=labels,
            wanted=wanted,
            seed=seed,
        )
    except InputError as error:
        raise InputError(error.message, file=source) from None
    if not pairs:
        raise InputError(f"gives no pair: {report.describe()}", file=source)
    write_jsonl(out, _preference_rows(pairs, [each.name for each in fitted]))
    keep_objectives(out, [each.name for each in chosen], chosen)
    return report


def _selected(known: Sequence[Objective], names: Sequence[str]) -> list[Objective]:
    by_name = {each.name: each for each in known}
    for name in names:
        if name not in by_name:
            raise InputError(f"no row has a score for objective '{name}'.{did_you_mean(name, by_name)}")
    return [by_name[name] for name in names or by_name]


def _preference_rows(pairs: Sequence[Pair], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    seen: dict[str, int] = {}
    for pair in pairs:
        seen[pair.row.id] = seen.get(pair.row.id, 0) + 1
        number = seen[pair.row.id]
        line: dict[str, Any] = {"id": pair.row.id if number == 1 else f"{pair.row.id}#{number}"}
        line["prompt"] = pair.row.prompt
        for side, completion in (("chosen", pair.chosen), ("rejected", pair.rejected)):
            line[side] = [{"role": "assistant", "content": completion.text}]
        for side, completion in (("chosen", pair.chosen), ("rejected", pair.rejected)):
            line[f"{side}_scores"] = {name: completion.scores.get(name) for name in names}
        yield line | {"gap": pair.gap or None}
