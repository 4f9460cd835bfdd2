"""Test prompts that the policy was trained on, or nearly: an error, unless the caller asks to leave them out.

A number measured on prompts of training is worth nothing, and on reworded ones little. The policy itself says which
prompts it was trained on (their keys); near-duplicates need their texts, which are read from the training data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paretune.data import prompt_key
from paretune.data.rows import Row
from paretune.data.split import NEAR
from paretune.errors import InputError

NAMED = 3
"""How many rows an error names."""


@dataclass(frozen=True)
class Source:
    """Where test rows come from: `same` data as the policy's training, `changed` since, and whether the caller chose
    a part that `leaves_out` the training prompts by itself."""

    path: Path | str
    same: bool
    changed: bool
    leaves_out: bool
    split: dict[str, Any]

    @property
    def near(self) -> tuple[float, bool]:
        """The threshold of near-duplicates, and whether one is an error; a split that did not part them (of an older
        version, or by the setting 0) cannot be blamed for them, so they are counted only."""
        asked = self.split.get("near_duplicates", 0.0 if self.same else NEAR)
        return (asked, True) if asked else (NEAR, False)

    @property
    def parted(self) -> bool:
        """The split of this very file has kept near-duplicates together, so there is nothing to look for."""
        return self.same and not self.changed and not self.leaves_out and self.near[1]


def unseen(
    policy: Any,
    rows: Sequence[Row],
    training: Sequence[Row] | None,
    source: Source,
    *,
    allow_overlap: bool,
    notes: list[str],
    others: Mapping[str, Collection[str]] | None = None,
) -> tuple[list[Row], dict[str, int]]:
    """Rows whose prompts were not trained on, each prompt once; with the counts of what was dropped.

    `training`: rows of the training data, None where it cannot be read. `others`: the keys of the prompts that the
    policies compared with were trained on. Raises `InputError` when prompts coincide with training prompts although
    `source` should hold none, unless `allow_overlap`: then those rows are dropped.
    """
    known = policy.metadata.get("train_prompts")
    if known is None:
        notes.append("The policy does not say which prompts it was trained on, so an overlap cannot be ruled out.")
    trained, seen = set(known or ()), set[str]()
    fresh: list[Row] = []
    equal: list[Row] = []
    twice = 0
    for row in rows:
        key = prompt_key(row.prompt)
        if key in trained:
            equal.append(row)
        elif key in seen:
            twice += 1
        else:
            seen.add(key)
            fresh.append(row)
    near = _near(fresh, training, trained, source, notes)
    if not source.near[1]:
        if near:
            notes.append(
                f"{len(near)} test prompts are near-duplicates of training prompts (kept: the policy's split does not "
                "hold near-duplicates together)."
            )
        near = []
    overlap = [*equal, *near]
    if overlap and not source.leaves_out and not allow_overlap:
        raise InputError(_message(equal, near), file=source.path)
    if overlap:
        notes.append(
            f"{len(overlap)} rows were dropped because the policy was trained on their prompts{_nearly(near)}."
        )
    left_out = {id(row) for row in near}
    counts = {"dropped_trained_on": len(equal), "dropped_near_trained_on": len(near), "dropped_duplicates": twice}
    kept = [row for row in fresh if id(row) not in left_out]
    if others is None:
        return kept, counts
    foreign = {id(row) for row in _foreign(kept, others, source, allow_overlap=allow_overlap, notes=notes)}
    return [row for row in kept if id(row) not in foreign], counts | {"dropped_trained_on_by_others": len(foreign)}


def _foreign(
    rows: Sequence[Row],
    others: Mapping[str, Collection[str]],
    source: Source,
    *,
    allow_overlap: bool,
    notes: list[str],
) -> list[Row]:
    """Rows whose prompts another policy of the comparison was trained on: they would flatter that one.

    Near-duplicates are looked for in each policy's own test set, and only prompts of all test sets are compared.
    """
    keys = [prompt_key(row.prompt) for row in rows]
    counts = {name: sum(key in trained for key in keys) for name, trained in others.items()}
    counts = {name: count for name, count in counts.items() if count}
    if not counts:
        return []
    said = ", ".join(f"'{name}' on {count}" for name, count in counts.items())
    found = [row for row, key in zip(rows, keys, strict=True) if any(key in trained for trained in others.values())]
    if not source.leaves_out and not allow_overlap:
        named = ", ".join(f"'{row.id}'" for row in found[:NAMED]) + (", ..." if len(found) > NAMED else "")
        raise InputError(
            f"policies compared were trained on prompts of the {len(rows)} test rows: {said} ({named}). Compare on "
            "prompts that none of them was trained on: another file, --split all where they were trained on this one, "
            "or pass --allow-overlap (allow_overlap=True) to leave these rows out",
            file=source.path,
        )
    notes.append(f"{len(found)} rows were dropped because policies compared with were trained on them: {said}.")
    return found


def _near(
    fresh: Sequence[Row], training: Sequence[Row] | None, trained: set[str], source: Source, notes: list[str]
) -> list[Row]:
    """Rows whose prompts nearly repeat a prompt that was trained on."""
    from paretune.data.near import near_overlap, prompt_text

    if not trained or source.parted:
        return []
    if training is None:
        notes.append("The training data cannot be read here, so only equal prompts were looked for, not near ones.")
        return []
    texts = {key: prompt_text(row.prompt) for row in training if (key := prompt_key(row.prompt)) in trained}
    if len(texts) < len(trained):
        notes.append(
            f"{len(trained) - len(texts)} of {len(trained)} training prompts are no longer in the training data, so "
            "their near-duplicates were not looked for."
        )
    found = near_overlap([prompt_text(row.prompt) for row in fresh], list(texts.values()), source.near[0])
    return [fresh[at] for at in found]


def _nearly(near: Sequence[Row]) -> str:
    return f" ({len(near)} of them on nearly the same)" if near else ""


def _message(equal: Sequence[Row], near: Sequence[Row]) -> str:
    rows = [*equal, *near]
    named = ", ".join(f"'{row.id}'" for row in rows[:NAMED]) + (", ..." if len(rows) > NAMED else "")
    return (
        f"the policy was trained on the prompts of {len(rows)} row{'s' * (len(rows) > 1)}{_nearly(near)}: {named}. "
        "Test it on other prompts, or pass --allow-overlap (allow_overlap=True) to leave these rows out"
    )
