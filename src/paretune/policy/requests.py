"""What a policy is asked for: a condition, pins and preference weights, checked and made one profile a prompt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from paretune.errors import InputError, did_you_mean
from paretune.policy.several import Blend
from paretune.policy.weights import check_pinned_weights, check_weights, equal_weights, pin_weights
from paretune.profile import Profile, check_profile

if TYPE_CHECKING:
    from paretune.policy.policy import Policy

Condition = Literal["sensed", "mean", "ones", "none"]
CONDITIONS: tuple[Condition, ...] = ("sensed", "mean", "ones", "none")

Wanted = str | Mapping[str, float] | Sequence[Mapping[str, float] | None]
"""A condition by its name, or a profile: the same for all prompts, or one a prompt."""
Pins = Mapping[str, float] | Sequence[Mapping[str, float] | None]
"""The same pins for all prompts, or one mapping a prompt."""
Weights = Mapping[str, float] | Sequence[Mapping[str, float]]
"""The same preference weights for all prompts, or one mapping a prompt."""
Interval = dict[str, tuple[float, float]]
"""Objective -> (low, high)."""


@dataclass(frozen=True)
class Sensed:
    """A sensed profile and the interval of each objective; `None` for a head whose intervals are not calibrated."""

    profile: Profile
    interval: Interval | None


@dataclass(frozen=True)
class Generation:
    """An answer: its text, the profile it was conditioned on (`None` = nothing), what was sensed, and its length.

    `sensed` and its 80% `interval` are what the prompt alone says; `profile` is what was used, so with pins and the
    condition `sensed` it is the pins and, for the other objectives, what is sensed given them. `weights` are told by a
    policy of several adapters: those asked for, and by the rule `nearest` those that the answering adapter was trained
    for.
    """

    text: str
    profile: Profile | None
    sensed: Profile | None
    tokens: int
    finished: bool
    interval: Interval | None = None
    weights: Profile | None = None


def check_condition(name: str) -> None:
    """`InputError` for a name that is none of `CONDITIONS`."""
    if name not in CONDITIONS:
        raise InputError(f"unknown condition '{name}'.{did_you_mean(name, CONDITIONS)}")


class Requests:
    """What each of `count` prompts is asked for, in the terms of one policy.

    `weights` holds the checked weights of each prompt, [] where there are none. `condition` is what was given or, where
    nothing was, what the policy takes then: `sensed` for one that senses, `none` for one that does not.
    """

    def __init__(
        self, policy: Policy, count: int, *, condition: Wanted | None, pins: Pins | None, weights: Weights | None
    ) -> None:
        """Raises `InputError` for what the policy cannot be asked for."""
        self.policy, self.count = policy, count
        self.weights = self._weights(weights, condition)
        if policy.weight_map is not None and policy.parts is None and self.weights:
            condition = [policy.weight_map.profile(each) for each in self.weights]
        self.condition: Wanted = condition if condition is not None else "sensed" if policy.has_head else "none"
        _check_obeys(policy, self.condition, pins)
        self._plan = self._planned()
        self.pinned = pins_of(policy, pins, count)

    def blends(self) -> list[tuple[Blend, ...]]:
        """The adapters that answer each prompt; empty for a policy of one."""
        parts = self.policy.parts
        return [parts.blends(each) for each in self.weights] if parts is not None else [()] * self.count

    def profile(self, i: int, sensed: Sensed | None) -> Profile:
        """What is put into a prompt, given what is sensed for it under its pins; weights go on summing to one."""
        profile, pins = self._plan(i, sensed), self.pinned(i)
        if pins and self.policy.conditioned_on_weights:
            return pin_weights(profile or equal_weights(self.policy.names), pins)
        return profile | pins

    def _weights(self, weights: Weights | None, condition: Wanted | None) -> list[Profile]:
        policy = self.policy
        if weights is None:
            return [] if policy.parts is None else [equal_weights(policy.names)] * self.count
        if policy.weight_map is None:
            raise InputError(f"a policy trained by '{policy.method}' takes no preference weights")
        if condition is not None:
            raise InputError("weights take the place of a condition; give one of the two")
        return weights_per_prompt(weights, policy.names, self.count)

    def _planned(self) -> Callable[[int, Sensed | None], Profile]:
        """A function (prompt index, sensed given the pins) -> what the condition says, to which the pins are added."""
        policy, condition = self.policy, self.condition
        if not isinstance(condition, str):
            given = per_prompt(condition, policy.names, "profile", self.count)
            return lambda i, sensed: policy.request(given(i))
        check_condition(condition)
        if condition == "sensed":
            if policy.head is None:
                raise InputError(
                    f"a policy trained by '{policy.method}' has no sensing head; use condition none"
                    f"{' or give a profile' if policy.takes_profile else ''}"
                )
            return lambda i, sensed: policy.renderer.snapped(sensed.profile) if sensed is not None else {}
        named = {"mean": policy.mean_profile, "ones": dict.fromkeys(policy.names, 1.0), "none": {}}
        fixed = policy.request(named[condition])
        return lambda i, sensed: fixed


def _check_obeys(policy: Policy, condition: Wanted, pins: Pins | None) -> None:
    """A profile is for policies trained on profiles: to others it is a text like any other. Raises `InputError`."""
    if policy.takes_profile:
        return
    if pins and (isinstance(pins, Mapping) or any(pins)):
        asked = "pins"
    elif isinstance(condition, str):
        check_condition(condition)
        if condition in ("none", "sensed"):
            return  # that it cannot sense is told where the condition is looked up
        asked = f"the condition {condition}"
    elif isinstance(condition, Mapping) or not isinstance(condition, Collection) or any(condition):
        asked = "a profile"
    else:
        return
    takes = "preference weights" if policy.takes_weights else "no request"
    raise InputError(
        f"a policy trained by '{policy.method}' was not trained on profiles: it takes {takes}, not {asked}"
    )


def pins_of(policy: Policy, pins: Pins | None, count: int) -> Callable[[int], Profile]:
    """The pins of each prompt, checked. Raises `InputError`."""
    pinned = per_prompt({} if pins is None else pins, policy.names, "pin", count)
    if policy.conditioned_on_weights:
        for i in range(count):
            check_pinned_weights(pinned(i), policy.names)
    return pinned


def weights_per_prompt(weights: Weights, names: Sequence[str], count: int) -> list[Profile]:
    """Weights of each of `count` prompts, checked. Raises `InputError`."""
    if isinstance(weights, Mapping):
        return [check_weights(weights, names)] * count
    if not isinstance(weights, Collection) or isinstance(weights, (str, bytes)):
        raise InputError(f"weights are a mapping from objective to a number, found {weights!r:.100}")
    each = [check_weights(one, names) for one in weights]
    if len(each) != count:
        raise InputError(f"{len(each)} weights were given for {count} prompts")
    return each


def per_prompt(given: Any, names: Sequence[str], what: str, count: int) -> Callable[[int], Profile]:
    """One profile for all prompts, or one a prompt, checked; messages call it `what`. Raises `InputError`."""
    if isinstance(given, Mapping):
        same = check_profile(given, names, partial=True, what=what)
        return lambda i: same
    if not isinstance(given, Collection) or isinstance(given, (str, bytes)):
        raise InputError(
            f"{what}s are a mapping from objective to a number in [0, 1], or a list of one a prompt, "
            f"found {given!r:.100}"
        )
    each = [check_profile({} if one is None else one, names, partial=True, what=what) for one in given]
    if len(each) != count:
        raise InputError(f"{len(each)} {what}s were given for {count} prompts")
    return lambda i: each[i]
