"""The engine: requests join and leave a running batch between two steps of it (continuous batching).

One thread owns the model. Its round: end what was cancelled or has had its time, sense for those who asked for that
alone, compute up to `prefill_tokens` of the prompts that wait (in order of arrival; none overtakes), then one token of
every answer, group after group. A round is bounded in time whatever waits, so that running answers go on.

What goes wrong with one request ends that request alone. If the thread itself fails, all that is pending fails, and
`load` and `submit` raise `RuntimeError` from then on.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from paretune.data.prompts import as_chats
from paretune.data.rows import Messages
from paretune.errors import InputError
from paretune.policy import Policy, Sensed
from paretune.policy.backbone import check_attends
from paretune.policy.engine import choose
from paretune.policy.mixture import mixed_logits
from paretune.policy.several import Blend
from paretune.profile import Profile
from paretune.server.engine.errand import Errand, slices
from paretune.server.engine.group import Group
from paretune.server.engine.job import Answer, Job, logprobs
from paretune.server.engine.limits import EngineLimits
from paretune.server.engine.plan import check_sizes, make_plan
from paretune.server.engine.prefix import PrefixCache
from paretune.server.engine.prompt import Prompts, left_to_compute
from paretune.server.engine.text import Words
from paretune.server.request import Ask, Busy, Listener, Load, Ticket

log = logging.getLogger(__name__)

RETRY_S = (1, 120)  # bounds of what a refused client is told to wait
UNMEASURED_S = 5  # what it is told before two requests have ended
LAST_WORDS_S = 10.0  # within which cancelled requests must have ended


class BatchEngine:
    """A policy that answers many requests at once; see `paretune.server.request.Engine`. The policy is the engine's
    until it is closed."""

    def __init__(self, policy: Policy, limits: EngineLimits | None = None) -> None:
        check_attends(policy.causal)
        self.policy, self.limits = policy, limits or EngineLimits()
        self.words = Words(policy.tokenizer)
        self.prefixes = PrefixCache(self.limits.prefix_cache_mib)
        # encoding changes nothing in a tokenizer once the first call took back the truncation and padding that its file
        # may have set, so from then on any number of threads may encode
        policy.tokenizer("a", add_special_tokens=False)
        self._stop_ids = policy.renderer.stop_ids(policy.causal.generation_config.eos_token_id)
        self._wake = threading.Condition()  # guards the queues below
        self._waiting: deque[Job] = deque()
        self._errands: deque[Errand] = deque()
        self._stopping = self._closed = False
        self._dead: BaseException | None = None
        self._prompts: Prompts | None = None  # those that are being computed
        self._groups: dict[tuple[Blend, ...], Group] = {}  # replaced, never changed: other threads read it
        self._ends: deque[float] = deque(maxlen=32)  # when the last requests ended
        self._thread = threading.Thread(target=self._live, name="paretune-engine", daemon=True)
        self._thread.start()

    # --- from any thread ------------------------------------------------------------------------------------------

    def submit(self, ask: Ask, listener: Listener) -> Ticket:
        """Admit a request. Raises `Busy`, and `InputError` for what can be seen to be wrong without computing."""
        self._check_alive()
        self._admit(len(self._waiting))
        plan = make_plan(self.policy, ask, self.limits)
        job = Job(plan, listener, self.words, ask.deadline if ask.deadline is not None else self.limits.deadline)
        with self._wake:
            self._check_alive()
            self._admit(len(self._waiting))
            self._waiting.append(job)
            self._wake.notify_all()
        return job

    def sense(self, messages: list[Messages], pins: Profile) -> list[Sensed]:
        """What is sensed from prompts alone given pins, between two steps of the running batch. Blocks."""
        if not self.policy.has_head:
            raise InputError(f"a policy trained by '{self.policy.method}' has no sensing head, so it cannot sense")
        chats = as_chats(messages)
        check_sizes(self.policy, chats)
        lengths = [len(prefix) for prefix in self.policy.checked_prefixes(chats, 0)]
        errand = Errand(chats, dict(pins), slices(lengths, self.limits.prefill_tokens))
        with self._wake:
            self._check_alive()
            self._admit(len(self._errands))
            self._errands.append(errand)
            self._wake.notify_all()
        return errand.result.result()

    def load(self) -> Load:
        """What it does now; `running` counts answers. Raises `RuntimeError` if the engine has died."""
        self._check_alive()
        with self._wake:
            running = [answer for job in self._jobs() for answer in job.answers if not answer.over]
            waiting = [answer for job in self._waiting for answer in job.answers]
            here = len(running) - len([answer for answer in waiting if not answer.over])
            return Load(here, len(self._waiting), self.limits.max_batch, self.limits.max_queue)

    def drain(self, seconds: float) -> bool:
        """Admit nothing more and finish what runs; True if all ended in time, else the rest is cancelled."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
            if self._wake.wait_for(self._idle, seconds):
                return True
            for job in self._jobs():
                job.cancelled = True
            self._wake.notify_all()
            self._wake.wait_for(self._idle, LAST_WORDS_S)
        return False

    def close(self) -> None:
        """Stop the thread; what is not over is cancelled."""
        with self._wake:
            self._stopping = self._closed = True
            self._wake.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise RuntimeError("the engine has stopped after an error") from self._dead

    def _admit(self, waiting: int) -> None:
        if self._stopping:
            raise Busy(RETRY_S[1], "the server is stopping")
        if waiting >= self.limits.max_queue:
            raise Busy(self._retry_after())

    def _retry_after(self) -> int:
        """Seconds until one of those that wait has begun, by the pace at which the last requests ended."""
        ends = list(self._ends)
        pace = (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else UNMEASURED_S
        return min(max(math.ceil(pace), RETRY_S[0]), RETRY_S[1])

    def _idle(self) -> bool:
        return self._dead is not None or not (self._waiting or self._errands or self._prompts or self._groups)

    def _jobs(self) -> list[Job]:
        """All that was admitted and is not over."""
        running = [answer.job for group in self._groups.values() for answer in group.answers]
        computing = self._prompts.jobs if self._prompts is not None else []
        return [*dict.fromkeys([*running, *computing, *self._waiting])]

    # --- the engine's thread --------------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            with torch.no_grad():
                while self._await_work():
                    self._expire()
                    self._run_errand()
                    self._compute_prompts()
                    for group in self._groups.values():
                        self._step(group)
                    self._tidy()
        except BaseException as error:
            log.exception("the engine's thread failed")
            self._dead = error
        self._give_up()

    def _await_work(self) -> bool:
        """Wait until there is something to do; False when the engine is closed."""
        with self._wake:
            if self._idle():
                self._wake.notify_all()  # for `drain`
            self._wake.wait_for(lambda: self._closed or not self._idle())
            return not self._closed

    def _give_up(self) -> None:
        """The thread ends: nobody may go on waiting."""
        with self._wake:
            self._stopping = True
            jobs, errands = self._jobs(), list(self._errands)
            self._waiting.clear()
            self._errands.clear()
            self._groups = {}
            self._prompts = None
            self._wake.notify_all()
        for job in jobs:
            if self._dead is not None:
                job.fail(RuntimeError("the engine has stopped after an error"))
            job.cancelled = True
            job.expire()
        for errand in errands:
            errand.result.set_exception(Busy(RETRY_S[1], "the server is stopping"))
        self.prefixes.clear()

    def _expire(self) -> None:
        """End what was cancelled or has had its time."""
        with self._wake:
            jobs = self._jobs()
        for job in jobs:
            job.expire()
        with self._wake:
            for job in [job for job in self._waiting if job.over]:
                self._waiting.remove(job)

    def _tidy(self) -> None:
        """Let go of answers that are over, and of groups without any."""
        for group in self._groups.values():
            group.sweep()
        self._groups = {blends: group for blends, group in self._groups.items() if group.answers}

    def _run_errand(self) -> None:
        """Sense a few of the prompts of whoever asked first."""
        with self._wake:
            errand = self._errands[0] if self._errands else None
        if errand is None:
            return
        try:
            errand.run(self.policy)
        except Exception as error:
            errand.fail(error)
        if errand.result.done():
            with self._wake:
                self._errands.popleft()

    def _compute_prompts(self) -> None:
        """Compute prompts in whole pieces, together as many tokens as a round may have.

        What the last piece leaves of a round is not filled with a part of another: a processor takes nearly as long
        for a few tokens as for many.
        """
        left = self.limits.prefill_tokens
        while (prompts := self._take_prompts(left)) is not None:
            for job in prompts.jobs:
                job.expire()
            over = all(job.over for job in prompts.jobs)
            if prompts.upcoming is not None and not over:
                if prompts.upcoming > left and left < self.limits.prefill_tokens:
                    return
                left -= prompts.upcoming
                try:
                    prompts.compute()
                except Exception as error:
                    self._prompts_failed(prompts, error)
                continue
            try:
                self._begin(prompts)
            except Exception as error:
                self._failed(prompts.jobs, error)
            self._prompts = None

    def _take_prompts(self, left: int) -> Prompts | None:
        """The prompts that are being computed or, if none are, those of the first that wait and have room.

        These are as many as make a whole round's piece together, and begin when that piece fits into what is left of
        this one.
        """
        most = self.limits.prefill_tokens
        with self._wake:
            if self._prompts is None:
                jobs, tokens = self._companions(most)
                if jobs and min(tokens, most) <= left:
                    for _ in jobs:
                        self._waiting.popleft()
                    self._prompts = Prompts(self.policy, self.prefixes, jobs, most)
        return self._prompts

    def _companions(self, most: int) -> tuple[list[Job], int]:
        """The first that wait, as many in a row as have room and make one piece together, and that piece's tokens."""
        jobs: list[Job] = []
        tokens = longest = 0
        for job in self._waiting:
            together = [*jobs, job]
            longest = max(longest, left_to_compute(self.prefixes, job.plan))
            fits = not jobs or (
                longest * len(together) <= most
                and job.plan.blends == jobs[0].plan.blends
                and not job.alone
                and not jobs[0].alone
            )
            if not fits or not self._has_room(together):
                break
            jobs, tokens = together, longest * len(together)
        return jobs, tokens

    def _prompts_failed(self, prompts: Prompts, error: Exception) -> None:
        """Something went wrong with one of the prompts: when there are several, each is tried again by itself."""
        self._prompts = None
        if len(prompts.jobs) == 1:
            self._failed(prompts.jobs, error)
            return
        log.warning("prompts are computed again, one by one: %s", error)
        if _out_of_memory(error):
            self._free()
        with self._wake:
            for job in reversed(prompts.jobs):
                job.alone = True
                self._waiting.appendleft(job)

    def _has_room(self, jobs: Sequence[Job]) -> bool:
        groups, blends = self._groups, jobs[0].plan.blends
        answers = [len(group.answers) for group in groups.values()] + [len(job.answers) for job in jobs]
        if sum(answers) > self.limits.max_batch:
            return False
        own = groups.get(blends) or Group(self.policy, blends, self.limits.max_batch)
        others = sum(group.tokens_with() for group in groups.values() if group is not own)
        return others + own.tokens_with(jobs) <= self.limits.max_batch_tokens

    def _begin(self, prompts: Prompts) -> None:
        """Prompts are computed: choose the first token of each answer, and let those that go on join the batch."""
        of = {answer: row for row, job in enumerate(prompts.jobs) if not job.over for answer in job.answers}
        if not of:
            return
        logits_BV = mixed_logits(self.policy.causal, prompts.voices)
        answers = list(of)
        tokens = self._write(answers, logits_BV[torch.tensor(list(of.values()), device=logits_BV.device)])
        going = [at for at, answer in enumerate(answers) if not answer.over and not answer.job.failed]
        if going:
            blends = prompts.jobs[0].plan.blends
            group = self._groups.get(blends) or Group(self.policy, blends, self.limits.max_batch)
            joining = [answers[at] for at in going]
            group.join(joining, [tokens[at] for at in going], prompts.voices, [of[each] for each in joining])
            self._groups = self._groups | {blends: group}

    def _step(self, group: Group) -> None:
        """One token of every answer of a group."""
        group.sweep()
        if not group.answers:
            return
        try:
            logits_BV = group.step()
        except Exception as error:
            self._step_failed(group, error)
            return
        try:
            group.wrote(self._write(group.answers, logits_BV))
        except Exception as error:  # some answers have their token and some do not, so none can go on
            self._failed([answer.job for answer in group.answers], error)

    def _write(self, answers: Sequence[Answer], logits_BV: Tensor) -> list[int]:
        """Choose each answer's next token and tell it."""
        whole = torch.isfinite(logits_BV.amax(-1)).tolist()
        tokens = choose(logits_BV, [each.job.plan.sampling for each in answers], [each.draw for each in answers])
        told = logprobs(self.words, logits_BV, tokens, list(answers))
        for answer, token, logprob, finite in zip(answers, tokens, told, whole, strict=True):
            if not finite:
                self._failed([answer.job], FloatingPointError("the model's logits are not finite"))
            elif not answer.job.over:
                answer.take(token, logprob, token in self._stop_ids)
                if answer.job.over:
                    self._ends.append(time.monotonic())
        return tokens

    def _step_failed(self, group: Group, error: Exception) -> None:
        """A step could not be computed. Without memory, give some up and try again; else the group's requests fail."""
        if not _out_of_memory(error):
            self._failed([answer.job for answer in group.answers], error)
        elif self.prefixes.bytes:
            self._free()
        else:
            self._failed([group.answers[-1].job], error)
            self._free()

    def _failed(self, jobs: Sequence[Job], error: Exception) -> None:
        for job in dict.fromkeys(jobs):
            if not isinstance(error, InputError):
                log.error("a request failed: %s", error, exc_info=error)
            job.fail(error)
        if _out_of_memory(error):
            self._free()

    def _free(self) -> None:
        self.prefixes.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _out_of_memory(error: BaseException) -> bool:
    memory: tuple[Any, ...] = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, memory) or "not enough memory" in str(error).lower()
