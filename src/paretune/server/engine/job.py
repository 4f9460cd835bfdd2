"""A request while it is answered: its answers, and what is told of them."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import torch
from torch import Tensor

from paretune.policy.engine import row_seed
from paretune.server.engine.plan import Plan
from paretune.server.engine.text import Shown, Words
from paretune.server.request import Begun, Ended, Event, Failed, Listener, Logprob, Reason, Token

log = logging.getLogger(__name__)


class Answer:
    """One of a request's answers: its draws, its tokens so far, its text."""

    def __init__(self, job: Job, index: int, words: Words) -> None:
        self.job, self.index = job, index
        self.draw = torch.Generator().manual_seed(row_seed(job.plan.ask.seed, "answer", index))
        self.shown = Shown(words, job.plan.ask.stop)
        self.tokens = 0
        self.over = False

    def take(self, token: int, logprob: Logprob | None, ends: bool) -> None:
        """One token more, which may be one that `ends` an answer and is no part of it."""
        if ends:
            return self.end("stop")
        self.tokens += 1
        self.job.tell(Token(self.index, self.shown.add(token), logprob))
        if self.shown.stopped:
            self.end("stop")
        elif self.tokens >= self.job.most:
            self.end("length")

    def end(self, reason: Reason) -> None:
        """No token more."""
        if self.over:
            return
        text, self.over = self.shown.finish(), True
        self.job.tell(Ended(self.index, "stop" if self.shown.stopped else reason, self.tokens, text))


class Job:
    """An admitted request: the ticket of the one who asked, and the engine's own account of it.

    `most`: tokens an answer may have, known when the prompt is computed. `alone`: its prompt must be computed by
    itself. `cancelled` is set from any thread; all else belongs to the engine's.
    """

    def __init__(self, plan: Plan, listener: Listener, words: Words, seconds: float | None) -> None:
        self.plan, self.listener = plan, listener
        self.ends_at = time.monotonic() + (math.inf if seconds is None else seconds)
        self.cancelled = False
        self.failed = False
        self.begun = False
        self.alone = False
        self.most = plan.sampling.max_new_tokens
        self.reserved = plan.most_tokens
        self.answers = [Answer(self, index, words) for index in range(plan.ask.n)]

    def cancel(self) -> None:
        """See `paretune.server.request.Ticket`."""
        self.cancelled = True

    @property
    def over(self) -> bool:
        """Is there nothing more to do for it?"""
        return self.failed or all(answer.over for answer in self.answers)

    def tell(self, event: Event) -> None:
        """Tell the listener. One that raises has gone, and its request with it."""
        if self.failed:
            return
        try:
            self.listener(event)
        except Exception:
            log.exception("a listener failed; its request is cancelled")
            self.cancelled = True

    def begin(self, event: Begun) -> None:
        """Tell what the prompt came to, once."""
        if not self.begun:
            self.begun = True
            self.tell(event)

    def fail(self, error: Exception) -> None:
        """Tell that it cannot be answered, and nothing after."""
        if not self.over:
            self.tell(Failed(error))
        self.failed = True

    def expire(self) -> None:
        """End what is not over, if it was cancelled or has had its time."""
        reason: Reason | None = "cancelled" if self.cancelled else None
        if reason is None and time.monotonic() >= self.ends_at:
            reason = "deadline"
        if reason is not None:
            for answer in self.answers:
                answer.end(reason)


def logprobs(words: Words, logits_BV: Tensor, tokens: list[int], answers: list[Answer]) -> list[Logprob | None]:
    """Of each row's chosen token, with as many alternatives as its request wants; `None` where it wants none."""
    out: list[Logprob | None] = [None] * len(answers)
    wanted = {i: n for i, each in enumerate(answers) if (n := each.job.plan.ask.logprobs) is not None}
    if not wanted:
        return out
    rows = torch.tensor(list(wanted), device=logits_BV.device)
    log_NV = torch.log_softmax(logits_BV[rows], dim=-1)
    chosen_N = log_NV.gather(1, torch.tensor([[tokens[i]] for i in wanted], device=log_NV.device))[:, 0].tolist()
    best_NK = log_NV.topk(min(max(wanted.values()), log_NV.shape[1]), dim=-1)
    for i, own, values, ids in zip(wanted, chosen_N, best_NK.values.tolist(), best_NK.indices.tolist(), strict=True):
        top = [_logprob(words, token, value) for token, value in zip(ids, values, strict=True)][: wanted[i]]
        out[i] = _logprob(words, tokens[i], own, tuple(top))
    return out


def _logprob(words: Words, token: int, value: Any, top: tuple[Logprob, ...] = ()) -> Logprob:
    known = words.bytes_of(token)
    return Logprob(known.decode("utf-8", "replace"), known, float(value), top)
