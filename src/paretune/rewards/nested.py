"""What rewards made of other rewards share: specs within specs, their flags, and what their members tell."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from paretune.data.rows import Messages
from paretune.errors import InputError
from paretune.rewards.base import CountingReward, DetailedReward, Reward, check_scores
from paretune.rewards.spec import find_kind, reward_kinds

Columns = dict[str, list[Any]]
Details = list[dict[str, Any]]
_MADE_OF_OTHERS = ("ensemble", "gate")
_STEP = {"(": 1, ")": -1}


def split_top(text: str, separator: str) -> list[str]:
    """The parts of a text between separators that stand in no parentheses. Raises `InputError` for unbalanced ones."""
    if not _balanced(text):
        raise InputError(f"the parentheses of '{text}' are not balanced")
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += _STEP.get(char, 0)
        if depth == 0 and text.startswith(separator, at) and at >= start:
            parts.append(text[start:at])
            start = at + len(separator)
    return [*parts, text[start:]]


def _balanced(text: str) -> bool:
    depths = list(accumulate(_STEP.get(char, 0) for char in text))
    return not depths or (depths[-1] == 0 and min(depths) >= 0)


def bare(spec: str) -> str:
    """A spec without the spaces and the one pair of parentheses that may stand around it."""
    spec = spec.strip()
    return spec[1:-1].strip() if spec[:1] + spec[-1:] == "()" and _balanced(spec[1:-1]) else spec


def check_spec(spec: str) -> None:
    """Refuses a bad spec, loading nothing."""
    kind, rest = find_kind(spec)
    kind.check(rest)


def build_spec(spec: str, allow_remote_code: bool) -> Reward:
    """The reward of a spec."""
    kind, rest = find_kind(spec)
    return kind.build(rest, allow_remote_code)


def all_score_new(specs: Iterable[str]) -> bool:
    """Whether all of them can measure answers that are not in the data."""
    return all(kind.scores_new(rest) for kind, rest in map(find_kind, specs))


def all_run_parallel(specs: Iterable[str]) -> bool:
    """Whether all of them may be built in several processes."""
    return all(kind.runs_parallel(rest) for kind, rest in map(find_kind, specs))


def shared_models(specs: Iterable[str]) -> str | None:
    """The keys of their models, joined; None where one of them shares with nobody."""
    keys = [kind.shares(rest) for kind, rest in map(find_kind, specs)]
    return None if None in keys else "|".join(sorted({key for key in keys if key}))


def fingerprints(specs: Iterable[str], more: bytes = b"") -> str:
    """One fingerprint of theirs and of what else says how they are combined."""
    told = [kind.fingerprint(rest) for kind, rest in map(find_kind, specs)]
    return hashlib.sha256(repr(told).encode() + more).hexdigest() if any(told) or more else ""


def release_all() -> None:
    """Forget the models of all kinds that are no combination themselves."""
    for kind in reward_kinds().values():
        if kind.prefix not in _MADE_OF_OTHERS:
            kind.release()


def measure(
    reward: Reward, spec: str, prompts: list[Messages], completions: list[str], columns: Columns
) -> tuple[list[float | None], Details]:
    """A member's checked scores and its details, empty where it tells none."""
    details: Details = [{} for _ in completions]
    if isinstance(reward, DetailedReward):
        found, details = reward.detailed(prompts, completions, columns)
    else:
        found = reward(prompts, completions, columns)
    return check_scores(found, len(completions), f"reward '{spec}'", columns.get("id")), details


def added_counts(rewards: Sequence[Reward]) -> dict[str, float]:
    """What the members counted, added up."""
    out: dict[str, float] = {}
    for reward in rewards:
        if isinstance(reward, CountingReward):
            for name, value in reward.take_counts().items():
                out[name] = out.get(name, 0) + value
    return out
