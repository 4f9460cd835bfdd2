"""Objective specs (`name=lexical:brevity`) and the registry of their prefixes."""

from __future__ import annotations

import gc
import re
import sys
from importlib import import_module

from paretune.errors import InputError, did_you_mean
from paretune.profile import Direction, Objective
from paretune.rewards import lexical
from paretune.rewards.base import Reward, RewardKind

_BUILT_IN = {
    "lexical": "paretune.rewards.lexical",
    "embed": "paretune.rewards.embed",
    "column": "paretune.rewards.column",
    "python": "paretune.rewards.python",
    "hf": "paretune.rewards.hf",
    "judge": "paretune.rewards.judge",
    "ensemble": "paretune.rewards.ensemble",
    "gate": "paretune.rewards.gate",
    "trained": "paretune.reward_model.reward",
}
"""Prefix -> the module whose `KIND` it is. Named, not imported: one may live on a higher floor of the house."""

_KINDS: dict[str, RewardKind] = {}


def register_reward(kind: RewardKind) -> None:
    """Add a prefix of specs. A prefix that is there already is an error."""
    if kind.prefix in _BUILT_IN or kind.prefix in _KINDS:
        raise ValueError(f"the reward prefix '{kind.prefix}' is registered already")
    _KINDS[kind.prefix] = kind


def reward_kinds() -> dict[str, RewardKind]:
    """All registered kinds by prefix, the built-in ones first."""
    built_in: dict[str, RewardKind] = {name: import_module(home).KIND for name, home in _BUILT_IN.items()}
    return built_in | _KINDS


def list_rewards() -> list[tuple[str, str]]:
    """(spec, one-line help) of all there is, in order of registration."""
    return [line for kind in reward_kinds().values() for line in kind.listed]


def parse_objective(text: str) -> Objective:
    """`name=spec`, or `-name=spec` to minimise, as an unfitted objective with the spec's built-in phrases.

    Phrases are ordered by the normalised value, whose upper end is the wanted one: a minimised objective has them
    turned round. Only the spec's form is checked; no model is loaded.

    Raises:
        InputError: no `=`, a bad name, an unknown prefix or measure (the nearest is offered).
    """
    name, equals, spec = text.partition("=")
    if not equals or not spec.strip():
        raise InputError(f"an objective is written NAME=SPEC (brevity=lexical:brevity), found '{text}'")
    name, spec = name.strip(), spec.strip()
    kind, rest = find_kind(spec)
    kind.check(rest)
    direction: Direction = "minimise" if name.startswith("-") or kind.minimised(rest) else "maximise"
    phrases = kind.phrases(rest)
    return Objective(
        name.removeprefix("-"),
        spec=spec,
        direction=direction,
        phrases=phrases[::-1] if direction == "minimise" else phrases,
    )


def find_kind(spec: str) -> tuple[RewardKind, str]:
    """The kind that a spec's prefix names, and what follows the prefix. Raises `InputError` for an unknown prefix."""
    prefix, colon, rest = spec.partition(":")
    if prefix in _BUILT_IN:
        kind: RewardKind = import_module(_BUILT_IN[prefix]).KIND
        return kind, rest
    if prefix not in _KINDS:
        if not colon and spec in lexical.MEASURES:
            raise InputError(f"unknown reward '{spec}'; did you mean 'lexical:{spec}'?")
        raise InputError(f"unknown reward '{prefix}' in '{spec}'.{did_you_mean(prefix, [*_BUILT_IN, *_KINDS])}")
    return _KINDS[prefix], rest


def expand_objective(text: str) -> list[Objective]:
    """As `parse_objective`, but `*=SPEC` and `PREFIX.*=SPEC` give one objective an output of the spec's model.

    They are named after the outputs: `*=hf:MODEL#*` gives `toxic`, `insult`, ...; with `judge.*` `judge_toxic`, ....

    Raises:
        InputError: as `parse_objective`; a `*` whose spec has no outputs to stand for.
    """
    name, equals, spec = text.partition("=")
    name, spec = name.strip(), spec.strip()
    if not equals or "*" not in name:
        return [parse_objective(text)]
    stem = name.removeprefix("-").removesuffix("*").removesuffix(".")
    kind, rest = find_kind(spec)
    if not name.endswith("*") or "*" in stem or (stem and not name.endswith(".*")):
        raise InputError(f"an objective for every output is written *=SPEC or PREFIX.*=SPEC, found '{text}'")
    if kind.expand is None:
        raise InputError(f"'{name}' asks for every output, and '{spec}' has one only; give it a name")
    kind.check(rest)
    sign = "-" if name.startswith("-") else ""
    outputs = [(_output_name(stem, label), part) for label, part in kind.expand(rest)]
    return [parse_objective(f"{sign}{each}={kind.prefix}:{part}") for each, part in outputs]


def _output_name(stem: str, label: str) -> str:
    """An objective's name from a label, which may be any text: `helpsteer-helpfulness` -> `helpsteer_helpfulness`."""
    name = "_".join(filter(None, [stem, re.sub(r"[^A-Za-z0-9]+", "_", label).strip("_")]))
    return name if name[:1].isalpha() else f"output_{name}"


def spec_of(objective: Objective) -> str:
    """An objective without a spec came with the data: its column is its name."""
    return objective.spec or f"column:{objective.name}"


def kind_of(objective: Objective) -> tuple[RewardKind, str]:
    """The kind of an objective's reward, and what follows the prefix in its spec."""
    return find_kind(spec_of(objective))


def build_reward(objective: Objective, *, allow_remote_code: bool = False) -> Reward:
    """The reward that measures an objective, ready to call (models are loaded here, once a process).

    `allow_remote_code` lets `hf:` and `embed:` models run the code that their repository brings; off by default.
    Raises `InputError` for anything that cannot be built.
    """
    kind, rest = kind_of(objective)
    return kind.build(rest, allow_remote_code)


def can_score_new(objective: Objective) -> bool:
    """Whether the objective can measure answers that are not in the data; loads nothing."""
    kind, rest = kind_of(objective)
    return kind.scores_new(rest)


def runs_parallel(objective: Objective) -> bool:
    """Whether the objective's reward may be built in several processes at once."""
    kind, rest = kind_of(objective)
    return kind.runs_parallel(rest)


def release_models() -> None:
    """Forget the models that rewards keep loaded, and give their memory back, on a GPU too."""
    loaded = [import_module(home).KIND for home in _BUILT_IN.values() if home in sys.modules]
    for kind in [*loaded, *_KINDS.values()]:
        kind.release()
    gc.collect()
    if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
        sys.modules["torch"].cuda.empty_cache()
