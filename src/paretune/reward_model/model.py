"""A reward model at work: answers in, one value an objective out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paretune.data.rows import Messages
from paretune.policy.backbone import context_length
from paretune.policy.packed import Branch, Packed, collate
from paretune.policy.renderer import Renderer
from paretune.profile import Objective
from paretune.progress import NO_PROGRESS, Progress
from paretune.reward_model.examples import branch
from paretune.reward_model.module import RewardModule
from paretune.training.loop import micro_batches

ROW_TOKENS = 1024
"""A prompt's answers share packed rows of at most this many tokens: attention costs the square of a row."""
BATCH_TOKENS = 4096


@dataclass
class ScoreItem:
    """Answers of one prompt, and where their values go."""

    prefix: list[int]
    branches: list[Branch] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    name: str = ""

    @property
    def packed(self) -> Packed:
        """The packed row."""
        return Packed(self.prefix, self.branches)


@dataclass
class RewardModel:
    """Backbone with adapter, reward head, tokenizer and renderer, as `load_reward_model` gives them."""

    module: RewardModule
    tokenizer: Any
    renderer: Renderer
    objectives: list[Objective]
    base: str
    metadata: dict[str, Any]

    @property
    def names(self) -> list[str]:
        """The objectives' names, in the order of the outputs."""
        return [each.name for each in self.objectives]

    @property
    def units(self) -> list[str]:
        """What each output is: `rating`, `ordinal` or `logit` (see `paretune.reward_model.head`)."""
        return list(self.module.head.units)

    def score(
        self, prompts: Sequence[Messages], texts: Sequence[str], *, progress: Progress = NO_PROGRESS
    ) -> list[dict[str, float]]:
        """One value an objective for each answer, in the objective's unit.

        An answer's values do not depend on what it is scored with, but for rounding. Of what is longer than the model's
        context the beginning of the prompt is left out.
        """
        values_NM = self.module.head.values(self.raw(prompts, texts, progress=progress))
        return [dict(zip(self.names, row, strict=True)) for row in values_NM.tolist()]

    @torch.no_grad()
    def raw(self, prompts: Sequence[Messages], texts: Sequence[str], *, progress: Progress = NO_PROGRESS) -> Tensor:
        """The head's outputs [N, M], on the head's device."""
        self.module.eval()
        head = self.module.head
        out_NM = head.rating_mean.new_zeros(len(texts), head.objectives)
        items = self._items(prompts, texts)
        with progress("score", len(texts)) as task:
            for group in micro_batches(items, BATCH_TOKENS):
                batch = collate([item.packed for item in group], self.tokenizer.pad_token_id)
                places = [at for item in group for at in item.places]
                out_NM[places] = self.module(batch.to(self.module.causal.device)).raw
                task.advance(len(places))
        return out_NM

    def _items(self, prompts: Sequence[Messages], texts: Sequence[str]) -> list[ScoreItem]:
        """Packed rows over all answers; those of one prompt stand together until a row is full."""
        limit = context_length(self.module.causal)
        open_items: dict[tuple[int, ...], ScoreItem] = {}
        prefixes: dict[int, list[int]] = {}  # a prompt of many answers is usually one object
        out: list[ScoreItem] = []
        for at, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            prefix = prefixes.setdefault(id(prompt), []) or self.renderer.prefix(prompt)
            prefixes[id(prompt)] = prefix
            answer = branch(self.renderer, prompt, text)
            size = len(answer.suffix) + len(answer.completion)
            if len(prefix) + size > limit:
                whole = [*prefix, *answer.suffix, *answer.completion][-limit:]
                out.append(ScoreItem(whole[:1], [Branch([], whole[1:])], [at]))
                continue
            item = open_items.get(tuple(prefix))
            if item is None or sum(map(_size, item.branches)) + len(prefix) + size > ROW_TOKENS:
                item = open_items[tuple(prefix)] = ScoreItem(prefix)
                out.append(item)
            item.branches.append(answer)
            item.places.append(at)
        return out


def _size(each: Branch) -> int:
    return len(each.suffix) + len(each.completion)
