"""`ensemble:mean(SPEC, SPEC, ...)`, `worst`, `best`, `spread`, and `ensemble:FILE.yaml`: several rewards as one.

`mean`, `worst` (lowest) and `best` (highest) combine the members' scores as they are, so members in a spec should share
a scale; a file can bring them to one:

    combine: mean                  mean | worst | best | spread
    missing: none                  none: an answer that a member cannot score has no score; skip: the others decide
    members:
      - spec: hf:SOME/MODEL
        range: [-5, 5]             brought to [0, 1] linearly, and cut off there
        weight: 2                  of a mean
        direction: maximise        minimise turns the score round
        name: helpful              in the details; the spec if left out
      - spec: lexical:positivity

The worst member is the conservative choice against reward hacking (Coste et al. 2024). `spread` is the standard
deviation of the members: how much they disagree. The details of every answer hold the members' scores, and that
disagreement, whatever the combination.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paretune.data.rows import Messages
from paretune.errors import InputError, did_you_mean
from paretune.rewards.base import RewardKind
from paretune.rewards.nested import (
    Columns,
    Details,
    added_counts,
    all_run_parallel,
    all_score_new,
    build_spec,
    check_spec,
    fingerprints,
    measure,
    release_all,
    shared_models,
    split_top,
)
from paretune.yaml_text import parse_yaml

_READING: ContextVar[tuple[Path, ...]] = ContextVar("reading", default=())
"""The files that are being read, each a member of the one before."""
Missing = Literal["none", "skip"]
MISSING = ("none", "skip")


@dataclass(frozen=True)
class Member:
    """A member of an ensemble."""

    spec: str
    name: str
    weight: float = 1.0
    range: tuple[float, float] | None = None
    minimise: bool = False

    def brought(self, score: float) -> float:
        """The score as it is combined: more is better, in [0, 1] where a range is given."""
        if self.range is not None:
            low, high = self.range
            score = min(1.0, max(0.0, (score - low) / (high - low)))
            return 1.0 - score if self.minimise else score
        return -score if self.minimise else score


def _mean(scores: Sequence[float], weights: Sequence[float]) -> float:
    return math.fsum(score * weight for score, weight in zip(scores, weights, strict=True)) / math.fsum(weights)


def _spread(scores: Sequence[float], weights: Sequence[float]) -> float | None:
    return statistics.pstdev(scores) if len(scores) > 1 else None


COMBINE: dict[str, Callable[[Sequence[float], Sequence[float]], float | None]] = {
    "mean": _mean,
    "worst": lambda scores, weights: min(scores),
    "best": lambda scores, weights: max(scores),
    "spread": _spread,
}


@dataclass(frozen=True)
class EnsembleSpec:
    """Members and how they are combined; `source` is the file that says so, if one does."""

    members: tuple[Member, ...]
    combine: str = "mean"
    missing: Missing = "none"
    source: Path | None = None

    @property
    def specs(self) -> list[str]:
        """The members' specs."""
        return [member.spec for member in self.members]


class EnsembleReward:
    """Several rewards as one."""

    def __init__(self, spec: EnsembleSpec, *, allow_remote_code: bool = False) -> None:
        self.spec = spec
        self.rewards = [build_spec(member.spec, allow_remote_code) for member in spec.members]
        self.can_score_new = all_score_new(spec.specs)

    def __call__(
        self, prompts: list[Messages], completions: list[str], columns: dict[str, list[Any]]
    ) -> list[float | None]:
        """The combined scores."""
        return self.detailed(prompts, completions, columns)[0]

    def detailed(
        self, prompts: list[Messages], completions: list[str], columns: Columns
    ) -> tuple[list[float | None], Details]:
        """Combined scores, and of each answer the `members`' raw scores and their `disagreement`.

        That is the standard deviation of what is combined (after `range` and `direction`), None of less than two. What
        members themselves tell of an answer is in `details` by member.
        """
        found = [
            measure(reward, member.spec, prompts, completions, columns)
            for reward, member in zip(self.rewards, self.spec.members, strict=True)
        ]
        told = [self._one([(scores[at], details[at]) for scores, details in found]) for at in range(len(completions))]
        return [score for score, _ in told], [detail for _, detail in told]

    def _one(self, found: Sequence[tuple[float | None, dict[str, Any]]]) -> tuple[float | None, dict[str, Any]]:
        members = self.spec.members
        there = [(member, score) for member, (score, _) in zip(members, found, strict=True) if score is not None]
        scores = [member.brought(score) for member, score in there]
        weights = [member.weight for member, _ in there]
        whole = len(there) == len(members) or self.spec.missing == "skip"
        combined = COMBINE[self.spec.combine](scores, weights) if there and whole and math.fsum(weights) > 0 else None
        details: dict[str, Any] = {
            "members": {member.name: score for member, (score, _) in zip(members, found, strict=True)},
            "disagreement": _spread(scores, weights),
        }
        inner = {member.name: detail for member, (_, detail) in zip(members, found, strict=True) if detail}
        return combined, details | ({"details": inner} if inner else {})

    def take_counts(self) -> dict[str, float]:
        """What the members counted, added up."""
        return added_counts(self.rewards)


# --- reading specs ----------------------------------------------------------------------------------------------------


