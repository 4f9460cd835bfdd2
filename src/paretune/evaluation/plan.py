"""What can be told of a run before a model is loaded: the policies' objectives, and every wish checked.

Answering takes hours and a wrong wish seconds to find, so policy.json of every policy is read first: the sweeps, the
reference and the judges are checked against its objectives, and with several policies so is that they can be compared
at all: some objective in common, some prompt in common that fits each one's context, and none that one of them was
trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from paretune.data import Row
from paretune.errors import InputError
from paretune.evaluation.card import card_target
from paretune.evaluation.fronts import check_reference
from paretune.evaluation.heldout import Judge, read_judges
from paretune.evaluation.result import Settings
from paretune.evaluation.scoring import choose_objectives
from paretune.evaluation.sweeps import read_profiles, read_weights
from paretune.evaluation.testset import load_test_set
from paretune.files import read_json
from paretune.profile import Objective, Profile


@dataclass(frozen=True)
class Plan:
    """The wishes of one run, read: sweeps, reference, judges; and the training prompts' keys of every policy."""

    weights: list[Literal["grid"] | Profile]
    profiles: list[Profile]
    reference: Profile | None
    judges: list[Judge]
    trained: dict[str, frozenset[str]] = field(default_factory=dict)

    def others(self, name: str) -> dict[str, frozenset[str]] | None:
        """What the policies compared with were trained on; None where there is no other."""
        return {other: keys for other, keys in self.trained.items() if other != name} or None


def make_plan(folders: Mapping[str, Path], data: Path | str, rows: Sequence[Row], settings: Settings) -> Plan:
    """Read and check the wishes for these policies (by name). Raises `InputError`."""
    described = {name: _described(folder) for name, folder in folders.items()}
    objectives = {name: _objectives(each, folders[name]) for name, each in described.items()}
    names = list(dict.fromkeys(each.name for own in objectives.values() for each in own))
    if settings.card:
        for folder in folders.values():
            card_target(folder)
    plan = Plan(
        weights=read_weights(settings.weights, names),
        profiles=read_profiles(settings.profiles, names),
        reference=check_reference(settings.reference, names) if settings.reference is not None else None,
        judges=read_judges(settings.judge_with or (), objectives),
        trained={name: frozenset(each.get("train_prompts") or ()) for name, each in described.items()},
    )
    if len(folders) > 1:
        _check_comparable(plan, folders, described, objectives, data, rows, settings)
    return plan


def _described(folder: Path) -> dict[str, Any]:
    """policy.json as it is; loading the policy checks it to the letter."""
    path = folder / "policy.json"
    found = read_json(path)
    if not isinstance(found, dict):
        raise InputError("must be a JSON object", file=path)
    trained = found.get("train_prompts") or []
    if not isinstance(trained, list) or not all(isinstance(each, str) for each in trained):
        raise InputError("must be a list of the keys of prompts", file=path, field="train_prompts")
    if not isinstance(found.get("data") or {}, dict):
        raise InputError("must be an object", file=path, field="data")
    return found


def _objectives(described: Mapping[str, Any], folder: Path) -> list[Objective]:
    listed = described.get("objectives") or []
    if not isinstance(listed, list):
        raise InputError("must be a list", file=folder / "policy.json", field="objectives")
    try:
        return [Objective.from_dict(each) for each in listed]
    except InputError as error:
        raise InputError(error.message, file=folder / "policy.json", field="objectives") from None


def _check_comparable(
    plan: Plan,
    folders: Mapping[str, Path],
    described: Mapping[str, Mapping[str, Any]],
    objectives: Mapping[str, Sequence[Objective]],
    data: Path | str,
    rows: Sequence[Row],
    settings: Settings,
) -> None:
    """Some scored objective and some test prompt in common, which leaves out those that do not fit a context."""
    common: set[str] | None = None
    shared_objectives({name: choose_objectives(own, settings.objectives)[0] for name, own in objectives.items()})
    sizes = {}
    for name, each in described.items():
        test = load_test_set(
            _unloaded(folders[name], each, objectives[name]),
            data,
            rows,
            split=settings.split,
            max_prompts=settings.max_prompts,
            room=settings.max_new_tokens,
            seed=settings.seed,
            allow_overlap=settings.allow_overlap,
            others=plan.others(name),
        )
        ids = {row.id for row in test.rows}
        common, sizes[name] = ids if common is None else common & ids, len(ids)
    if not common:
        raise no_common_prompt(sizes, data)


def _unloaded(folder: Path, described: Mapping[str, Any], objectives: Sequence[Objective]) -> Any:
    """Of a policy what the choice of its test prompts takes, without its model."""
    from paretune.policy.folder import read_renderer

    renderer, config = read_renderer(folder)
    middle = {each.name: 0.5 for each in objectives}
    return SimpleNamespace(
        metadata=described,
        objectives=list(objectives),
        has_head=False,
        renderer=renderer,
        mean_profile=described.get("mean_profile") or middle,
        causal=SimpleNamespace(config=config),
    )


def no_common_prompt(sizes: Mapping[str, int], data: Path | str) -> InputError:
    """The error that says so."""
    said = ", ".join(f"'{name}' {count}" for name, count in sizes.items())
    return InputError(
        f"no prompt is in the test sets of all policies ({said} prompts), so they cannot be compared. Where they were "
        "trained on different parts of one file, --split all takes every row that none of them was trained on",
        file=data,
    )


def shared_objectives(scored: Mapping[str, Sequence[Objective]]) -> list[Objective]:
    """The objectives, as the first policy has them, that all policies score by the same reward in the same direction.

    Raises `InputError` when there is none.
    """
    first, *rest = scored.values()
    known = [{(each.name, each.spec, each.direction) for each in own} for own in rest]
    shared = [own for own in first if all((own.name, own.spec, own.direction) in each for each in known)]
    if not shared:
        said = "; ".join(
            f"'{name}': {', '.join(f'{each.name}={each.spec}' for each in own) or 'none that scores new answers'}"
            for name, own in scored.items()
        )
        raise InputError(
            f"the policies have no objective in common that is measured by the same reward ({said}), so they cannot be "
            "compared; measure one alike with --objective NAME=SPEC, or evaluate them one by one"
        )
    return shared
