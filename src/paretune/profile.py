"""The words all rooms share: objective, scale, profile.

An *objective* is a named quantity of an answer with a direction. Its *scale* is the saved, fitted map from raw scores
to [0, 1] where 1 is always the wanted end (a minimised objective is turned round by its scale). A *profile* is a
mapping from objective name to a value in [0, 1]; a partial one is a set of *pins*.
"""

from __future__ import annotations

import math
import numbers
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from paretune.errors import InputError, check_number, did_you_mean

Direction = Literal["maximise", "minimise"]
ScaleKind = Literal["quantile", "minmax", "zscore", "sigmoid", "fixed"]
SCALE_KINDS: tuple[ScaleKind, ...] = ("quantile", "minmax", "zscore", "sigmoid", "fixed")
LEVELS = ("very low", "low", "medium", "high", "very high")
"""The five levels of a value, in order; level i covers [i/5, (i+1)/5)."""

Profile = dict[str, float]
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_KNOTS = 101


@dataclass(frozen=True)
class Scale:
    """A fitted map from raw scores to [0, 1].

    `quantile`: `knots` are 101 percentiles of the fitting scores, a value is its mid-rank among them, linear between.
    `minmax` and `fixed`: linear from `low` to `high`, clipped. `zscore`: 0.5 + z/6, clipped (three standard deviations
    either way fill the range). `sigmoid`: 1 / (1 + exp(-z)), the HH-RLHF recipe of the SGA paper. `reverse` turns
    the result round (1 - x), for minimised objectives.
    """

    kind: ScaleKind
    reverse: bool = False
    knots: tuple[float, ...] = ()
    low: float = 0.0
    high: float = 1.0
    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def fit(
        cls, kind: ScaleKind, scores: Sequence[float], *, direction: Direction = "maximise", name: str = "?"
    ) -> Scale:
        """Fit on raw scores (the training split's). Raises `InputError` when no scale can be fitted."""
        if kind not in SCALE_KINDS:
            raise InputError(f"unknown scale '{kind}'.{did_you_mean(kind, SCALE_KINDS)}")
        reverse = direction == "minimise"
        if kind == "fixed":
            return cls("fixed", reverse)
        values = sorted(float(score) for score in scores)
        if not values:
            raise InputError(f"objective '{name}' has no score at all, so no scale can be fitted")
        if not all(math.isfinite(value) for value in values):
            raise InputError(f"objective '{name}' has a score that is not finite, so no scale can be fitted")
        if values[0] == values[-1]:
            said = f"all {len(values)} scores" if len(values) > 1 else "the one score"
            verb = "equal" if len(values) > 1 else "is"
            raise InputError(
                f"{said} of objective '{name}' {verb} {values[0]:g}, so no scale can be fitted; "
                "drop the objective, or score answers that differ in it"
            )
        if kind == "quantile":
            return cls("quantile", reverse, knots=tuple(_quantile(values, i / (_KNOTS - 1)) for i in range(_KNOTS)))
        if not math.isfinite(values[-1] - values[0]):
            raise InputError(f"the scores of objective '{name}' span more than a number can hold; rescale them")
        if kind == "minmax":
            return cls("minmax", reverse, low=values[0], high=values[-1])
        mean = math.fsum(values) / len(values)
        span = values[-1] - values[0]  # squares of very large or very small numbers would leave a float's range
        std = span * math.sqrt(math.fsum(((value - mean) / span) ** 2 for value in values) / len(values))
        return cls(kind, reverse, mean=mean, std=std)

    def apply(self, score: float) -> float:
        """Raw score to [0, 1]."""
        if not math.isfinite(score):
            raise InputError(f"a score must be finite, found {score}")
        if self.kind == "quantile":
            value = self._rank(score)
        elif self.kind in ("minmax", "fixed"):
            value = (score - self.low) / (self.high - self.low)
        elif self.kind == "zscore":
            value = 0.5 + (score - self.mean) / (6 * self.std)
        else:
            z = (score - self.mean) / self.std
            value = 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))
        value = min(1.0, max(0.0, value))
        return 1.0 - value if self.reverse else value

    def _rank(self, score: float) -> float:
        knots = self.knots
        left, right = bisect_left(knots, score), bisect_right(knots, score)
        if left < right:  # on a knot, or on a run of equal ones: the middle of the run
            return (left + right - 1) / 2 / (len(knots) - 1)
        if left == 0 or left == len(knots):
            return 0.0 if left == 0 else 1.0
        low, high = knots[left - 1], knots[left]
        return (left - 1 + (score - low) / (high - low)) / (len(knots) - 1)

    def to_dict(self) -> dict[str, Any]:
        """JSON form; only what the kind needs."""
        out: dict[str, Any] = {"kind": self.kind, "reverse": self.reverse}
        if self.kind == "quantile":
            out["knots"] = list(self.knots)
        elif self.kind in ("minmax", "fixed"):
            out |= {"low": self.low, "high": self.high}
        else:
            out |= {"mean": self.mean, "std": self.std}
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Scale:
        """Read the JSON form back, checked."""
        if not isinstance(data, Mapping):
            raise InputError(f"a scale is an object with a 'kind', found {data!r:.100}")
        kind, reverse, listed = data.get("kind"), data.get("reverse", False), data.get("knots", ())
        if kind not in SCALE_KINDS:
            raise InputError(f"unknown scale '{kind}'.{did_you_mean(str(kind), SCALE_KINDS)}")
        if not isinstance(reverse, bool):
            raise InputError(f"a scale's reverse must be true or false, found {reverse!r:.100}")
        if not isinstance(listed, (list, tuple)):
            raise InputError(f"a scale's knots must be a list of numbers, found {listed!r:.100}")
        given = {key: data[key] for key in ("low", "high", "mean", "std") if key in data}
        for key, value in [*given.items(), *(("knots", value) for value in listed)]:
            check_number(value, f"a scale's {key}")
        numbers, knots = {key: float(value) for key, value in given.items()}, tuple(map(float, listed))
        scale = cls(kind, reverse, knots, **numbers)
        if scale.high <= scale.low or scale.std <= 0:
            raise InputError(f"a {kind} scale needs low < high and std > 0")
        if kind == "quantile" and (len(knots) < 2 or list(knots) != sorted(knots) or knots[0] == knots[-1]):
            raise InputError("a quantile scale needs two or more ascending knots")
        return scale


