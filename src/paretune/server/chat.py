"""Answers of `/v1/chat/completions`, whole and in chunks, exactly as OpenAI writes them, plus `paretune`."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from paretune.data.rows import Messages
from paretune.policy.requests import Sensed
from paretune.server.answering import Piece, Run
from paretune.server.request import Begun, Logprob, Reason
from paretune.server.served import FINGERPRINT

log = logging.getLogger("paretune.server")

LEAST = -9999.0
"""OpenAI's log-probability of what is impossible: JSON has no infinity."""
Score = Callable[[Messages, str], Mapping[str, Any]]
"""(conversation, answer) -> what the answer obtained, an entry an objective."""


def finish(reason: Reason | None) -> str | None:
    """OpenAI's word for why an answer ended; one that ran out of time was cut, as one that ran out of tokens."""
    return None if reason is None else "stop" if reason == "stop" else "length"


def guidance(begun: Begun) -> dict[str, Any]:
    """The field `paretune`: what was sensed from the prompt alone, its 80% intervals, and what guides the answer."""
    sensed: Sensed | None = begun.sensed
    return {
        "sensed": dict(sensed.profile) if sensed is not None else None,
        "interval": (
            {name: list(ends) for name, ends in sensed.interval.items()}
            if sensed is not None and sensed.interval is not None
            else None
        ),
        "used": dict(begun.used) if begun.used is not None else None,
        "weights": dict(begun.weights) if begun.weights is not None else None,
    }


def logprob(token: Logprob) -> dict[str, Any]:
    """A token's entry, with the alternatives that were asked for."""
    return _entry(token) | {"top_logprobs": [_entry(each) for each in token.top]}


def _entry(token: Logprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": max(token.logprob, LEAST), "bytes": list(token.bytes)}


class ChatForm:
    """How the answers to one conversation are written (`answering.Form`)."""

    def __init__(
        self,
        model: str,
        messages: Messages,
        *,
        logprobs: bool,
        include_usage: bool,
        score: Score | None,
        pool: Executor,
    ) -> None:
        """Answers are scored by `score` in a thread of `pool`."""
        self._messages, self._logprobs, self._usage = messages, logprobs, include_usage
        self._score, self._pool = score, pool
        self._head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
        self._obtained: dict[int, Mapping[str, Any] | None] = {}

    async def settle(self, answer: Piece) -> None:
        """Score an answer that ended."""
        if self._score is None:
            return
        loop = asyncio.get_running_loop()
        try:
            scored = await loop.run_in_executor(self._pool, self._score, self._messages, answer.text)
        except Exception as error:  # an answer is worth more than its score
            log.error("an answer could not be scored", exc_info=error)
            scored = None
        self._obtained[answer.index] = scored

    def opening(self, run: Run) -> list[dict[str, Any]]:
        """A chunk an answer that says its role; the first one tells what guides them all."""
        chunks = []
        for answer in run.answers:
            delta = {"role": "assistant", "content": "", "refusal": None}
            chunks.append(self._chunk([self._choice(answer.index, delta, None, None)]))
        chunks[0]["paretune"] = guidance(run.begun[0])
        return chunks

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """What is new of one answer; with its end, what it obtained."""
        delta = {"content": piece.text} if piece.text or piece.logprobs else {}
        chunk = self._chunk([self._choice(piece.index, delta, piece.logprobs, piece.reason)])
        if piece.reason is not None and piece.index in self._obtained:
            chunk["paretune"] = {"obtained": self._obtained[piece.index]}
        return chunk

    def closing(self, run: Run) -> list[dict[str, Any]]:
        """The usage, where it was asked for."""
        return [self._chunk([], run.usage())] if self._usage else []

    def whole(self, run: Run) -> dict[str, Any]:
        """All answers, their usage and what guided them."""
        scored = [self._obtained[index] for index in sorted(self._obtained)]
        obtained = {"obtained": scored} if scored else {}
        return self._head | {
            "object": "chat.completion",
            "system_fingerprint": FINGERPRINT,
            "choices": [
                {
                    "index": answer.index,
                    "message": {"role": "assistant", "content": answer.text, "refusal": None},
                    "logprobs": self._listed(answer.logprobs) if self._logprobs else None,
                    "finish_reason": finish(answer.reason),
                }
                for answer in run.answers
            ],
            "usage": run.usage(),
            "paretune": guidance(run.begun[0]) | obtained,
        }

    def _listed(self, logprobs: list[Logprob]) -> dict[str, Any]:
        return {"content": [logprob(each) for each in logprobs], "refusal": None}

    def _choice(
        self, index: int, delta: dict[str, Any], logprobs: list[Logprob] | None, reason: Reason | None
    ) -> dict[str, Any]:
        listed = self._listed(logprobs) if self._logprobs and logprobs else None
        return {"index": index, "delta": delta, "logprobs": listed, "finish_reason": finish(reason)}

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> dict[str, Any]:
        chunk = self._head | {"object": "chat.completion.chunk", "system_fingerprint": FINGERPRINT, "choices": choices}
        return chunk | {"usage": usage} if self._usage else chunk
