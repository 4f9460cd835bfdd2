"""An engine's events, told on its thread, as batches that the loop of the API awaits.

What an answer can hold is bounded by its tokens, so the inbox is too; a client that reads slowly gets, in one chunk,
all that came meanwhile. The engine wakes the loop once a batch, not once a token.
"""

from __future__ import annotations

import asyncio
from collections import deque

from paretune.server.request import Event


class Inbox:
    """Where one request's events arrive, each with the number of the ask it belongs to."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: deque[tuple[int, Event]] = deque()
        self._some = asyncio.Event()
        self._woken = False

    def tell(self, ask: int, event: Event) -> None:
        """Take an event; called on the engine's thread, and never blocks."""
        self._events.append((ask, event))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._some.set)
            except RuntimeError:  # the loop is closed: nobody is left to read
                self._events.clear()

    async def batch(self) -> list[tuple[int, Event]]:
        """All events since the last batch, at least one, in order."""
        while True:
            await self._some.wait()
            self._some.clear()
            self._woken = False  # before the inbox is emptied: what comes from here on wakes again
            out = []
            while self._events:
                out.append(self._events.popleft())
            if out:
                return out
