"""`gate:SPEC if SPEC OP NUMBER [else VALUE]`: a score where a condition holds, VALUE (0) where not.

OP is one of >= > <= < ==. An answer whose condition has no score has none. A spec that is a gate itself stands in
parentheses: `gate:(gate:A if B > 0) if C >= 1`. The details of every answer tell the condition's score.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paretune.data.rows import Messages
from paretune.errors import InputError
from paretune.rewards.base import RewardKind
from paretune.rewards.nested import (
    Columns,
    Details,
    added_counts,
    all_run_parallel,
    all_score_new,
    bare,
    build_spec,
    check_spec,
    fingerprints,
    measure,
    release_all,
    shared_models,
    split_top,
)

HOLDS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
}
_CONDITION = re.compile(r"(.+?)\s*(>=|<=|==|>|<)\s*(\S+)(?:\s+else\s+(\S+))?\s*", re.DOTALL)
FORM = "gate:SPEC if SPEC >= NUMBER [else VALUE]"


@dataclass(frozen=True)
class GateSpec:
    """The score's spec, the condition's, what it is compared with, and what stands where it does not hold."""

    score: str
    condition: str
    compare: str
    bound: float
    otherwise: float = 0.0

    @property
    def specs(self) -> list[str]:
        """Both specs."""
        return [self.score, self.condition]


def parse_gate(rest: str) -> GateSpec:
    """What follows `gate:`; nothing is loaded. Raises `InputError`."""
    parts = split_top(rest, " if ")
    match = _CONDITION.fullmatch(parts[-1].strip()) if len(parts) == 2 else None
    if match is None:
        raise InputError(f"a gate is written {FORM} (one in another in parentheses); found 'gate:{rest}'")
    condition, compare, bound, otherwise = match.groups()
    numbers = [_number(text, rest) for text in (bound, otherwise or "0")]
    spec = GateSpec(bare(parts[0]), bare(condition), compare, *numbers)
    for each in spec.specs:
        check_spec(each)
    return spec


def _number(text: str, rest: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"a gate compares with a number; found '{text}' in 'gate:{rest}'")
    return value


class GateReward:
    """A score that counts only where another passes a bound."""

    def __init__(self, spec: GateSpec, *, allow_remote_code: bool = False) -> None:
        self.spec = spec
        self.condition = build_spec(spec.condition, allow_remote_code)
        self.score = build_spec(spec.score, allow_remote_code)
        self.can_score_new = all_score_new(spec.specs)
        # two outputs of one model cost one computation if they are asked for the same answers
        self.one_model = bool(shared_models([spec.score])) and len({shared_models([each]) for each in spec.specs}) == 1

    def __call__(
        self, prompts: list[Messages], completions: list[str], columns: dict[str, list[Any]]
    ) -> list[float | None]:
        """The gated scores."""
        return self.detailed(prompts, completions, columns)[0]

    def detailed(
        self, prompts: list[Messages], completions: list[str], columns: Columns
    ) -> tuple[list[float | None], Details]:
        """Gated scores, and of each answer the `condition`'s score, whether it `held`, and what both tell themselves.

        The score is measured only where the condition holds, unless one model gives both.
        """
        spec = self.spec
        bounds, told = measure(self.condition, spec.condition, prompts, completions, columns)
        held = [None if bound is None else HOLDS[spec.compare](bound, spec.bound) for bound in bounds]
        places = [at for at, holds in enumerate(held) if holds or self.one_model]
        found, inner = (
            measure(
                self.score,
                spec.score,
                [prompts[at] for at in places],
                [completions[at] for at in places],
                {name: [values[at] for at in places] for name, values in columns.items()},
            )
            if places
            else ([], [])
        )
        measured = dict(zip(places, zip(found, inner, strict=True), strict=True))
        scores: list[float | None] = []
        details: Details = []
        for at, holds in enumerate(held):
            scores.append(None if holds is None else measured[at][0] if holds else spec.otherwise)
            more = {"score": measured[at][1] if holds else {}, "condition": told[at]}
            shown = {"condition": bounds[at], "held": holds}
            details.append(shown | ({"details": kept} if (kept := {k: v for k, v in more.items() if v}) else {}))
        return scores, details

    def take_counts(self) -> dict[str, float]:
        """What both counted, added up."""
        return added_counts([self.score, self.condition])


def _check(rest: str) -> None:
    parse_gate(rest)


def _build(rest: str, allow_remote_code: bool) -> GateReward:
    return GateReward(parse_gate(rest), allow_remote_code=allow_remote_code)


KIND = RewardKind(
    prefix="gate",
    listed=((FORM, "a score where a condition holds, VALUE (0) where not; >= > <= < =="),),
    build=_build,
    check=_check,
    can_score_new=lambda rest: all_score_new(parse_gate(rest).specs),
    parallel=lambda rest: all_run_parallel(parse_gate(rest).specs),
    fingerprint=lambda rest: fingerprints(parse_gate(rest).specs),
    shares=lambda rest: shared_models(parse_gate(rest).specs),
    release=release_all,
)
