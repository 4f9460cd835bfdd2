"""Several adapters on one backbone, and which of them a request's preference weights call for.

A policy may have been trained in parts: an adapter for each objective, or for each of several vectors of preference
weights. Saved as `adapters/NAME/`, one folder a part, with names and weights in policy.json. A request's weights become
`Blend`s by the policy's rule (`paretune.policy.weights`):

    soup      one blend of all adapters, each by its weight. The sum of the low-rank products is exact: a layer computes
              W x + sum_i w_i s_i B_i A_i x. To average the A and the B apart is another thing, whose product has
              terms B_i A_j that nobody trained.
    mix       a blend for each adapter of positive weight, whose next-token distributions are mixed
              (`paretune.policy.mixture`)
    nearest   one blend of the one adapter whose weights are nearest to the request's by Euclidean distance; the first
              of several that are
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from paretune.errors import InputError
from paretune.policy.adapters import adapter_fingerprint, attach_adapter, save_adapter
from paretune.policy.weights import Rule, check_weights
from paretune.profile import NAME, Profile

FOLDER = "adapters"
RULES: tuple[Rule, ...] = ("soup", "mix", "nearest")
"""The rules by which policies of several adapters take weights."""


@dataclass(frozen=True)
class Part:
    """One adapter: its name, which is that of its folder, and the preference weights it was trained for."""

    name: str
    weights: Profile


@dataclass(frozen=True)
class Blend:
    """Adapters that compute together as one model: (part, share) of each, and the model's weight among several."""

    shares: tuple[tuple[int, float], ...]
    weight: float = 1.0


class Parts:
    """The adapters of a PEFT model, in the order of `parts`, and the rule by which weights choose between them."""

    def __init__(self, peft: Any, parts: Sequence[Part], rule: Rule) -> None:
        from peft.tuners.tuners_utils import BaseTunerLayer

        self.peft = peft
        self.parts = list(parts)
        self.rule = rule
        self._layers = [module for module in peft.modules() if isinstance(module, BaseTunerLayer)]
        self._now: Blend | None = None

    def __len__(self) -> int:
        return len(self.parts)

    def blends(self, weights: Mapping[str, float]) -> tuple[Blend, ...]:
        """What answers under checked weights; see above."""
        if self.rule == "nearest":
            return (Blend(((self.nearest(weights), 1.0),)),)
        shares = [self._share(part, weights) for part in self.parts]
        used = [(at, share) for at, share in enumerate(shares) if share > 0]
        if self.rule == "mix":
            return tuple(Blend(((at, 1.0),), share) for at, share in used)
        return (Blend(tuple(used)),)

    def _share(self, part: Part, weights: Mapping[str, float]) -> float:
        """The weight of the one objective that the part was trained for."""
        return math.fsum(value * weights[name] for name, value in part.weights.items())

    def nearest(self, weights: Mapping[str, float]) -> int:
        """The part whose weights are nearest."""
        gaps = [math.dist(part.weights.values(), [weights[name] for name in part.weights]) for part in self.parts]
        return min(range(len(gaps)), key=gaps.__getitem__)

    def answering(self, weights: Mapping[str, float]) -> Profile:
        """The weights that answers are given under: those asked for, and by `nearest` those of the part."""
        return dict(self.parts[self.nearest(weights)].weights if self.rule == "nearest" else weights)

    def use(self, blend: Blend) -> None:
        """Let the adapters of a blend compute, each by its share, and no other."""
        if blend == self._now:
            return
        names = [peft_name(at) for at, _ in blend.shares]
        for layer in self._layers:
            for at, share in blend.shares:
                layer.set_scale(peft_name(at), share)
            layer.set_adapter(names, inference_mode=True)
        self._now = blend

    def merge(self, blend: Blend) -> Any:
        """The causal LM with a blend merged into its weights; the PEFT model is spent."""
        self.use(blend)
        return self.peft.merge_and_unload(adapter_names=[peft_name(at) for at, _ in blend.shares])

    def save(self, folder: Path) -> None:
        """Each adapter in its folder below `folder`/adapters."""
        for at, part in enumerate(self.parts):
            save_adapter(self.peft, folder / FOLDER / part.name, name=peft_name(at))

    def to_list(self) -> list[dict[str, Any]]:
        """JSON form, as saved in policy.json."""
        return [{"name": part.name, "weights": part.weights} for part in self.parts]

    def fingerprints(self, folder: Path) -> dict[str, str]:
        """Of each adapter's saved configuration, by the part's name."""
        return {part.name: adapter_fingerprint(folder / FOLDER / part.name) for part in self.parts}


