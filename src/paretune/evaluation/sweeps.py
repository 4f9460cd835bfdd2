"""Sweeps: a policy's answers under preference weights and under asked profiles, the points of its own front.

Weights say how much each objective counts, a profile which values are wanted; what a policy makes of either is its own
affair. A policy that takes neither has its natural point only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paretune.bootstrap import Bootstrap, Estimate, Floats, undefined
from paretune.data.rows import Row
from paretune.errors import InputError
from paretune.evaluation.asking import Asker
from paretune.evaluation.conditions import on_weights
from paretune.evaluation.scoring import Scored, distances, measure_all
from paretune.evaluation.summary import cost
from paretune.evaluation.winrate import per_prompt_wins, win_rates
from paretune.files import read_json
from paretune.profile import Objective, Profile, check_profile, parse_pins

GRID = "grid"
Kind = Literal["weights", "profile"]
SAME = 1e-9


@dataclass(frozen=True)
class Ask:
    """What a sweep asks for at one point: weights or a (partial) profile, by objective."""

    name: str
    kind: Kind
    asked: Profile


@dataclass(frozen=True)
class Point:
    """The scored answers to every prompt under one ask, and the seconds that generating them took."""

    ask: Ask
    scored: Scored
    seconds: float


def lattice(names: Sequence[str]) -> list[Profile]:
    """Weights over the simplex: its corners, the midpoints of its edges, its centre; five even steps for two."""
    m = len(names)
    if m == 2:
        return [{names[0]: 1 - w, names[1]: w} for w in (0.0, 0.25, 0.5, 0.75, 1.0)]
    corners = [{each: float(each == name) for each in names} for name in names]
    middles = [{each: 0.5 * (each in pair) for each in names} for pair in combinations(names, 2)]
    return [*corners, *middles, *([centre(names)] if m > 1 else [])]


def centre(names: Sequence[str]) -> Profile:
    """All objectives weighed alike."""
    return dict.fromkeys(names, 1 / len(names))


def read_weights(asked: Any, names: Sequence[str]) -> list[Literal["grid"] | Profile]:
    """`"grid"`, `"helpful=.5,brevity=.5"`, a mapping, or a list of these, checked against the names of all objectives.

    Raises `InputError` for weights that are negative, do not sum to one, or name no objective.
    """
    from paretune.policy.weights import check_weights, parse_weights

    out: list[Literal["grid"] | Profile] = []
    for item in _items(asked):
        if item == GRID:
            out.append("grid")
            continue
        given = parse_weights(item) if isinstance(item, str) else item
        whole = check_weights(given, names)
        out.append({name: whole[name] for name in whole if name in given})
    return out


def read_profiles(asked: Any, names: Sequence[str]) -> list[Profile]:
    """`"brevity=.9,cheer=.1"`, a mapping, a .json file of one profile or a list of them, or a list of these, checked.

    Raises `InputError` for an empty profile or list, a value outside [0, 1], and an unknown objective.
    """
    out: list[Profile] = []
    for item in _items(asked):
        file = Path(item) if isinstance(item, (str, Path)) and "=" not in str(item) else None
        found = read_json(file) if file is not None else item
        if isinstance(found, list) and not found:
            raise InputError("holds no profile to ask for", file=file)
        for each in found if isinstance(found, list) else [found]:
            try:
                given = parse_pins(each.split(","), names) if isinstance(each, str) and file is None else each
                checked = check_profile(given, names, partial=True, what="asked profile")
            except InputError as error:
                said = f"the profile '{item}': " if isinstance(item, str) and file is None else ""
                raise InputError(said + error.message, file=file) from None
            if not checked:
                raise InputError("an asked profile names no objective", file=file)
            out.append(checked)
    return out


def _items(asked: Any) -> list[Any]:
    if asked is None:
        return []
    return [asked] if isinstance(asked, (str, Path, Mapping)) else list(asked)


def in_text(asked: Mapping[str, float]) -> str:
    """`helpful=0.5,brevity=0.5`: as the command line takes it."""
    return ",".join(f"{name}={value:.12g}" for name, value in asked.items())


def asks_for(
    policy: Any, weights: Sequence[Literal["grid"] | Profile], profiles: Sequence[Profile], notes: list[str]
) -> list[Ask]:
    """The points of this policy's sweep, each once; what it cannot take is told in `notes`.

    Where weights are asked for, the centre is always among them: without a head it is the policy's natural point.
    """
    names = [objective.name for objective in policy.objectives]
    out: list[Ask] = []
    if weights and names:
        if getattr(policy, "takes_weights", False):
            asked = [each for item in weights for each in (lattice(names) if item == "grid" else [dict(item)])]
            _add(out, "weights", [*asked, centre(names)], names, notes)
        else:
            notes.append("It takes no weights, so its answers are the same whatever the weights.")
    if profiles and names:
        if on_weights(policy):
            notes.append("It is conditioned on weights, not on values, so it was asked for no profile; use --weights.")
        elif policy.has_head or getattr(policy, "takes_profile", False):
            _add(out, "profile", profiles, names, notes)
        else:
            notes.append("It takes no profile, so its answers are the same whatever the profile.")
    return out


def _add(out: list[Ask], kind: Kind, asked: Sequence[Profile], names: Sequence[str], notes: list[str]) -> None:
    for each in asked:
        unknown = [name for name in each if name not in names and (kind == "profile" or each[name] > 0)]
        if unknown:
            notes.append(f"The {kind} {in_text(each)} were not asked of it: it has no objective '{unknown[0]}'.")
            continue
        whole = {name: each.get(name, 0.0) for name in names} if kind == "weights" else each
        if any(ask.kind == kind and _equal(ask.asked, whole) for ask in out):
            continue
        name = _named(kind, whole)
        if any(ask.name == name for ask in out):  # equal once rounded
            name = in_text(whole)
        out.append(Ask(name, kind, whole))


def _equal(one: Profile, two: Profile) -> bool:
    return one.keys() == two.keys() and all(abs(one[name] - two[name]) <= SAME for name in one)


def _named(kind: Kind, asked: Profile) -> str:
    """ "helpful .5 + brevity .5" for weights, "brevity = .9" for a profile."""
    if kind == "weights":
        return " + ".join(f"{name} {_short(value)}" for name, value in asked.items() if value > 0)
    return ", ".join(f"{name} = {_short(value)}" for name, value in asked.items())


def _short(value: float) -> str:
    text = f"{value:.2g}"
    return text[1:] if text.startswith("0.") else text


def run_sweep(
    policy: Any,
    rows: Sequence[Row],
    asks: Sequence[Ask],
    objectives: Sequence[Objective],
    ask: Asker,
) -> list[Point]:
    """The answers to every row's prompt under every ask: one call for all weights, one for all profiles.

    A policy with a head is asked for a profile by pins, so that it senses what the profile leaves open.
    """
    made: dict[str, tuple[list[Any], float]] = {}
    for kind in ("weights", "profile"):
        own = [wish for wish in asks if wish.kind == kind]
        if not own:
            continue
        given = [wish.asked for wish in own for _ in rows]
        asked: dict[str, Any] = {"condition": None, "weights": given}
        if kind == "profile":
            asked = {"condition": "sensed", "pins": given} if policy.has_head else {"condition": given}
        answers, seconds = ask(policy, [row.prompt for _ in own for row in rows], **asked)
        total = sum(each.tokens for each in answers)
        for at, wish in enumerate(own):
            part = answers[at * len(rows) : (at + 1) * len(rows)]
            made[wish.name] = part, share_of(seconds, part, total)
    scored = measure_all(rows, [made[wish.name][0] for wish in asks], objectives, ask.progress)
    return [Point(wish, each, made[wish.name][1]) for wish, each in zip(asks, scored, strict=True)]


def share_of(seconds: float, part: Sequence[Any], total: int) -> float:
    """Of a call's seconds the share that goes to some of its answers, by their tokens."""
    return seconds * sum(each.tokens for each in part) / total if total else 0.0


