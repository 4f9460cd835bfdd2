"""What is served, in the words that clients ask for: the policy's name, its objectives, what it takes, its front."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paretune import __version__
from paretune.errors import InputError, check_number
from paretune.files import read_json
from paretune.profile import Objective, Profile

if TYPE_CHECKING:
    from paretune.policy.policy import Policy

FINGERPRINT = f"paretune-{__version__}"
"""OpenAI's `system_fingerprint`: what made an answer."""


def check_name(name: str) -> str:
    """The model's name, if it can be one. Raises `InputError`."""
    if not name or not name.isprintable():
        raise InputError(f"the model's name must be printable characters, found {name!r:.100}")
    return name


@dataclass(frozen=True)
class Served:
    """A policy as the API describes it. `front` holds the points of its evaluation, where there is one."""

    name: str
    method: str
    base: str
    objectives: tuple[Objective, ...]
    senses: bool
    takes_profile: bool
    rule: str | None
    mean: Profile = field(default_factory=dict)
    front: dict[str, Any] | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, policy: Policy, name: str, *, front: dict[str, Any] | None = None) -> Served:
        """A loaded policy, with the front of its evaluation (`read_front`). Raises `InputError` for an empty name."""
        return cls(
            name=check_name(name),
            method=policy.method,
            # where it lies on this machine is nobody's business
            base=Path(policy.base).name if Path(policy.base).is_absolute() else policy.base,
            objectives=tuple(policy.objectives),
            senses=policy.has_head,
            takes_profile=policy.takes_profile,
            rule=policy.weight_map.rule if policy.weight_map is not None else None,
            mean=policy.mean_profile,
            front=front,
        )

    @property
    def names(self) -> list[str]:
        """Objective names in order."""
        return [objective.name for objective in self.objectives]

    def model(self) -> dict[str, Any]:
        """An entry of `/v1/models`."""
        return {"id": self.name, "object": "model", "created": self.created, "owned_by": "paretune"}

    def describe(self) -> dict[str, Any]:
        """The answer of `/v1/objectives`."""
        return {
            "object": "list",
            "model": self.name,
            "method": self.method,
            "base": self.base,
            "senses": self.senses,
            "takes_profile": self.takes_profile,
            "takes_weights": self.rule is not None,
            "weights_rule": self.rule,
            "data": [self._objective(each) for each in self.objectives],
            "front": self.front,
        }

    def _objective(self, objective: Objective) -> dict[str, Any]:
        kind = objective.spec.partition(":")[0]
        return {
            "name": objective.name,
            "direction": objective.direction,
            # what follows may be a path on this machine
            "spec": objective.spec if kind in ("lexical", "column") else kind,
            "phrases": list(objective.phrases),
            "mean": self.mean.get(objective.name),
        }


def read_front(folder: Path | str, names: Sequence[str]) -> dict[str, Any] | None:
    """The points of one policy's evaluation (`paretune evaluate --out FOLDER`): mean scores, which are on the front.

    Of several policies, the one with these objectives; None where its evaluation drew no front. Raises `InputError` for
    a folder without an evaluation, and for one of other objectives.
    """
    path = Path(folder) / "metrics.json"
    metrics = read_json(path)
    policies = metrics.get("policies") if isinstance(metrics, Mapping) else None
    if not isinstance(policies, Mapping):
        raise InputError("is no evaluation's (it has no policies); give the folder of `paretune evaluate`", file=path)
    fronts = [each.get("front_set") or each.get("front") for each in policies.values() if isinstance(each, Mapping)]
    known = [front for front in fronts if isinstance(front, Mapping) and front.get("points")]
    if not known:
        return None
    for front in known:
        axes = front.get("objectives")
        if isinstance(axes, list) and all(each in names for each in axes):
            return _points(front, path)
    raise InputError(f"is the evaluation of other objectives than {', '.join(names)}", file=path)


def _value(found: Any) -> float:
    check_number(found, "a value")
    return float(found)


def _points(front: Mapping[str, Any], path: Path) -> dict[str, Any]:
    try:
        points = [
            {
                "name": str(point["name"]),
                "values": {name: _value(point["values"][name]) for name in front["objectives"]},
                "on_front": bool(point["on_front"]),
            }
            for point in front["points"]
        ]
    except (KeyError, TypeError, ValueError) as error:  # an `InputError` is a `ValueError`
        raise InputError(f"has a front that cannot be read: {error!r:.100}", file=path) from None
    return {"objectives": list(front["objectives"]), "points": points}
