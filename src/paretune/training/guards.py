"""What a training does when something cannot be done as it should: what was learnt so far is not lost.

Numbers that are not finite and memory that runs out are found before the optimizer has moved a weight, so that the step
can be left out or tried again. A validation that fails does not keep the trained weights from being saved.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from paretune.data.rows import Row
from paretune.errors import InputError

MOST_SKIPPED = 10
"""With nonfinite=skip, so many batches left out in a row end the training all the same."""
SHOWN_ROWS = 8


class Named(Protocol):
    """An item of a batch, as messages call it."""

    @property
    def name(self) -> str:
        """The row's id."""


class DivergedError(InputError):
    """Training met a number that is not finite; nothing was written."""


class NotFiniteError(Exception):
    """Numbers of a step that are not finite, by name; the weights have not been touched."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"{', '.join(names)} not finite")


def check_finite(numbers: Mapping[str, float]) -> None:
    """`NotFiniteError` where a number is NaN or infinite."""
    bad = [name for name, value in numbers.items() if not math.isfinite(value)]
    if bad:
        raise NotFiniteError(bad)


def row_names(items: Sequence[Named]) -> str:
    """The rows of a batch for a message: the first few."""
    return ", ".join([*(item.name for item in items[:SHOWN_ROWS]), *(["..."] if len(items) > SHOWN_ROWS else [])])


def diverged(error: NotFiniteError, items: Sequence[Named]) -> DivergedError:
    """The end of a training whose settings stop at such a number."""
    return DivergedError(
        f"training stopped before the step: {error}. Rows in the batch: {row_names(items)}. Lower lr, look at these "
        "rows and their scores, or leave such batches out with --set nonfinite=skip"
    )


def check_skipped(records: Sequence[Mapping[str, Any]], items: Sequence[Named]) -> None:
    """`DivergedError` where the last `MOST_SKIPPED` steps were all left out: then it is not some odd row."""
    steps = [each for each in records if "warning" not in each]
    if len(steps) >= MOST_SKIPPED and all("skipped" in each for each in steps[-MOST_SKIPPED:]):
        raise DivergedError(
            f"training stopped: {MOST_SKIPPED} batches in a row were left out, the last for {steps[-1]['skipped']}. "
            f"Rows in it: {row_names(items)}. Lower lr, or look at the rows that train.jsonl names and their scores"
        )


def drop_gradients(module: nn.Module) -> None:
    """Forget what backward passes have left in the parameters."""
    for parameter in module.parameters():
        parameter.grad = None


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error is an allocator's refusal: the accelerator's, or the CPU's, which has no class of its own."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in text and "memory" in text


def free_memory() -> None:
    """Give back what a failed attempt held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measured(measure: Callable[[], dict[str, Any]], note: Callable[[str], None]) -> dict[str, Any]:
    """What `measure` finds out about trained weights; where it fails, what it said, which `note` is told, too.

    Whatever the failure is: the weights have taken hours and are whole.
    """
    try:
        return measure()
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        note(f"validation failed ({cause}); what was trained is saved without its figures")
        return {"validation_failed": cause}


def missing_rates(rows: Sequence[Row], names: Sequence[str]) -> dict[str, float]:
    """The share of the completions that have no score, by objective; {} without completions."""
    scores = [each.scores for row in rows for each in row.completions]
    if not scores:
        return {}
    return {name: sum(each.get(name) is None for each in scores) / len(scores) for name in names}


def told_missing(rates: Mapping[str, float], note: Callable[[str], None]) -> None:
    """`note` is told where scores are missing: what is masked should not be so in silence."""
    shares = ", ".join(f"{name} {rate:.1%}" for name, rate in rates.items() if rate)
    if shares:
        note(f"completions of the training part without a score, which are masked: {shares}")
