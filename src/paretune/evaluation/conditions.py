"""The conditions of the deciding ablation: what the policy is given when it answers.

`oracle` the target's own profile; `sensed` what the head says; `shuffled` the sensed profiles of other prompts; `mean`
the training mean; `ones` the best end of every objective; `none` nothing. A policy without a head that is asked for
preference weights has `centre` besides: all objectives weighed alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paretune.errors import InputError, did_you_mean
from paretune.profile import Profile

CONDITIONS = ("oracle", "sensed", "shuffled", "mean", "ones", "none")
MEANING = {
    "oracle": "the target profile itself, which nobody has in real use",
    "sensed": "the profile the policy sensed from the prompt",
    "shuffled": "profiles sensed for other prompts",
    "mean": "the mean profile of training, the same for all",
    "ones": "every objective at its best end",
    "none": "no profile at all",
    "centre": "no profile, but weights: all objectives alike",
}


def choose_conditions(asked: Sequence[str] | None, *, has_head: bool) -> list[str]:
    """The conditions to run, in the fixed order; a policy without a head knows only `none`."""
    for name in asked or ():
        if name not in CONDITIONS:
            raise InputError(f"unknown condition '{name}'.{did_you_mean(name, CONDITIONS)}")
    if not has_head:
        return ["none"]
    wanted = asked if asked else CONDITIONS
    return [name for name in CONDITIONS if name in wanted]


def derangement(n: int, seed: int) -> list[int]:
    """A seeded permutation of 0..n-1 that leaves nothing in its place (one random cycle, Sattolo 1986); n >= 2."""
    if n < 2:
        raise InputError("profiles can be shuffled over two or more prompts only")
    order, draw = list(range(n)), np.random.default_rng([seed, n])
    for i in range(n - 1, 0, -1):
        j = int(draw.integers(0, i))
        order[i], order[j] = order[j], order[i]
    return order


def filled(targets: Sequence[Profile], sensed: Sequence[Profile]) -> list[Profile]:
    """Targets, with what one leaves open (a missing score, a partial wish) taken from the sensed profile."""
    return [
        {name: target.get(name, value) for name, value in own.items()}
        for target, own in zip(targets, sensed, strict=True)
    ]


def on_weights(policy: Any) -> bool:
    """Is what the policy senses and is asked for a vector of weights, in place of values?"""
    return bool(getattr(policy, "conditioned_on_weights", False))


def in_terms(policy: Any, targets: Sequence[Profile]) -> list[Profile]:
    """Targets as what the policy senses: the weights that stand for their values, where it is conditioned on weights.

    Weights say how all objectives compare, so of a target that leaves one open they are not known: {}.
    """
    if not on_weights(policy):
        return list(targets)
    whole = len(policy.objectives)
    return [policy.request(each, values=True) if len(each) == whole else {} for each in targets]


def oracle_requests(policy: Any, targets: Sequence[Profile], sensed: Sequence[Profile]) -> list[Profile]:
    """What `oracle` gives: targets, with what one leaves open as it is sensed.

    Where these are weights, the open objectives keep their sensed weights and the others share the rest of 1, in the
    proportions that the target's values say.
    """
    if not on_weights(policy):
        return filled(targets, sensed)
    from paretune.policy.weights import pin_weights

    out = []
    for target, own in zip(targets, sensed, strict=True):
        weighed = policy.request(target, values=True)
        left_open = {name: value for name, value in own.items() if name not in target}
        out.append(pin_weights({name: weighed.get(name, 0.0) for name in own}, left_open))
    return out


def profiles_of(
    condition: str, oracle: Sequence[Profile], sensed: Sequence[Profile], mean: Profile, seed: int
) -> list[Profile | None]:
    """What `Policy.generate` is given for a condition other than `sensed`: one profile a prompt."""
    if condition == "oracle":
        return [*oracle]
    if condition == "shuffled":
        return [sensed[other] for other in derangement(len(sensed), seed)]
    same = {"mean": mean, "ones": dict.fromkeys(mean, 1.0), "none": None}[condition]
    return [same] * len(sensed)


def clean(text: str) -> str:
    """Model text that can be written as UTF-8 (a lone surrogate becomes a question mark)."""
    return text.encode("utf-8", "replace").decode("utf-8")
