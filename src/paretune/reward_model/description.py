"""reward.json: what it says of a reward model's outputs, read without loading a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paretune.errors import InputError
from paretune.files import read_described
from paretune.profile import Objective, check_names

FORMAT = 1
DESCRIPTION = "reward.json"
LOGIT, RATING, ORDINAL = "logit", "rating", "ordinal"
IN_WORDS = {
    RATING: "the rating's own unit",
    ORDINAL: "a latent logit; sigmoid(value - cut) is the probability of a rating above a level",
    LOGIT: "a Bradley-Terry logit; sigmoid of a difference is the probability of being preferred",
}
"""What an output's value is."""


def read_description(folder: Path) -> dict[str, Any]:
    """reward.json, checked in form; it loads no model."""
    if not folder.is_dir():
        raise InputError("no such folder of a reward model", file=folder)
    path = folder / DESCRIPTION
    if not path.is_file():
        what = "a policy, no reward model" if (folder / "policy.json").is_file() else "no reward model"
        raise InputError(f"is {what} (it has no {DESCRIPTION}); `paretune reward train` makes one", file=folder)
    data = read_described(path, FORMAT)
    kinds = {"base_model": str, "objectives": list, "head": dict, "tokenizer": dict, "base_fingerprint": str}
    for key, kind in kinds.items():
        if not isinstance(data.get(key), kind):
            raise InputError(f"must be a {kind.__name__}, found {data.get(key)!r}", file=path, field=key)
    return data


def read_outputs(described: Mapping[str, Any]) -> tuple[list[Objective], list[str], list[tuple[float, ...]]]:
    """Objectives, units and ordinal levels of reward.json. Raises `InputError` for whatever is wrong with them."""
    try:
        return _read_outputs(described)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        what = f"{type(error).__name__}: {error}"
        raise InputError(f"holds a value of the wrong type: {what:.200}", field="objectives") from None


def _read_outputs(described: Mapping[str, Any]) -> tuple[list[Objective], list[str], list[tuple[float, ...]]]:
    objectives, units, levels = [], [], []
    for each in described["objectives"]:
        unit, known = each["unit"], tuple(float(level) for level in each.get("levels", ()))
        if unit not in IN_WORDS:
            raise InputError(f"unknown unit {unit!r}; known: {', '.join(IN_WORDS)}", field="objectives")
        if (unit == ORDINAL) != bool(known) or list(known) != sorted(set(known)) or len(known) == 1:
            raise InputError(f"objective '{each['name']}': levels must ascend, and belong to unit {ORDINAL}")
        objectives.append(Objective.from_dict({"name": each["name"], "direction": each["direction"]}))
        units.append(unit)
        levels.append(known)
    check_names(objectives)
    return objectives, units, levels
