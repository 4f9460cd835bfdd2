"""What rounds start from: the policy's own data in the parts it was split into, and what scores new answers.

Rounds never touch the test part: the split is the one stored with the policy, and the data must be the very file it was
made of.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paretune.data import Row, prompt_key, read_rows, split_rows
from paretune.data.pairs import normalised_scores
from paretune.data.split import Split
from paretune.errors import InputError
from paretune.files import file_digest
from paretune.methods.improve.answers import fitting
from paretune.methods.improve.goals import Goals
from paretune.methods.improve.options import ImproveOptions
from paretune.methods.registry import get_method
from paretune.methods.train import settings_after
from paretune.policy import Policy, load_policy
from paretune.policy.engine import row_seed
from paretune.profile import Objective, Profile
from paretune.rewards import can_score_new
from paretune.rewards.measure import check_reward


@dataclass
class Source:
    """The policy's method, objectives, data and prompts; `data` is what policy.json says of the data.

    `scored` are the objectives that can score a new answer, `masked` says of the others why not. `prompts` and
    `validation` hold a row for each distinct prompt that fits the model; `dropped` counts those that do not.
    """

    folder: Path
    method: str
    objectives: list[Objective]
    scored: list[Objective]
    masked: dict[str, str]
    goals: Goals
    split: Split
    data: dict[str, Any]
    prompts: list[Row]
    validation: list[Row]
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def pairs(self) -> bool:
        """Does the method train on two completions a prompt?"""
        return get_method(self.method).pairs

    def profiles(self, row: Row) -> list[Profile]:
        """The profiles of a row's completions that have every score."""
        found = [normalised_scores(each, self.objectives) for each in row.completions]
        return [each for each in found if len(each) == len(self.objectives)]


def load_source(
    folder: Path | str, data: Path | str, options: ImproveOptions, *, skip_bad_rows: bool = False
) -> Source:
    """Check all that can be checked before a round: nothing is written. Raises `InputError`."""
    policy = load_policy(folder)
    if get_method(policy.method).fit is not None:
        raise InputError(
            f"the training of a policy by '{policy.method}' cannot go on, so it has no rounds", file=folder
        )
    try:
        goals = Goals.of(policy)
    except InputError as error:
        raise InputError(error.message, file=folder) from None
    settings_after(policy, options.settings, Path(folder))  # a misspelt one is told now, not after a round's sampling
    stored = policy.metadata.get("data") or {}
    _check_data(data, stored, folder)
    scored, masked = _scorers(policy.objectives, folder)
    if masked and not options.originals:
        raise InputError(
            f"originals must be above 0: '{next(iter(masked))}' is scored in the data's own rows alone", file=folder
        )
    rows = read_rows(data, skip_bad_rows=skip_bad_rows)
    split = split_rows(rows, **{"near_duplicates": 0.0, **stored["split"]})
    prompts, validation = _distinct(split.train), _distinct(split.validation)
    fit = [fitting(policy, part, options.max_new_tokens) for part in (prompts, validation)]
    dropped = {"prompts_too_long": len(prompts) - len(fit[0]), "validation_too_long": len(validation) - len(fit[1])}
    if not validation:
        raise InputError("its data has no validation part, by which a round is kept or not", file=folder)
    for part, own in zip(("training", "validation"), fit, strict=True):
        if not own:
            raise InputError(f"no {part} prompt and answer of {options.max_new_tokens} tokens fit the model", file=data)
    return Source(
        folder=Path(folder),
        method=policy.method,
        objectives=policy.objectives,
        scored=scored,
        masked=masked,
        goals=goals,
        split=split,
        data=stored,
        prompts=fit[0],
        validation=drawn(fit[1], options.validation_prompts, options.seed, "validation"),
        dropped={cause: count for cause, count in dropped.items() if count},
    )


def drawn(rows: Sequence[Row], count: int | None, seed: int, key: str) -> list[Row]:
    """So many of the rows, drawn by (seed, key, prompt), in their order; all where there are no more."""
    if count is None or count >= len(rows):
        return list(rows)
    order = sorted(range(len(rows)), key=lambda at: row_seed(seed, key, prompt_key(rows[at].prompt)))
    return [rows[at] for at in sorted(order[:count])]


def let_go(policy: Policy) -> None:
    """Free a policy's memory, device's too: one model is held at a time."""
    import torch

    policy.causal = policy.peft = policy.head = None
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _distinct(rows: Sequence[Row]) -> list[Row]:
    """The first row of each prompt."""
    return list({prompt_key(row.prompt): row for row in reversed(rows)}.values())[::-1]


def _check_data(data: Path | str, stored: dict[str, Any], folder: Path | str) -> None:
    """The data must be what the policy was trained on, for only of that it is known what was held out."""
    if "path" not in stored or "split" not in stored:
        raise InputError("does not say what data it was trained on; train it anew with this version", file=folder)
    path, saved = Path(stored["path"]), stored.get("sha256")
    if saved is not None:
        if not Path(data).exists():
            raise InputError("no such file", file=data)
        if Path(data).is_file() and file_digest(data) == saved:
            return
        same = path.exists() and Path(data).samefile(path)
        what = "has changed since the policy was trained on it" if same else "is not what the policy was trained on"
    else:
        exist = Path(data).exists() and path.exists()
        if str(data) == stored["path"] or (exist and Path(data).samefile(path)):
            return
        what = "is not what the policy was trained on"
    raise InputError(f"{what}; rounds need that ({path}): its test part stays untouched", file=data)


def _scorers(objectives: Sequence[Objective], folder: Path | str) -> tuple[list[Objective], dict[str, str]]:
    """The objectives whose rewards can score a new answer, and why the others do not."""
    scored, masked = [], {}
    for each in objectives:
        if not each.spec:
            masked[each.name] = "it has no reward: its scores came with the data"
        elif not can_score_new(each):
            masked[each.name] = f"{each.spec} holds stored scores and cannot score a new answer"
        else:
            try:
                check_reward(each)
            except InputError as error:
                raise InputError(f"objective '{each.name}': its reward is gone: {error}", file=folder) from None
            scored.append(each)
    if not scored:
        why = "; ".join(f"'{name}': {cause}" for name, cause in masked.items())
        raise InputError(f"none of its objectives can score a new answer ({why}); train it on rewards", file=folder)
    return scored, masked
