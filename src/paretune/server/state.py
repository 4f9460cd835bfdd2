"""What the application holds for all its requests: the engine, the rules, the counters, the threads that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from paretune.data.rows import Messages
from paretune.policy.requests import Sensed
from paretune.profile import Profile
from paretune.server.asking import Rules
from paretune.server.chat import Score
from paretune.server.metrics import Metrics
from paretune.server.request import Ask, Busy, Engine

LONG = 1 << 16
"""Characters of prompts that take a good part of a second to tokenise; such requests are admitted one by one."""
SENSES_WAITING = 64
"""Requests to `/v1/sense` under way; more are told to come back."""


@dataclass
class State:
    """One server's parts. `draining`: it stops, and takes nothing more."""

    engine: Engine
    rules: Rules
    metrics: Metrics
    score: Score | None
    draining: bool = False
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4, "paretune-submit"))
    _senses: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4, "paretune-sense"))
    _long: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "paretune-submit-long"))
    _sensing: int = 0

    def admitting(self, asks: Sequence[Ask]) -> ThreadPoolExecutor:
        """The threads that admit a request; long prompts have one of their own, so that short ones never wait."""
        texts = [text for ask in asks for text in (ask.text or "", *(each["content"] for each in ask.messages))]
        return self.pool if sum(map(len, texts)) < LONG else self._long

    async def sense(self, chats: list[Messages], pins: Profile) -> list[Sensed]:
        """What the engine senses. Raises `Busy` where too many wait for it, and what `Engine.sense` does."""
        if self.draining:
            raise Busy(5, "the server is stopping")
        if self._sensing >= SENSES_WAITING:
            raise Busy(1)
        self._sensing += 1
        work = asyncio.get_running_loop().run_in_executor(self._senses, self.engine.sense, chats, pins)
        work.add_done_callback(lambda _done: self._sensed())
        return await work

    def _sensed(self) -> None:
        self._sensing -= 1

    def close(self) -> None:
        """Let the threads go."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        self._long.shutdown(wait=False, cancel_futures=True)
        self._senses.shutdown(wait=False, cancel_futures=True)
