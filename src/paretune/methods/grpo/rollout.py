"""What a step of `grpo` learns from: groups of sampled answers and the objectives' normalised scores of each.

Answers come from the engine that generates and serves (`paretune.policy.engine`), after the ids that `Policy.generate`
feeds under condition `none`, and end at the same tokens. A draw is keyed by (seed, epoch, row, number of the answer).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from paretune.data.rows import Completion
from paretune.methods.examples import Example
from paretune.methods.grpo.config import GrpoConfig
from paretune.policy import Renderer
from paretune.policy.engine import Decoded, Sampling, decode, prefill, row_seed
from paretune.profile import Objective
from paretune.rewards.measure import Scorer, answers_of
from paretune.training.loop import order

Scores = dict[str, float | None]
"""Normalised score by objective; None where an answer could not be scored."""


@dataclass(frozen=True)
class Turn:
    """One prompt's place in the course of a training."""

    epoch: int
    example: Example

    @property
    def ids(self) -> list[int]:
        """Token ids up to where the answer begins."""
        return [*self.example.prefix, *self.example.suffix(None)]


def course(examples: Sequence[Example], config: GrpoConfig) -> list[Turn]:
    """All prompts of a training in order, epoch after epoch, each epoch in its own order.

    Steps are of one size: the next epoch's first prompts fill the last one up.
    """
    steps = math.ceil(len(examples) * config.epochs / config.batch_size)
    steps = min(steps, config.max_steps or steps)
    turns: list[Turn] = []
    epoch = 0
    while len(turns) < steps * config.batch_size:
        turns += [Turn(epoch, examples[i]) for i in order(len(examples), config.seed, epoch)]
        epoch += 1
    return turns[: steps * config.batch_size]


@dataclass
class Rollouts:
    """Samples and scores the groups of a step. The trainer calls it (TRL's `rollout_func`).

    TRL is given each prompt as its place in `turns`, written as text, `config.num_generations` times in a row: of the
    text itself it would make ids of its own.
    """

    causal: Any
    renderer: Renderer
    turns: Sequence[Turn]
    config: GrpoConfig
    scorer: Scorer
    unscored: dict[str, int] = field(default_factory=dict)
    """Answers that could not be scored, by objective, in the last step."""

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        """What TRL wants to know of every answer: its prompt's ids, its own ids, and here its scores too."""
        size = self.config.num_generations
        turns = [self.turns[int(place)] for place in prompts[::size]]
        trainer.model.eval()  # no dropout: the policy itself answers
        try:
            answers = self.sample(turns)
        finally:
            trainer.model.train()
        scores = self.score(turns, answers)
        if self.config.aggregation == "sum_then_normalize":
            scores = with_group_means(scores, size)
        return {
            "prompt_ids": [turn.ids for turn in turns for _ in range(size)],
            "completion_ids": [answer.ids for answer in answers],
            "logprobs": None,  # those of another engine than the trained model; here they are the same
            "scores": scores,
        }

    @property
    def stop_ids(self) -> set[int]:
        """The ids that end an answer."""
        return self.renderer.stop_ids(self.causal.generation_config.eos_token_id)

    def sample(self, turns: Sequence[Turn]) -> list[Decoded]:
        """A group of answers to each prompt, one group after another; their ids end with the token that ended them."""
        stop, pad_id, size = self.stop_ids, self.renderer.tokenizer.pad_token_id, self.config.num_generations
        state = prefill(self.causal, [turn.ids for turn in turns], pad_id)
        state.select([i for i in range(len(turns)) for _ in range(size)])
        return decode(
            self.causal,
            state,
            [[]] * (len(turns) * size),
            sampling=Sampling(self.config.max_completion_length, self.config.temperature),
            stop_ids=set(),  # the token that ends an answer is one of those that are learnt
            pad_id=pad_id,
            seeds=[
                row_seed(self.config.seed, "grpo", turn.epoch, turn.example.row.id, number)
                for turn in turns
                for number in range(size)
            ],
            ends=lambda ids: ids[-1] in stop,
        )

    def text(self, answer: Decoded) -> str:
        """An answer as rewards see it: without the token that ended it."""
        ids = answer.ids[:-1] if answer.finished else answer.ids
        return str(self.renderer.tokenizer.decode(ids, skip_special_tokens=True))

    def score(self, turns: Sequence[Turn], answers: Sequence[Decoded]) -> list[Scores]:
        """Each answer's scores on the policy's scales; what could not be scored is None, and counted."""
        size = self.config.num_generations
        texts = [self.text(answer) for answer in answers]
        rows = [
            replace(turn.example.row, completions=tuple(map(Completion, texts[i * size : (i + 1) * size])))
            for i, turn in enumerate(turns)
        ]
        found = self.scorer(answers_of(rows, self._columns))
        self.unscored = {name: each.scores.count(None) for name, each in found.items() if None in each.scores}
        objectives: Sequence[Objective] = self.renderer.objectives
        return [
            {each.name: _normalised(each, found[each.name].scores[i]) for each in objectives} for i in range(len(texts))
        ]

    @cached_property
    def _columns(self) -> list[str]:
        """What any row says besides its prompt: a reward may ask for it where this step's rows say nothing."""
        return list(dict.fromkeys(["id", *(name for turn in self.turns for name in turn.example.row.extra)]))


def _normalised(objective: Objective, score: float | None) -> float | None:
    return None if score is None else objective.normalise(score)


def with_group_means(scores: Sequence[Scores], size: int) -> list[Scores]:
    """Scores in which a missing one is the mean of its group, so that it moves its answer neither up nor down.

    Where rewards are summed first, TRL lets a missing one count 0: less than any that was measured. Answers without any
    score keep none, and so does an objective that nobody in the group is scored for.
    """
    out: list[Scores] = []
    for start in range(0, len(scores), size):
        group = scores[start : start + size]
        means = {name: _mean([each[name] for each in group]) for name in group[0]}
        out += [_filled(each, means) for each in group]
    return out


def _filled(scores: Scores, means: Mapping[str, float | None]) -> Scores:
    if all(value is None for value in scores.values()):
        return scores
    return {name: means[name] if value is None else value for name, value in scores.items()}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
