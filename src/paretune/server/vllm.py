"""vLLM as the engine of `paretune serve` (written against vLLM 0.34; an extra of its own, for GPUs).

One model senses and answers, the policy's merged one. vLLM keeps the hidden states of the layer that the head reads
(its method `extract_hidden_states`) and writes those of each prompt to a file, so that every head works as it does
here: any layer, the mean over the last user message, pins, intervals. The pooling engine could run some heads only
(`paretune.policy.export`), and would compute each prompt a second time.

The way is that of `Policy.generate`: the prefix is computed once and read, and prefix caching lets prefix and suffix go
on from it. Requests are checked and tokenised, and answers become text, by the code of `paretune.server.engine`.
vLLM's own loop runs in a thread of ours; what is random is keyed by (seed, answer), as vLLM draws it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import aclosing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paretune.data.prompts import as_chats
from paretune.data.rows import Messages
from paretune.errors import InputError
from paretune.policy import Policy, Sensed, load_policy
from paretune.policy.backbone import decoder_layers, span_mean
from paretune.policy.engine import row_seed
from paretune.policy.export.merged import save_merged
from paretune.policy.requests import pins_of
from paretune.profile import Profile
from paretune.server.engine.job import Answer, Job
from paretune.server.engine.limits import EngineLimits
from paretune.server.engine.plan import check_sizes, make_plan, suffix_ids
from paretune.server.engine.text import Words
from paretune.server.request import Ask, Begun, Busy, Listener, Load, Logprob, Ticket
from paretune.server.vllm_parts import final_norm, load_states, start_vllm

log = logging.getLogger(__name__)

RETRY_S = (1, 120)  # bounds of what a refused client is told to wait
SWEEP_S = 60.0  # after which the file of an aborted request is surely written, and removed
LAST_WORDS_S = 10.0  # within which cancelled requests must have ended
MEMORY = Path("/dev/shm")


class VLLMEngine:
    """A policy answered by vLLM; see `paretune.server.request.Engine`.

    `policy` keeps the shapes of its model and not the weights. `start` is called in the engine's thread with (model
    folder, folder for hidden states, decoder layer to keep or `None`), and gives vLLM's engine.
    """

    def __init__(
        self, policy: Policy, limits: EngineLimits, start: Callable[[Path, Path, int | None], Any] | None = None
    ) -> None:
        """Takes the policy over: it is merged and handed to vLLM. Raises `InputError` for several adapters."""
        if policy.parts is not None:
            raise InputError(
                f"a policy trained by '{policy.method}' has {len(policy.parts)} adapters, which vLLM cannot blend; use "
                "--engine batch, or export it under one set of weights"
            )
        self.policy = policy.fuse()
        # vLLM keeps account of its own memory
        self.limits = replace(limits, max_batch_tokens=1 << 40)
        self.words = Words(policy.tokenizer)
        self._stops = policy.renderer.stop_ids(policy.causal.generation_config.eos_token_id)
        self._folder = tempfile.TemporaryDirectory(prefix="paretune-vllm-")
        self._states = tempfile.TemporaryDirectory(prefix="paretune-states-", dir=MEMORY if MEMORY.is_dir() else None)
        layers = len(decoder_layers(policy.causal))
        self._layer = (policy.read_layer or layers) if policy.head is not None else None
        self._norm = final_norm(policy) if self._layer == layers else None
        save_merged(policy, Path(self._folder.name))
        dtype = str(policy.causal.dtype).removeprefix("torch.")
        policy.causal = policy.causal.to("meta")  # its shapes are asked for, its weights are vLLM's
        # from here on encoding changes nothing in it, so any number of threads may encode
        policy.tokenizer("a", add_special_tokens=False)
        self._lock = threading.Lock()  # guards what follows
        self._jobs: dict[Job, asyncio.Task[None] | None] = {}
        self._errands: set[Future[list[Tensor]]] = set()  # sensing for someone who wants no answer
        self._stopping = False
        self._dead: BaseException | None = None
        self._pace = 1.0  # seconds that a request took of late
        self._ids = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="paretune-vllm", daemon=True)
        self._thread.start()
        try:
            self._llm = self._call(self._started(start or start_vllm(self.limits, dtype)))
        except BaseException:
            self._clean()
            raise

    @classmethod
    def of(
        cls,
        folder: Path | str,
        *,
        base: str | None = None,
        dtype: str | None = None,
        queue: int = 64,
        max_batch: int = 256,
    ) -> VLLMEngine:
        """The engine of a policy folder. Raises `InputError` where vLLM is not installed, and as `load_policy` does."""
        if find_spec("vllm") is None:
            raise InputError("the engine vllm needs the package vllm; run: pip install 'paretune[vllm]'")
        policy = load_policy(folder, base=base, dtype=dtype, device="cpu")
        return cls(policy, EngineLimits(max_batch=max_batch, max_queue=queue))

    # --- from any thread ------------------------------------------------------------------------------------------

    def submit(self, ask: Ask, listener: Listener) -> Ticket:
        """Admit a request. Raises `Busy`, and `InputError` for what can be seen to be wrong without computing."""
        with self._lock:
            self._admit()
        plan = make_plan(self.policy, ask, self.limits)
        job = Job(plan, listener, self.words, ask.deadline if ask.deadline is not None else self.limits.deadline)
        with self._lock:
            self._admit()
            self._jobs[job] = None
        self._loop.call_soon_threadsafe(self._begin, job)
        return _Admitted(self, job)

    def sense(self, messages: list[Messages], pins: Profile) -> list[Sensed]:
        """What is sensed from prompts alone given pins. Blocks; raises `Busy` if the engine is closed meanwhile."""
        policy = self.policy
        if not policy.has_head:
            raise InputError(f"a policy trained by '{policy.method}' has no sensing head, so it cannot sense")
        chats = as_chats(messages)
        check_sizes(policy, chats)
        pinned = pins_of(policy, pins, 1)(0)
        rows = list(zip(policy.checked_prefixes(chats, 1), map(policy.read_span, chats), strict=True))

        async def read() -> list[Tensor]:
            return [state for state, _ in await asyncio.gather(*(self._read_out(*row) for row in rows))]

        with self._lock:  # so that `close` either sees the errand or keeps it out
            self._admit()
            errand = asyncio.run_coroutine_threadsafe(read(), self._loop)
            self._errands.add(errand)
        errand.add_done_callback(self._sensed)
        try:
            states = errand.result()
        except CancelledError:
            raise Busy(RETRY_S[1], "the server is stopping") from None
        found = [policy.read_both(state, [pinned])[0][1] for state in states]
        return [each for each in found if each is not None]

    def load(self) -> Load:
        """What it does now; `running` counts answers. Raises `RuntimeError` if vLLM has died."""
        with self._lock:
            self._check_alive()
            running, waiting = self._split()
        return Load(running, waiting, self.limits.max_batch, self.limits.max_queue)

    def drain(self, seconds: float) -> bool:
        """Admit nothing more and finish what runs; True if all ended in time, else the rest is cancelled."""
        with self._lock:
            self._stopping = True
        if self._idle(seconds):
            return True
        for job in list(self._jobs):
            self.cancel(job)
        for errand in list(self._errands):
            errand.cancel()
        self._idle(LAST_WORDS_S)
        return False

    def close(self) -> None:
        """Stop vLLM and the thread; what is not over is cancelled."""
        self.drain(0)
        self._llm.shutdown()
        self._clean()

    def cancel(self, job: Job) -> None:
        """End a request: what vLLM computes of it is aborted."""
        job.cancel()
        self._loop.call_soon_threadsafe(self._stop, job)

    def _admit(self) -> None:
        self._check_alive()
        if self._stopping:
            raise Busy(RETRY_S[1], "the server is stopping")
        if self._split()[1] >= self.limits.max_queue:
            raise Busy(min(max(math.ceil(self._pace), RETRY_S[0]), RETRY_S[1]))

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise RuntimeError("vLLM has stopped after an error") from self._dead

    def _split(self) -> tuple[int, int]:
        """Answers that vLLM has places for, and requests beyond; it serves in order of arrival."""
        running = waiting = 0
        for job in self._jobs:
            fits = not waiting and running + len(job.answers) <= self.limits.max_batch
            running, waiting = (running + len(job.answers), waiting) if fits else (running, waiting + 1)
        return running, waiting

    def _idle(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (self._jobs or self._errands) and time.monotonic() < until:
            time.sleep(0.01)
        return not (self._jobs or self._errands)

    def _sensed(self, errand: Future[list[Tensor]]) -> None:
        with self._lock:
            self._errands.discard(errand)

    def _call(self, work: Any) -> Any:
        """Await something on the engine's loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _clean(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._folder.cleanup()
        self._states.cleanup()

    # --- the engine's thread --------------------------------------------------------------------------------------

    async def _started(self, start: Callable[[Path, Path, int | None], Any]) -> Any:
        return start(Path(self._folder.name), Path(self._states.name), self._layer)

    def _begin(self, job: Job) -> None:
        task = self._loop.create_task(self._answer(job))
        self._jobs[job] = task
        task.add_done_callback(lambda done: self._ended(job, done))
        if job.cancelled:
            task.cancel()

    def _stop(self, job: Job) -> None:
        if (task := self._jobs.get(job)) is not None:
            task.cancel()

    def _ended(self, job: Job, task: asyncio.Task[None]) -> None:
        """However a request ended, nobody may go on waiting for it."""
        error = None if task.cancelled() else task.exception()
        while isinstance(error, BaseExceptionGroup):  # of a request's answers
            error = error.exceptions[0]
        if task.cancelled() or isinstance(error, TimeoutError):
            job.expire()
        elif isinstance(error, Exception):
            if not isinstance(error, InputError):  # which its client is told
                log.error("a request failed: %s", error, exc_info=error)
            if type(error).__name__ == "EngineDeadError":
                self._dead = error
            job.fail(error)
        if not job.over:
            job.fail(RuntimeError("vLLM ended the request without an answer"))
        with self._lock:
            del self._jobs[job]

    async def _answer(self, job: Job) -> None:
        """Sense, tell what the prompt came to, and write all answers."""
        began, plan = time.monotonic(), job.plan
        async with asyncio.timeout_at(job.ends_at if job.ends_at < math.inf else None):
            alone = given = cached = None
            if plan.asked is not None and plan.ask.sense and self.policy.has_head:
                readout_1H, cached = await self._read_out(plan.prefix, plan.span)
                alone, given = self.policy.read_both(readout_1H, [plan.asked.pinned(0)])[0]
            profile = plan.profile(given)
            ids = plan.prefix + suffix_ids(self.policy, plan, profile)
            job.most = plan.length(len(ids) - len(plan.prefix))

            def begin(known: int) -> None:
                """What was in the cache is known from sensing, else from the first answer."""
                job.begin(Begun(alone, profile or None, None, len(ids), known))

            if cached is not None:
                begin(cached)
            async with asyncio.TaskGroup() as group:
                for answer in job.answers:
                    group.create_task(self._write(answer, ids, begin))
        self._pace += (time.monotonic() - began - self._pace) / 8

    async def _write(self, answer: Answer, ids: list[int], begin: Callable[[int], None]) -> None:
        """One answer, token by token. vLLM ends it at the tokens that end a turn; stop texts are ours."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        job, ask = answer.job, answer.job.plan.ask
        params = SamplingParams(
            max_tokens=job.most,
            temperature=ask.temperature,
            top_p=ask.top_p,
            seed=row_seed(ask.seed, "answer", answer.index),
            stop_token_ids=sorted(self._stops),
            logprobs=ask.logprobs,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        name, reason = self._name(), None
        try:
            async with aclosing(self._llm.generate({"prompt_token_ids": ids}, params, name)) as outputs:
                async for output in outputs:
                    begin(output.num_cached_tokens or 0)
                    piece = output.outputs[0]
                    reason = piece.finish_reason or reason
                    for at, token in enumerate(piece.token_ids):
                        told = self._logprob(ask, token, piece.logprobs[at]) if ask.logprobs is not None else None
                        answer.take(token, told, token in self._stops)
                        if answer.over:
                            return  # which closes the stream, and that aborts what vLLM would still write
        finally:
            if self._loop.is_closed():
                self._forget(name)
            else:
                self._loop.call_later(SWEEP_S, self._forget, name)
        if reason == "abort":
            raise RuntimeError("vLLM aborted the request")
        answer.end("length" if reason == "length" else "stop")

    async def _read_out(self, prefix: list[int], span: int) -> tuple[Tensor, int]:
        """What the head reads of a prefix [1, H], and how many of its tokens were in the cache."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            max_tokens=1, temperature=0.0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        name = self._name()
        try:
            async with aclosing(self._llm.generate({"prompt_token_ids": prefix}, params, name)) as outputs:
                output = [each async for each in outputs][-1]
            if not output.kv_transfer_params:
                raise RuntimeError("vLLM gave no hidden states for a prompt")
            path = output.kv_transfer_params["hidden_states_path"]
            hidden_LH = await asyncio.to_thread(load_states, path, len(prefix))
            hidden_LH = hidden_LH[-span:]
            if self._norm is not None:
                with torch.no_grad():
                    hidden_LH = self._norm(hidden_LH)
            return span_mean(hidden_LH[None], [span], [span]), int(output.num_cached_tokens or 0)
        finally:
            if self._loop.is_closed():
                self._forget(name)
            else:
                self._loop.call_later(SWEEP_S, self._forget, name)

    def _name(self) -> str:
        """A name for one of vLLM's requests; none is the beginning of another."""
        return f"paretune-{next(self._ids)}-"

    def _forget(self, name: str) -> None:
        """Remove the file of hidden states that vLLM writes for every request, whatever became of it."""
        for file in Path(self._states.name).glob(f"{name}*"):
            file.unlink(missing_ok=True)

    def _logprob(self, ask: Ask, token: int, known: Any) -> Logprob:
        """vLLM's log-probabilities of one place, the likeliest first; it adds the chosen token where it is not one."""
        best = sorted(known.items(), key=lambda each: each[1].rank or 0)[: ask.logprobs]
        top = tuple(self._one(each, found.logprob) for each, found in best)
        return replace(self._one(token, known[token].logprob), top=top)

    def _one(self, token: int, logprob: float) -> Logprob:
        known = self.words.bytes_of(token)
        return Logprob(known.decode("utf-8", "replace"), known, float(logprob))


class _Admitted:
    """A ticket of the engine's."""

    def __init__(self, engine: VLLMEngine, job: Job) -> None:
        self._engine, self._job = engine, job

    def cancel(self) -> None:
        """See `paretune.server.request.Ticket`."""
        self._engine.cancel(self._job)
