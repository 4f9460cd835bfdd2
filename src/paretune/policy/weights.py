"""Preference weights: a request that says how much each objective counts, in place of the values wanted.

Weights are non-negative and sum to one. What a policy does with them is its *rule*, fixed when it was trained:

    profile     a profile is made of them and rendered (`WeightMap.profile`), for policies conditioned on values
    direction   they are rendered as they are, for policies conditioned on weights: there a profile *is* weights
    soup        adapters of one objective each are interpolated
    mix         the next token's distributions of such adapters are mixed
    nearest     of adapters trained for one vector of weights each, the nearest answers
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from paretune.errors import InputError, check_number, did_you_mean
from paretune.profile import Profile, check_profile

Rule = Literal["profile", "direction", "soup", "mix", "nearest"]
TEMPERATURE = 0.25
"""Of the softmax that makes weights of values: a lead of a quarter of the scale weighs e times as much."""
SLACK = 1e-3
"""Weights may miss the sum of one by this much, for the sake of those rounded by hand (.333 three times)."""


def check_weights(weights: Mapping[str, Any], names: Sequence[str]) -> Profile:
    """Weights of all objectives in order, made to sum to one exactly; those not named are 0.

    Raises `InputError` for an unknown objective, a negative or non-finite weight, and a sum that is not one.
    """
    if not isinstance(weights, Mapping):
        raise InputError(f"weights are a mapping from objective to a number, found {type(weights).__name__}")
    for name, value in weights.items():
        if name not in names:
            raise InputError(f"weights: unknown objective '{name}'.{did_you_mean(str(name), names)}")
        check_number(value, f"the weight of '{name}'")
        if value < 0:
            raise InputError(f"the weight of '{name}' must be 0 or more, found {value}")
    try:
        total = math.fsum(weights.values())
    except OverflowError:
        total = math.inf
    if abs(total - 1) > SLACK + 1e-9:
        known = 0 < total < math.inf
        said = ", ".join(f"{name}={value / total:.3g}" for name, value in weights.items()) if known else ""
        hint = f"; in the same proportions: {said}" if said else ""
        raise InputError(f"weights must sum to 1, found a sum of {total:.4g}{hint}")
    return {name: float(weights.get(name, 0.0)) / total for name in names}


def weights_of(profile: Mapping[str, float], temperature: float) -> Profile:
    """The weights that stand for a profile of values: softmax(values / temperature) over the objectives it has."""
    top = max(profile.values(), default=0.0)
    parts = {name: math.exp((value - top) / temperature) for name, value in profile.items()}
    return {name: part / math.fsum(parts.values()) for name, part in parts.items()}


def pin_weights(weights: Mapping[str, float], pins: Mapping[str, float]) -> Profile:
    """Weights of which some are pinned: these are kept, and the rest is scaled to fill what they leave of 1.

    Where the rest has no weight of its own, it shares alike.
    """
    free = {name: value for name, value in weights.items() if name not in pins}
    left, total = max(0.0, 1 - math.fsum(pins.values())), math.fsum(free.values())
    scaled = {name: left * (value / total if total > 0 else 1 / len(free)) for name, value in free.items()}
    return {name: pins[name] if name in pins else scaled[name] for name in weights}


def check_pinned_weights(pins: Mapping[str, float], names: Sequence[str]) -> None:
    """Raises `InputError` for pinned weights that no weights summing to one can have."""
    total = math.fsum(pins.values())
    if total > 1 + SLACK:
        raise InputError(f"pins of this policy are weights, which sum to 1 at most; found a sum of {total:.4g}")
    if len(pins) == len(names) and total < 1 - SLACK:
        raise InputError(f"all weights are pinned, and they sum to {total:.4g}, not to 1")


def equal_weights(names: Sequence[str]) -> Profile:
    """All objectives weighed alike: what a policy that answers under weights takes when none are given."""
    return dict.fromkeys(names, 1 / max(1, len(names)))


@dataclass(frozen=True)
class WeightMap:
    """How a policy takes weights: its rule and, for `profile`, the ends between which each objective is requested.

    `temperature`: for `direction`, of the softmax by which a profile of values becomes weights.
    """

    rule: Rule
    low: Profile = field(default_factory=dict)
    high: Profile = field(default_factory=dict)
    temperature: float = TEMPERATURE

    def request(self, profile: Mapping[str, float], *, values: bool = False) -> Profile:
        """What a profile asks for in the policy's own terms: itself, but for the rule `direction` weights.

        There a profile that sums to one is weights already, unless it is known to be one of `values`, and any other is
        one of values: `weights_of` it.
        """
        if self.rule != "direction" or not profile:
            return dict(profile)
        if not values and abs(math.fsum(profile.values()) - 1) <= SLACK:
            return dict(profile)
        return weights_of(profile, self.temperature)

    def profile(self, weights: Mapping[str, float]) -> Profile:
        """The profile that stands for checked weights.

        Rule `profile`: R_i = w_i / |w|_2 * (high_i - low_i) + low_i (Yang et al., "Rewards-in-Context", ICML 2024,
        where the ends are the smallest and largest score of the data). Rule `direction`: the weights themselves.
        """
        if self.rule == "direction":
            return dict(weights)
        if self.rule != "profile":
            raise ValueError(f"the rule '{self.rule}' renders no weights")
        norm = math.hypot(*weights.values())
        return {
            name: min(1.0, weights[name] / norm * (self.high[name] - self.low[name]) + self.low[name])
            for name in weights
        }

    def to_dict(self) -> dict[str, Any]:
        """JSON form, as saved in policy.json."""
        ends = {"low": self.low, "high": self.high} if self.rule == "profile" else {}
        softmax = {"temperature": self.temperature} if self.rule == "direction" else {}
        return {"rule": self.rule, **ends, **softmax}

    @classmethod
    def from_dict(cls, data: Any, names: Sequence[str]) -> WeightMap:
        """Read the JSON form back, checked against the policy's objectives."""
        if not isinstance(data, Mapping) or data.get("rule") not in get_args(Rule):
            raise InputError(f"must be an object with a rule of {', '.join(get_args(Rule))}", field="weights")
        rule: Rule = data["rule"]
        if unknown := sorted(set(data) - {"rule", "low", "high", "temperature"}):
            raise InputError(f"unknown key '{unknown[0]}'", field="weights")
        if rule == "direction":
            temperature = data.get("temperature", TEMPERATURE)
            check_number(temperature, "weights.temperature")
            if temperature <= 0:
                raise InputError(f"must be above 0, found {temperature}", field="weights.temperature")
            return cls(rule, temperature=float(temperature))
        if rule != "profile":
            return cls(rule)
        ends = [
            check_profile(data.get(key) or {}, names, partial=False, what=f"weights.{key}") for key in ("low", "high")
        ]
        for name in names:
            if ends[0][name] > ends[1][name]:
                raise InputError(f"low is above high for '{name}'", field="weights")
        return cls(rule, ends[0], ends[1])


def parse_weights(texts: str) -> dict[str, float]:
    """`"helpful=.7,brevity=.3"` to weights, not yet checked against a policy's objectives."""
    out: dict[str, float] = {}
    for item in texts.split(","):
        name, equals, text = item.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not equals or not math.isfinite(value):
            raise InputError(f"weights are written name=value,name=value,... and sum to 1; found '{texts}'")
        if name.strip() in out:
            raise InputError(f"weights: '{name.strip()}' is given twice in '{texts}'")
        out[name.strip()] = value
    return out