def peft_name(at: int) -> str:
    """An adapter's name in the PEFT model: PEFT looks names up in those of tensors, where an objective's may occur."""
    return f"part{at}"


def assemble(
    causal: Any, config: Any, parts: Sequence[Part], tensors: Sequence[Mapping[str, Tensor]], rule: Rule
) -> Parts:
    """Adapters of one PEFT `config`, each with its trained tensors (as PEFT names them), on a plain causal LM."""
    from peft import get_peft_model, set_peft_model_state_dict

    from paretune.policy.lora import use_fused_lora

    peft: Any = None
    for at, state in enumerate(tensors):
        own = deepcopy(config)
        if peft is None:
            peft = get_peft_model(causal, own, adapter_name=peft_name(at), autocast_adapter_dtype=False)
        else:
            peft.add_adapter(peft_name(at), own, autocast_adapter_dtype=False)
        set_peft_model_state_dict(peft, dict(state), adapter_name=peft_name(at))
    use_fused_lora(peft)
    return Parts(peft.eval(), parts, rule)


def read_parts(described: Any, rule: Rule | None, names: Sequence[str]) -> list[Part]:
    """The JSON form read back, checked against the policy's objectives and rule. Raises `InputError`."""
    if rule not in RULES:
        raise InputError(f"several adapters need a rule of {', '.join(RULES)}, found {rule}", field="parts")
    if not isinstance(described, list) or not described:
        raise InputError("must be a list of adapters, each with a name and weights", field="parts")
    parts = []
    for each in described:
        if not isinstance(each, Mapping) or set(each) != {"name", "weights"}:
            raise InputError(f"an adapter is an object of name and weights, found {each!r:.100}", field="parts")
        if not isinstance(each["name"], str) or not NAME.fullmatch(each["name"]):
            raise InputError(f"{each['name']!r:.100} is no name of an adapter", field="parts")
        weights = check_weights(each["weights"], names)
        if rule != "nearest" and max(weights.values()) < 1:
            raise InputError(f"by rule {rule} an adapter belongs to one objective, found {weights}", field="parts")
        parts.append(Part(each["name"], weights))
    if len({part.name for part in parts}) < len(parts):
        raise InputError("two adapters have one name", field="parts")
    of = sorted(max(part.weights, key=part.weights.__getitem__) for part in parts)
    if rule != "nearest" and of != sorted(names):
        raise InputError(f"by rule {rule} every objective has one adapter, found {', '.join(of)}", field="parts")
    return parts


def attach_parts(causal: Any, folder: Path, source: str, saved: Any, parts: Sequence[Part], rule: Rule) -> Parts:
    """The adapters below `folder`/adapters on the base model, each checked; `saved`: their fingerprints by name."""
    found = {path.name for path in (folder / FOLDER).iterdir()} if (folder / FOLDER).is_dir() else set()
    if unknown := sorted(found - {part.name for part in parts}):
        raise InputError(f"holds '{unknown[0]}', which policy.json does not name", file=folder / FOLDER)
    prints = saved if isinstance(saved, Mapping) else {}
    model = causal
    for at, part in enumerate(parts):
        place = folder / FOLDER / part.name
        if not place.is_dir():
            raise InputError("no such adapter, though policy.json names it", file=place)
        model = attach_adapter(model, place, source, prints.get(part.name), name=peft_name(at))
    return Parts(model, parts, rule)