def parse_ensemble(rest: str) -> EnsembleSpec:
    """What follows `ensemble:`; a file is read, nothing else is loaded. Raises `InputError`."""
    inline = re.fullmatch(r"\s*(\w+)\s*\((.*)\)\s*", rest, re.DOTALL)
    if inline:
        members = tuple(Member(part.strip(), part.strip()) for part in split_top(inline[2], ","))
        return _checked(EnsembleSpec(members, inline[1]), f"ensemble:{rest}")
    if not rest.endswith((".yaml", ".yml")):
        raise InputError(
            f"an ensemble is written ensemble:mean(SPEC, SPEC, ...), with {', '.join(COMBINE)}, or ensemble:FILE.yaml; "
            f"found 'ensemble:{rest}'"
        )
    try:
        path = Path(rest).expanduser()
        above, place = _READING.get(), path.resolve()
    except (ValueError, RuntimeError) as error:  # a zero byte in the name; ~somebody whom nobody knows
        raise InputError(f"no file can have the name {rest!r:.200}: {error}") from None
    if place in above:
        raise InputError("is an ensemble that has itself among its members, or theirs", file=path)
    token = _READING.set((*above, place))
    try:
        return _read_file(path)
    finally:
        _READING.reset(token)


def _checked(spec: EnsembleSpec, what: str) -> EnsembleSpec:
    if spec.combine not in COMBINE:
        raise InputError(f"unknown combination '{spec.combine}' in '{what}'.{did_you_mean(spec.combine, COMBINE)}")
    if len(spec.members) < 2:
        raise InputError(f"an ensemble needs two members or more; '{what}' has {len(spec.members)}")
    names = [member.name for member in spec.members]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"'{what}' has the member '{name}' twice")
    for member in spec.members:
        if not member.spec:
            raise InputError(f"'{what}' has an empty member")
        check_spec(member.spec)
    return spec


def _read_file(path: Path) -> EnsembleSpec:
    try:
        data = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such ensemble file", file=path) from None
    except (OSError, UnicodeDecodeError, InputError) as error:
        raise InputError(f"is no ensemble in YAML ({' '.join(str(error).split())})", file=path) from None
    _known(data, {"combine", "missing", "members"}, path, "an ensemble")
    missing = data.get("missing", "none")
    if missing is None:  # YAML's null, which `none` is not, but which who writes it means
        missing = "none"
    if missing not in MISSING:
        raise InputError(f"unknown rule '{missing}'.{did_you_mean(str(missing), MISSING)}", file=path, field="missing")
    listed = data.get("members")
    if not isinstance(listed, list):
        raise InputError("a list of members is needed", file=path, field="members")
    members = tuple(_member(item, path, f"members[{at}]") for at, item in enumerate(listed))
    combine = str(data.get("combine", "mean"))
    if combine != "mean" and any(member.weight != 1 for member in members):
        raise InputError(f"a weight counts in a mean, not in '{combine}'", file=path, field="members")
    if math.fsum(member.weight for member in members) <= 0:
        raise InputError("at least one weight must be above 0", file=path, field="members")
    return _checked(EnsembleSpec(members, combine, missing, path), str(path))


def _known(data: Any, keys: set[str], path: Path, what: str, field: str | None = None) -> None:
    if not isinstance(data, Mapping):
        raise InputError(f"{what} is a mapping, found {type(data).__name__}", file=path, field=field)
    for key in data:
        if key not in keys:
            raise InputError(f"unknown key '{key}'.{did_you_mean(str(key), keys)}", file=path, field=field)


def _member(item: Any, path: Path, field: str) -> Member:
    if isinstance(item, str):
        item = {"spec": item}
    _known(item, {"spec", "name", "weight", "range", "direction"}, path, "a member", field)
    spec = item.get("spec")
    if not isinstance(spec, str) or not spec.strip():
        raise InputError("a member needs a spec", file=path, field=field)
    weight = item.get("weight", 1.0)
    if not _number(weight) or weight < 0:
        raise InputError(f"a weight is a number, at least 0; found {weight!r}", file=path, field=f"{field}.weight")
    span = item.get("range")
    if span is not None and not (
        isinstance(span, list) and len(span) == 2 and all(map(_number, span)) and span[0] < span[1]
    ):
        raise InputError(f"a range is [low, high], low < high; found {span!r}", file=path, field=f"{field}.range")
    direction = item.get("direction", "maximise")
    if direction not in ("maximise", "minimise"):
        raise InputError(
            f"direction is maximise or minimise; found {direction!r}", file=path, field=f"{field}.direction"
        )
    limits = (float(span[0]), float(span[1])) if span else None
    return Member(spec.strip(), str(item.get("name", spec.strip())), float(weight), limits, direction == "minimise")


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check(rest: str) -> None:
    parse_ensemble(rest)


def _build(rest: str, allow_remote_code: bool) -> EnsembleReward:
    return EnsembleReward(parse_ensemble(rest), allow_remote_code=allow_remote_code)


def _fingerprint(rest: str) -> str:
    spec = parse_ensemble(rest)
    return fingerprints(spec.specs, spec.source.read_bytes() if spec.source else b"")


KIND = RewardKind(
    prefix="ensemble",
    listed=(
        ("ensemble:mean(SPEC, ...)", "several rewards as one: mean, worst, best, or spread (their disagreement)"),
        ("ensemble:FILE.yaml", "the same with weights, ranges and directions"),
    ),
    build=_build,
    check=_check,
    can_score_new=lambda rest: all_score_new(parse_ensemble(rest).specs),
    parallel=lambda rest: all_run_parallel(parse_ensemble(rest).specs),
    fingerprint=_fingerprint,
    shares=lambda rest: shared_models(parse_ensemble(rest).specs),
    release=release_all,
)
