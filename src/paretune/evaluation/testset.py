"""The prompts a policy is tested on: its own held-out split, or another file's rows that it never saw in training."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paretune.data import Pair, build_pairs, read_rows, split_rows
from paretune.data.rows import Messages, Row
from paretune.data.targets import IN_WORDS, mean_profile, target_profiles
from paretune.errors import InputError, did_you_mean
from paretune.evaluation.control import subset
from paretune.evaluation.overlap import Source, unseen
from paretune.profile import Profile

SPLITS = ("test", "validation", "all")
PROBE_PROMPTS = 2000
DEFAULT_ROOM = 128
"""Tokens kept free for an answer when no limit is given (the limit of `Policy.generate`)."""


@dataclass(frozen=True)
class TestSet:
    """Distinct unseen prompts as pairs, with the target profile of each; `train` serves the linear probe."""

    __test__ = False  # not a test case, whatever its name says to pytest

    pairs: list[Pair]
    targets: list[Profile]
    train: list[Pair]
    train_targets: list[Profile]
    wanted: bool
    about: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> list[Row]:
        """One a pair."""
        return [pair.row for pair in self.pairs]

    @property
    def prompts(self) -> list[Messages]:
        """One a pair."""
        return [pair.row.prompt for pair in self.pairs]


def load_test_set(
    policy: Any,
    data: Path | str,
    rows: Sequence[Row],
    *,
    split: str = "test",
    max_prompts: int | None = None,
    room: int | None = None,
    seed: int = 0,
    allow_overlap: bool = False,
    others: Mapping[str, Collection[str]] | None = None,
) -> TestSet:
    """Choose, clean and pair the test prompts of `rows` (read from `data`) for one policy.

    If `data` is the file the policy was trained on, the part `split` of its stored split is taken, else all rows.
    Duplicates and prompts that do not fit the model are dropped and counted; prompts used in training, or nearly so,
    are an error unless `allow_overlap`, which drops them too (`paretune.evaluation.overlap`), and so are those that the
    policies compared with were trained on (`others`: keys of prompts by policy). Raises `InputError` also when fewer
    than two prompts are left.
    """
    if split not in SPLITS:
        hint = " Prompts used in training cannot test a policy." if split == "train" else ""
        raise InputError(f"unknown split '{split}'.{hint or did_you_mean(split, SPLITS)}")
    stored = policy.metadata.get("data") or {}
    same = same_source(data, stored.get("path"), stored.get("sha256"))
    notes: list[str] = []
    changed = bool(same and stored.get("sha256") and digest(data) not in (None, stored["sha256"]))
    if changed:
        notes.append("The data file has changed since the policy was trained on it.")
    part, source = _part(rows, stored, split, same)
    training = _training_rows(rows, stored, same)
    cut = stored.get("split") or {}
    where = Source(data, same, changed, leaves_out=same and (split == "all" or not cut), split=cut)
    fresh, dropped = unseen(policy, part, training, where, allow_overlap=allow_overlap, notes=notes, others=others)
    pairs, report = build_pairs(fresh, policy.objectives, **_rule(stored))
    fitting = [pair for pair in pairs if _fits(policy, pair, room or DEFAULT_ROOM)]
    if len(fitting) < 2:
        raise InputError(_too_few(data, source, len(fitting), part, dropped, report, len(pairs) - len(fitting)))
    picked = [fitting[i] for i in subset([pair.row.prompt for pair in fitting], max_prompts or len(fitting), seed)]
    if len(picked) < 2:
        raise InputError(f"at least 2 prompts are needed, max_prompts is {max_prompts}")
    kind, top_k = stored.get("targets", "chosen"), stored.get("top_k", 3)
    if kind not in IN_WORDS:
        raise InputError(f"the policy's targets are of an unknown kind: {kind!r}", field="data.targets")
    train = _train_pairs(policy, training, stored, seed, notes)
    about = {
        "source": source,
        "prompts": len(picked),
        "rows": len(part),
        **dropped,
        "dropped_ties": report.ties,
        "dropped_too_few_scored": report.too_few,
        **{f"dropped_{cause}": report.dropped()[cause] for cause in ("below_margin", "not_dominated")},
        "dropped_too_long": len(pairs) - len(fitting),
        "left_out_by_max_prompts": len(fitting) - len(picked),
        "targets": IN_WORDS[kind],
    }
    targets, train_targets = (
        [mean_profile(target_profiles(pair, policy.objectives, kind, top_k)) for pair in part]
        for part in (picked, train)
    )
    return TestSet(picked, targets, train, train_targets, kind == "wanted", about, notes)


def digest(path: Path | str) -> str | None:
    """SHA-256 of a file; None for a folder or the name of a data set."""
    if not Path(path).is_file():
        return None
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def same_source(data: Path | str, stored: str | None, sha256: str | None = None) -> bool:
    """Is `data` the file (by place or by content) or the named data set that the policy was trained on?"""
    if sha256 is not None and digest(data) == sha256:
        return True
    if stored is None:
        return False
    one, two = Path(data), Path(stored)
    if one.exists() or two.exists():
        return one.exists() and two.exists() and one.samefile(two)
    return str(data) == stored


def _part(rows: Sequence[Row], stored: dict[str, Any], split: str, same: bool) -> tuple[list[Row], str]:
    """The rows to test on, and in words which they are."""
    if not same:
        return list(rows), "all rows of another file than the policy was trained on"
    if split == "all":
        return list(rows), "all rows of the file the policy was trained on, without its training prompts"
    settings = stored.get("split")
    if not settings:
        return list(rows), "all rows: the policy stores no split of this file"
    parts = split_rows(rows, **_cut(settings))
    return list(getattr(parts, split)), f"the held-out {split} part of the file the policy was trained on"


def _cut(settings: dict[str, Any]) -> dict[str, Any]:
    """A stored split's settings; versions before near-duplicates were held together say nothing of them."""
    return {"near_duplicates": 0.0, **settings}


