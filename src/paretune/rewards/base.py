"""What every reward is: the protocol, the check of what it returns, and the entry by which it is registered."""

from __future__ import annotations

import math
import numbers
import signal
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from paretune.data.rows import Messages
from paretune.errors import InputError

Phrases = tuple[str, ...]
TERMINATED = 128 + signal.SIGTERM
"""The status of the `SystemExit` by which a SIGTERM ends the command line; any other one is a reward's own."""


class Reward(Protocol):
    """Measures answers. `can_score_new` is False when it only reads scores that came with the data."""

    can_score_new: bool

    def __call__(
        self, prompts: list[Messages], completions: list[str], columns: dict[str, list[Any]]
    ) -> list[float | None]:
        """One finite score an answer, or None where it cannot be scored.

        `columns` holds what else the rows say, by name, aligned with `completions`: the row's other columns, the
        completion's own (which win over the row's) and the scores it has already (which win over both).
        """


@runtime_checkable
class DetailedReward(Reward, Protocol):
    """A reward that can also say why: `score` keeps what it says in the completion's `details`, by objective."""

    def detailed(
        self, prompts: list[Messages], completions: list[str], columns: dict[str, list[Any]]
    ) -> tuple[list[float | None], list[dict[str, Any]]]:
        """Scores as of a call, and one JSON object an answer (members of an ensemble, a judge's reason)."""


@runtime_checkable
class CountingReward(Reward, Protocol):
    """A reward that counts what it does (requests, tokens, parse failures, cost); `score` adds the counts up."""

    def take_counts(self) -> dict[str, float]:
        """Counts since the last call of this function, which starts them anew; the keys are words for people."""


@dataclass(frozen=True)
class RewardKind:
    """A registered prefix of specs.

    `build(rest, allow_remote_code)` makes the reward from what follows the prefix; `check(rest)` refuses a bad spec
    without loading anything; `phrases(rest)` gives the renderer's five phrases, or none; `listed` are the lines of
    `paretune objectives`. `parallel` is False for a reward that must live in one process (it keeps a rate limit). Where
    `can_score_new` or `parallel` depends on the spec (an ensemble is what its members are), it is a function of `rest`.

    Optional hooks, each of which loads no model:
    `expand(rest)` gives (label, rest) of every output that `rest` stands for (`hf:MODEL#*`); it may read a config.
    `minimised(rest)` is True where the model itself says that less of what it measures is better.
    `fingerprint(rest)` is a short text that changes when the scores would (the hash of a word list, of a source file).
    `shares(rest)` names the model behind it: objectives that share one are scored in one pass over the rows, batch by
    batch; "" is for what holds no model to speak of, None for what shares with nobody.
    `release()` forgets the models that the kind keeps loaded; `score` calls it between models.
    """

    prefix: str
    listed: tuple[tuple[str, str], ...]
    build: Callable[[str, bool], Reward]
    check: Callable[[str], None]
    phrases: Callable[[str], Phrases] = field(default=lambda rest: ())
    can_score_new: bool | Callable[[str], bool] = True
    parallel: bool | Callable[[str], bool] = True
    expand: Callable[[str], list[tuple[str, str]]] | None = None
    minimised: Callable[[str], bool] = field(default=lambda rest: False)
    fingerprint: Callable[[str], str] = field(default=lambda rest: "")
    shares: Callable[[str], str | None] = field(default=lambda rest: None)
    release: Callable[[], None] = field(default=lambda: None)

    def scores_new(self, rest: str) -> bool:
        """Whether the reward of `rest` can measure answers that are not in the data."""
        return self.can_score_new(rest) if callable(self.can_score_new) else self.can_score_new

    def runs_parallel(self, rest: str) -> bool:
        """Whether the reward of `rest` may be built in several processes at once."""
        return self.parallel(rest) if callable(self.parallel) else self.parallel


def check_scores(values: Any, count: int, what: str, rows: Sequence[Any] | None = None) -> list[float | None]:
    """What a reward returned, as `count` finite floats or Nones; anything else names the reward and the index.

    `rows` are the row ids of the completions, if they are known: the error then names the row too.
    """
    if not isinstance(values, (list, tuple)):
        hint = "; return a list, for a tensor or array with .tolist()" if hasattr(values, "tolist") else ""
        hint = "; return a list, not a function with yield" if isinstance(values, (Generator, AsyncGenerator)) else hint
        raise InputError(f"{what} must return a list of numbers, found {type(values).__name__}{hint}")
    if len(values) != count:
        raise InputError(f"{what} returned {len(values)} scores for {count} completions; one a completion is needed")
    return [
        value if type(value) is float and math.isfinite(value) else _check_score(value, at, what, rows)
        for at, value in enumerate(values)
    ]


def _check_score(value: Any, at: int, what: str, rows: Sequence[Any] | None) -> float | None:
    if value is None:
        return None
    if type(value).__name__ in ("bool", "bool_") and hasattr(value, "item"):  # numpy's, which is no number to Python
        value = value.item()
    where = f"index {at}" + (f" (row '{rows[at]}')" if rows else "")
    if not isinstance(value, numbers.Real):  # bool and numpy's numbers are; text and tensors are not
        raise InputError(f"{what} gave {type(value).__name__} at {where}; a number or None is needed")
    try:
        score = float(value)
    except OverflowError:
        score = math.inf
    if not math.isfinite(score):
        raise InputError(f"{what} gave {score} at {where}; None is for what cannot be scored")
    return score


def last_text(messages: Sequence[Any]) -> str:
    """The last user message of a prompt."""
    return str(messages[-1]["content"])
