"""An engine without a model, for the API's own edges: its answers, pace and failures are scripted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from paretune.data.rows import Messages
from paretune.errors import InputError
from paretune.policy.requests import Sensed
from paretune.profile import Profile
from paretune.server.request import Ask, Begun, Busy, Ended, Failed, Listener, Load, Logprob, Reason, Token

SENSED = Sensed({"brevity": 0.75, "cheer": 0.5}, {"brevity": (0.6, 0.9), "cheer": (0.25, 0.75)})


@dataclass
class FakeTicket:
    """An admitted request; `cancelled` is what the API asked for."""

    ask: Ask
    cancelled: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        self.cancelled.set()


class FakeEngine:
    """Tells `words` one a token to every request, `pace` seconds apart, in a thread for each.

    busy: the queue is full. refuses: what `submit` raises. fails: what happens after `fails_after` tokens. waits: held
    back before `Begun` until it is set. reason: how answers end.
    """

    def __init__(self, words: tuple[str, ...] = ("Tea", " is", " a", " drink."), pace: float = 0.0) -> None:
        self.words, self.pace = words, pace
        self.busy = self.dead = False
        self.retry_after = 7
        self.queue = 64
        self.refuses: Exception | None = None
        self.fails: Exception | None = None
        self.fails_after = 0
        self.waits: threading.Event | None = None
        self.reason: Reason = "stop"
        self.before_begun = False
        self.logprob = -0.5
        self.tickets: list[FakeTicket] = []
        self.stopping = threading.Event()
        self.closed = False
        self.on_submit: Callable[[Ask], None] = lambda ask: None

    def submit(self, ask: Ask, listener: Listener) -> FakeTicket:
        self.on_submit(ask)
        if self.dead:
            raise RuntimeError("the engine's thread died")
        if self.busy or self.stopping.is_set():
            raise Busy(self.retry_after)
        if self.refuses is not None:
            raise self.refuses
        ticket = FakeTicket(ask)
        self.tickets.append(ticket)
        threading.Thread(target=self._answer, args=(ticket, listener), daemon=True).start()
        return ticket

    def _answer(self, ticket: FakeTicket, listener: Listener) -> None:
        ask = ticket.ask
        try:
            while self.waits is not None and not self.waits.wait(0.01):
                if ticket.cancelled.is_set():
                    return self._end_all(ask, "cancelled", 0, listener)
            if self.before_begun:
                return self._end_all(ask, self.reason, 0, listener)
            if self.fails is not None and not self.fails_after:
                return listener(Failed(self.fails))
            guided = ask.sense and not ask.text
            used = SENSED.profile | dict(ask.pins) if guided else dict(ask.pins) or None
            listener(Begun(SENSED if guided else None, used, None, prompt_tokens=11, cached_tokens=3))
            told = 0
            for word in self.words[: ask.max_new_tokens]:
                if self.fails is not None and told == self.fails_after:
                    return listener(Failed(self.fails))
                if ticket.cancelled.wait(self.pace) if self.pace else ticket.cancelled.is_set():
                    return self._end_all(ask, "cancelled", told, listener)
                for index in range(ask.n):
                    listener(Token(index, word, self._logprob(ask, word)))
                told += 1
            self._end_all(ask, "length" if told < len(self.words) else self.reason, told, listener)
        finally:
            ticket.over.set()

    def _logprob(self, ask: Ask, word: str) -> Logprob | None:
        if ask.logprobs is None:
            return None
        entry = Logprob(word, word.encode(), self.logprob)
        return Logprob(word, word.encode(), self.logprob, (entry,) * min(ask.logprobs, 1))

    def _end_all(self, ask: Ask, reason: Reason, tokens: int, listener: Listener) -> None:
        for index in range(ask.n):
            listener(Ended(index, reason, tokens))

    def sense(self, messages: list[Messages], pins: Profile) -> list[Sensed]:
        if any("refuse" in chat[-1]["content"] for chat in messages):
            raise InputError("the prompt has 900 tokens, but the model's context is 512")
        return [Sensed(SENSED.profile | pins, SENSED.interval) for _ in messages]

    def load(self) -> Load:
        if self.dead:
            raise RuntimeError("the engine's thread died")
        running = sum(not ticket.over.is_set() for ticket in self.tickets)
        return Load(running, 0, 16, self.queue)

    def drain(self, seconds: float) -> bool:
        self.stopping.set()
        end = time.monotonic() + seconds
        for ticket in self.tickets:
            if not ticket.over.wait(max(0.0, end - time.monotonic())):
                for each in self.tickets:
                    each.cancelled.set()
                return False
        return True

    def close(self) -> None:
        self.closed = True
