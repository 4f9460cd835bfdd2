"""What the API asks of an engine, and what an engine tells it: the one seam between the two.

An engine takes an `Ask` and tells, from its own thread, first `Begun`, then for each of the `n` answers any number of
`Token`s and one `Ended`. A request that fails after it was admitted tells `Failed` and nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from paretune.data.rows import Messages
from paretune.errors import InputError
from paretune.policy.requests import Sensed
from paretune.profile import Profile

Reason = Literal["stop", "length", "cancelled", "deadline"]
"""Why an answer ended. `stop`: the model ended its turn, or a stop text came; the others say themselves."""


class Busy(Exception):
    """The queue is full (or the server is stopping); `retry_after` in seconds is an estimate of when it has room."""

    def __init__(self, retry_after: int, why: str = "the queue is full") -> None:
        super().__init__(why)
        self.retry_after = retry_after


@dataclass(frozen=True)
class Ask:
    """One request, of `n` answers.

    messages: the conversation, whose last message is the user's.
    text: a plain text to continue in place of a conversation (`messages` is empty then): no template, no profile.
    pins: objectives that keep a value, the others are sensed given them. With `sense` false nothing is sensed, and the
        pins alone are asked for.
    weights: preference weights, in place of sensing.
    fit: the request named no length: `max_new_tokens` is shortened to what the context leaves (at least one token).
    seed: answer k draws with a seed of (seed, k); the same request with the same seed gets the same answers.
    stop: texts that end an answer and are not part of it.
    logprobs: how many alternatives each token is told with; `None` is no log-probabilities at all.
    deadline: seconds from now until all its answers end with what they have; `None`: the engine's own.
    """

    messages: Messages = field(default_factory=list)
    text: str | None = None
    pins: Profile = field(default_factory=dict)
    sense: bool = True
    weights: Mapping[str, float] | None = None
    n: int = 1
    max_new_tokens: int = 128
    fit: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    deadline: float | None = None


@dataclass(frozen=True)
class Logprob:
    """A token with its natural log-probability under the model's own distribution (temperature 1, no nucleus)."""

    token: str
    bytes: bytes
    logprob: float
    top: tuple[Logprob, ...] = ()


@dataclass(frozen=True)
class Begun:
    """The prompt is computed: what was sensed from it alone (`None` where nothing was), and what is asked of the
    answers (`None`: nothing). `cached_tokens` of the `prompt_tokens` came from the prefix cache; suffix included in the
    count."""

    sensed: Sensed | None
    used: Profile | None
    weights: Profile | None
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Token:
    """A token of answer `index`. `text` is what can be shown since the last one: whole characters, nothing that may
    still turn out to be the beginning of a stop text; so it may be empty, or belong to several tokens."""

    index: int
    text: str
    logprob: Logprob | None = None


@dataclass(frozen=True)
class Ended:
    """Answer `index` is over. `text` is what had been held back; `tokens` counts what was generated for it."""

    index: int
    reason: Reason
    tokens: int
    text: str = ""


@dataclass(frozen=True)
class Failed:
    """The request cannot be answered: the user's mistake (`InputError`), or ours (anything else)."""

    error: Exception

    @property
    def by_user(self) -> bool:
        """Is it the user's to mend?"""
        return isinstance(self.error, InputError)


Event = Begun | Token | Ended | Failed
Listener = Callable[[Event], None]
"""Called on the engine's thread; must not block."""


class Ticket(Protocol):
    """An admitted request."""

    def cancel(self) -> None:
        """Free its places within a step; each answer that is not over ends with reason `cancelled`."""


@dataclass(frozen=True)
class Load:
    """What an engine does now."""

    running: int
    waiting: int
    capacity: int
    queue: int


class Engine(Protocol):
    """What the API needs of an engine; methods may be called from any thread."""

    def submit(self, ask: Ask, listener: Listener) -> Ticket:
        """Admit a request. Raises `Busy`, and `InputError` for what can be seen to be wrong without computing."""

    def sense(self, messages: list[Messages], pins: Profile) -> list[Sensed]:
        """What is sensed from prompts alone given pins, between two steps of the running batch. Blocks."""

    def load(self) -> Load:
        """What it does now."""

    def drain(self, seconds: float) -> bool:
        """Admit nothing more and finish what runs; True if all ended in time, else the rest is cancelled."""

    def close(self) -> None:
        """Stop the thread."""