def _quantile(ascending: Sequence[float], q: float) -> float:
    """Linear-interpolation quantile (numpy's default) of sorted values."""
    at = q * (len(ascending) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (ascending[high] - ascending[low]) * (at - low)


@dataclass(frozen=True)
class Objective:
    """A named quantity of an answer: what measures it, which way is better, its scale and its words.

    `spec` is the reward that measures it (`lexical:brevity`, `column:judge`, ...; empty when it came with the data).
    `phrases` holds five phrases, one a level from very low to very high, for the renderer's style `instructions`; an
    empty phrase says nothing at that level.
    """

    name: str
    spec: str = ""
    direction: Direction = "maximise"
    scale: Scale | None = None
    scale_kind: ScaleKind = "quantile"
    phrases: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise InputError(
                f"objective name '{self.name}' must be a letter followed by letters, digits or _ (64 at most)"
            )
        if self.direction not in ("maximise", "minimise"):
            raise InputError(f"objective '{self.name}': direction must be maximise or minimise, not '{self.direction}'")
        if self.phrases and len(self.phrases) != len(LEVELS):
            raise InputError(
                f"objective '{self.name}': phrases must be {len(LEVELS)}, from {LEVELS[0]} to {LEVELS[-1]}"
            )

    def fitted(self, scores: Sequence[float]) -> Objective:
        """The same objective with its scale fitted on raw scores."""
        return replace(self, scale=Scale.fit(self.scale_kind, scores, direction=self.direction, name=self.name))

    def normalise(self, score: float) -> float:
        """Raw score to [0, 1] by the fitted scale."""
        if self.scale is None:
            raise InputError(f"objective '{self.name}' has no fitted scale yet")
        return self.scale.apply(score)

    def to_dict(self) -> dict[str, Any]:
        """JSON form, as saved in policy.json and beside scored rows."""
        out: dict[str, Any] = {"name": self.name, "spec": self.spec, "direction": self.direction}
        out["scale_kind"] = self.scale_kind
        if self.scale is not None:
            out["scale"] = self.scale.to_dict()
        if self.phrases:
            out["phrases"] = list(self.phrases)
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Objective:
        """Read the JSON form back, checked."""
        if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
            raise InputError("an objective is a JSON object with a 'name'")
        known = {"name", "spec", "direction", "scale_kind", "scale", "phrases"}
        for key in data:
            if key not in known:
                raise InputError(f"objective '{data['name']}': unknown key '{key}'.{did_you_mean(key, known)}")
        kind, phrases, spec = data.get("scale_kind", "quantile"), data.get("phrases", ()), data.get("spec", "")
        if not isinstance(phrases, (list, tuple)) or not all(isinstance(each, str) for each in phrases):
            raise InputError(f"objective '{data['name']}': phrases must be a list of texts, found {phrases!r:.100}")
        if not isinstance(spec, str):
            raise InputError(f"objective '{data['name']}': spec must be text, found {spec!r:.100}")
        if kind not in SCALE_KINDS:
            raise InputError(f"unknown scale '{kind}'.{did_you_mean(str(kind), SCALE_KINDS)}")
        return cls(
            name=data["name"],
            spec=spec,
            direction=data.get("direction", "maximise"),
            scale=Scale.from_dict(data["scale"]) if data.get("scale") is not None else None,
            scale_kind=kind,
            phrases=tuple(phrases),
        )


def check_names(objectives: Sequence[Objective]) -> None:
    """Objectives need distinct names, and at least one."""
    if not objectives:
        raise InputError("no objective is given; at least one is needed")
    seen: set[str] = set()
    for objective in objectives:
        if objective.name in seen:
            raise InputError(f"two objectives are called '{objective.name}'; names must differ")
        seen.add(objective.name)


def level_of(value: float) -> int:
    """The level 0..4 a value in [0, 1] falls in."""
    return min(len(LEVELS) - 1, int(value * len(LEVELS)))


def check_profile(profile: Mapping[str, Any], names: Iterable[str], *, partial: bool, what: str = "profile") -> Profile:
    """A profile checked against the objectives' names: known, finite, within [0, 1], and complete unless `partial`."""
    order = list(names)
    if not isinstance(profile, Mapping):
        raise InputError(f"a {what} is a mapping from objective to a number in [0, 1], found {type(profile).__name__}")
    for name, value in profile.items():
        if name not in order:
            raise InputError(f"{what}: unknown objective '{name}'.{did_you_mean(str(name), order)}")
        if isinstance(value, bool) or not isinstance(value, numbers.Real):  # numpy's numbers are real too
            raise InputError(f"{what}: '{name}' must be a number in [0, 1], found {value!r:.100}")
        if not 0 <= value <= 1:  # type: ignore[operator]
            raise InputError(f"{what}: '{name}' must lie in [0, 1], found {value}")
    missing = [name for name in order if name not in profile]
    if missing and not partial:
        raise InputError(f"{what}: no value for {', '.join(missing)}")
    return {name: float(profile[name]) for name in order if name in profile}


def parse_pins(pins: Sequence[str], names: Iterable[str]) -> Profile:
    """`["brevity=0.9", ...]` to a partial profile; the same objective pinned to two values is an error."""
    out: dict[str, float] = {}
    for pin in pins:
        name, equals, text = pin.partition("=")
        name = name.strip()
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not equals or not math.isfinite(value):
            raise InputError(f"a pin is written name=value with a value in [0, 1], found '{pin}'")
        if name in out and out[name] != value:
            raise InputError(f"'{name}' is pinned twice, to {out[name]:g} and to {value:g}")
        out[name] = value
    return check_profile(out, names, partial=True, what="pin")
