"""Sensing for someone who wants no answer, a few prompts at a time between the steps of the running batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from paretune.data.rows import Messages
from paretune.policy import Policy, Sensed
from paretune.profile import Profile


class Errand:
    """Prompts that someone wants sensed, and nothing more."""

    def __init__(self, chats: list[Messages], pins: Profile, slices: list[slice]) -> None:
        self.chats, self.pins, self.slices = chats, pins, deque(slices)
        self.found: list[Sensed] = []
        self.result: Future[list[Sensed]] = Future()

    def run(self, policy: Policy) -> None:
        """Sense the next few."""
        if self.slices:
            part = self.chats[self.slices.popleft()]
            self.found += policy.predict(part, self.pins, batch_size=len(part))
        if not self.slices:
            self.result.set_result(self.found)

    def fail(self, error: Exception) -> None:
        """There is no result."""
        self.result.set_exception(error)


def slices(lengths: Sequence[int], tokens: int) -> list[slice]:
    """Parts of a list whose lengths sum to `tokens` at most, or of one item."""
    out: list[slice] = []
    start = total = 0
    for at, length in enumerate(lengths):
        if at > start and total + length > tokens:
            out.append(slice(start, at))
            start, total = at, 0
        total += length
    return [*out, slice(start, len(lengths))] if lengths else []
