"""The answers that the same models write: one batch, a token of each a step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from paretune.policy import Policy
from paretune.policy.engine import advance
from paretune.policy.mixture import Voice, mixed_logits
from paretune.policy.several import Blend
from paretune.server.engine.arena import Arena
from paretune.server.engine.job import Answer, Job


class Group:
    """Answers under the same adapters (`blends`; () for a policy of one). Row i of each arena is that of answer i."""

    def __init__(self, policy: Policy, blends: tuple[Blend, ...], capacity: int) -> None:
        self.policy = policy
        self.arenas = [Arena(capacity) for _ in blends or (None,)]
        self.voices = [Voice(self.arenas[0])]
        if policy.parts is not None:
            self.voices = [
                Voice(arena, blend.weight, partial(policy.parts.use, blend))
                for arena, blend in zip(self.arenas, blends, strict=True)
            ]
        self.answers: list[Answer] = []
        self._last: list[int] = []  # each answer's newest token, which no cache holds yet

    def tokens_with(self, more: Sequence[Job] = ()) -> int:
        """Slots of keys and values that all may come to fill, with those of more requests."""
        jobs = [answer.job for answer in self.answers] + [job for job in more for _ in job.answers]
        return len(jobs) * max((each.reserved for each in jobs), default=0) * len(self.arenas)

    def join(
        self, answers: Sequence[Answer], tokens: Sequence[int], voices: Sequence[Voice], rows: Sequence[int]
    ) -> None:
        """Let answers in, each with its first token, which goes on from a row of `voices`. All join, or none."""
        before = [arena.lengths for arena in self.arenas]
        try:
            for arena, voice in zip(self.arenas, voices, strict=True):
                arena.join(voice.state, rows)
        except Exception:
            for arena, lengths in zip(self.arenas, before, strict=True):
                arena.rewind(lengths, arena.end)  # where a row ends may have moved
            raise
        self.answers = [*self.answers, *answers]
        self._last = [*self._last, *tokens]

    def step(self) -> Tensor:
        """[B, V]: logits of each answer's next token. If it raises, nothing has changed."""
        for arena in self.arenas:
            arena.ready()
        before = [(arena.lengths, arena.end) for arena in self.arenas]
        try:
            for arena, voice in zip(self.arenas, self.voices, strict=True):
                voice.enter()
                advance(self.policy.causal, arena, self._last)
            return mixed_logits(self.policy.causal, self.voices)
        except Exception:
            for arena, (lengths, end) in zip(self.arenas, before, strict=True):
                arena.rewind(lengths, end)
            raise

    def wrote(self, tokens: Sequence[int]) -> None:
        """The token that was chosen for each answer."""
        self._last = list(tokens)

    def sweep(self) -> None:
        """Let go of the answers that are over."""
        gone = [i for i, answer in enumerate(self.answers) if answer.over or answer.job.failed]
        if gone:
            orders = [arena.leave(gone) for arena in self.arenas]
            self.answers = [self.answers[row] for row in orders[0]]
            self._last = [self._last[row] for row in orders[0]]
