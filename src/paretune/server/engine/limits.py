"""What an engine may hold at once."""

from __future__ import annotations

from dataclasses import dataclass

from paretune.errors import InputError, check_number, check_whole


@dataclass(frozen=True)
class EngineLimits:
    """How much an engine takes on. Raises `InputError` for a limit under which nothing could run.

    max_batch: answers that are written at once.
    max_batch_tokens: keys and values that these may come to have, in tokens: answers times the longest of them, prompt
        and all, for the batch is a rectangle in memory. An answer joins when it is sure to fit.
    max_queue: requests that wait; one more is refused.
    prefill_tokens: tokens of prompts that are computed between two steps of the running batch.
    prefix_cache_mib: memory for the keys and values of prompts that may come again, 0 for none.
    deadline: seconds from its arrival that a request has, where it does not say; `None`: as long as it takes.
    """

    max_batch: int = 32
    max_batch_tokens: int = 32768
    max_queue: int = 64
    prefill_tokens: int = 256
    prefix_cache_mib: int = 256
    deadline: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_batch", "max_batch_tokens", "max_queue", "prefill_tokens"):
            check_whole(getattr(self, name), name, least=1)
        check_whole(self.prefix_cache_mib, "prefix_cache_mib", least=0)
        if self.deadline is not None:
            check_number(self.deadline, "deadline")
            if self.deadline <= 0:
                raise InputError(f"deadline must be above 0, found {self.deadline}")
