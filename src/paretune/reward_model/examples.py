"""Rows as token ids: examples, and the packed items of which an effective batch is made.

The rendering is a policy's without a profile: the chat template's prefix and suffix, the answer, the token that ends
the turn (also after an answer that was cut off: the head reads every answer at the same place).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paretune.data import Row
from paretune.data.rows import Messages
from paretune.errors import InputError
from paretune.policy.packed import Branch, Packed, Tree
from paretune.policy.renderer import Renderer
from paretune.reward_model.supervision import Comparison, Rating, Supervision


@dataclass
class RewardItem:
    """A prompt with some of its answers: branches, and what is known of them (indices into `branches`)."""

    name: str
    prefix: list[int]
    branches: list[Branch] = field(default_factory=list)
    pairs: list[Comparison] = field(default_factory=list)
    ratings: list[Rating] = field(default_factory=list)

    @property
    def packed(self) -> Packed:
        """The packed row."""
        return Packed(self.prefix, self.branches)


@dataclass
class RewardExample:
    """A row ready to learn from: token ids of its answers by their index, and the supervision that fits."""

    row: Row
    prefix: list[int]
    branches: dict[int, Branch]
    pairs: list[Comparison]
    ratings: list[Rating]


@dataclass
class Dropped:
    """What was left out, by cause."""

    rows_without_supervision: int = 0
    prompts_too_long: int = 0
    answers_too_long: int = 0
    pairs_too_long: int = 0
    pairs_of_equal_texts: int = 0

    def to_dict(self) -> dict[str, int]:
        """The causes that occurred."""
        return {key: value for key, value in vars(self).items() if value}


def branch(renderer: Renderer, prompt: Messages, text: str) -> Branch:
    """An answer as the continuation of its prompt's prefix."""
    return Branch(renderer.suffix(prompt, None), renderer.completion(text))


def encode(
    rows: Sequence[Row], supervision: Supervision, renderer: Renderer, *, max_length: int, dropped: Dropped
) -> list[RewardExample]:
    """Examples of the rows that say anything, in order; what does not fit into `max_length` tokens is counted."""
    out = []
    for row in rows:
        pairs, equal = supervision.pairs(row)
        ratings = supervision.ratings(row)
        dropped.pairs_of_equal_texts += equal
        if not pairs and not ratings:
            dropped.rows_without_supervision += 1
            continue
        try:
            example = _encode_one(row, pairs, ratings, renderer, max_length, dropped)
        except InputError as error:
            raise InputError(f"row '{row.id}': {error.message}") from None
        if example is not None:
            out.append(example)
    return out


def _encode_one(
    row: Row, pairs: list[Comparison], ratings: list[Rating], renderer: Renderer, max_length: int, dropped: Dropped
) -> RewardExample | None:
    prefix, suffix = renderer.prefix(row.prompt), renderer.suffix(row.prompt, None)
    room = max_length - len(prefix) - len(suffix)
    if room < 1:
        dropped.prompts_too_long += 1
        return None
    used = sorted({k for pair in pairs for k in (pair.winner, pair.loser)} | {each.answer for each in ratings})
    ids = {k: renderer.completion(row.completions[k].text) for k in used}
    fits = {k: Branch(suffix, each) for k, each in ids.items() if len(each) <= room}
    kept = [pair for pair in pairs if pair.winner in fits and pair.loser in fits]
    dropped.answers_too_long += len(ids) - len(fits)
    dropped.pairs_too_long += len(pairs) - len(kept)
    ratings = [each for each in ratings if each.answer in fits]
    return RewardExample(row, prefix, fits, kept, ratings) if kept or ratings else None


def items_of(example: RewardExample, budget: int) -> list[RewardItem]:
    """The example as packed items of at most `budget` tokens each, every pair and every rating in one of them.

    Answers of many pairs may stand in several items. One pair, or one answer, always fits.
    """
    open_ratings: dict[int, list[Rating]] = {}
    for rating in example.ratings:
        open_ratings.setdefault(rating.answer, []).append(rating)
    units = [((pair.winner, pair.loser), pair) for pair in sorted(example.pairs, key=lambda p: (p.winner, p.loser))]
    compared = {k for members, _ in units for k in members}
    alone = [((k,), None) for k in open_ratings if k not in compared]
    items: list[RewardItem] = []
    places: dict[int, int] = {}
    for members, pair in [*units, *alone]:
        new = [k for k in dict.fromkeys(members) if k not in places]
        grown = [*places, *new]
        if not items or (new and places and _length(example, grown) > budget):
            items.append(RewardItem(example.row.id, example.prefix))
            places, new = {}, list(dict.fromkeys(members))
        item = items[-1]
        for k in new:
            places[k] = len(item.branches)
            item.branches.append(example.branches[k])
            for each in open_ratings.pop(k, []):
                item.ratings.append(Rating(places[k], each.objective, each.value))
        if pair is not None:
            item.pairs.append(Comparison(places[pair.winner], places[pair.loser], pair.objective, pair.margin))
    return items


def _length(example: RewardExample, answers: Sequence[int]) -> int:
    return len(example.prefix) + len(Tree([example.branches[k] for k in answers]).ids)
