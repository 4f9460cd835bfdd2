"""The judge as a reward: cached verdicts first, each other answer asked about once, in the order of the answers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from paretune.data.rows import Messages
from paretune.errors import InputError
from paretune.files import cache_folder
from paretune.rewards.judge.cache import Cache
from paretune.rewards.judge.endpoint import Endpoint, Write, api_key, check_client, endpoint_at, run
from paretune.rewards.judge.errors import Failure, hide, name_of, scrub
from paretune.rewards.judge.prompt import NO_SCORE, PROMPT_VERSION, Verdict, digest, judge_text, read_reply
from paretune.rewards.judge.rubric import load_rubric
from paretune.rewards.judge.spec import JudgeSpec, Mode

READINGS = 2
"""How often a judge is asked whose reply cannot be used."""
MAX_BACKOFF = 60.0
"""Seconds between two tries at most."""
COUNTED = ("requests", "cached", "retries", "parse failures", "failed", "prompt tokens", "completion tokens")


@dataclass(frozen=True)
class Question:
    """One answer to be judged, once; `key` is the hash of all that the verdict depends on."""

    key: str
    prompt: Messages
    answer: str


class JudgeReward:
    """Scores on the rubric's scale, mean over `samples`; None where the judge gave no usable verdict."""

    can_score_new = True

    def __init__(self, spec: JudgeSpec, endpoint: Endpoint | None = None) -> None:
        check_client()
        self.spec = spec
        self.rubric = load_rubric(spec.rubric)
        self.endpoint = endpoint or endpoint_at(spec.url)
        self.cache = None if spec.cache == "off" else Cache(Path(spec.cache or cache_folder() / "judge").expanduser())
        self.judged = 0
        self._key = api_key()
        self._counts: Counter[str] = Counter()

    def __call__(
        self, prompts: list[Messages], completions: list[str], columns: dict[str, list[Any]]
    ) -> list[float | None]:
        """The judge's score of each completion."""
        return self.detailed(prompts, completions, columns)[0]

    def detailed(
        self, prompts: list[Messages], completions: list[str], columns: dict[str, list[Any]]
    ) -> tuple[list[float | None], list[dict[str, Any]]]:
        """Scores, and for each the judge's `reason` (with several samples its `scores` too), or why it `failed`.

        Raises `InputError` when the endpoint refuses us or stays down; what was judged until then is in the cache.
        """
        asked = [self._questions(prompt, text) for prompt, text in zip(prompts, completions, strict=True)]
        unique = {question.key: question for questions in asked for question in questions}
        found: dict[str, Verdict | str] = dict(self.cache.get(list(unique))) if self.cache else {}
        self._counts["cached"] += len(found)
        self.judged += len(found)
        missing = [question for key, question in unique.items() if key not in found]
        if missing:
            found |= run(self._ask_all(missing))
        results = [_join([found[question.key] for question in questions]) for questions in asked]
        self._counts["failed"] += sum(score is None for score, _ in results)
        return [score for score, _ in results], [details for _, details in results]

    def take_counts(self) -> dict[str, float]:
        """Counts since the last call, which starts them anew. `dollars` are there only where the spec says prices."""
        counts, self._counts = self._counts, Counter()
        taken = {name: float(counts[name]) for name in COUNTED}
        if self.spec.price is not None:
            prompt, completion = self.spec.price
            dollars = counts["prompt tokens"] * prompt + counts["completion tokens"] * completion
            taken["dollars"] = dollars / 1e6
        return taken

    def _questions(self, prompt: Messages, answer: str) -> list[Question]:
        spec, rubric = self.spec, self.rubric
        way = (spec.scale, spec.mode, spec.temperature, [rubric.description, rubric.low, rubric.high])
        turns = [[message["role"], message["content"]] for message in prompt]
        whole = (PROMPT_VERSION, spec.model, spec.url, way, turns, answer)
        return [Question(digest(whole, sample), prompt, answer) for sample in range(spec.samples)]

    async def _ask_all(self, questions: list[Question]) -> dict[str, Verdict | str]:
        """Verdict, or cause of failure, by key. As many are asked at a time as the endpoint may be sent."""
        found: dict[str, Verdict | str] = {}
        waiting = iter(questions)

        async def work() -> None:
            for question in waiting:
                found[question.key] = await self._judge(question)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.spec.concurrency, len(questions))):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            first: BaseException = errors.exceptions[0]
            if isinstance(first, InputError) and first.file is None:  # the endpoint's; the cache's own says enough
                raise InputError(f"{first}. {self._kept()}") from None
            raise first from None
        return found

    async def _judge(self, question: Question) -> Verdict | str:
        endpoint = self.endpoint
        try:
            verdict = await self._verdict(question)
        except Failure as failure:
            # a request that is refused for itself says nothing of the endpoint, once that has judged at all
            if failure.again or not endpoint.answered:
                endpoint.failures += 1
                if endpoint.failures >= self.spec.stop_after:
                    endpoint.failures = 0
                    raise InputError(
                        f"{name_of(self.spec)} judged none of {self.spec.stop_after} answers in a row, each tried up "
                        f"to {self.spec.retries + 1} times; the last failure: {failure}"
                    ) from None
            return str(failure)
        endpoint.failures, endpoint.answered = 0, True
        self.judged += 1
        if self.cache is not None:
            self.cache.put(question.key, verdict)
        return verdict

    def _kept(self) -> str:
        if not self.judged:
            return "Nothing had been judged"
        had = "One verdict had" if self.judged == 1 else f"{self.judged:,} verdicts had"
        if self.cache is None:
            return f"{had} been given, and cache=off keeps none"
        return f"{had} been given; the cache keeps what there is ({self.cache.path}): run it again to go on"

    async def _verdict(self, question: Question) -> Verdict:
        """Ask until the reply can be used, at most `READINGS` times. Raises `Failure`."""
        complaint, spent = "", (0, 0)
        for _ in range(READINGS):
            write = partial(
                judge_text, question.prompt, question.answer, self.rubric, self.spec.scale, complaint=complaint
            )
            body, mode = await self._reply(question, write)
            text, tokens = read_body(body)
            self._counts["prompt tokens"] += tokens[0]
            self._counts["completion tokens"] += tokens[1]
            spent = spent[0] + tokens[0], spent[1] + tokens[1]
            verdict = NO_SCORE if text is None else read_reply(text, mode, self.spec.scale)
            if isinstance(verdict, Verdict):
                reason = hide(verdict.reason, self._key)
                return replace(verdict, reason=reason, prompt_tokens=spent[0], completion_tokens=spent[1])
            self._counts["parse failures"] += 1
            complaint = verdict
        said = f": {scrub(text, self._key)}" if text else ""
        raise Failure(f"gave a reply that could not be used, {complaint}{said}", again=False)

    async def _reply(self, question: Question, write: Write) -> tuple[str, Mode]:
        """One reply, with retries. Raises the last `Failure`."""
        for attempt in range(self.spec.retries + 1):
            try:
                return await self.endpoint.ask(self.spec, self._key, write, self._counts)
            except Failure as failure:
                if not failure.again or attempt == self.spec.retries:
                    raise
                self._counts["retries"] += 1
                if failure.retry_after is None:  # else the endpoint itself holds every request back for so long
                    await self.endpoint.clock.sleep(self.wait_before(attempt, question.key))
        raise AssertionError("the last try returns or raises")

    def wait_before(self, attempt: int, key: str) -> float:
        """Seconds before the retry after try `attempt` (from 0): doubled each time, and between half and all of it.

        The part is drawn from the question and the try: requests that failed together do not come again together.
        """
        part = 0.5 + int(digest(key, attempt)[:8], 16) / 2**33
        return part * min(MAX_BACKOFF, self.spec.backoff * 2.0 ** min(attempt, 32))


def read_body(body: str) -> tuple[str | None, tuple[int, int]]:
    """The reply's text (None where there is none) and its prompt and completion tokens (0 where it does not say)."""
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None, (0, 0)
    usage = found.get("usage") if isinstance(found, dict) else None
    named = [usage.get(name) if isinstance(usage, dict) else 0 for name in ("prompt_tokens", "completion_tokens")]
    prompt, completion = (count if type(count) is int and count >= 0 else 0 for count in named)
    try:
        text = found["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        text = None
    return (text if isinstance(text, str) else None), (prompt, completion)


def _join(verdicts: list[Verdict | str]) -> tuple[float | None, dict[str, Any]]:
    """(mean score, details) of an answer's samples: over those that were had, None when none was."""
    given = [verdict for verdict in verdicts if isinstance(verdict, Verdict)]
    if not given:
        return None, {"failed": str(verdicts[0])}
    details: dict[str, Any] = {"reason": given[0].reason}
    if len(verdicts) > 1:
        details["scores"] = [verdict.score for verdict in given]
    return sum(verdict.score for verdict in given) / len(given), details
