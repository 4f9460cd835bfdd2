"""Prompts computed in pieces between the steps of the running batch, from what the prefix cache knows of them.

The way is that of `Policy.generate`: the prefix once, the head reads it, and the suffix that carries the profile goes
on on the same cache. Prompts that fit into one piece together are computed together: a matrix product of more rows is
the better use of a processor. Several voices (`paretune.policy.mixture`) compute one after another; the first is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from transformers import DynamicCache

from paretune.errors import InputError
from paretune.policy import Policy
from paretune.policy.backbone import span_mean
from paretune.policy.engine import BUCKET, Prefilled, feed
from paretune.policy.mixture import Voice
from paretune.policy.several import Blend
from paretune.server.engine.job import Job
from paretune.server.engine.plan import Plan, suffix_ids
from paretune.server.engine.prefix import Pair, PrefixCache
from paretune.server.request import Begun


class Prompts:
    """The prompts of requests that the same adapters answer. Row i of `voices` is what the answers of `jobs[i]` go on
    from, when all is computed; a job that failed on the way has a row too.

    `chunk`: tokens that a piece may have. `upcoming`: tokens that the next one will have, `None` when all are computed.
    """

    def __init__(self, policy: Policy, cache: PrefixCache, jobs: Sequence[Job], chunk: int) -> None:
        self.policy, self.cache, self.jobs, self.chunk = policy, cache, list(jobs), chunk
        self.voices: list[Voice] = []
        self._pieces = self._computed()
        self.upcoming: int | None = next(self._pieces, None)

    def compute(self) -> None:
        """Compute the next piece; an error is the end of all of them."""
        self.upcoming = next(self._pieces, None)

    def _computed(self) -> Iterator[int]:
        """Piece by piece: gives the tokens of one, then computes it. Tells `Begun` when but the suffixes are left."""
        blends = self.jobs[0].plan.blends
        cached: list[list[int]] = []
        readouts: list[Tensor] = []
        for number, blend in enumerate(blends or (None,)):
            voice = self._voice(blend)
            self.voices.append(voice)
            cached.append(voice.state.lengths)
            tails: list[list[Tensor]] = [[] for _ in self.jobs]  # hidden states, as far back as the head reads
            while rows := self._next(voice.state):
                yield sum(map(len, rows))
                self._feed(voice, rows, tails)
            self._keep(blend, voice.state, tails)
            if number == 0:
                readouts = [_read_out(tail, job) for tail, job in zip(tails, self.jobs, strict=True)]
        known = [min(each) for each in zip(*cached, strict=True)]
        suffixes = [self._read(*each) for each in zip(self.jobs, readouts, known, strict=True)]
        width = self._width()
        for voice in self.voices:
            left = suffixes
            while any(left):
                rows, left = [ids[:width] for ids in left], [ids[width:] for ids in left]
                yield sum(map(len, rows))
                self._feed(voice, rows)

    def _voice(self, blend: Blend | None) -> Voice:
        """A model with what the prefix cache knows of each prompt."""
        found = []
        for plan in (job.plan for job in self.jobs):
            found.append(self.cache.find(blend, plan.prefix, _reusable(plan)))
        state = Prefilled(DynamicCache(), [length for length, _ in found], torch.empty(0), torch.empty(0))
        for number, pairs in enumerate(zip(*[layers for _, layers in found if layers], strict=True)):
            if pairs[0] is not None:
                every = iter(pairs)
                rows = [next(every) if length else None for length, _ in found]
                state.cache.update(*_right_aligned(rows, state.slots), number)
        parts = self.policy.parts
        if blend is None or parts is None:
            return Voice(state)
        return Voice(state, blend.weight, partial(parts.use, blend))

    def _width(self) -> int:
        """Tokens of each row that a piece may have."""
        return max(BUCKET, self.chunk // len(self.jobs))

    def _next(self, state: Prefilled) -> list[list[int]]:
        """The next tokens of each prefix; [] when all are there."""
        width = self._width()
        rows = [job.plan.prefix[at : at + width] for job, at in zip(self.jobs, state.lengths, strict=True)]
        return rows if any(rows) else []

    def _feed(self, voice: Voice, rows: list[list[int]], tails: list[list[Tensor]] | None = None) -> None:
        """Run a piece; keep its hidden states in `tails`."""
        voice.enter()
        causal, pad_id = self.policy.causal, self.policy.tokenizer.pad_token_id
        hidden_BWH = feed(causal, voice.state, rows, pad_id, self.policy.read_layer if tails is not None else None)
        for row, (job, ids) in enumerate(zip(self.jobs, rows, strict=True)):
            if tails is not None and ids:
                tails[row].append(hidden_BWH[row, : len(ids)])
                while sum(map(len, tails[row][1:])) >= job.plan.span:
                    tails[row].pop(0)

    def _keep(self, blend: Blend | None, state: Prefilled, tails: list[list[Tensor]]) -> None:
        """Let the prefix cache have the prefixes, but of those whose states are not finite: their jobs fail."""
        for row, (job, tail) in enumerate(zip(self.jobs, tails, strict=True)):
            if all(bool(torch.isfinite(each).all()) for each in tail):
                self.cache.keep(blend, job.plan.prefix, state.cache.layers, row, state.slots - state.lengths[row])
            else:
                job.fail(FloatingPointError("the model's hidden states are not finite; load it with dtype float32"))

    def _read(self, job: Job, readout_H: Tensor, cached: int) -> list[int]:
        """Sense, tell what the prompt came to, and give the suffix; [] for a job that is over, or fails now."""
        policy, plan = self.policy, job.plan
        if job.over:
            return []
        try:
            alone = given = None
            if plan.asked is not None and plan.ask.sense:
                alone, given = policy.read_both(readout_H[None], [plan.asked.pinned(0)])[0]
            profile = plan.profile(given)
            suffix = suffix_ids(policy, plan, profile)
            job.most = plan.length(len(suffix))
        except InputError as error:  # the answer does not fit after all
            job.fail(error)
            return []
        weights = policy.parts.answering(plan.weights) if policy.parts is not None and plan.weights else None
        job.begin(Begun(alone, profile or None, weights, len(plan.prefix) + len(suffix), cached))
        return suffix


def left_to_compute(cache: PrefixCache, plan: Plan) -> int:
    """Tokens of a prompt's prefix that the cache does not know of, in the first voice that answers."""
    blend = plan.blends[0] if plan.blends else None
    return len(plan.prefix) - cache.length(blend, plan.prefix, _reusable(plan))


def _reusable(plan: Plan) -> int:
    """Tokens of the prefix that may come from a cache: what the head reads must be computed, and so must the last
    token, from which the answer goes on."""
    return len(plan.prefix) - plan.span


def _right_aligned(pairs: Sequence[Pair], slots: int) -> tuple[Tensor, Tensor]:
    """Rows of keys and of values [heads, L, D] (`None`: empty) in tensors [B, heads, slots, D]."""
    like = next(pair[0] for pair in pairs if pair is not None)
    both = [like.new_zeros(len(pairs), like.shape[0], slots, like.shape[2]) for _ in range(2)]
    for row, pair in enumerate(pairs):
        for target, source in zip(both, pair or (), strict=False):
            target[row, :, slots - source.shape[1] :] = source
    return both[0], both[1]


def _read_out(tail: Sequence[Tensor], job: Job) -> Tensor:
    """[H]: what the head reads of the last hidden states."""
    hidden_1LH = torch.cat(list(tail))[None]
    return span_mean(hidden_1LH, [hidden_1LH.shape[1]], [job.plan.span])[0]
