"""Training examples: rows with their pair, encoded once.

An example keeps token ids of the prefix and of every scored completion, so an epoch only has to render profiles. Rows
that do not fit are dropped and counted (or refused, with `strict`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paretune.data import Pair, Row
from paretune.data.pairs import normalised_scores
from paretune.data.rows import Completion
from paretune.data.targets import mean_profile, target_profiles
from paretune.errors import InputError
from paretune.policy.packed import Branch
from paretune.policy.renderer import Renderer
from paretune.profile import Objective, Profile


@dataclass(frozen=True)
class Answer:
    """A completion of an example: token ids (with the end of the turn if it was finished) and its profile."""

    ids: list[int]
    profile: Profile


@dataclass
class Example:
    """A row ready to train on. `answers[0]` is the chosen completion, `answers[1]` the rejected one (or the same).

    `goods` are the profiles the sensing head should predict; missing objectives are absent.
    """

    row: Row
    prefix: list[int]
    answers: list[Answer]
    goods: list[Profile]
    renderer: Renderer
    span: int = 1
    """How many of the prefix's last tokens the head reads."""
    _suffixes: dict[str, list[int]] = field(default_factory=dict)

    @property
    def target(self) -> Profile:
        """Mean of `goods`: the one profile that sensing is measured against."""
        return mean_profile(self.goods)

    def suffix(self, profile: Mapping[str, float] | None) -> list[int]:
        """Suffix ids for a profile, encoded once per rendered text."""
        key = self.renderer.profile_text(profile)
        if key not in self._suffixes:
            self._suffixes[key] = self.renderer.suffix(self.row.prompt, profile)
        return self._suffixes[key]

    def branch(self, answer: int, profile: Mapping[str, float] | None) -> Branch:
        """An answer continued from a rendered profile."""
        return Branch(self.suffix(profile), self.answers[answer].ids)


@dataclass
class Dropped:
    """Rows and completions left out, by cause."""

    prompts_too_long: int = 0
    pairs_too_long: int = 0
    completions_too_long: int = 0

    def to_dict(self) -> dict[str, int]:
        """The causes that occurred."""
        return {key: value for key, value in vars(self).items() if value}


def encode(
    pairs: Sequence[Pair],
    renderer: Renderer,
    *,
    max_length: int,
    targets: str = "chosen",
    top_k: int = 3,
    readout: str = "last",
    strict: bool = False,
    dropped: Dropped,
) -> list[Example]:
    """Examples of pairs, in order; `targets` and `top_k` as in `paretune.data.targets`, `readout` as the head's.

    Raises `InputError` that names the row which the chat template cannot render (or which is too long, with `strict`).
    """
    out = []
    for pair in pairs:
        goods = target_profiles(pair, renderer.objectives, targets, top_k)
        try:
            example = _encode_one(pair, renderer, max_length, goods, strict, dropped)
        except InputError as error:
            raise InputError(f"row '{pair.row.id}': {error.message}") from error
        if example is not None:
            example.span = renderer.user_tokens(pair.row.prompt) if readout == "mean" else 1
            out.append(example)
    return out


def _encode_one(
    pair: Pair, renderer: Renderer, max_length: int, goods: list[Profile], strict: bool, dropped: Dropped
) -> Example | None:
    row = pair.row
    prefix = renderer.prefix(row.prompt)
    others = [each for each in row.completions if each is not pair.chosen and each is not pair.rejected]
    chosen = Answer(_ids(renderer, pair.chosen), pair.target)
    rejected = Answer(_ids(renderer, pair.rejected), pair.rejected_profile)
    example = Example(row, prefix, [chosen, rejected], goods, renderer)
    # every profile's text is at most this long to within a token or two per objective
    room = max_length - len(prefix) - max(len(example.suffix(example.target)), len(example.suffix(_ones(renderer))))
    if room < 1:
        if strict:
            raise InputError(f"the prompt of {len(prefix)} tokens does not fit into {max_length}")
        dropped.prompts_too_long += 1
        return None
    if max(len(chosen.ids), len(rejected.ids)) > room:
        if strict:
            raise InputError(f"the pair does not fit into {max_length} tokens")
        dropped.pairs_too_long += 1
        return None
    for each in others:
        profile, ids = normalised_scores(each, renderer.objectives), _ids(renderer, each)
        if not profile or len(ids) < 2:
            continue
        if len(ids) > room:
            dropped.completions_too_long += 1
            continue
        example.answers.append(Answer(ids, profile))
    return example


def _ones(renderer: Renderer) -> Profile:
    return {objective.name: 1.0 for objective in renderer.objectives}


def _ids(renderer: Renderer, completion: Completion) -> list[int]:
    """An answer that was cut off when it was sampled (`"finished": false`) does not teach the model to stop there."""
    return renderer.completion(completion.text, finished=completion.extra.get("finished", True) is not False)


def single_pairs(rows: Sequence[Row], objectives: Sequence[Objective], *, scored: bool = False) -> list[Pair]:
    """Rows without a pair as pairs whose rejected side is the chosen completion itself, for methods that need only one.

    Taken are rows with exactly one completion and, where `scored`, those in which some completion has a score of every
    objective: a method that teaches completions under their own scores learns from a row in which nothing wins.
    The chosen one is then that of the highest mean, the first where several are.
    """
    out = []
    for row in rows:
        candidates = [(each, normalised_scores(each, objectives)) for each in row.completions]
        if len(candidates) > 1:
            candidates = [(each, profile) for each, profile in candidates if scored and len(profile) == len(objectives)]
        if candidates:
            best, profile = max(candidates, key=lambda each: sum(each[1].values()))
            out.append(Pair(row, best, best, profile, profile))
    return out
