"""What a policy is asked for: the profiles of a round's samples, and those that its validation front is made of.

Samples are taken where training wants to go: at what is sensed, a step above it in one objective, and at the frontier,
where all objectives but one are at the top (the goals of the online stage of Yang et al., "Rewards-in-Context", ICML
2024, section 3.3). The ends of each objective are those the policy stores for preference weights.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paretune.errors import InputError
from paretune.policy import Policy
from paretune.policy.weights import WeightMap, equal_weights, pin_weights
from paretune.profile import Profile


@dataclass(frozen=True)
class Request:
    """A profile to answer under. `kind`: why it is asked for, or in a sweep the name of its point."""

    kind: str
    profile: Profile


@dataclass(frozen=True)
class Goals:
    """Makes the requests for one policy, from its objectives and the ends between which each is asked for.

    `senses`: it has a head, so a plan is given what is sensed.
    """

    names: list[str]
    ends: WeightMap
    senses: bool

    @classmethod
    def of(cls, policy: Policy) -> Goals:
        """Raises `InputError` for a policy that cannot be asked for anything."""
        if not policy.takes_profile:
            raise InputError(
                f"a policy trained by '{policy.method}' takes no profile, so its samples cannot be steered over the "
                "front"
            )
        ends = policy.weight_map or WeightMap(
            "profile", dict.fromkeys(policy.names, 0.0), dict.fromkeys(policy.names, 1.0)
        )
        return cls(policy.names, ends, policy.has_head)

    @property
    def of_values(self) -> bool:
        """Are requests values that an answer can meet? (By the rule `direction` they are weights.)"""
        return self.ends.rule != "direction"

    def samples(self, n: int, key: str, sensed: Profile | None, own: Sequence[Profile], delta: float) -> list[Request]:
        """`n` requests for a prompt; all draws are keyed by `key`.

        With a head: what is sensed, then raised and frontier profiles in turn, over the objectives in a drawn order.
        Without: frontier profiles and those of the data's `own` completions of the prompt in turn.
        """
        draw = random.Random(key)
        order = draw.sample(self.names, len(self.names))
        others = draw.sample(list(own), len(own))
        out = [] if sensed is None else [Request("sensed", dict(sensed))]
        for at in range(n - len(out)):
            turn, frontier = at // 2, bool(at % 2) == self.senses
            name = order[turn % len(order)]
            if frontier or (sensed is None and not others):
                out.append(Request("frontier", self._frontier(name, draw)))
            elif sensed is not None:
                out.append(Request("raised", self._raised(sensed, name, delta)))
            else:
                out.append(Request("data", self.ends.request(others[turn % len(others)])))
        return out

    def _frontier(self, name: str, draw: random.Random) -> Profile:
        """All objectives at the top but `name`, which is drawn between its ends; an only objective is at the top."""
        low, high = self._ends(name)
        value = round(draw.uniform(low, high), 2)
        goal = {each: self._ends(each)[1] for each in self.names}
        return self.ends.request(goal | ({name: value} if len(self.names) > 1 else {}))

    def _raised(self, sensed: Mapping[str, float], name: str, delta: float) -> Profile:
        """What is sensed with one objective `delta` higher, at most 1."""
        raised = {name: min(1.0, sensed[name] + delta)}
        return {**sensed, **raised} if self.of_values else pin_weights(sensed, raised)

    def _ends(self, name: str) -> tuple[float, float]:
        return self.ends.low.get(name, 0.0), self.ends.high.get(name, 1.0)

    def sweep(self, sensed: Profile | None) -> list[Request]:
        """The points of a policy's front: what is sensed, all objectives weighed alike, and each one alone."""
        weights = {"alike": equal_weights(self.names)}
        if len(self.names) > 1:
            weights |= {f"only {name}": {each: float(each == name) for each in self.names} for name in self.names}
        points = [Request(name, self.ends.profile(each)) for name, each in weights.items()]
        return points if sensed is None else [Request("sensed", dict(sensed)), *points]
