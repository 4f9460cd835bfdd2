"""Answers of `/v1/completions`, whole and in chunks, exactly as OpenAI writes them."""

from __future__ import annotations

import secrets
import time
from typing import Any

from paretune.server.answering import Piece, Run
from paretune.server.chat import LEAST, finish
from paretune.server.request import Logprob
from paretune.server.served import FINGERPRINT


class CompletionForm:
    """How the continuations of texts are written (`answering.Form`)."""

    def __init__(self, model: str, *, logprobs: bool, include_usage: bool) -> None:
        self._logprobs, self._usage = logprobs, include_usage
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }
        self._offsets: dict[int, int] = {}

    async def settle(self, answer: Piece) -> None:
        """Nothing: a continued text answers nobody, so it is not scored."""

    def opening(self, run: Run) -> list[dict[str, Any]]:
        """Nothing: a completion has no role."""
        return []

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """What is new of one answer."""
        start = self._offsets.get(piece.index, 0)
        self._offsets[piece.index] = start + sum(len(each.token) for each in piece.logprobs)
        chunk = self._head | {"choices": [self._choice(piece, start)]}
        return chunk | {"usage": None} if self._usage else chunk

    def closing(self, run: Run) -> list[dict[str, Any]]:
        """The usage, where it was asked for."""
        return [self._head | {"choices": [], "usage": run.usage()}] if self._usage else []

    def whole(self, run: Run) -> dict[str, Any]:
        """All answers and their usage."""
        return self._head | {"choices": [self._choice(answer, 0) for answer in run.answers], "usage": run.usage()}

    def _choice(self, piece: Piece, start: int) -> dict[str, Any]:
        return {
            "index": piece.index,
            "text": piece.text,
            "logprobs": _columns(piece.logprobs, start) if self._logprobs else None,
            "finish_reason": finish(piece.reason),
        }


def _columns(logprobs: list[Logprob], start: int) -> dict[str, Any]:
    """Log-probabilities in the columns of this older API; `start` is how long the tokens before were."""
    offsets, at = [], start
    for each in logprobs:
        offsets.append(at)
        at += len(each.token)
    return {
        "tokens": [each.token for each in logprobs],
        "token_logprobs": [max(each.logprob, LEAST) for each in logprobs],
        "top_logprobs": [{top.token: max(top.logprob, LEAST) for top in each.top} for each in logprobs],
        "text_offset": offsets,
    }
