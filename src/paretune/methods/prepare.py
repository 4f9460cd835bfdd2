"""From a data file to training examples: objectives, split, scales, pairs, encoded rows; what is dropped is counted."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paretune.data import Row, build_pairs, fit_objectives, prompt_key, read_rows, split_rows
from paretune.data.pairs import normalised_scores, objectives_of
from paretune.data.read import ReadReport
from paretune.data.split import Split
from paretune.errors import InputError, did_you_mean
from paretune.methods.base import Method
from paretune.methods.examples import Dropped, Example, encode, single_pairs
from paretune.methods.settings import SensingConfig
from paretune.policy.renderer import Renderer
from paretune.policy.weights import weights_of
from paretune.profile import Objective, Profile, check_names
from paretune.training.config import TrainConfig


@dataclass
class Prepared:
    """What training starts from. `dropped` counts rows by cause; `data` is what policy.json says of the data."""

    objectives: list[Objective]
    split: Split
    rows: int
    dropped: dict[str, int]
    data: dict[str, Any]


@dataclass
class Encoded:
    """Training and validation examples and the targets' mean profile."""

    train: list[Example]
    validation: list[Example]
    mean_profile: Profile
    pairs: int
    dropped: dict[str, int] = field(default_factory=dict)


def choose_objectives(
    path: Path | str, rows: Sequence[Row], names: Sequence[str], minimise: Sequence[str] = ()
) -> list[Objective]:
    """The objectives to train on: those stored beside the rows, else every score's name; `names` selects some.

    `minimise`: scores of which less is better, where the data's format says so and nothing is stored.
    """
    try:
        known = {each.name: each for each in objectives_of(path, rows, minimise)}
    except InputError as error:
        raise error if error.file else InputError(error.message, file=path) from None
    for name in names:
        if name not in known:
            tail = did_you_mean(name, known) if known else " The rows have no scores; run `paretune score` first."
            raise InputError(f"no row has a score for objective '{name}'.{tail}", file=path)
    chosen = [known[name] for name in (names or known)]
    return chosen


def prepare(
    method: Method,
    config: TrainConfig,
    data: Path | str,
    names: Sequence[str],
    *,
    skip_bad_rows: bool,
    strict: bool = False,
    fitted: Sequence[Objective] = (),
) -> Prepared:
    """Read, split and fit. Raises `InputError` for anything the data makes impossible.

    `fitted`: the objectives of the policy whose training goes on, with their scales, in place of the data's own.
    """
    report = ReadReport()
    rows = read_rows(data, skip_bad_rows=skip_bad_rows, report=report)
    objectives = list(fitted)
    if not fitted:
        objectives = choose_objectives(data, rows, names, report.found.minimise)
    if (method.conditions or method.weights) and not objectives:
        raise InputError(
            f"the rows have no scores, and '{method.name}' needs them; run `paretune score` first", file=data
        )
    if objectives:
        try:
            check_names(objectives)
        except InputError as error:
            raise InputError(error.message, file=data) from None
    unscored = _check_wanted(data, rows, objectives, getattr(config, "targets", "chosen"), strict=strict)
    cut = {name: getattr(config, name) for name in ("seed", "validation", "test", "near_duplicates")}
    try:
        split = split_rows(rows, **cut)
    except InputError as error:
        raise InputError(
            f"{error.message}; give more rows, --set near_duplicates=0 to part near-duplicates, or --set validation=0 "
            "--set test=0 to train on all",
            file=data,
        ) from None
    if not split.train:
        raise InputError(f"{len(rows)} row(s) leave nothing to train on after the split", file=data)
    if not fitted:
        objectives = [each if each.scale else replace(each, scale_kind=config.scale) for each in objectives]
        try:
            objectives = fit_objectives(split.train, objectives)
        except InputError as error:
            raise InputError(error.message, file=data) from None
    described = {
        "path": str(data),
        "sha256": _digest(data),
        "split": cut,
        "pairs": _pair_rule(config, objectives, data),
        "targets": getattr(config, "targets", "chosen"),
        "top_k": getattr(config, "top_k", 3),
    }
    dropped = {"bad_rows": report.bad, "wanted_not_scored": unscored}
    return Prepared(objectives, split, len(rows), {key: value for key, value in dropped.items() if value}, described)


def _check_wanted(
    path: Path | str, rows: Sequence[Row], objectives: Sequence[Objective], targets: str, *, strict: bool
) -> int:
    """How many rows want an objective that no row is scored for: that part of the wish is left out, and counted.

    A row of whose wishes nothing is scored is an error (a misspelt name), and with `strict` every such row is.
    """
    scored = {name for row in rows for each in row.completions for name in each.scores}
    scored |= {each.name for each in objectives}
    count = 0
    for row in rows:
        unknown = [name for name in row.wanted or {} if name not in scored]
        if unknown and (strict or len(unknown) == len(row.wanted or {})):
            raise InputError(
                f"row '{row.id}' wants '{unknown[0]}', for which no row has a score.{did_you_mean(unknown[0], scored)}",
                file=path,
                field="wanted",
            )
        count += bool(unknown)
    if targets == "wanted" and not any(row.wanted for row in rows):
        raise InputError("no row has a 'wanted' profile, which targets=wanted needs; use targets=chosen", file=path)
    return count