def inner_products(values: Floats, names: Sequence[str], weights: Mapping[str, float]) -> Floats | str:
    """sum_i w_i s_i of normalised scores [n, m], [n]; NaN where a weighed score is missing.

    In place of numbers the reason, where an objective that is weighed scores no answers at all.
    """
    missing = [name for name, weight in weights.items() if weight > 0 and name not in names]
    if missing:
        return f"'{missing[0]}' is weighed, but not scored here"
    factors = np.array([weights.get(name, 0.0) for name in names])
    used = factors > 0
    return np.asarray(values[:, used] @ factors[used])


def inner_product(values: Floats, names: Sequence[str], weights: Mapping[str, float], bootstrap: Bootstrap) -> Estimate:
    """Mean inner product over prompts of weights and normalised scores."""
    found = inner_products(values, names, weights)
    return undefined(found) if isinstance(found, str) else bootstrap.mean(found)


def describe_point(point: Point, chosen: Floats, names: Sequence[str], bootstrap: Bootstrap) -> dict[str, Any]:
    """The figures of a point as JSON; `chosen` [n, m] are the values of the data's chosen completions."""
    ask, values = point.ask, point.scored.values
    words = [len(text.split()) for text in point.scored.texts]
    obtained = np.array([[ask.asked.get(name, np.nan) for name in names]])
    distance = bootstrap.mean(distances(values, obtained)) if ask.kind == "profile" else None
    product = inner_product(values, names, ask.asked, bootstrap) if ask.kind == "weights" else None
    return {
        "name": ask.name,
        "kind": ask.kind,
        "asked": dict(ask.asked),
        "scores": {name: bootstrap.mean(values[:, i]).to_dict() for i, name in enumerate(names)},
        "wins": win_rates(values, chosen, names, bootstrap),
        "multi_win": bootstrap.mean(per_prompt_wins(values, chosen)).to_dict(),
        "inner_product": product.to_dict() if product is not None else None,
        "distance_to_asked": distance.to_dict() if distance is not None else None,
        "words": bootstrap.mean(words).to_dict(),
        "cost": cost(point.seconds, sum(each.tokens for each in point.scored.generations)),
    }