def _rule(stored: dict[str, Any]) -> dict[str, Any]:
    """How the policy's pairs were built; versions before there was a choice say nothing."""
    return dict(stored.get("pairs") or {})


def _training_rows(rows: Sequence[Row], stored: dict[str, Any], same: bool) -> list[Row] | None:
    """All rows of the file that the policy was trained on; None where it cannot be read."""
    if same:
        return list(rows)
    try:
        return read_rows(stored["path"], skip_bad_rows=True)
    except (InputError, KeyError, TypeError, OSError):
        return None


def _too_few(
    data: Path | str, source: str, left: int, part: Sequence[Row], dropped: dict[str, int], report: Any, long: int
) -> str:
    scored = any(row.completions for row in part)
    trained = sum(count for cause, count in dropped.items() if "trained_on" in cause)
    cause = (
        f"of {len(part)} rows ({source}) {report.too_few} lack two completions scored for the policy's objectives, "
        f"{report.ties} are ties, {trained} were trained on, {dropped['dropped_duplicates']} are duplicates, "
        f"{report.below_margin} are below the margin of pairs, in {report.not_dominated} no completion dominates "
        f"another, {long} are too long"
    )
    todo = "Score completions with `paretune score` first." if not scored or report.too_few else "Give more rows."
    if long and left + long >= 2:
        todo = "Ask for shorter answers (--max-new-tokens), or give shorter prompts."
    return f"{data}: evaluation needs at least 2 usable prompts, found {left}: {cause}. {todo}"


def _fits(policy: Any, pair: Pair, room: int) -> bool:
    """Do prompt, profile and answer (the longer of new and stored ones) fit the model's context?"""
    causal = getattr(policy, "causal", None)
    if causal is None:
        return True
    from paretune.policy.backbone import context_length

    renderer, prompt = policy.renderer, pair.row.prompt
    suffixes = [
        renderer.suffix(prompt, profile) for profile in (pair.target, pair.rejected_profile, policy.mean_profile)
    ]
    stored = max(len(renderer.completion(each.text)) for each in (pair.chosen, pair.rejected))
    # other profiles than these may read a little longer
    fixed = len(renderer.prefix(prompt)) + max(map(len, suffixes)) * 5 // 4
    return bool(fixed + max(room, stored) <= context_length(policy.causal))


def _train_pairs(
    policy: Any, training: Sequence[Row] | None, stored: dict[str, Any], seed: int, notes: list[str]
) -> list[Pair]:
    """The pairs of the policy's own training part; none, with a note, when they cannot be had."""
    if not policy.has_head:
        return []
    if training is None or not stored.get("split"):
        notes.append("The policy's training data cannot be read here, so there is no linear probe.")
        return []
    try:
        part = split_rows(training, **_cut(stored["split"])).train
    except InputError:  # the file has lost most of its rows
        notes.append("The policy's training data has changed, so there is no linear probe.")
        return []
    built, _ = build_pairs(part, policy.objectives, **_rule(stored))
    pairs = [pair for pair in built if _fits(policy, pair, 0)]
    if len(pairs) > PROBE_PROMPTS:
        notes.append(f"The linear probe was fitted on {PROBE_PROMPTS} of {len(pairs)} training prompts.")
    return [pairs[i] for i in subset([pair.row.prompt for pair in pairs], PROBE_PROMPTS, seed)]