def _pair_rule(config: TrainConfig, objectives: Sequence[Objective], path: Path | str) -> dict[str, Any]:
    """How pairs are built, in the words of `build_pairs`; kept in the policy, so that an evaluation builds the same."""
    rule: dict[str, Any] = {"rule": config.pairs, "weights": config.pair_weights or None}
    rule |= {"margin": config.pair_margin, "seed": config.seed}
    try:
        build_pairs([], objectives, **rule)
    except InputError as error:
        raise InputError(error.message, file=path, field="pair_weights") from None
    return rule


def renderer_settings(config: TrainConfig, rows: Sequence[Row], objectives: Sequence[Objective]) -> dict[str, Any]:
    """Style and snap, where the method renders profiles; for z-scores also the training values' mean and deviation."""
    out: dict[str, Any] = {key: getattr(config, key) for key in ("style", "snap") if hasattr(config, key)}
    if out.get("style") == "ric":
        out |= value_statistics(rows, objectives)
    return out


def value_statistics(rows: Sequence[Row], objectives: Sequence[Objective]) -> dict[str, Profile]:
    """Mean (`centre`) and standard deviation (`spread`) of each objective's values over all scored completions."""
    profiles = [normalised_scores(each, objectives) for row in rows for each in row.completions]
    centre, spread = Profile(), Profile()
    for name in (each.name for each in objectives):
        values = [profile[name] for profile in profiles if name in profile]
        centre[name] = statistics.fmean(values)
        # values that a scale clips to one and the same have no spread; any will do, as they have no z but 0
        spread[name] = statistics.pstdev(values, centre[name]) or 1.0
    return {"centre": centre, "spread": spread}


def in_method_terms(examples: Sequence[Example], config: TrainConfig) -> None:
    """Make the head's targets weights, in place, where it senses weights."""
    if (temperature := getattr(config, "weight_temperature", None)) is not None:
        for each in examples:
            each.goods = [weights_of(good, temperature) for good in each.goods]


def _digest(path: Path | str) -> str | None:
    """SHA-256 of a data file; `None` for a folder or a hub id."""
    if not Path(path).is_file():
        return None
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def encode_split(
    method: Method,
    config: TrainConfig,
    prepared: Prepared,
    renderer: Renderer,
    context: int,
    *,
    strict: bool,
    rule: Mapping[str, Any] | None = None,
) -> Encoded:
    """Pairs of the training and validation parts, encoded; at least one training example must remain.

    `rule`: keywords of `build_pairs` in place of those that the settings ask for.
    """
    if method.encode is not None and rule is None:
        return method.encode(config, prepared, renderer, context, strict)
    dropped = Dropped()
    parts: list[list[Example]] = []
    causes: dict[str, int] = {}
    for rows in (prepared.split.train, prepared.split.validation):
        how = rule or prepared.data["pairs"]
        pairs, report = build_pairs(rows, prepared.objectives, **how)
        if not method.pairs:
            paired = {id(pair.row) for pair in pairs}
            unpaired = [row for row in rows if id(row) not in paired]
            single = single_pairs(unpaired, prepared.objectives, scored=method.conditions)
            taken = {id(pair.row) for pair in single}
            _, report = build_pairs([row for row in rows if id(row) not in taken], prepared.objectives, **how)
            pairs += single
        for cause, count in report.dropped().items():
            causes[cause] = causes.get(cause, 0) + count
        parts.append(
            encode(
                pairs,
                renderer,
                max_length=min(config.max_length, context),
                targets=getattr(config, "targets", "chosen"),
                top_k=getattr(config, "top_k", 3),
                readout=config.head.readout if isinstance(config, SensingConfig) else "last",
                strict=strict,
                dropped=dropped,
            )
        )
        in_method_terms(parts[-1], config)
    train, validation = parts
    total = {key: value for key, value in {**prepared.dropped, **causes, **dropped.to_dict()}.items() if value}
    if not train:
        causes_said = ", ".join(f"{count} {cause.replace('_', ' ')}" for cause, count in total.items())
        raise InputError(
            f"no row is left to train on; dropped: {causes_said or 'none, the rows hold no completions'}",
            file=prepared.data["path"],
        )
    mean = mean_of_targets(train, prepared, partial=rule is not None)
    return Encoded(train, validation, mean, len(train) + len(validation), total)


def mean_of_targets(examples: Sequence[Example], prepared: Prepared, *, partial: bool = False) -> Profile:
    """The mean profile of the examples' targets. Raises `InputError` for an objective that none of them has.

    `partial`: an objective that no chosen completion has a score for is left out, where pairs are another's.
    """
    out: Profile = {}
    targets = [each.target for each in examples]
    for objective in prepared.objectives:
        values = [target[objective.name] for target in targets if objective.name in target]
        if not values and partial:
            continue
        if not values:
            path = prepared.data["path"]
            raise InputError(f"no chosen completion has a score for objective '{objective.name}'", file=path)
        out[objective.name] = sum(values) / len(values)
    return out


def train_keys(examples: Sequence[Example]) -> list[str]:
    """Keys of the prompts trained on, by which an evaluation finds leakage."""
    return sorted({prompt_key(each.row.prompt) for each in examples})
